"""`mlbundle config show`: the settings and where each value comes from."""

from __future__ import annotations

import click

from mlbundle.cli import output


@click.group("config")
def command() -> None:
    """Show the settings and where each value comes from."""


@command.command("show")
@output.format_options()
def show(output_format: str) -> None:
    """Print every setting, its value and its origin."""
    from mlbundle.config import load_settings

    loaded = load_settings()
    settings = loaded.to_document()
    if output_format == "json":
        output.document({"schema": "mlbundle/settings/v1", "settings": settings})
        return
    rows = [(name, entry["value"], entry["origin"]) for name, entry in settings.items()]
    output.table(("setting", "value", "origin"), rows, output_format=output_format)
    output.narrate(
        f"settings are written in {loaded.user_file}; keys of the terminal UI in its table [keys]:"
    )
    output.narrate("`mlbundle tui --keys` lists what can have keys")
