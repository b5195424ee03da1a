"""The help: over every screen, with its keys as they are set, and closed with the keys that one tries."""

from __future__ import annotations

from mlbundle_tui import help_words, run_words
from mlbundle_tui.keys import _nodes, all_ids
from mlbundle_tui.screens.base import Section
from mlbundle_tui.screens.help import key_lines
from mlbundle_tui.widgets.texts import STATES
from textual.pilot import Pilot
from tui_pilot import drive, press, text_of


def helped(
    steps, *, size: tuple[int, int] = (80, 24), first: str = "runs", keys: dict[str, str] | None = None
):
    return drive(steps, size=size, first=first, keys=keys)


def test_it_opens_and_closes_with_the_keys_that_one_tries() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        for opens, closes in (
            ("question_mark", "question_mark"),
            ("f1", "f1"),
            ("question_mark", "escape"),
            ("f1", "q"),
        ):
            await press(pilot, opens)
            shown = text_of(pilot.app)
            assert shown.index(help_words.PURPOSES["RunsSection"]) < shown.index("Compare  mlbundle compare")
            await press(pilot, closes)
            assert "Help" not in text_of(pilot.app).splitlines()[0]
            assert pilot.app.screen.name_of_section == "runs"

    helped(steps)


def test_all_of_it_can_be_read_on_any_terminal() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await press(pilot, "question_mark")
        seen = [text_of(pilot.app)]
        while len(seen) < 2 or seen[-1] != seen[-2]:
            await press(pilot, "pagedown")
            seen.append(text_of(pilot.app))
        for word in ("on this screen", "everywhere", "partial", "headline", "mlbundle.toml"):
            assert any(word in shown for shown in seen), word
        await pilot.resize_terminal(20, 5)
        await press(pilot, "home", "down")
        assert pilot.app.screen.query_one("#text").scroll_offset.y == 1
        assert "│" in text_of(pilot.app).splitlines()[3]

    helped(steps)


def test_keys_are_those_that_work_here_and_now_as_they_are_set() -> None:
    async def steps(pilot: Pilot[None]) -> dict[str, dict[str, str]]:
        await press(pilot)
        return {
            group: {what: keys for keys, what, _ in lines}
            for group, lines in key_lines(pilot.app.screen).items()
        }

    found = helped(steps, keys={"runs.sort": "f7,z"})
    assert found["here"]["Sort"] == "f7 z"
    assert "Stop" not in found["here"]  # the run under the cursor is over
    assert found["moving"]["Up"] == "↑ k"
    assert found["everywhere"]["Machine"] == "5"


def test_every_screen_and_every_sign_is_explained() -> None:
    assert all_ids()
    screens = {node.__name__ for node in _nodes() if issubclass(node, Section) and not node.__subclasses__()}
    assert screens == set(help_words.PURPOSES)
    assert set(help_words.BUNDLE_STATES) == set(STATES)
    assert set(help_words.RUN_STATES) == set(run_words.SIGNS)


def test_the_footer_says_that_there_is_more_and_always_how_to_get_help_and_out() -> None:
    async def steps(pilot: Pilot[None]) -> list[str]:
        seen = []
        for size in ((200, 24), (80, 24), (40, 10)):
            await pilot.resize_terminal(*size)
            await press(pilot)
            seen.append(text_of(pilot.app).splitlines()[-1])
        return seen

    wide, normal, narrow = helped(steps)
    assert "…" not in wide
    assert "Remove" in wide
    assert "palette" in wide
    for line in (normal, narrow):
        assert " … " in line
        assert line.endswith("? Help  q Quit")


def test_tables_of_every_kind_have_the_same_keys() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        table = pilot.app.screen.table
        for keys, row in (("G", 3), ("k", 2), ("home", 0), ("end", 3), ("g", 0), ("j", 1)):
            await press(pilot, keys)
            assert table.cursor == row, keys

    helped(steps, first="bundles")
