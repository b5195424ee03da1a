"""The line that says how far a copy is."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from mlbundle.cli import progress
from mlbundle.cli.progress import byte_progress

GIB = 1 << 30


@pytest.fixture
def terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> pytest.CaptureFixture[str]:
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=SimpleNamespace(isatty=lambda: True)))
    monkeypatch.setattr(progress, "_INTERVAL_S", 0.0)
    return capsys


def test_a_person_sees_how_far_it_is_and_nothing_stays(terminal: pytest.CaptureFixture[str]) -> None:
    with byte_progress("packing") as report:
        assert report is not None
        report(GIB // 2, GIB)
    shown = terminal.readouterr()
    assert "packing  50% of 1.00 GiB" in shown.err
    assert shown.err.endswith("\r")
    assert shown.out == ""


def test_small_files_say_nothing(terminal: pytest.CaptureFixture[str]) -> None:
    with byte_progress("packing") as report:
        assert report is not None
        report(1000, 1000)
    assert terminal.readouterr().err == ""


def test_a_pipe_gets_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with byte_progress("packing") as report:
        assert report is None
    assert capsys.readouterr().err == ""
