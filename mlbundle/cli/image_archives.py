"""`mlbundle images export`, `load` and `rm`: framework images and files, and out of the engine."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlbundle.cli import output
from mlbundle.cli.image_options import (
    complete_framework,
    load_manifests,
    manifest_option,
    platform_options,
    show_pairs,
    shown_digest,
)
from mlbundle.cli.image_progress import transfer
from mlbundle.platforms import ARCHITECTURES
from mlbundle.wording import units

if TYPE_CHECKING:
    from mlbundle.runtime.image_archive import ArchivedImage
    from mlbundle.runtime.image_remove import Removal
    from mlbundle.runtime.image_target import ImageHere
    from mlbundle.runtime.lock import ImageKey


@click.command("export", short_help="Write an image as an OCI archive.")
@click.argument("image", metavar="FRAMEWORK|REF", shell_complete=complete_framework)
@click.option(
    "-o", "--output", "target", required=True, type=click.Path(path_type=Path), help="The file to write."
)
@click.option("-f", "--force", is_flag=True, help="Replace an existing file.")
@platform_options("Export")
@manifest_option
@output.format_options("table", "json")
def export_command(
    *,
    image: str,
    target: Path,
    force: bool,
    architecture: str | None,
    accelerator: str,
    framework_manifests: tuple[Path, ...],
    output_format: str,
) -> None:
    """Write the image of a FRAMEWORK, or the one that REF names, as an OCI archive.

    `mlbundle images load` and skopeo read it. The config stays byte for byte, so the image keeps its digest.
    """
    from contextlib import closing

    from mlbundle.config import load_settings
    from mlbundle.runtime.image_archive import export_archive
    from mlbundle.runtime.images import engine_client

    settings = load_settings()
    with closing(engine_client()) as client:
        here = _find(client, image, architecture, accelerator, load_manifests(framework_manifests))
        with transfer("exporting") as progress:
            made = export_archive(
                client,
                here.id,
                target,
                settings,
                ref=here.ref,
                key=here.key,
                overwrite=force,
                progress=progress,
            )
    _show("written", made, output_format)


@click.command("load", short_help="Load an image from an OCI archive, check it and pin it.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--as", "stated", metavar="F/V/ARCH/ACC", help="What an image is for whose labels do not say so."
)
@click.option("--name", metavar="TAG", help="Which image of an archive of several, by its name in the index.")
@click.option(
    "--arch",
    "--architecture",
    "architecture",
    type=click.Choice(ARCHITECTURES),
    help="Which image of an archive of several; default: that for this machine.",
)
@click.option("--update", is_flag=True, help="Pin what is loaded, even if another image was pinned before.")
@output.format_options("table", "json")
def load_command(
    *,
    file: Path,
    stated: str | None,
    name: str | None,
    architecture: str | None,
    update: bool,
    output_format: str,
) -> None:
    """Load an image from an OCI archive FILE into the engine, check every digest, and pin it.

    The archive may be of `mlbundle images export`, or of another program such as skopeo; layers may be compressed by
    gzip, zstd or not at all.
    """
    from contextlib import closing

    from mlbundle.config import load_settings
    from mlbundle.errors import UsageError
    from mlbundle.runtime.image_archive import load_archive
    from mlbundle.runtime.image_facts import parse_key
    from mlbundle.runtime.images import engine_client

    key = parse_key(stated) if stated is not None else None
    if stated is not None and key is None:
        raise UsageError(
            f"{stated!r} says not what an image is for", hint="such as onnxruntime/1.31.1/amd64/cpu"
        )
    with closing(engine_client()) as client, transfer("loading") as progress:
        loaded = load_archive(
            client,
            file,
            load_settings(),
            stated_key=key,
            architecture=architecture,
            name=name,
            update=update,
            progress=progress,
        )
    _show("loaded", loaded, output_format)


@click.command("rm", short_help="Remove an image from the engine; its pin stays.")
@click.argument("image", metavar="FRAMEWORK|REF", shell_complete=complete_framework)
@platform_options("Remove")
@click.option(
    "--forget", is_flag=True, help="Take its pin out of the images lock, too; also of an image that is gone."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("-n", "--dry-run", is_flag=True, help="Say what would be removed; remove nothing.")
@manifest_option
@output.format_options("table", "json")
def rm_command(
    *,
    image: str,
    architecture: str | None,
    accelerator: str,
    forget: bool,
    yes: bool,
    dry_run: bool,
    framework_manifests: tuple[Path, ...],
    output_format: str,
) -> None:
    """Remove the image of a FRAMEWORK, or the one that REF names, from the engine.

    Its pin stays in the images lock, so that the same image and no other is run when it is pulled or loaded again;
    --forget drops it. An image that a container uses is not removed.
    """
    from contextlib import closing

    from mlbundle.config import load_settings
    from mlbundle.errors import ImageMissing
    from mlbundle.runtime.image_remove import plan_removal, remove_image
    from mlbundle.runtime.images import engine_client
    from mlbundle.runtime.lock import forget_image

    manifests = load_manifests(framework_manifests)
    with closing(engine_client()) as client:
        try:
            here = _find(client, image, architecture, accelerator, manifests)
        except ImageMissing:
            key = _pin_of(image, architecture, accelerator, manifests) if forget else None
            if key is None:
                raise
            if not dry_run:
                forget_image(load_settings().images_lock, key)
            _show_forgotten(key, output_format, done=not dry_run)
            return
        removal = plan_removal(client, here)
        if not dry_run:
            if not yes:
                _ask(removal)
            removal = remove_image(client, removal)
    forgotten = forget and here.key is not None
    if here.key is not None and forgotten and not dry_run:
        forget_image(load_settings().images_lock, here.key)
    _show_removal(removal, output_format, done=not dry_run, forgotten=forgotten)


def _find(
    client: Any, image: str, architecture: str | None, accelerator: str, manifests: list[Any]
) -> ImageHere:
    from mlbundle.config import load_settings
    from mlbundle.platforms import this_architecture
    from mlbundle.runtime.image_target import find_here

    return find_here(
        image,
        architecture or this_architecture(),
        accelerator,
        load_settings(),
        client,
        manifests=manifests,
    )


def _pin_of(image: str, architecture: str | None, accelerator: str, manifests: list[Any]) -> ImageKey | None:
    """Return the key under which the images lock pins the image of a framework, None when it does not."""
    from mlbundle.config import load_settings
    from mlbundle.platforms import this_architecture
    from mlbundle.runtime.image_target import is_framework, want

    settings = load_settings()
    if not is_framework(image, settings, manifests):
        return None
    wanted = want(image, architecture or this_architecture(), accelerator, settings, manifests)
    return wanted.key if wanted.entry is not None else None


def _show_forgotten(key: ImageKey, output_format: str, *, done: bool) -> None:
    """Say that a pin went whose image had gone before."""
    if output_format == "json":
        output.document(
            {
                "schema": "mlbundle/image-removal/v1",
                "removed": False,
                "forgotten": done,
                **asdict(key),
                "image_id": None,
                "names": [],
                "size_bytes": 0,
                "kept": False,
            }
        )
        return
    output.data(
        f"{'took' if done else 'would take'} the pin of {key} out of the images lock; its image is not here"
    )


def _ask(removal: Removal) -> None:
    """Ask before something goes; raises UsageError where nobody can answer, Abort for a no."""
    from mlbundle.errors import UsageError

    if not sys.stdin.isatty():
        raise UsageError("removing an image wants a yes", hint="--yes; --dry-run shows what would go")
    names = ", ".join(removal.names) or removal.image_id
    click.confirm(
        output.printable(f"Remove {names} ({units.size(removal.size_bytes)})?"), abort=True, err=True
    )


def _show_removal(removal: Removal, output_format: str, *, done: bool, forgotten: bool) -> None:
    if output_format == "json":
        output.document(
            {
                "schema": "mlbundle/image-removal/v1",
                "removed": done,
                "forgotten": forgotten and done,
                **removal.to_document(),
            }
        )
        return
    verb = "removed" if done else "would remove"
    output.data(f"{verb} {', '.join(removal.names) or removal.image_id} ({units.size(removal.size_bytes)})")
    if removal.kept:
        output.narrate("its layers stay: other images are built on them")


def _show(what: str, image: ArchivedImage, output_format: str) -> None:
    if output_format == "json":
        output.document(image.to_document())
        return
    rows = [
        (what, image.file),
        ("image", image.ref),
        ("for", str(image.key) if image.key else "-"),
        ("config", shown_digest(image.config_digest)),
        ("manifest", shown_digest(image.manifest_digest)),
        ("size", units.size(image.size_bytes)),
    ]
    show_pairs(rows)
