"""`mlbundle tui --demo`: recorded runs in a home of their own, and recordings that happen again."""

from __future__ import annotations

import re
import tarfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from mlbundle_tui.context import Context
from mlbundle_tui.demo import RECORDED, ReplayLauncher, demo_context
from tui_pilot import drive, press, text_of

from mlbundle.config import load_settings
from mlbundle.errors import ReferenceNotFound, UsageError
from mlbundle.runs.catalog import list_runs, show_run
from mlbundle.runs.following import follow_events
from mlbundle.runs.plan import RunOptions
from mlbundle.runs.running import running_runs
from mlbundle.wire.events import End, Phase, Window


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> Iterator[Context]:
    monkeypatch.setattr("mlbundle_tui.demo._JOIN_S", 60.0)  # a user does not wait for a record, a test does
    with demo_context(load_settings()) as context:
        yield context


def test_the_recording_is_small_and_names_nobody() -> None:
    assert RECORDED.stat().st_size < 1_500_000
    with tarfile.open(RECORDED) as archive:
        texts = {
            entry.name: archive.extractfile(entry).read().decode()
            for entry in archive
            if entry.name.endswith((".json", ".jsonl", ".log", ".txt"))
        }
    assert any(name.endswith("record.json") for name in texts)
    for name, text in texts.items():
        paths = re.findall(r"(?<![\w.])/(?:root|home|tmp|work|Users|mnt)/[^\"'\s]*", text)
        assert [path for path in paths if not path.startswith("/home/you")] == [], name


def test_the_home_is_of_its_own_and_gone_afterwards(home: Path) -> None:
    settings = load_settings()
    with demo_context(settings) as context:
        folder = context.settings.data_dir
        rows = list_runs(context.settings)
        assert home not in folder.parents
        assert len({(row["framework"], row["scenario"]) for row in rows}) >= 6
        assert {row["status"] for row in rows} == {"completed", "cancelled"}
        full = [row["run_id"] for row in rows if row["trace_level"] == "full"]
        assert len(full) == 3
        for run in full:
            for name in ("trace.pftrace.gz", "layers.npz", "kernels.npz"):
                assert (context.settings.runs_dir / run / name).is_file()
    assert not folder.exists()
    assert not settings.runs_dir.exists()


def test_a_recording_happens_again(demo: Context) -> None:
    launcher = ReplayLauncher(demo.settings, speed=40)
    said: list[str] = []
    run = launcher.start(RunOptions("digits-cnn", framework="tensorflow", trace_level="none"), said.append)
    events = list(follow_events(demo.settings.runs_dir / run))
    assert isinstance(events[-1], End)
    assert [event.seq for event in events] == list(range(len(events)))
    assert next(event.name for event in events if isinstance(event, Phase)) == "plan"
    assert len([event for event in events if isinstance(event, Window)]) > 10
    launcher.close()
    record = show_run(demo.settings, run)
    assert (record["run_id"], record["status"], record["framework"]["name"]) == (
        run,
        "completed",
        "tensorflow",
    )
    assert (demo.settings.runs_dir / run / "passes" / "01-measure" / "latencies.npy").is_file()
    assert running_runs(demo.settings) == []
    assert "happens again" in said[0]


def test_one_recording_at_a_time_and_a_stop_ends_it(demo: Context) -> None:
    launcher = ReplayLauncher(demo.settings, speed=0.01)  # none ends by itself meanwhile
    first = launcher.start(RunOptions("digits-cnn"))
    deadline = time.monotonic() + 60
    while not launcher._turn.locked():  # it is a thread's to take
        assert time.monotonic() < deadline
        time.sleep(0.01)
    second = launcher.start(RunOptions("digits-cnn", framework="torch"))
    waiting = follow_events(demo.settings.runs_dir / second)
    assert any(getattr(event, "reference", "") == "machine-busy" for event in waiting)
    states = {r.run_id: r.status for r in running_runs(demo.settings)}
    assert states == {first: "running", second: "waiting"}
    launcher.stop(second)
    launcher.stop(first)
    for run in (first, second):
        record = show_run(demo.settings, run)
        assert (record["status"], record["result"], record["validity"]["valid"]) == ("cancelled", None, False)
    third = launcher.start(RunOptions("digits-cnn"))  # the turn was given back
    assert [r.run_id for r in running_runs(demo.settings)] == [third]
    launcher.close()
    with pytest.raises(ReferenceNotFound):
        launcher.stop("20260101T000000Z-000000")


@pytest.mark.parametrize(
    "options",
    [
        RunOptions("resnet50"),
        RunOptions("digits-cnn", scenario="pipeline"),
        RunOptions("digits-cnn", framework="torch-code"),
        RunOptions("digits-cnn", framework="torch", scenario="poisson"),
    ],
)
def test_what_was_not_recorded_is_not_made_up(demo: Context, options: RunOptions) -> None:
    assert demo.launcher is not None
    with pytest.raises(UsageError) as caught:
        demo.launcher.start(options)
    assert "digits-cnn batched onnxruntime" in str(caught.value.hint)


def test_every_screen_says_that_it_is_a_demo(demo: Context) -> None:
    async def steps(pilot):
        seen = []
        for keys in (["1"], ["2"], ["3"], ["4"], ["5"], ["3", "enter"]):
            await press(pilot, *keys)
            seen.append(text_of(pilot.app).splitlines()[0])
        await pilot.resize_terminal(20, 5)
        return seen, text_of(pilot.app).splitlines()[0]

    bars, narrow = drive(steps, demo)
    for bar in bars:
        assert bar.startswith(" DEMO ")
        assert bar.endswith("recorded data")
    assert narrow.startswith(" DEMO ")


def test_what_was_recorded_is_ready_and_of_the_rest_it_is_said_before_it_is_run(demo: Context) -> None:
    async def steps(pilot):
        bundles = text_of(pilot.app)
        pilot.app.chosen = "digits-cnn"
        await press(pilot, "2")
        ready = text_of(pilot.app)
        pilot.app.screen.request = replace(pilot.app.screen.request, framework="torch-code")
        await press(pilot, "f5")
        return bundles, ready, text_of(pilot.app)

    bundles, ready, other = drive(steps, demo, size=(120, 40))
    assert "environment missing" not in bundles
    assert re.search(r"digits-cnn +● ready", bundles)
    assert "recorded: r lets it happen again" in ready
    assert "docker" in ready
    assert "the demo has no recording of such a run" in other
    assert "digits-cnn batched onnxruntime" in other
