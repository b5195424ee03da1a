"""`mlbundle images pull` and `push`: framework images and registries."""

from __future__ import annotations

from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from pathlib import Path

    from mlbundle.runtime.image_registry import TransferredImage


@click.command("pull", short_help="Pull an image from a registry, check it and pin it.")
@click.argument("image", metavar="FRAMEWORK|REF", shell_complete=complete_framework)
@click.option("--from", "source", metavar="REF", help="HOST/NAME:TAG or HOST/NAME@DIGEST to take it from.")
@click.option("--update", is_flag=True, help="Pin what comes, even if another image was pinned before.")
@platform_options("Pull")
@manifest_option
@output.format_options("table", "json")
def pull_command(
    *,
    image: str,
    source: str | None,
    update: bool,
    architecture: str | None,
    accelerator: str,
    framework_manifests: tuple[Path, ...],
    output_format: str,
) -> None:
    """Pull the image of a FRAMEWORK, or the one that REF names, check it and pin it.

    A framework's image comes from where its manifest says, else from where the images lock knows it from. Its labels
    must say what it is for. The engine logs in with what `mlbundle login` or `docker login` has kept.
    """
    from contextlib import closing

    from mlbundle.config import load_settings
    from mlbundle.errors import UsageError
    from mlbundle.platforms import this_architecture
    from mlbundle.runtime.image_registry import parse_place, pull_image
    from mlbundle.runtime.image_target import is_framework, source_of, want
    from mlbundle.runtime.images import engine_client

    settings, manifests = load_settings(), load_manifests(framework_manifests)
    wanted = None
    if source is not None:
        parse_place(source)
    if source is not None or is_framework(image, settings, manifests) or not _is_reference(image):
        wanted = want(image, architecture or this_architecture(), accelerator, settings, manifests)
    elif architecture is not None:
        raise UsageError(
            "--arch goes with the name of a framework", hint=f"mlbundle images pull FRAMEWORK --from {image}"
        )
    else:
        parse_place(image)
    with closing(engine_client()) as client, transfer("pulling") as progress:
        pulled = pull_image(
            source or (image if wanted is None else source_of(wanted)),
            wanted.key if wanted else None,
            settings,
            client,
            stated=wanted.stated if wanted else None,
            update=update,
            progress=progress,
        )
    _show("pulled", pulled, output_format)


def _is_reference(text: str) -> bool:
    return any(character in text for character in "/:@")


@click.command("push", short_help="Push an image to a registry, and keep the digest it gets there.")
@click.argument("framework", shell_complete=complete_framework)
@click.argument("to", metavar="HOST/NAME[:TAG]")
@click.option("-f", "--force", is_flag=True, help="Give the tag to this image even if another one has it.")
@platform_options("Push")
@manifest_option
@output.format_options("table", "json")
def push_command(
    *,
    framework: str,
    to: str,
    force: bool,
    architecture: str | None,
    accelerator: str,
    framework_manifests: tuple[Path, ...],
    output_format: str,
) -> None:
    """Push the image of a FRAMEWORK that is here to a repository, and keep the registry's digest in the images lock.

    The tag is by default its version, accelerator and architecture.
    """
    from contextlib import closing

    from mlbundle.config import load_settings
    from mlbundle.platforms import this_architecture
    from mlbundle.runtime.image_registry import push_image
    from mlbundle.runtime.image_target import want
    from mlbundle.runtime.images import engine_client

    settings, manifests = load_settings(), load_manifests(framework_manifests)
    wanted = want(framework, architecture or this_architecture(), accelerator, settings, manifests)
    with closing(engine_client()) as client, transfer("pushing") as progress:
        pushed = push_image(wanted.key, to, settings, client, force=force, progress=progress)
    _show("pushed", pushed, output_format)


def _show(what: str, image: TransferredImage, output_format: str) -> None:
    if output_format == "json":
        output.document(image.to_document())
        return
    rows = [
        (what, image.name.ref),
        ("for", str(image.key)),
        ("config", shown_digest(image.entry.config_digest)),
        ("in the registry", shown_digest(image.name.digest)),
        ("here as", image.entry.ref),
    ]
    show_pairs(rows)
