"""`mlbundle unpack`: write the verified files of a bundle into a new folder."""

from __future__ import annotations

from pathlib import Path

import click

from mlbundle.cli import output
from mlbundle.cli.progress import byte_progress

SCHEMA = "mlbundle/unpack/v1"


@click.command("unpack")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    "folder",
    type=click.Path(path_type=Path),
    help="New folder  [the file's name without .mlb].",
)
@output.format_options("table", "json")
def command(file: Path, folder: Path | None, output_format: str) -> None:
    """Write the verified files of a bundle into a new folder.

    The folder appears when every byte has been checked, or not at all.
    """
    from mlbundle.bundle.unpack import unpack

    target = folder or Path(file.name.removesuffix(".mlb"))
    with byte_progress("unpacking") as progress:
        unpacked = unpack(file, target, progress)
    if output_format == "json":
        output.document({
            "schema": SCHEMA,
            "folder": str(unpacked.path),
            "manifest_digest": unpacked.manifest_digest,
            "config_digest": unpacked.config_digest,
            "set_digest": unpacked.set_digest,
            "files": [{"path": e.path, "size": e.size_bytes, "sha256": e.sha256} for e in unpacked.files],
        })  # fmt: skip
        return
    rows = [
        ("folder", str(unpacked.path)),
        ("manifest", unpacked.manifest_digest),
        ("set", unpacked.set_digest),
        ("files", str(len(unpacked.files))),
    ]
    output.table(("unpacked", ""), rows)
