"""What the terminal UI costs: until it is painted, in memory, per key, while idle, and to what it watches.

    python benchmarks/tui.py [--rounds 7] [--bundles 10000] [--runs 100000] [--no-effect] [--json]

Everything is measured in a pseudo terminal of 120x40, from outside.

first paint      from the start of the process to the last byte of the first picture, of `mlbundle tui` and of a Textual
                 screen with the same widgets and nothing in them, in turns: at most x1.3, at most 0.6 s
memory           resident, after a look at Bundles and at Runs: at most 60 MB
key              from a key (down, in Runs) to the first byte of what it changes: 95th percentile at most 50 ms
idle             CPU time over 10 s in Runs: at most 0.5 % of a core
effect           p50 of `online` on a model that takes 50 us, with the live view of the run open and without, in turns

Absolute figures mean little on a shared machine; the ratio and the effect are the claims.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import select
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from crowded_home import add_bundles, add_runs  # noqa: E402
from harness import make_model  # noqa: E402

from mlbundle.config import load_settings  # noqa: E402
from mlbundle.platforms import machine_facts  # noqa: E402

SIZE = (120, 40)
MARK = b"palette"  # the last word at the foot of the first picture
QUIET_S = 0.15
MOST_SETTLE_S = 20.0
KEYS = 100
IDLE_S = 10.0
TARGETS = {"ratio": 1.3, "paint_s": 0.6, "memory_mb": 60.0, "key_p95_ms": 50.0, "idle_percent": 0.5}
UI = (sys.executable, "-m", "mlbundle", "tui")
EMPTY = """
from textual.app import App
from textual.containers import Container, Horizontal, Vertical, VerticalScroll
from textual.widgets import DataTable, Footer, Input, Static

class Empty(App):
    CSS = "#bar, #line, #state, #tabs { height: 1; } #body, #table { height: 1fr; }"
    BINDINGS = [(key, "nothing", "Something") for key in "crvopxq"]
    def compose(self):
        yield Static("bar", id="bar")
        with Container(id="body"):
            with Horizontal():
                with Vertical():
                    yield Input(placeholder="filter", compact=True)
                    yield DataTable(id="table", cursor_type="row")
                    yield Static("", id="state")
                with Vertical():
                    yield Static("tabs", id="tabs")
                    with VerticalScroll():
                        yield Static("")
        yield Static("", id="line")
        yield Footer()
    def on_mount(self):
        for name in ("name", "here", "frameworks", "where", "version"):
            self.query_one(DataTable).add_column(name)

