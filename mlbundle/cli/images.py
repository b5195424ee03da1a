"""`mlbundle images`: the framework images of this machine."""

from __future__ import annotations

from pathlib import Path

import click

from mlbundle.cli import output
from mlbundle.platforms import ACCELERATORS, ARCHITECTURES


@click.group()
def command() -> None:
    """List and build framework images.

    A run takes the image that its framework manifest pins, else the one that was built here; what was built is
    kept by digest in the images lock of the data folder.
    """


@command.command("list")
@output.format_options("table", "json", "jsonl", "csv", "markdown")
def list_command(output_format: str) -> None:
    """List the images that are known and say whether they are here."""
    from mlbundle.config import load_settings
    from mlbundle.runtime.images import list_images

    images = list_images(load_settings())
    if output_format == "json":
        output.document({"schema": "mlbundle/images/v1", "images": [image.to_document() for image in images]})
        return
    columns = (
        "framework",
        "version",
        "architecture",
        "accelerator",
        "state",
        "image",
        "digest",
        "size_bytes",
    )
    rows = [
        (
            image.key.framework,
            image.key.version,
            image.key.architecture,
            image.key.accelerator,
            image.state,
            image.ref,
            image.config_digest,
            image.size_bytes,
        )
        for image in images
    ]
    output.table(columns, rows, output_format=output_format)


@command.command("build")
@click.argument("framework")
@click.option("--accelerator", type=click.Choice(ACCELERATORS), default="cpu", show_default=True)
@click.option("--architecture", type=click.Choice(ARCHITECTURES), help="Default: that of this machine.")
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
@click.option("--dry-run", is_flag=True, help="Show what would be built from what; build nothing.")
@output.format_options("table", "json")
def build_command(
    *,
    framework: str,
    accelerator: str,
    architecture: str | None,
    base_image: str | None,
    wheelhouse: Path | None,
    network: str | None,
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
    built = build_image(
        manifest,
        accelerator,
        architecture,
        load_settings(),
        base_image=base_image,
        wheelhouse=wheelhouse,
        network=network,
        report=output.narrate,
    )
    _show(built.to_document(), output_format)


def _show(document: dict[str, object], output_format: str) -> None:
    if output_format == "json":
        output.document(document)
        return
    output.table(("what", "value"), [item for item in document.items() if item[0] != "schema"])
