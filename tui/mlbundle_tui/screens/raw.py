"""The record of a run as it is, coloured."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mlbundle.errors import MlbundleError
from mlbundle_tui.screens.dialogs import show_error, show_text

if TYPE_CHECKING:
    from textual.app import App

    from mlbundle_tui.context import Context


def show_record(app: App[Any], context: Context, run_id: str) -> None:
    """Show the record of a run (`mlbundle runs show RUN --json`); `c` copies it."""
    from mlbundle.runs.catalog import run_record

    def read() -> None:
        try:
            record = run_record(context.settings, run_id)
        except MlbundleError as error:
            show_error(app, error)
        else:
            show_json(app, f"record of {run_id}", record)

    app.run_worker(read, thread=True, group="raw", exclusive=True)


def show_json(app: App[Any], title: str, document: Any) -> None:
    """Show a document over the whole screen."""
    from rich.syntax import Syntax

    text = json.dumps(document, indent=2, ensure_ascii=False)
    shown = Syntax("", "json", theme="ansi_dark" if app.current_theme.dark else "ansi_light").highlight(text)
    shown.style = ""  # the background is the dialog's
    show_text(app, title, shown, copied=text, large=True)
