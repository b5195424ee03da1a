"""`mlbundle inspect`: show what a bundle holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mlbundle.cli import output, units

if TYPE_CHECKING:
    from mlbundle.bundle.inspect import Inspection


@click.command("inspect")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--files", "show_files", is_flag=True, help="List every file with its size and sha256.")
@output.format_options("table", "json")
def command(file: Path, show_files: bool, output_format: str) -> None:
    """Show what a bundle holds, without trusting or unpacking it.

    Structure and documents are checked; `mlbundle verify` checks every byte.
    """
    from mlbundle.bundle.inspect import inspect

    found = inspect(file)
    if output_format == "json":
        output.document(found.to_document())
        return
    _show(found)
    if show_files:
        output.data("")
        rows = [(e.path, units.size(e.size_bytes), f"{e.mode:04o}", e.sha256) for e in found.files]
        output.table(("path", "size", "mode", "sha256"), rows)
    warn_of_pickles(found.pickles)


def warn_of_pickles(pickles: tuple[str, ...] | None) -> None:
    """Say which files would run code if somebody loaded them."""
    if pickles:
        output.warn(
            f"{len(pickles)} file(s) hold Python pickles: {', '.join(pickles[:5])}",
            hint="a pickle runs code when it is loaded; mlbundle never loads one",
        )


def _show(found: Inspection) -> None:
    bundle = found.bundle
    rows = [
        ("model", f"{bundle.model_name} {bundle.model_version}"),
        ("framework", f"{bundle.framework_name} {bundle.framework_version}"),
        ("description", found.description or "-"),
        ("licence", found.license or "-"),
        ("manifest", found.manifest_digest),
        ("set", found.bundle.set_digest),
        ("size", units.size(found.size_bytes)),
        ("unpacked", f"{units.size(bundle.unpacked_bytes)} in {bundle.files_count} files"),
    ]
    output.table(("bundle", ""), [(name, text) for name, text in rows])
    output.data("")
    layers = [
        (
            layer.path,
            layer.media_type.removeprefix("application/vnd.cncf.model."),
            units.size(layer.size_bytes),
            layer.digest,
        )
        for layer in found.layers
    ]
    output.table(("layer", "kind", "size", "digest"), layers)
    output.data("")
    output.table(("asset", "path"), [(asset.pointer, asset.path) for asset in bundle.assets])
    if bundle.images:
        output.data("")
        pins = [(p.architecture, p.accelerator, p.image, p.digest) for p in bundle.images]
        output.table(("architecture", "accelerator", "image", "digest"), pins)
