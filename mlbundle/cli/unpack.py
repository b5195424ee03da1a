"""`mlbundle unpack`: write the verified files of a bundle into a new folder."""

from __future__ import annotations

from pathlib import Path

import click

from mlbundle.cli import output
from mlbundle.cli.network import network, network_options
from mlbundle.cli.params import complete_reference
from mlbundle.cli.progress import byte_progress

SCHEMA = "mlbundle/unpack/v1"


@click.command("unpack")
@click.argument("reference", shell_complete=complete_reference)
@click.option(
    "-o",
    "--output",
    "folder",
    type=click.Path(path_type=Path),
    help="New folder  [the file's name without .mlb, else NAME-VERSION].",
)
@click.option(
    "--filter",
    "patterns",
    multiple=True,
    metavar="PATTERN",
    help="Only files whose path matches, such as '*.onnx' or a folder; may be repeated.",
)
@network_options
@output.format_options("table", "json")
def command(
    *,
    reference: str,
    folder: Path | None,
    patterns: tuple[str, ...],
    plain_http: bool,
    ca_file: Path | None,
    output_format: str,
) -> None:
    """Write the verified files of a bundle into a new folder.

    The folder appears when every byte has been checked, or not at all. With --filter only the layers that hold the
    wanted files are read, from a registry too.
    """
    from mlbundle.bundle.unpack import unpack_reader
    from mlbundle.cli.pack import default_name
    from mlbundle.config import load_settings
    from mlbundle.runs.opening import open_found
    from mlbundle.runs.references import resolve

    settings = load_settings()
    found = resolve(reference, settings)
    reach = network(plain_http=plain_http, ca_file=ca_file)
    far = found.kind in {"registry", "web"}
    with (
        open_found(found, settings, reach, whole=not far, packed=True, report=output.warn) as reader,
        byte_progress("unpacking") as progress,
    ):
        document = reader.document
        name = (
            found.path.name
            if found.kind == "bundle"
            else default_name(document.model_name, document.model_version)
        )
        target = folder or Path(name.removesuffix(".mlb"))
        unpacked = unpack_reader(reader, target, progress, patterns=patterns)
    if output_format == "json":
        output.document({
            "schema": SCHEMA,
            "folder": str(unpacked.path),
            "manifest_digest": unpacked.manifest_digest,
            "config_digest": unpacked.config_digest,
            "set_digest": unpacked.set_digest,
            "files": [{"path": e.path, "size": e.size_bytes, "sha256": e.sha256} for e in unpacked.files],
            "of": unpacked.of,
        })  # fmt: skip
        return
    count = str(len(unpacked.files))
    rows = [
        ("folder", str(unpacked.path)),
        ("manifest", unpacked.manifest_digest),
        ("set", unpacked.set_digest),
        ("files", count if len(unpacked.files) == unpacked.of else f"{count} of {unpacked.of}"),
    ]
    output.table(("unpacked", ""), rows)
