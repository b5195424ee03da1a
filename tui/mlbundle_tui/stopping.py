"""Stopping a run from the screen: a question first, then beside the screen, for it may take a while."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlbundle.errors import MlbundleError
from mlbundle.runs.folder import is_driven
from mlbundle_tui.background import in_background
from mlbundle_tui.screens.dialogs import confirm, show_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.screen import Screen
    from textual.worker import Worker

    from mlbundle_tui.context import Context


def stop_run(
    screen: Screen[None], context: Context, run_id: str, name: str, then: Callable[[], object]
) -> Worker[None]:
    """Ask, stop the run, say what became of it, and call `then` if the screen is still there."""
    return screen.app.run_worker(_stop(screen, context, run_id, name, then), group="stop")


async def _stop(
    screen: Screen[None], context: Context, run_id: str, name: str, then: Callable[[], object]
) -> None:
    launcher = context.launcher
    if launcher is None or not context.may_run:
        return
    detail = f"{run_id}  {name}\n\nWhat was seen of it is kept; its result is `cancelled`."
    folder = context.settings.runs_dir / run_id
    wanted = await confirm(
        screen.app, "Stop this run?", detail=detail, yes="Stop", over=lambda: not is_driven(folder)
    )
    if not is_driven(folder):
        screen.app.notify(f"it has ended by itself: {run_id}", markup=False)
        return
    if not wanted:
        return
    screen.app.notify("stopping …", markup=False)
    try:
        await in_background(launcher.stop, run_id)
    except MlbundleError as error:
        show_error(screen.app, error)
    else:
        screen.app.notify(f"stopped: {run_id}", markup=False)
    if screen.display:
        then()
