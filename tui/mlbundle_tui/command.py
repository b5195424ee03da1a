"""`mlbundle tui`: choose, run and inspect in the terminal."""

from __future__ import annotations

import sys

import click

from mlbundle.errors import UsageError


@click.command("tui")
@click.option("--readonly", is_flag=True, help="Hide what runs, stops or removes anything.")
@click.option("--theme", type=click.Choice(["dark", "light", "ansi"]), default="dark", show_default=True)
def command(readonly: bool, theme: str) -> None:
    """Choose bundles, run them and look into runs, in the terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "the terminal UI needs a terminal",
            hint="`mlbundle list`, `run` and `runs` do the same without one",
        )
    from mlbundle.config import load_settings
    from mlbundle_tui.app import MlbundleApp
    from mlbundle_tui.context import Context

    MlbundleApp(Context(load_settings(), readonly=readonly), theme=theme).run()
