"""`mlbundle tui`: choose, run and inspect in the terminal, or in a browser of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING

import click

from mlbundle.errors import EXIT_TERMINATED, UsageError

if TYPE_CHECKING:
    from mlbundle.config import Settings
    from mlbundle_tui.app import MlbundleApp
    from mlbundle_tui.context import Context

_HUNG_UP = 128 + signal.SIGHUP
# textual-serve speaks to the programs that it starts through pipes, and says so.
_DRIVER, _WEB_DRIVER = "TEXTUAL_DRIVER", "textual.drivers.web_driver:WebDriver"


@click.command("tui")
@click.option("--demo", is_flag=True, help="Look around in recorded runs; needs no engine, measures nothing.")
@click.option("--readonly", is_flag=True, help="Hide what runs, stops or removes anything.")
@click.option(
    "--theme",
    type=click.Choice(["dark", "light", "ansi"]),
    help="Colours; kept as `tui_theme` in the settings.  [default: dark]",
)
@click.option(
    "--keys", "list_keys", is_flag=True, help="List what can have keys in the settings, and which it has."
)
@click.option("--web", is_flag=True, help="Serve it to browsers of this machine; there is no password.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=None, help="Port for --web.  [default: a free one]"
)
def command(
    *, demo: bool, readonly: bool, theme: str | None, list_keys: bool, web: bool, port: int | None
) -> int:
    """Choose bundles, run them and look into runs, in the terminal."""
    if list_keys:
        _list_keys()
        return 0
    if web:
        from mlbundle_tui.web import serve

        flags = [*(["--demo"] if demo else []), *(["--readonly"] if readonly else [])]
        flags += ["--theme", theme] if theme is not None else []
        serve(flags, port or 0)
        return 0
    if port is not None:
        raise UsageError("--port is for --web", hint="say `mlbundle tui --web --port PORT`")
    # Textual draws on stderr.
    terminal = all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    if not terminal and os.environ.get(_DRIVER) != _WEB_DRIVER:
        raise UsageError(
            "the terminal UI needs a terminal",
            hint="`mlbundle list`, `run` and `runs` do the same without one; `mlbundle tui --web` is for a browser",
        )
    with contextlib.ExitStack() as stack:
        context = _context(stack, demo=demo, readonly=readonly)
        status = _show(context, theme or context.settings.tui_theme, stack)
        if not demo:
            _say_what_goes_on(context.settings)
        return status


def _list_keys() -> None:
    """Print the id of everything that can have keys, with those that it has."""
    from mlbundle.config import load_settings
    from mlbundle_tui.keys import key_lines

    settings = load_settings()
    for line in key_lines(settings):
        click.echo(line)
    click.echo(f"they are given in the table [keys] of {settings.user_file}", err=True)


def _say_what_goes_on(settings: Settings) -> None:
    """Say on stderr which runs go on without the UI, and how to watch them."""
    from mlbundle.runs.running import runs_go_on

    for line in runs_go_on(settings):
        click.echo(line, err=True)


def _context(stack: contextlib.ExitStack, *, demo: bool, readonly: bool) -> Context:
    from mlbundle.config import load_settings
    from mlbundle_tui.context import Context

    settings = load_settings()
    if demo:
        from mlbundle_tui.demo import demo_context

        return stack.enter_context(demo_context(settings, readonly=readonly))
    from mlbundle.runs.asking import Asker
    from mlbundle_tui.launcher import DetachedLauncher

    asker = stack.enter_context(contextlib.closing(Asker()))
    return Context(settings, launcher=DetachedLauncher(settings), readonly=readonly, ask=asker)


def _show(context: Context, theme: str, stack: contextlib.ExitStack) -> int:
    from mlbundle_tui.app import MlbundleApp

    keys = context.settings.keys
    if keys:
        from mlbundle_tui.keys import check_keys

        keys = check_keys(keys, context.settings.origins["keys"])
    app = MlbundleApp(context, keys=keys, theme=theme)
    status = asyncio.run(_run(app, stack))
    if app.failure is not None:
        raise app.failure
    return status


async def _run(app: MlbundleApp, stack: contextlib.ExitStack) -> int:
    """Run the app; SIGTERM ends it as `q` does, and where the terminal is gone there is nothing to tidy up on it."""
    status = 0

    def terminated() -> None:
        nonlocal status
        status = EXIT_TERMINATED
        app.exit()

    def hung_up() -> None:
        stack.close()
        os._exit(_HUNG_UP)

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, terminated)
    loop.add_signal_handler(signal.SIGHUP, hung_up)
    await app.run_async()
    return status
