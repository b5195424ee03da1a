"""Homes with runs that were never made, and an app over them whose keys are pressed."""

from __future__ import annotations

import copy
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tui_pilot
from mlbundle_tui.context import Context, Launcher
from support import ROOT
from tui_pilot import lines_of, until

from mlbundle.config import load_settings
from mlbundle.worker.profilers.base import Profile

GOLDEN: dict[str, Any] = json.loads((ROOT / "tests" / "golden" / "record-docker.json").read_text())
# Workers that ask the user, or wait for a browser.
_ASKING = frozenset({"trace", "action_remove"})
WIDE, NORMAL, NARROW = (160, 45), (100, 30), (60, 24)


class RunHome:
    """Writes run folders as if runs had been made, each a second after the last."""

    def __init__(self, home: Path) -> None:
        self.folder = home / "data" / "runs"
        self._count = 0

    def add(self, name: str = "digits-cnn", **changes: Any) -> str:
        """A run with latencies; `mean_ns` and members of the record may be given."""
        run_id = f"20261121T0857{self._count:02}Z-{self._count:06x}"
        self._count += 1
        record = copy.deepcopy(GOLDEN)
        mean_ns = changes.pop("mean_ns", 10_000.0)
        record |= {"run_id": run_id, "started_at": f"2026-11-21T08:57:{self._count:02}.000Z"}
        record["bundle"]["name"] = name
        if record["result"] is not None:
            record["result"]["latency_ns"]["trimmed_mean"] = mean_ns
        record["environment"] |= changes.pop("environment", {})
        record |= changes
        path = self.folder / run_id
        (path / "passes" / "01-measure").mkdir(parents=True)
        np.save(path / "passes" / "01-measure" / "latencies.npy", np.full(200, int(mean_ns), np.int64))
        (path / "record.json").write_text(json.dumps(record))
        (path / "owner.lock").touch()
        (path / "worker.log").write_text("".join(f"line {number}\n" for number in range(500)))
        return run_id

    def profile(self, run_id: str, layers: Mapping[str, int]) -> None:
        """Add layers (name -> ns) and one kernel for each to a run."""
        profile = Profile()
        for run in range(3):
            for index, (name, duration_ns) in enumerate(layers.items()):
                times = {"run": run, "start_ns": 10_000 * run + 100 * index, "duration_ns": duration_ns}
                kind = name.rstrip("0123456789")
                profile.add_layer(index=index, name=name, type=kind, alloc_bytes=1024 * index, **times)
                profile.add_kernel(layer_index=index, name=f"k_{kind}", kind="operator", **times)
        (self.folder / run_id / "layers.npz").write_bytes(profile.layers_bytes())
        (self.folder / run_id / "kernels.npz").write_bytes(profile.kernels_bytes())


Drive = Callable[[Any], Awaitable[None]]


def drive(
    what: Drive,
    *,
    size: tuple[int, int] = NORMAL,
    readonly: bool = False,
    launcher: Launcher | None = None,
    theme: str = "dark",
) -> None:
    """Start the app over the home of the test, in the section Runs, and let `what` press its keys."""

    async def steps(pilot: Any) -> None:
        await until(pilot, lambda: pilot.app.screen.is_read)
        await settled(pilot)
        await what(pilot)

    context = Context(load_settings(), launcher=launcher, readonly=readonly)
    tui_pilot.drive(steps, context, size=size, first="runs", theme=theme, apart=_ASKING)


async def settled(pilot: Any) -> None:
    """Wait until nothing is read any more; what waits for an answer, or for a browser, is not waited for."""
    await tui_pilot.settled(pilot, _ASKING)


async def press(pilot: Any, *keys: str) -> None:
    """Press keys, one after another, and wait for what they lead to."""
    for key in keys:
        await pilot.press(key)
        await settled(pilot)
    await settled(pilot)


async def enter_text(pilot: Any, text: str) -> None:
    """Put a text into the line that has the focus, as pasting does, and wait until it was used."""
    before = pilot.app.screen._typing
    pilot.app.focused.value = text
    await until(pilot, lambda: pilot.app.screen._typing not in {before, None})
    await until(pilot, pilot.app.screen._typing._task.done)
    await settled(pilot)


def shown(pilot: Any) -> str:
    """Return the text on the screen."""
    return "\n".join("".join(text for text, _ in row) for row in lines_of(pilot.app))


def line_with(pilot: Any, text: str) -> str:
    """Return the first line on the screen that holds a text; the test fails where there is none."""
    for line in shown(pilot).splitlines():
        if text in line:
            return line
    raise AssertionError(f"{text!r} is not on the screen:\n{shown(pilot)}")
