"""`mlbundle list`: the bundles that can be run by name."""

from __future__ import annotations

import click

from mlbundle.cli import output, units


@click.command("list")
@output.format_options()
def command(output_format: str) -> None:
    """List the bundles that can be run by name: those of the library and the built-in ones."""
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
    columns = ("name", "version", "where", "digest", "size", "frameworks", "description")
    people = output_format in {"table", "markdown"}
    rows = [[_cell(bundle[column], column, people=people) for column in columns] for bundle in bundles]
    output.table(columns, rows, output_format=output_format)


def _cell(value: object, column: str, *, people: bool) -> object:
    if not people:
        return value
    if column == "digest" and isinstance(value, str):
        return value[:19]
    return units.size(value) if column == "size" and isinstance(value, int) else value
