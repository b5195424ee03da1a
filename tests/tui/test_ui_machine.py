"""The section Machine: what works, facts, images, disk; each with the command that says the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlbundle_tui.context import Context
from mlbundle_tui.screens import machine as section
from mlbundle_tui.widgets.mending_pane import MendingPane
from textual.pilot import Pilot
from tui_pilot import drive, press, text_of, until

from mlbundle.config import load_settings
from mlbundle.errors import EngineUnavailable, StorageFailed
from mlbundle.runs.readiness import Mend


@pytest.fixture(autouse=True)
def engine_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose engine does not answer."""

    def gone(*_: object) -> None:
        raise EngineUnavailable("no engine answers", hint="start Docker")

    for module in ("mlbundle.runtime.images", "mlbundle.runtime.image_list", "mlbundle.runtime.engine"):
        monkeypatch.setattr(f"{module}.engine_client", gone)


def test_everything_is_there_without_an_engine() -> None:
    async def steps(pilot: Pilot[None]) -> str:
        await press(pilot, "5")
        return text_of(pilot.app)

    shown = drive(steps, size=(200, 50))
    assert "no engine answers" in shown
    assert "start Docker" in shown
    assert "processor" in shown
    assert "total" in shown
    assert "not built" in shown
    for command in ("mlbundle doctor", "mlbundle images list --this-machine", "mlbundle du"):
        assert command in shown


def test_the_command_is_that_of_the_panel_and_enter_enlarges_it() -> None:
    async def steps(pilot: Pilot[None]) -> tuple[str, str]:
        await press(pilot, "5")
        await press(pilot, "right_square_bracket", "right_square_bracket", "c")
        copied = pilot.app.clipboard
        await press(pilot, "enter")
        return copied, text_of(pilot.app)

    copied, shown = drive(steps, size=(100, 30))
    assert copied == "mlbundle images list --this-machine"
    assert "onnxruntime 1.31.1 cpu" in shown


@pytest.mark.parametrize("size", [(20, 5), (60, 20), (80, 24)])
def test_small_screens_hold(size: tuple[int, int]) -> None:
    async def steps(pilot: Pilot[None]) -> str:
        await press(pilot, "5")
        return text_of(pilot.app)

    assert len(drive(steps, size=size).splitlines()) <= size[1]


def test_what_fails_is_told_in_its_panel(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise StorageFailed("the disk is gone", hint="mount it")

    monkeypatch.setattr(section, "_disk", full)

    async def steps(pilot: Pilot[None]) -> str:
        await press(pilot, "5")
        return text_of(pilot.app)

    shown = drive(steps, size=(120, 40))
    assert "the disk is gone" in shown
    assert "mount it" in shown
    assert "processor" in shown


def test_readonly_builds_nothing(home: Path) -> None:
    async def steps(pilot: Pilot[None]) -> set[str]:
        await press(pilot, "5", "p")
        return {active.binding.action for active in pilot.app.screen.active_bindings.values()}

    actions = drive(steps, Context(load_settings(), readonly=True))
    assert "mend" not in actions
    assert "enlarge" in actions


def test_an_image_is_built_as_one_says(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Mend] = []
    monkeypatch.setattr(MendingPane, "start", lambda _pane, what, _settings: begun.append(what))

    async def steps(pilot: Pilot[None]) -> list[str]:
        await press(pilot, "5")
        shown = []
        for keys in (("escape",), (*"base:1", "down", *"host", "enter")):
            await pilot.press("p")
            await until(pilot, lambda: "Images that are not here" in text_of(pilot.app))
            await pilot.press("enter")
            await until(pilot, lambda: "network, such as host" in text_of(pilot.app))
            shown.append(text_of(pilot.app))
            await pilot.press(*keys)
            await until(pilot, lambda: "network, such as host" not in text_of(pilot.app))
        await until(pilot, lambda: bool(begun))
        return shown

    shown = drive(steps, size=(100, 30))
    assert "$ mlbundle images build onnxruntime" in shown[0]
    (what,) = begun
    assert (what.kind, what.base_image, what.network) == ("build", "base:1", "host")
    assert what.command.endswith("--base-image base:1 --network host")
