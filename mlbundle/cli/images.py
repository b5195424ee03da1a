"""`mlbundle images`: the framework images of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mlbundle.cli import image_archives, image_transfer, output
from mlbundle.cli.image_options import (
    architecture_option,
    complete_framework,
    load_manifests,
    manifest_option,
    platform_options,
    show_pairs,
    shown_digest,
)
from mlbundle.cli.image_progress import steps
from mlbundle.platforms import ACCELERATORS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlbundle.runtime.image_list import ImageStatus, PinStatus


@click.group()
def command() -> None:
    """List, build, fetch and keep framework images.

    A run takes the image that its framework manifest pins, else the one that the images lock of the data folder
    names by digest: what was built, pulled or loaded here.
    """


@command.command("list", short_help="List the images that there are, and which are here.")
@click.argument("framework", required=False, shell_complete=complete_framework)
@architecture_option("Only images for this architecture; default: all.")
@click.option(
    "--accelerator", type=click.Choice(ACCELERATORS), help="Only images for this accelerator; default: all."
)
@click.option("--this-machine", is_flag=True, help="Only images for the architecture of this machine.")
@click.option("--here", is_flag=True, help="Only images that the engine has.")
@manifest_option
@output.format_options("table", "json", "jsonl", "csv", "markdown")
def list_command(
    *,
    framework: str | None,
    architecture: str | None,
    accelerator: str | None,
    this_machine: bool,
    here: bool,
    framework_manifests: tuple[Path, ...],
    output_format: str,
) -> None:
    """List the images that there are for a FRAMEWORK, or for all, and say whether they are here.

    The states: ready; outdated (its requirements have changed since it was built); moved (here, but its name is another
    image's now); new (here and not pinned); differs (not here, and another image has its name); gone (it was here); not
    built; not pulled; unknown (no engine answers).
    """
    from mlbundle.config import load_settings
    from mlbundle.errors import UsageError
    from mlbundle.platforms import this_architecture
    from mlbundle.runtime.image_list import list_images
    from mlbundle.runtime.image_states import HERE

    if this_machine and architecture not in {None, this_architecture()}:
        raise UsageError(f"this machine is no {architecture}", hint="--this-machine or --arch, not both")
    wanted = this_architecture() if this_machine else architecture
    images = [
        image
        for image in list_images(load_settings(), load_manifests(framework_manifests), framework)
        if wanted in {None, image.key.architecture}
        and accelerator in {None, image.key.accelerator}
        and (not here or image.state in HERE)
    ]
    if output_format == "json":
        output.document({"schema": "mlbundle/images/v1", "images": [image.to_document() for image in images]})
        return
    columns = (
        "framework",
        "version",
        "architecture",
        "accelerator",
        "state",
        "source",
        "image",
        "digest",
        "registry_digest",
        "size_bytes",
    )
    output.table(columns, [_row(image) for image in images], output_format=output_format)
    _explain([image for image in images if image.state not in {"not built", "not pulled"}])


def _explain(images: Sequence[ImageStatus | PinStatus]) -> None:
    """Say what the states mean and what to do: once for all where no engine answers."""
    hints: dict[str, list[str]] = {}
    for image in images:
        if image.hint is not None:
            hints.setdefault(image.hint, []).append(str(image.key))
    for hint, keys in hints.items():
        output.narrate(hint if len(keys) > 1 else f"{keys[0]}: {hint}")


def _row(image: ImageStatus) -> tuple[object, ...]:
    key = image.key
    return (
        key.framework,
        key.version,
        key.architecture,
        key.accelerator,
        image.state,
        image.source,
        image.ref,
        shown_digest(image.config_digest),
        shown_digest(image.registry[-1].digest if image.registry else None),
        image.size_bytes,
    )


@command.command("build", short_help="Build an image from its recipe and hash-locked wheels.")
@click.argument("framework", shell_complete=complete_framework)
@platform_options("Build")
@click.option("--base-image", metavar="REF", help="Build on this image; default: the one the recipe names.")
@click.option(
    "--wheelhouse",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder with the wheels; default: downloaded into the cache.",
)
@click.option(
    "--network",
    metavar="NAME",
    help="The engine's network for the build, such as host; default: none if the base image has a Python.",
)
@click.option(
    "--loadgen-source",
    is_flag=True,
    help="Compile MLCommons LoadGen from its source, where it has no wheel (arm64).",
)
@click.option("-n", "--dry-run", is_flag=True, help="Show what would be built from what; build nothing.")
@output.format_options("table", "json")
def build_command(
    *,
    framework: str,
    accelerator: str,
    architecture: str | None,
    base_image: str | None,
    wheelhouse: Path | None,
    network: str | None,
    loadgen_source: bool,
    dry_run: bool,
    output_format: str,
) -> None:
    """Build the image of a built-in FRAMEWORK from its recipe and its hash-locked requirements."""
    from mlbundle.config import load_settings
    from mlbundle.platforms import this_architecture
    from mlbundle.runtime.images import build_image, built_in_framework, plan_build

    manifest = built_in_framework(framework)
    architecture = architecture or this_architecture()
    if dry_run:
        plan = plan_build(manifest, accelerator, architecture, base_image)
        _show({"schema": "mlbundle/image-plan/v1", **plan.to_document()}, output_format)
        return
    with steps() as report:
        built = build_image(
            manifest,
            accelerator,
            architecture,
            load_settings(),
            base_image=base_image,
            wheelhouse=wheelhouse,
            network=network,
            loadgen_source=loadgen_source,
            report=report,
        )
    _show(built.to_document(), output_format)


@command.command("lock", short_help="Check the pins of the images, and pin what is here.")
@click.argument("frameworks", nargs=-1, metavar="[FRAMEWORK]...", shell_complete=complete_framework)
@click.option(
    "--check", is_flag=True, help="Change nothing; exit 1 if a pinned image is gone or another one."
)
@manifest_option
@output.format_options("table", "json")
def lock_command(
    *, frameworks: tuple[str, ...], check: bool, framework_manifests: tuple[Path, ...], output_format: str
) -> int:
    """Hold the images lock against the engine, and pin the images that are here and not in it.

    The states are those of `mlbundle images list`.

    The lock is a JSON file with one block an image, made to be read and compared: `images.lock` in the data folder.
    An image is pinned when it has the name that its framework manifest gives it and its labels say the same.
    """
    from contextlib import closing

    from mlbundle.config import load_settings
    from mlbundle.errors import EXIT_NO, EXIT_YES
    from mlbundle.runtime.image_list import check_pins
    from mlbundle.runtime.image_states import FAILING
    from mlbundle.runtime.images import engine_client

    settings, manifests = load_settings(), load_manifests(framework_manifests)
    with closing(engine_client()) as client:
        pins = check_pins(settings, client, manifests, frameworks, write=not check)
    failing = [pin for pin in pins if pin.state in FAILING]
    if output_format == "json":
        document = {
            "schema": "mlbundle/image-pins/v1",
            "file": str(settings.images_lock),
            "ok": not failing,
            "images": [pin.to_document() for pin in pins],
        }
        output.document(document)
    else:
        output.table(("image", "state", "digest", "in registries"), [_pin_row(pin) for pin in pins])
        _explain([pin for pin in pins if check or pin.state != "new"])
        new = sum(pin.state == "new" for pin in pins)
        output.narrate(_verdict(settings.images_lock, check, new))
    return EXIT_NO if check and failing else EXIT_YES


def _verdict(lock: Path, check: bool, new: int) -> str:
    """Say what became of the lock."""
    if check:
        return f"held against {lock}; nothing was written" if lock.exists() else f"there is no {lock} yet"
    return f"pinned {new} in {lock}" if new else f"there was nothing to pin: {lock} is as it was"


def _pin_row(pin: PinStatus) -> tuple[str, ...]:
    names = [f"{name.ref} {shown_digest(name.digest)}" for name in pin.entry.registry]
    return str(pin.key), pin.state, shown_digest(pin.entry.config_digest), ", ".join(names)


def _show(document: dict[str, object], output_format: str) -> None:
    if output_format == "json":
        output.document(document)
        return
    show_pairs((name, value) for name, value in document.items() if name != "schema" and value is not None)


for _subcommand in (
    image_transfer.pull_command,
    image_transfer.push_command,
    image_archives.export_command,
    image_archives.load_command,
    image_archives.rm_command,
):
    command.add_command(_subcommand)
