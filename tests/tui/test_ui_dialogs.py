"""Dialogs: an error says what happened and what to do, a question changes nothing by itself, texts are no markup."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from mlbundle_tui.bundle_actions import asked_for
from mlbundle_tui.screens.dialogs import ask_choice, ask_text, confirm, error_text, show_error, show_text
from textual.pilot import Pilot
from tui_pilot import drive, text_of

from mlbundle.errors import ImageMissing, WorkerFailed
from mlbundle.runs.readiness import Mend

ERROR = ImageMissing(
    "no [b]image[/b] [/x", where="/a/[b]", context=["line one"], hint="mlbundle images build torch"
)


async def answered(pilot: Pilot[None], question: Callable[[], Awaitable[Any]], *keys: str) -> Any:
    """Ask, press keys, and return the answer."""
    got: list[Any] = []

    async def ask() -> None:
        got.append(await question())

    pilot.app.run_worker(ask())
    await pilot.pause()
    await pilot.press(*keys)
    await pilot.pause()
    await pilot.pause()
    assert got, text_of(pilot.app)
    return got[0]


def test_an_error_is_shown_once_with_all_that_it_says() -> None:
    async def steps(pilot: Pilot[None]) -> tuple[str, str, int]:
        show_error(pilot.app, ERROR)
        show_error(pilot.app, ERROR)
        await pilot.pause()
        shown, depth = text_of(pilot.app), len(pilot.app.screen_stack)
        await pilot.press("c", "escape")
        assert len(pilot.app.screen_stack) == 1
        return shown, pilot.app.clipboard, depth

    shown, copied, depth = drive(steps)
    assert depth == 2
    for text in ("image-missing", "no [b]image[/b] [/x", "/a/[b]", "line one", "mlbundle images build torch"):
        assert text in shown
    assert "mlbundle images build torch" in copied


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("/data/runs.sqlite", "at /data/runs.sqlite"),
        ("model.yml:3:7", "at model.yml:3:7"),
        ("two words#/assets/0", "at two words#/assets/0"),
        ("sha256:00ff", "sha256:00ff"),
        ("pinned sha256:00, now sha256:ff", "pinned sha256:00, now sha256:ff"),
        ("mlbundle/torch:2.13.0", "mlbundle/torch:2.13.0"),
        ("loadgen", "loadgen"),
    ],
)
def test_a_place_that_is_no_file_stands_alone(where: str, said: str) -> None:
    assert str(error_text(ImageMissing("gone", where=where))) == f"gone\n\n{said}"
    told = str(error_text(WorkerFailed("gone", where=where)))
    assert told == f"gone\n\nthe worker calls it {where}"


def test_a_build_may_have_another_base_image_and_network() -> None:
    build = Mend("build", "build the image", "mlbundle images build torch", framework="torch")

    async def steps(pilot: Pilot[None]) -> list[Any]:
        def ask() -> Awaitable[Mend | None]:
            return asked_for(pilot.app, build)

        shown: list[str] = []

        async def look(*keys: str) -> None:
            await pilot.press(*keys)
            await pilot.pause()
            shown.append(text_of(pilot.app))

        pilot.app.run_worker(ask())
        await look()
        await look("a", "space", "b", "down", *"host", "enter")
        await look("escape")
        plain = await answered(pilot, ask, "enter")
        other = await answered(pilot, ask, *"me/base:1", "tab", *"ho$t", "enter")
        return [shown, plain, other, await answered(pilot, ask, *"x", "escape")]

    shown, plain, other, nothing = drive(steps, size=(120, 30))
    assert "$ mlbundle images build torch" in shown[0]
    assert "--base-image 'a b' --network host" in shown[1]
    assert "without spaces" in shown[1]
    assert "without spaces" not in shown[2]
    assert (plain, nothing) == (build, None)
    assert (other.base_image, other.network) == ("me/base:1", "ho$t")
    assert other.command == "mlbundle images build torch --base-image me/base:1 --network 'ho$t'"


def test_an_error_may_come_from_a_thread() -> None:
    async def steps(pilot: Pilot[None]) -> str:
        thread = threading.Thread(target=show_error, args=(pilot.app, ERROR))
        thread.start()
        while thread.is_alive():
            await pilot.pause(0.01)
        await pilot.pause()
        return text_of(pilot.app)

    assert "image-missing" in drive(steps)


def test_a_question_means_no_unless_yes_is_said() -> None:
    async def steps(pilot: Pilot[None]) -> list[bool]:
        def ask() -> Awaitable[bool]:
            return confirm(pilot.app, "Remove [b]it[/b]?", yes="Remove")

        return [
            await answered(pilot, ask, *keys)
            for keys in (["enter"], ["escape"], ["n"], ["y"], ["right", "enter"], ["tab", "enter"])
        ]

    assert drive(steps) == [False, False, False, True, True, True]


def test_a_line_is_checked_before_it_is_taken() -> None:
    async def steps(pilot: Pilot[None]) -> list[Any]:
        def ask() -> Awaitable[str | None]:
            return ask_text(
                pilot.app, "Title", check=lambda line: None if "x" in line else "there is no x in it"
            )

        return [
            await answered(pilot, ask, "a", "enter", "x", "enter"),
            await answered(pilot, ask, "a", "escape"),
            await answered(pilot, ask, "enter"),
        ]

    assert drive(steps) == ["ax", None, None]


def test_a_choice_is_taken_or_not() -> None:
    async def steps(pilot: Pilot[None]) -> list[Any]:
        def ask() -> Awaitable[str | None]:
            return ask_choice(pilot.app, "Which", [("one", "[b]first"), ("two", "second")])

        return [await answered(pilot, ask, "down", "enter"), await answered(pilot, ask, "escape")]

    assert drive(steps) == ["two", None]


def test_a_long_text_scrolls_and_fits_a_tiny_terminal() -> None:
    async def steps(pilot: Pilot[None]) -> tuple[str, str]:
        show_text(pilot.app, "title", "\n".join(f"line {n}" for n in range(500)), large=True)
        await pilot.pause()
        first = text_of(pilot.app)
        await pilot.press("pagedown", "pagedown", "down")
        await pilot.pause()
        return first, text_of(pilot.app)

    first, second = drive(steps, size=(20, 6))
    assert "line 0" in first
    assert "line 0" not in second
    assert "line 3" in second
