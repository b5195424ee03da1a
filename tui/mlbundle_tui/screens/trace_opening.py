"""The trace of a run in a browser: served from here until it was taken, whatever is looked at meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from textual.worker import get_current_worker

from mlbundle.errors import MlbundleError
from mlbundle_tui.screens.dialogs import show_error, show_text

if TYPE_CHECKING:
    from textual.app import App
    from textual.screen import Screen

    from mlbundle.runs.traces import OpenTrace
    from mlbundle_tui.context import Context

_LOOK_S = 0.2


def open_trace_of(screen: Screen[Any], context: Context, run_id: str) -> None:
    """Serve the trace of a run and open it (`mlbundle trace open RUN`), or say how to get at it."""
    app = screen.app
    screen.notify(f"opening the trace of {run_id}")
    app.run_worker(
        lambda: _serve(app, context, run_id),
        thread=True,
        group=f"trace-{run_id}",
        exclusive=True,
        name="trace",
    )


def _serve(app: App[Any], context: Context, run_id: str) -> None:
    from mlbundle.runs.traces import open_trace
    from mlbundle.trace.browser import has_browser, open_browser

    worker = get_current_worker()
    try:
        opened = open_trace(context.settings, run_id, route="page")
    except MlbundleError as error:
        show_error(app, error)
        return
    with opened.server:
        if has_browser() and open_browser(opened.server.link):
            app.call_from_thread(app.notify, f"the trace of {run_id} was opened in a browser")
        else:
            show_text(app, f"trace of {run_id}", _how(opened), copied=opened.server.link)
        while not worker.is_cancelled and not opened.server.taken.wait(_LOOK_S):
            pass
    if not worker.is_cancelled:
        app.call_from_thread(app.notify, f"the trace of {run_id} was taken by the browser")


def _how(opened: OpenTrace) -> str:
    from mlbundle.trace.browser import tunnel_command

    return (
        f"Open this link in a browser on this machine (c copies it):\n\n{opened.server.link}\n\n"
        f"From another machine, first:\n\n{tunnel_command(opened.server.port)}\n\n"
        f"Or open the file yourself at https://ui.perfetto.dev:\n\n{opened.trace.path}\n\n"
        "It is served until a browser has taken it."
    )
