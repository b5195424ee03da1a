"""The terminal UI in tests: opened at a size, left alone until nothing goes on in it, and looked at as text."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import groupby
from typing import Any

from mlbundle_tui.app import MlbundleApp
from mlbundle_tui.context import Context
from rich.style import Style
from textual.pilot import Pilot

from mlbundle.config import load_settings

_PATIENCE = 400
_STILL = 3
Steps = Callable[[Pilot[None]], Awaitable[Any]]


def drive(
    steps: Steps, context: Context | None = None, *, size: tuple[int, int] = (80, 24), **named: Any
) -> Any:
    """Open the app at (columns, rows), let its first section settle, do the steps, and return what they return."""

    async def main() -> Any:
        app = MlbundleApp(context or Context(load_settings()), **named)
        async with app.run_test(size=size) as pilot:
            await settled(pilot)
            return await steps(pilot)

    return asyncio.run(main())


async def settled(pilot: Pilot[None]) -> None:
    """Wait until no worker works, no timer that fires once is due, and the screen stays what it is."""
    before, still = "", 0
    for _ in range(_PATIENCE):
        await pilot.pause(0.02)
        busy = any(not worker.is_finished for worker in pilot.app.workers)
        now = text_of(pilot.app)
        still = still + 1 if now == before and not busy and not _waits(pilot.app) else 0
        before = now
        if still >= _STILL:
            return
    raise AssertionError(f"the screen does not come to rest; it shows\n{before}")


def _waits(app: MlbundleApp | Any) -> bool:
    """Whether something is about to happen by itself once: what was typed or moved is acted on after a moment."""
    timers = [timer for node in (app, app.screen, *app.screen.walk_children()) for timer in node._timers]
    once = [timer for timer in timers if timer._repeat == 0 and timer._active.is_set()]
    return any(timer._task is not None and not timer._task.done() for timer in once)


async def press(pilot: Pilot[None], *keys: str) -> None:
    """Press keys and let what they begin come to its end."""
    await pilot.press(*keys)
    await settled(pilot)


def lines_of(app: MlbundleApp | Any) -> list[list[tuple[str, Style]]]:
    """Return what the screen shows: rows of (text, style)."""
    width, height = app.size
    strips = app.screen._compositor.render_strips()
    rows = []
    for strip in strips[:height]:
        pieces = [(segment.text, segment.style or Style.null()) for segment in strip.crop(0, width)]
        joined = [
            ("".join(t for t, _ in group), style) for style, group in groupby(pieces, key=lambda p: p[1])
        ]
        rows.append(joined)
    return rows


def text_of(app: MlbundleApp | Any) -> str:
    """Return what the screen shows, as text."""
    return "\n".join("".join(text for text, _ in row).rstrip() for row in lines_of(app))
