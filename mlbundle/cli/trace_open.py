"""`mlbundle trace open`: the trace of a run in Perfetto's UI."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mlbundle.cli import output
from mlbundle.cli.params import complete_run
from mlbundle.wording import units

if TYPE_CHECKING:
    from mlbundle.runs.traces import OpenTrace
    from mlbundle.trace.serving import Route

_LAST_PORT = 65_535


@click.command("open")
@click.argument("run", default="latest", shell_complete=complete_run)
@click.option("--offline", is_flag=True, help="Use the UI that mlbundle[trace] brings; needs no network.")
@click.option("--url", "by_url", is_flag=True, help="Let the UI fetch the trace from this machine by itself.")
@click.option("--no-browser", is_flag=True, help="Only print the link.")
@click.option("--keep", is_flag=True, help="Serve until Ctrl-C, also after the trace was taken.")
@click.option(
    "--port",
    type=click.IntRange(1, _LAST_PORT),
    help="Port on 127.0.0.1  [a free one; 9001 with --url].",
)
@click.option("--imported", is_flag=True, help="The trace that `mlbundle trace import` has made.")
@click.option("--ui", metavar="ADDRESS", help="Use another Perfetto UI than https://ui.perfetto.dev.")
def open_(
    *,
    run: str,
    offline: bool,
    by_url: bool,
    no_browser: bool,
    keep: bool,
    port: int | None,
    imported: bool,
    ui: str | None,
) -> None:
    """Open the trace of a run in Perfetto's UI.

    RUN is the latest by default; the path of a trace does as well. A page on this machine opens the UI and hands it the
    trace from window to window: nothing is uploaded. The command ends when the trace was taken; with --offline it
    serves the UI until Ctrl-C. Over ssh, and where there is no browser, it prints a link and how to reach it.
    """
    from mlbundle.config import load_settings
    from mlbundle.errors import UsageError
    from mlbundle.runs.traces import open_trace

    if offline and (by_url or ui):
        raise UsageError(
            "--offline brings its own UI: it excludes --url and --ui", hint="leave one of them out"
        )
    route: Route = "offline" if offline else "url" if by_url else "page"
    opened = open_trace(load_settings(), run, route=route, port=port, ui=ui, imported=imported)
    try:
        with opened.server:
            _point_to(opened, browser=not no_browser)
            _wait(opened, keep=keep or offline)
    except KeyboardInterrupt:
        # Ctrl-C is how a server is ended; only a trace that nobody took was given up.
        if not (keep or offline or opened.server.taken.is_set()):
            from mlbundle.errors import EXIT_INTERRUPTED

            click.get_current_context().exit(EXIT_INTERRUPTED)


def _point_to(opened: OpenTrace, *, browser: bool) -> None:
    """Open the link in a browser, or say how to get to it."""
    from mlbundle.runs.traces import BROWSER_BYTES
    from mlbundle.trace.browser import has_browser, open_browser, over_ssh, tunnel_command

    if opened.unpacked_bytes > BROWSER_BYTES:
        output.warn(
            f"the trace has {units.size(opened.unpacked_bytes)}: a browser may not have the memory for it",
            hint="a native `trace_processor_shell --httpd FILE` lets the UI open it",
        )
    output.data(opened.server.link)
    if browser and has_browser() and open_browser(opened.server.link):
        output.narrate("opened in a browser")
    else:
        output.narrate("open this link in a browser on this machine")
        if over_ssh() or browser:
            port = opened.server.port
            output.narrate(f"from another machine, first: {tunnel_command(port)}")
        output.narrate(f"or open the file yourself: {opened.trace.path}")


def _wait(opened: OpenTrace, *, keep: bool) -> None:
    """Serve until the trace was taken, or without end."""
    output.narrate("serving until Ctrl-C" if keep else "waiting for the trace to be taken; Ctrl-C gives up")
    opened.server.taken.wait()
    output.narrate("the trace was taken")
    while keep:
        opened.server.taken.clear()
        opened.server.taken.wait()
