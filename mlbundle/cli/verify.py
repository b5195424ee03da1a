"""`mlbundle verify`: check every byte of a bundle."""

from __future__ import annotations

from pathlib import Path

import click

from mlbundle.cli import output, units
from mlbundle.cli.inspect_ import warn_of_pickles
from mlbundle.cli.progress import byte_progress


@click.command("verify")
@click.argument("file", type=click.Path(path_type=Path))
@output.format_options("table", "json")
def command(file: Path, output_format: str) -> None:
    """Check every byte of a bundle against its digests.

    Exit code 0 when all is as it should be, 5 when it is not.
    """
    from mlbundle.bundle.verify import verify

    with byte_progress("verifying") as progress:
        verified = verify(file, progress)
    if output_format == "json":
        output.document(verified.to_document())
        return
    rows = [
        ("verified", str(file)),
        ("manifest", verified.manifest_digest),
        ("set", verified.set_digest),
        ("size", units.size(verified.size_bytes)),
        ("files", str(len(verified.files))),
    ]
    output.table(("bundle", ""), rows)
    warn_of_pickles(verified.pickles)
