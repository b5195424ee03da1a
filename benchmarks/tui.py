"""What the terminal UI costs: until it is painted, in memory, per key, while idle, and to what it watches.

    python benchmarks/tui.py [--only paint,memory,keys,idle,effect] [--home FOLDER] [--rounds 7] [--json]

Everything is measured from outside, in a pseudo terminal of 120x40, over a home of 10,000 bundles and 100,000 runs.
With `--home` that home is made once and kept; the effect is measured over a home of its own.

paint    from the start of the process to the last byte of the first picture, of `mlbundle tui` and of a Textual screen
         with the same widgets and nothing in them, in turns; `paint_s` is a claim for a quiet machine
memory   after the first picture, after a look at Bundles and at Runs, and after all five sections (`toured`).
         The claim is on what is resident after Bundles and Runs. That counts the code of Python and of libraries as
         well, which is mapped from files and is in memory once for all processes; `private` is what is its own.
         `empty` is the Textual screen with the same widgets and nothing in them
keys     from a key to the first byte of what it changes: down in Runs and in Bundles, letters of the filter, from
         section to section; `held_ms` is how long after the last of 100 keys, 30 a second, something is still drawn
idle     CPU time of a section that nobody touches, in percent of a core, and of a run that measures: that one is drawn
         once a second at most (`live_frames_per_s`)
effect   p50 of `online` on a model that takes 50 us, with the live view of the run open and without, in turns;
         `no_effect` is the same of two runs without: the noise

Absolute figures mean little on a shared machine; ratios, memory and the effect are the claims.
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
HELD_EACH_S = 1 / 30
SECTIONS = {"1": "bundles", "2": "run", "3": "runs", "4": "compare", "5": "machine"}
TARGETS = {
    "ratio": 1.3,
    "paint_s": 0.6,
    "resident_mb": 60.0,
    **dict.fromkeys(("runs_p95_ms", "bundles_p95_ms", "filter_p95_ms", "sections_p95_ms", "held_ms"), 50.0),
    **{f"idle_{name}_percent": 0.5 for name in SECTIONS.values()},
    "live_frames_per_s": 1.1,
}
PARTS = ("paint", "memory", "keys", "idle", "effect")
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

    def wait_for(self, text: bytes, wait_s: float = 60.0) -> None:
        """Wait until a text is written."""
        seen, end_s = b"", time.monotonic() + wait_s
        while text not in seen:
            if time.monotonic() > end_s:
                raise SystemExit(f"{text!r} is not shown")
            if self._hears(1):
                seen += os.read(self._file, 1 << 16)

    def settle(self, quiet_s: float = 2.0) -> None:
        """Wait until nothing is written for a while, or what is written is a cursor that blinks."""
        deadline_s = time.monotonic() + MOST_SETTLE_S
        while self._hears(quiet_s) and time.monotonic() < deadline_s:
            os.read(self._file, 1 << 16)

    def key(self, key: str, wait_s: float = 2.0) -> float | None:
        """Press a key; returns after how many seconds something is written, None when nothing is."""
        while self._hears(0):
            os.read(self._file, 1 << 16)
        began_s = time.monotonic()
        os.write(self._file, key.encode())
        if not self._hears(wait_s):
            return None
        seen_s = time.monotonic() - began_s
        self.settle(QUIET_S)
        return seen_s

    def hold(self, key: str, times: int) -> float:
        """Press a key again and again, as one that is held; returns after how many seconds the last is drawn."""
        last_s = pressed_s = time.monotonic()
        for _ in range(times):
            pressed_s = time.monotonic()
            os.write(self._file, key.encode())
            while (left_s := pressed_s + HELD_EACH_S - time.monotonic()) > 0:
                if self._hears(left_s):
                    os.read(self._file, 1 << 16)
                    last_s = time.monotonic()
        while self._hears(QUIET_S):
            os.read(self._file, 1 << 16)
            last_s = time.monotonic()
        return max(0.0, last_s - pressed_s)

    def frames(self, wait_s: float) -> int:
        """Return how many times something is drawn in so many seconds: what is less than 0.3 s apart counts once."""
        count, last_s, end_s = 0, 0.0, time.monotonic() + wait_s
        while (left_s := end_s - time.monotonic()) > 0:
            if self._hears(left_s):
                os.read(self._file, 1 << 16)
                count += time.monotonic() - last_s > 0.3
                last_s = time.monotonic()
        return count

    @property
    def cpu_s(self) -> float:
        """CPU time so far, of all its threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_mb(self) -> dict[str, float]:
        """Memory, MB: `private` is its own, `pss` with its share of what others have as well, `resident` all of it."""
        found: dict[str, float] = {}
        for line in Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines()[1:]:
            name, _, rest = line.partition(":")
            found[name] = int(rest.split()[0]) * 1024 / 1e6
        private = found["Private_Clean"] + found["Private_Dirty"]
        return {"private": private, "pss": found["Pss"], "resident": found["Rss"]}

    def _hears(self, wait_s: float) -> bool:
        return bool(select.select([self._file], [], [], wait_s)[0])