Empty().run()
"""


class Window:
    """A program in a pseudo terminal; what it writes is read and dropped."""

    def __init__(self, *command: str) -> None:
        self.began_s = time.monotonic()
        self.pid, self._file = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm-256color"
            os.execv(command[0], list(command))
        fcntl.ioctl(self._file, termios.TIOCSWINSZ, struct.pack("HHHH", SIZE[1], SIZE[0], 0, 0))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._file)

    def painted_s(self) -> float:
        """Return after how many seconds the first picture is whole: its last word, and then nothing for a moment."""
        text, last = b"", self.began_s
        while MARK not in text or self._hears(QUIET_S / 3):
            if self._hears(60):
                text += os.read(self._file, 1 << 16)
                last = time.monotonic()
        return last - self.began_s

    def settle(self, quiet_s: float = 2.0) -> None:
        """Wait until nothing is written for a while, or what is written is a cursor that blinks."""
        deadline_s = time.monotonic() + MOST_SETTLE_S
        while self._hears(quiet_s) and time.monotonic() < deadline_s:
            os.read(self._file, 1 << 16)

    def key(self, key: str, wait_s: float = 2.0) -> float | None:
        """Press a key; returns after how many seconds something is written, None when nothing is."""
        began_s = time.monotonic()
        os.write(self._file, key.encode())
        if not self._hears(wait_s):
            return None
        seen_s = time.monotonic() - began_s
        self.settle(QUIET_S)
        return seen_s

    @property
    def cpu_s(self) -> float:
        """CPU time so far, of all its threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def resident_mb(self) -> float:
        """Resident memory, MB."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024 / 1e6

    def _hears(self, wait_s: float) -> bool:
        return bool(select.select([self._file], [], [], wait_s)[0])


def paint(rounds: int, empty: Path) -> dict[str, Any]:
    with Window(*UI) as window:  # makes what is kept from one start to the next
        window.painted_s()
        window.settle()
    ours, theirs = [], []
    for _ in range(rounds):
        for command, seen in (((sys.executable, str(empty)), theirs), (UI, ours)):
            with Window(*command) as window:
                seen.append(window.painted_s())
    ratio = statistics.median(our / their for our, their in zip(ours, theirs, strict=True))
    return {"ratio": ratio, "paint_s": statistics.median(ours), "empty_s": statistics.median(theirs)}


def inside() -> dict[str, Any]:
    with Window(*UI) as window:
        window.painted_s()
        window.settle()
        window.key("3")
        window.settle()
        found: dict[str, Any] = {"memory_mb": window.resident_mb}
        seen = [window.key("j") for _ in range(KEYS)]
        told = sorted(s for s in seen if s is not None)
        found["key_p50_ms"], found["key_p95_ms"] = (
            told[len(told) // 2] * 1e3,
            told[int(len(told) * 0.95)] * 1e3,
        )
        found["keys_unanswered"] = len(seen) - len(told)
        window.settle()
        before_s = window.cpu_s
        time.sleep(IDLE_S)
        found["idle_percent"] = (window.cpu_s - before_s) / IDLE_S * 100
    return found


def effect(rounds: int, folder: Path) -> dict[str, Any]:
    """Return p50 with the live view open over p50 without, the median of pairs; and that of two runs without."""
    make_model(folder / "spin", 50)
    pairs, pairs_of_none = [], []
    for _ in range(rounds):
        alone = p50_ns(folder / "spin", watched=False)
        pairs.append(p50_ns(folder / "spin", watched=True) / alone)
        pairs_of_none.append(p50_ns(folder / "spin", watched=False) / alone)
    return {
        "effect": statistics.median(pairs),
        "no_effect": statistics.median(pairs_of_none),
        "effect_rounds": [round(pair, 4) for pair in pairs],
        "no_effect_rounds": [round(pair, 4) for pair in pairs_of_none],
    }


def p50_ns(model: Path, *, watched: bool) -> float:
    """Return the p50 of a run of 4 s, with the UI's live view of it open all the time or not."""
    command = [
        sys.executable, "-m", "mlbundle", "run", str(model), "--runtime", "process", "--trust", "--duration", "4s",
        "--no-accuracy", "--trace", "none", "--detach", "--json",
    ]  # fmt: skip
    if not watched:
        return measured(command)
    with Window(*UI) as window:
        window.painted_s()
        window.key("3")
        window.settle(0.5)
        run = started(command)
        window.key("\x1b[15~")  # F5
        window.settle(0.3)
        window.key("g")
        window.key("\r")
        return ended(run, window)


def measured(command: list[str]) -> float:
    return ended(started(command), None)


def started(command: list[str]) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    return str(json.loads(done.stdout)["run_id"])


def ended(run: str, window: Window | None) -> float:
    record = load_settings().runs_dir / run / "record.json"
    while not record.exists():
        if window is not None:
            window.settle(0.05)
        time.sleep(0.05)
    return float(json.loads(record.read_text())["result"]["latency_ns"]["p50"])


def crowd(bundles: int, runs: int) -> None:
    from mlbundle_tui.demo import RECORDED, unpack

    settings = load_settings()
    with tempfile.TemporaryDirectory() as folder:
        unpack(RECORDED, Path(folder))
        record = json.loads(min(Path(folder).glob("data/runs/*/record.json")).read_text())
    add_bundles(settings, bundles)
    add_runs(settings, record, runs)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--bundles", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--no-effect", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        cache = load_settings().cache_dir
        os.environ["MLBUNDLE_HOME"] = folder
        # The environment of the process runtime is made once for all.
        (Path(folder) / "cache").symlink_to(cache)
        cache.mkdir(parents=True, exist_ok=True)
        found: dict[str, Any] = {}
        if not arguments.no_effect:
            found |= effect(arguments.rounds, Path(folder))
        crowd(arguments.bundles, arguments.runs)
        empty = Path(folder) / "empty.py"
        empty.write_text(EMPTY)
        found |= paint(arguments.rounds, empty)
        found |= inside()
    missed = [name for name, most in TARGETS.items() if found[name] > most]
    facts = machine_facts()
    if arguments.json:
        machine = {"cpu": facts.cpu_model, "cpus": facts.cpu_usable, "load": load}
        print(json.dumps({"benchmark": "tui", "machine": machine, **found, "missed": missed}, indent=2))
    else:
        print(f"machine  {facts.cpu_model}, {facts.cpu_usable} CPUs, load {load:.1f}")
        for name, value in found.items():
            target = (
                f"  target {TARGETS[name]}{'  MISSED' if name in missed else ''}" if name in TARGETS else ""
            )
            print(f"{name:<18} {value if isinstance(value, list) else round(value, 3)}{target}")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
