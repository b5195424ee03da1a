"""`mlbundle validate`: check manifests, show every problem at once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlbundle.cli import output

if TYPE_CHECKING:
    from mlbundle.manifest.load import Loaded

SCHEMA = "mlbundle/validation/v1"


@click.command("validate")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@click.option("--strict", is_flag=True, help="Warnings are errors.")
@output.format_options("table", "json", "jsonl")
def command(files: tuple[Path, ...], strict: bool, output_format: str) -> int:
    """Check model and framework manifests; show every problem at once.

    A folder means its model.yml (else its framework.yml); of an unpacked bundle, mlbundle/model.yml.
    Exits with 0 when no file has errors, else with 1.
    """
    from mlbundle.manifest.load import load_manifest

    loaded = [load_manifest(path) for path in files]
    valid = [not (one.problems if strict else one.errors) for one in loaded]
    documents = [_document(one, good) for one, good in zip(loaded, valid, strict=True)]
    if output_format == "json":
        output.document({"schema": SCHEMA, "valid": all(valid), "files": documents})
    elif output_format == "jsonl":
        for document in documents:
            output.json_line(document)
    else:
        for one, good in zip(loaded, valid, strict=True):
            _print(one, good)
    return 0 if all(valid) else 1


def _document(loaded: Loaded[Any], valid: bool) -> dict[str, Any]:
    return {
        "file": loaded.file,
        "kind": loaded.kind,
        "valid": valid,
        "problems": [problem.to_document() for problem in loaded.problems],
    }


def _print(loaded: Loaded[Any], valid: bool) -> None:
    from mlbundle.manifest.problems import printable

    for problem in loaded.problems:
        output.data(str(problem))
    counts = [_count(len(loaded.errors), "error"), _count(len(loaded.warnings), "warning")]
    verdict = "valid" if valid else "not valid"
    output.narrate(f"{printable(loaded.file)}: {verdict} as a {loaded.kind} manifest ({', '.join(counts)})")


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
