"""Every section, the page of a run, the live run, help and palette, in three sizes and two themes, over the demo.

What they look like is kept in tests/tui/snapshots. Whoever changes the look on purpose writes them anew,

    MLBUNDLE_TEST_WRITE_SNAPSHOTS=1 python -m pytest tests/tui/test_ui_snapshots.py

and reads what changed with `git diff`; SVG pictures lie in the folder that a failure names.
"""

from __future__ import annotations

import dataclasses
import fcntl
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mlbundle_tui.context import Context
from mlbundle_tui.demo import demo_context
from mlbundle_tui.screens.live import LiveRun
from support import ROOT
from textual.pilot import Pilot
from tui_pilot import drive, press, settled
from tui_snapshots import THEMES, Snapshots

from mlbundle import resources
from mlbundle.config import Settings, load_settings
from mlbundle.errors import EngineUnavailable
from mlbundle.runs.catalog import list_runs, show_run
from mlbundle.runs.disk import DiskRow
from mlbundle.runs.folder import RunFolder
from mlbundle.store.collect import Amount
from mlbundle.wire.events import Counter, Log, Phase, Progress, Warned, Window

SIZES = ((80, 24), (120, 40), (200, 50))
# A name that is the same wherever the checkout is.
PLACE = Path("/tmp/mlbundle-snapshots")
RUN_ID = "20261121T120000Z-00000a"
S, MS = 1_000_000_000, 1_000_000
LIVE = [
    Log(message="digits-cnn:1.0.0", t_ns=S),
    Phase(name="load", t_ns=S),
    Phase(name="load", state="done", t_ns=2 * S),
    Phase(name="measure", t_ns=2 * S),
    *(
        Window(
            queries=50, throughput=100.0 + n, p50_ns=(9 + n % 3) * MS, p99_ns=(20 + n % 7) * MS, t_ns=n * S
        )
        for n in range(3, 40)
    ),
    Counter(name="memory", value=2 << 20, unit="bytes", t_ns=40 * S),
    Warned(message="other work keeps 1.0 of 2 CPUs busy", t_ns=40 * S),
    Progress(phase="measure", done=1.0, total=4.0, unit="s", eta_s=3.0, t_ns=40 * S),
]
See = Callable[[str], Awaitable[None]]


@pytest.fixture
def same_machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Everywhere the same: time zone, names of folders, architecture; no GPU."""

    def folder(prefix: str) -> str:
        made = Path(f"{PLACE}-{prefix}")
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
        return str(made)

    with Path(f"{PLACE}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        PLACE.unlink(missing_ok=True)
        PLACE.symlink_to(ROOT)
        monkeypatch.setattr("mlbundle_tui.demo.tempfile", SimpleNamespace(mkdtemp=folder))
        set_up(monkeypatch)
        time.tzset()
        yield
        PLACE.unlink()
    monkeypatch.undo()
    time.tzset()


def set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Say everywhere the same of the machine, and look for nothing from time to time: it comes when it comes."""
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("MLBUNDLE_HOME", f"{PLACE}-home")  # nothing is written there
    monkeypatch.setattr("mlbundle_tui.run_watch.EACH_S", 3600.0)
    monkeypatch.setattr(resources, "_PACKAGE", PLACE / "mlbundle")
    monkeypatch.setattr("mlbundle.platforms.this_architecture", lambda: "amd64")
    monkeypatch.setattr("mlbundle.runtime.devices.nvidia_driver", lambda: None)


@contextmanager
def recorded() -> Iterator[Context]:
    """The demo, with answers about the machine that made the recording, and a run that goes on."""
    with demo_context(load_settings()) as context:
        settings = context.settings
        for run in settings.runs_dir.glob("2*"):
            (run / "worker.log").write_text("".join(f"line {number}\n" for number in range(100)))
        facts = show_run(settings, list_runs(settings)[0]["run_id"])["environment"]["machine"]

        def ask(question: str, settings: Settings, **about: Any) -> Any:
            if question in {"image", "images"}:
                raise EngineUnavailable("no engine answers", hint="start Docker")
            if question == "machine":
                return examined(facts)
            if question == "disk":
                return [dataclasses.asdict(DiskRow("runs", Amount(10, 4_200_000), "records, traces"))]
            return context.ask(question, settings, **about)

        yield dataclasses.replace(context, ask=ask, clock=lambda: 0.0)


def examined(facts: dict[str, Any]) -> dict[str, Any]:
    """What `doctor` says of the machine that made the recording."""
    checks = [
        {"name": "python", "state": "ok", "found": facts["python"], "hint": None},
        {"name": "container engine", "state": "no", "found": "no engine answers", "hint": "start Docker"},
        {"name": "process runtime", "state": "warn", "found": "the CPUs are shared", "hint": "wait"},
    ]
    return {
        "schema": "mlbundle/machine/v1",
        "mlbundle_version": "0.1.0",
        "machine": {**facts, "gpus": []},
        "folders": {"data": "/home/you/data", "cache": "/home/you/cache"},
        "engine": None,
        "frameworks": [],
        "labels": {"mlbundle.io/arch": "amd64"},
        "checks": checks,
        "runtimes": ["process"],
        "can_run": True,
    }


@contextmanager
def going_on(settings: Settings) -> Iterator[None]:
    """A run that goes on for as long as it is looked at."""
    with RunFolder(settings.runs_dir, RUN_ID) as folder:
        for event in LIVE:
            folder.append(event, source="worker")
        (folder.path / "worker.log").write_text("".join(f"line {number}\n" for number in range(100)))
        yield


async def tour(pilot: Pilot[None], see: See, settings: Settings) -> None:
    """Go everywhere."""
    await see("bundles")
    await press(pilot, "question_mark")
    await see("help")
    await press(pilot, "question_mark", "ctrl+p")
    await see("palette")
    await press(pilot, "escape", "r")
    await see("run")
    await press(pilot, "3", "home")
    await see("runs")
    await press(pilot, "home", "space", "space", "space", "4")
    await see("compare")
    await press(pilot, "5")
    await see("machine")
    await press(pilot, "3", "end", "enter")
    await see("run-summary")
    for tab in ("latency", "layers"):
        await press(pilot, "right_square_bracket")
        await see(f"run-{tab}")
    await press(pilot, "l")
    await see("run-logs")
    await press(pilot, "escape")
    with going_on(settings):
        await pilot.app.push_screen(LiveRun(pilot.app.context, RUN_ID))  # type: ignore[attr-defined]
        await settled(pilot)
        await see("live")
        await press(pilot, "escape")


def test_what_it_looks_like(same_machine: None, tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path)
    for theme in THEMES:
        with recorded() as context:

            async def steps(
                pilot: Pilot[None], theme: str = theme, settings: Settings = context.settings
            ) -> None:
                async def see(name: str) -> None:
                    for columns, rows in SIZES:
                        await pilot.resize_terminal(columns, rows)
                        await settled(pilot)
                        snapshots.see(pilot.app, f"{name}-{columns}x{rows}", theme)

                await tour(pilot, see, settings)

            drive(steps, context, size=SIZES[-1], theme=theme)
    snapshots.compare()
