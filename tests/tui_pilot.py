"""The terminal UI in tests: opened at a size, left alone until nothing goes on in it, and looked at as text."""

from __future__ import annotations

import asyncio
import inspect
import time
import unicodedata
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from mlbundle_tui.app import MlbundleApp
from mlbundle_tui.context import Context
from rich.style import Style
from textual.events import Key
from textual.keys import REPLACED_KEYS, _character_to_key, _get_unicode_name_from_key
from textual.pilot import Pilot
from textual.screen import Screen

from mlbundle.config import load_settings

_PATIENCE_S = 60.0
_LOOK_S = 0.004
_STILL = 2
_RESTS = 2
Steps = Callable[[Pilot[None]], Awaitable[Any]]


class QuickPilot(Pilot[None]):
    """Presses keys as soon as nothing is left to do for the last one; a pilot of Textual waits for an idle process."""

    async def press(self, *keys: str) -> None:
        """Press keys; what takes its time (workers, timers) goes on afterwards."""
        for key in keys:
            self._send(key)
            await quiet(self)

    async def pause(self, delay: float | None = None) -> None:
        """Let everything be done that can be done now, and give what takes longer a moment."""
        await quiet(self)
        if delay is not None:
            await asyncio.sleep(delay)
            await quiet(self)

    async def resize_terminal(self, width: int, height: int) -> None:
        """Give the terminal another size."""
        await super().resize_terminal(width, height)
        await quiet(self)

    def _send(self, key: str) -> None:
        name = _character_to_key(key) if len(key) == 1 and not key.isalnum() else key
        try:
            character = unicodedata.lookup(_get_unicode_name_from_key(REPLACED_KEYS.get(name, name)))
        except KeyError:
            character = key if len(key) == 1 else None
        event = Key(name, character)
        event.set_sender(self.app)
        assert self.app._driver is not None
        self.app._driver.send_message(event)


def app_of(first: str) -> type[MlbundleApp]:
    """Return the app, which begins with the section `first`: the others take their time."""
    folder = Path(inspect.getfile(MlbundleApp)).parent
    return type("FirstApp", (MlbundleApp,), {"CSS_PATH": str(folder / "app.tcss"), "DEFAULT_MODE": first})


def drive(
    steps: Steps,
    context: Context | None = None,
    *,
    size: tuple[int, int] = (80, 24),
    first: str = "bundles",
    chosen: str = "",
    apart: frozenset[str] = frozenset(),
    **named: Any,
) -> Any:
    """Open the app at (columns, rows), let its first section settle, do the steps, and return what they return.

    `first` is the section that it begins with, `chosen` the bundle that the section Run is given;
    workers named in `apart` are not waited for.
    """

    async def main() -> Any:
        app = app_of(first)(context or Context(load_settings()), **named)
        app.chosen = chosen
        async with app.run_test(size=size):
            pilot = QuickPilot(app)
            await settled(pilot, apart)
            return await steps(pilot)

    with drawn_when_quiet():
        return asyncio.run(main())


_draw, _refresh = Screen._on_timer_update, Screen._compositor_refresh


@contextmanager
def drawn_when_quiet() -> Iterator[None]:
    """Lay out and draw once nothing else is left to do, and not 60 times a second: that is what takes longest.

    Sections that follow one another fast are drawn once more a moment later, for which nobody waits here.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Screen, "_on_timer_update", lambda screen: screen._update_timer.pause())
        patch.setattr(Screen, "_compositor_refresh", lambda screen: screen._dirty_widgets.clear())
        patch.setattr("mlbundle_tui.app._REPAINT_S", 0.01)
        yield


async def quiet(pilot: Pilot[Any]) -> None:
    """Wait until nothing is left to do that could be done now: all messages are taken in, all is laid out."""
    app, ready = pilot.app, asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
    still = 0
    while still < _STILL and app._exception is None:
        # What moves to its place without an animation comes there with the animator's next beat.
        await asyncio.sleep(0 if app.animator._complete_event.is_set() else _LOOK_S)
        if ready or not app.animator._complete_event.is_set():
            still = 0
        elif _to_draw(app):
            _draw(app.screen)
            still = 0
        else:
            still += 1


async def settled(pilot: Pilot[Any], apart: frozenset[str] = frozenset()) -> None:
    """Wait until no worker works (but those named in `apart`), no timer that fires once is due, and draw what there is."""
    deadline, rests = time.monotonic() + _PATIENCE_S, 0
    # Looked at again a moment later: an answer of a thread can be on its way.
    while rests < _RESTS and pilot.app._exception is None:
        await quiet(pilot)
        working = [w for w in pilot.app.workers if not w.is_finished and w.name not in apart]
        rests = 0 if working or _waits(pilot.app) else rests + 1
        if time.monotonic() > deadline:
            raise AssertionError(f"it does not come to rest: {working}; it shows\n{text_of(pilot.app)}")
        await asyncio.sleep(_LOOK_S)
    await quiet(pilot)
    _refresh(pilot.app.screen)


async def until(pilot: Pilot[None], holds: Callable[[], Any]) -> None:
    """Wait until something holds that comes by itself, or where a screen never comes to rest."""
    deadline = time.monotonic() + _PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"it never came to that; it shows\n{text_of(pilot.app)}"
        await pilot.pause(0.01)


def _to_draw(app: MlbundleApp | Any) -> bool:
    screen = app.screen
    due = screen._layout_required or screen._scroll_required or screen._repaint_required
    due = due or screen._recompose_required or screen._dirty_widgets or screen._callbacks
    return bool(due) and screen.is_current and screen.is_running and not app._batch_count


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
