"""`mlbundle diff`: what differs between two bundles."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from mlbundle.cli import output
from mlbundle.cli.network import network, network_options
from mlbundle.cli.params import complete_reference
from mlbundle.errors import EXIT_NO, EXIT_YES

if TYPE_CHECKING:
    from pathlib import Path


@click.command("diff")
@click.argument("left", shell_complete=complete_reference)
@click.argument("right", shell_complete=complete_reference)
@network_options
@output.format_options("table", "json")
def command(*, left: str, right: str, plain_http: bool, ca_file: Path | None, output_format: str) -> int:
    """Say what differs between two bundles: manifests by field, claims, files, images, signatures.

    LEFT and RIGHT are what `mlbundle inspect` takes. Exit code 0 when nothing differs, 1 when something does.
    """
    from mlbundle.bundle.diff import diff
    from mlbundle.config import load_settings
    from mlbundle.runs.opening import open_reference

    settings, reach = load_settings(), network(plain_http=plain_http, ca_file=ca_file)
    with (
        open_reference(left, settings, reach, whole=False) as one,
        open_reference(right, settings, reach, whole=False) as other,
    ):
        found = diff(one, other)
    if output_format == "json":
        output.document(found.to_document())
    elif not found.changes:
        output.data("no difference")
    else:
        rows = [
            (change.section, change.kind, change.place, _shown(change.left), _shown(change.right))
            for change in found.changes
        ]
        output.table(("section", "change", "place", "left", "right"), rows)
        if found.same_files and not found.same_manifest:
            output.narrate("the files are the same; they are packed in another way")
    return EXIT_NO if found.changes else EXIT_YES


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, dict) and set(value) == {"size", "sha256", "mode"}:
        return f"{value['size']} B {value['sha256'][:12]} {value['mode']}"
    return value if isinstance(value, str) else json.dumps(value)