def paint(rounds: int, empty: Path) -> dict[str, Any]:
    ours, theirs = [], []
    with Window(sys.executable, str(empty)) as window:  # compiles what only it imports
        window.painted_s()
    for _ in range(rounds):
        for command, seen in (((sys.executable, str(empty)), theirs), (UI, ours)):
            with Window(*command) as window:
                seen.append(window.painted_s())
    ratio = statistics.median(our / their for our, their in zip(ours, theirs, strict=True))
    return {"ratio": ratio, "paint_s": statistics.median(ours), "empty_s": statistics.median(theirs)}


def memory(empty: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(2):  # the first one compiles what only it imports
        with Window(sys.executable, str(empty)) as window:
            window.painted_s()
            window.settle()
            found |= {f"empty_{name}_mb": mb for name, mb in window.memory_mb().items()}
    with Window(*UI) as window:
        window.painted_s()
        window.settle()
        found |= {f"first_{name}_mb": mb for name, mb in window.memory_mb().items()}
        window.key("3")
        window.settle()
        found |= {f"{name}_mb": mb for name, mb in window.memory_mb().items()}
        for key in "2451":
            window.key(key)
            window.settle()
        return found | {f"toured_{name}_mb": mb for name, mb in window.memory_mb().items()}


def keys() -> dict[str, Any]:
    with Window(*UI) as window:
        window.painted_s()
        window.settle()
        for key in SECTIONS:
            window.key(key)
            window.settle(1)
        found = timed("sections", [window.key(key) for key in "123451352413"])
        for key, name in (("1", "bundles"), ("3", "runs")):
            window.key(key)
            window.settle(1)
            found |= timed(name, [window.key("j") for _ in range(KEYS)])
        found["held_ms"] = window.hold("j", KEYS) * 1e3
        seen = []
        for key in "13":
            window.key(key)
            window.settle(1)
            window.key("/")
            seen += [window.key(letter) for letter in "resnet-0 model:"]
            window.key("\x1b")
        return found | timed("filter", seen)


def timed(name: str, seen: list[float | None]) -> dict[str, Any]:
    """Return median and 95th percentile of the keys that changed something."""
    told = sorted(s for s in seen if s is not None)
    found: dict[str, Any] = {
        f"{name}_p50_ms": told[len(told) // 2] * 1e3,
        f"{name}_p95_ms": told[int(len(told) * 0.95)] * 1e3,
    }
    return found | ({f"{name}_unanswered": len(seen) - len(told)} if len(told) < len(seen) else {})


def idle(wait_s: float, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with Window(*UI) as window:
        window.painted_s()
        window.settle()
        for key, name in SECTIONS.items():
            window.key(key)
            window.settle(5)
            found[f"idle_{name}_percent"], _ = spent(window, wait_s)
        model = folder / "spin"
        if not model.exists():
            make_model(model, 50)
        window.key("3")
        command = detached(model, wait_s + 20)
        watch(window, started(command))
        window.settle(1)
        found["live_percent"], frames = spent(window, wait_s)
        found["live_frames_per_s"] = frames / wait_s
        return found


def spent(window: Window, wait_s: float) -> tuple[float, int]:
    """Return the CPU time that is spent, in percent of a core, and how many times something is drawn."""
    before_s = window.cpu_s
    frames = window.frames(wait_s)
    return (window.cpu_s - before_s) / wait_s * 100, frames


def effect(rounds: int, folder: Path) -> dict[str, Any]:
    """Return p50 with the live view open over p50 without, the median of pairs; and that of two runs without."""
    make_model(folder / "spin", 50)
    pairs, pairs_of_none = [], []
    for number in range(rounds):
        alone = p50_ns(folder / "spin", watched=False)
        # What drifts while three runs are made goes into both alike.
        order = (True, False) if number % 2 else (False, True)
        seen = {watched: p50_ns(folder / "spin", watched=watched) for watched in order}
        pairs.append(seen[True] / alone)
        pairs_of_none.append(seen[False] / alone)
    return {
        "effect": statistics.median(pairs),
        "no_effect": statistics.median(pairs_of_none),
        "effect_rounds": [round(pair, 4) for pair in pairs],
        "no_effect_rounds": [round(pair, 4) for pair in pairs_of_none],
    }


def p50_ns(model: Path, *, watched: bool) -> float:
    """Return the p50 of a run of 4 s, with the UI's live view of it open all the time or not."""
    command = detached(model, 4)
    if not watched:
        return measured(command)
    with Window(*UI) as window:
        window.painted_s()
        window.key("3")
        window.settle(0.5)
        run = started(command)
        watch(window, run)
        return ended(run, window)


def detached(model: Path, duration_s: float) -> list[str]:
    return [
        sys.executable, "-m", "mlbundle", "run", str(model), "--runtime", "process", "--trust",
        "--duration", f"{duration_s:.0f}s", "--no-accuracy", "--trace", "none", "--detach", "--json",
    ]  # fmt: skip


def watch(window: Window, run: str) -> None:
    """Open the live view of a run that has just begun, in Runs."""
    window.key("\x1b[15~")  # F5
    window.settle(0.3)
    window.key("\x1b[H")
    window.key("\r")
    window.wait_for(run.encode())


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


def use_home(folder: Path, cache: Path) -> None:
    """Use a folder as home; the environments of the process runtime are made once for all."""
    (folder / "cache").mkdir(parents=True, exist_ok=True)
    for name in ("envs", "wheels"):
        (cache / name).mkdir(parents=True, exist_ok=True)
        if not (folder / "cache" / name).exists():
            (folder / "cache" / name).symlink_to(cache / name)
    os.environ["MLBUNDLE_HOME"] = str(folder)


def measure(arguments: argparse.Namespace, parts: list[str], folder: Path) -> dict[str, Any]:
    cache = load_settings().cache_dir
    # As where it is installed: modules are compiled once, ours as well as those of libraries.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
    found: dict[str, Any] = {}
    if "effect" in parts:
        use_home(folder / "effect", cache)
        found |= effect(arguments.rounds, folder / "effect")
    if parts == ["effect"]:
        return found
    home = arguments.home or folder / "home"
    made = (home / "data").exists()
    use_home(home, cache)
    if not made:
        crowd(arguments.bundles, arguments.runs)
    with Window(*UI) as window:  # makes what is kept from one start to the next, and compiles all modules
        window.painted_s()
        for key in "32451":
            window.key(key)
            window.settle(5)
    empty = folder / "empty.py"
    empty.write_text(EMPTY)
    found |= paint(arguments.rounds, empty) if "paint" in parts else {}
    found |= memory(empty) if "memory" in parts else {}
    found |= keys() if "keys" in parts else {}
    found |= idle(arguments.idle_s, folder) if "idle" in parts else {}
    return found


def parts_of(text: str) -> list[str]:
    parts = text.split(",")
    if not set(parts) <= set(PARTS):
        raise argparse.ArgumentTypeError(f"of {', '.join(PARTS)}")
    return parts


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=parts_of, default=list(PARTS), metavar=",".join(PARTS))
    parser.add_argument("--home", type=Path, help="a home that is made when it is not there, and kept")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--idle-s", type=float, default=30.0)
    parser.add_argument("--bundles", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    loads = [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory() as folder:
        found = measure(arguments, arguments.only, Path(folder))
    loads.append(os.getloadavg()[0])
    missed = [name for name, most in TARGETS.items() if found.get(name, 0) > most]
    facts = machine_facts()
    if arguments.json:
        machine = {"cpu": facts.cpu_model, "cpus": facts.cpu_usable, "load": loads}
        print(json.dumps({"benchmark": "tui", "machine": machine, **found, "missed": missed}, indent=2))
        return 1 if missed else 0
    print(f"machine  {facts.cpu_model}, {facts.cpu_usable} CPUs, load {loads[0]:.1f} to {loads[1]:.1f}")
    for name, value in found.items():
        target = (
            f"  target {TARGETS[name]:g}{'  MISSED' if name in missed else ''}" if name in TARGETS else ""
        )
        print(f"{name:<24} {value if isinstance(value, list) else format(value, '10.3f')}{target}")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
