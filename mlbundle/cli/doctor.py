"""`mlbundle doctor`: what this machine is and what works on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mlbundle.cli import output
from mlbundle.wording import units

if TYPE_CHECKING:
    from collections.abc import Iterator


@click.command("doctor")
@output.format_options("table", "json")
def command(output_format: str) -> int:
    """Say what this machine is, what works, and what to do about the rest.

    Exit status 0 when a bundle can be run here in some way, 3 when not.
    """
    from mlbundle.config import load_settings
    from mlbundle.errors import EXIT_ENVIRONMENT, EXIT_YES
    from mlbundle.runs.doctor import examine

    document = examine(load_settings())
    if output_format == "json":
        output.document(document)
    else:
        machine = document["machine"]
        system = f"{machine['system']} {machine['kernel']} ({machine['architecture']})"
        output.data(f"mlbundle {document['mlbundle_version']} on {system}")
        output.data(
            f"{machine['cpu_model']}, {machine['cpu_usable']} of {machine['cpu_count']} CPUs usable, "
            f"{units.size(machine['memory_bytes'])} of memory, cgroup {machine['cgroup']}"
        )
        output.data("labels: " + ", ".join(f"{name}={value}" for name, value in document["labels"].items()))
        output.table(("", "what", "found"), _rows(document["checks"]))
        output.data(f"runtimes ready: {', '.join(document['runtimes']) or 'none'}")
    return EXIT_YES if document["can_run"] else EXIT_ENVIRONMENT


def _rows(checks: list[dict[str, Any]]) -> Iterator[tuple[str, str, str]]:
    for check in checks:
        yield check["state"], check["name"], check["found"]
        if check["hint"]:
            yield "", "", f"hint: {check['hint']}"
