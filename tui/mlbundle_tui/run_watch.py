"""Runs that begin, end or are removed by whomever: noticed within seconds, at the cost of a look at one folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from mlbundle_tui.background import in_background

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.app import App

    from mlbundle.config import Settings
    from mlbundle.runs.changes import RunsSeen

EACH_S = 2.0


class RunWatch:
    """Looks every two seconds; `tell` is called in the event loop when something is not as it was."""

    def __init__(self, app: App[None], settings: Settings, tell: Callable[[RunsSeen], None]) -> None:
        self._app, self._settings, self._tell = app, settings, tell
        self._seen: RunsSeen | None = None
        self._looking = False
        app.set_interval(EACH_S, self._begin)

    def _begin(self) -> None:
        if not self._looking:
            self._looking = True
            self._app.run_worker(cast("Any", self._look), group="run-watch")

    async def _look(self) -> None:
        from mlbundle.runs.changes import look_at_runs

        try:
            seen = await in_background(look_at_runs, self._settings)
        finally:
            self._looking = False
        if seen != self._seen:
            self._seen = seen
            self._tell(seen)
