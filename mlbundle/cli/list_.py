"""`mlbundle list`: the bundles that can be run by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mlbundle.cli import output
from mlbundle.wording import units

if TYPE_CHECKING:
    from collections.abc import Mapping

_COLUMNS = ("name", "version", "where", "digest", "size", "forms", "description")


@click.command("list")
@output.format_options()
def command(output_format: str) -> None:
    """List the bundles that can be run by name: those of the library and the built-in ones.

    Forms are what `mlbundle run NAME --framework` takes, the default first; of a bundle in the library its frameworks.
    """
    from mlbundle.config import load_settings
    from mlbundle.runs.catalog import known_bundles
    from mlbundle.store.library import Library

    settings = load_settings()
    bundles, problems = known_bundles(settings)
    incomplete = Library(settings.data_dir).incomplete()
    for bundle in bundles:
        if bundle["digest"] in incomplete:
            bundle["where"] = "incomplete"
    if incomplete:
        output.warn(
            f"{len(incomplete)} bundle(s) of the library lack blobs",
            hint="add or pull them again from where they came; `mlbundle repair` reads what is there",
        )
    for problem in problems:
        output.warn(problem, hint="`mlbundle repair` moves it aside")
    if output_format == "json":
        output.document({"schema": "mlbundle/bundles/v1", "bundles": bundles})
        return
    output.records(bundles, _COLUMNS, _cells, output_format=output_format)


def _cells(bundle: Mapping[str, Any]) -> tuple[Any, ...]:
    # The forms where they are known: --framework takes a form's name, and a framework's for its first form.
    forms = " ".join(bundle["variants"]) if bundle["variants"] else bundle["frameworks"]
    return (
        bundle["name"],
        bundle["version"],
        bundle["where"],
        (bundle["digest"] or "")[:19],
        "" if bundle["size"] is None else units.size(bundle["size"]),
        forms,
        bundle["description"],
    )
