"""What is shown of a run while it happens, off a terminal and on one."""

from __future__ import annotations

import sys

import pytest

from mlbundle.cli.live import LiveView
from mlbundle.wire.events import NOTICE, Log, Phase, Progress


def test_off_a_terminal_phases_and_notices_are_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with LiveView() as view:
        view.show(Phase(name="measure", state="begun"))
        view.show(Progress(phase="measure", done=1, total=2, unit="s", eta_s=1))
        view.show(Log(level=NOTICE, message="batches of 8: 58,744 /s"))
        view.show(Log(message="for the log"))
    assert capsys.readouterr().err == "measuring ...\nbatches of 8: 58,744 /s\n"


def test_a_search_is_no_warm_up_and_no_time_is_left_at_the_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with LiveView() as view:
        view.show(Phase(name="warm-up", state="begun"))
        view.show(Progress(phase="warm-up", done=3.4, total=10, unit="trials", eta_s=6.5))
        view.show(Phase(name="measure", state="begun"))
        view.show(Progress(phase="measure", done=2, total=2, unit="s", eta_s=0.0))
    drawn = [line.rstrip() for line in capsys.readouterr().err.split("\r")]
    assert "searching for the peak  trial 4 of 10 at most, 6.50 s left" in drawn
    assert "measuring  100 %" in drawn


def test_each_profile_is_named_and_its_progress_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def profiles(view: LiveView) -> None:
        view.show(Phase(name="measure", state="begun"))
        view.show(Progress(phase="measure", done=2, total=2, unit="s", eta_s=0.0))
        view.show(Phase(name="profile", state="begun"))
        view.show(Progress(phase="profile", done=40, total=100, unit="queries", eta_s=3))
        view.show(Phase(name="profile", state="done"))
        view.show(Phase(name="profile", state="begun"))

    with LiveView() as view:
        profiles(view)
    assert capsys.readouterr().err == "measuring ...\nprofiling framework ...\nprofiling system ...\n"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with LiveView() as view:
        profiles(view)
    drawn = [line.strip() for line in capsys.readouterr().err.split("\r")]
    assert "profiling framework   40 %, 3.00 s left" in drawn
    assert "profiling system" in drawn, "nothing of the phase before it is left"
