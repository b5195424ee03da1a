"""What can be read of a process tree, of a control group and of the CPU's energy counters, without a privilege.

Sources: proc(5), cgroups(7) with the kernel's cgroup-v1 and cgroup-v2 documents, and its powercap document. Each look
costs tens of microseconds; `smaps_rollup`, which takes a millisecond, is never read.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

_MOST_BYTES = 1 << 14
_MOST_PROCESSES = 512
_MOST_THREADS = 1024
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")
_SLOW = 5
# Where in /proc/PID/stat, counted from the state of the process (proc(5): fields 3, 4, 6, 10-17, 20 and 24).
_SESSION, _MINOR, _MAJOR, _CHILDREN_MINOR, _CHILDREN_MAJOR, _THREADS, _RSS = 3, 7, 9, 8, 10, 17, 21
_TIMES = (11, 12, 13, 14)  # user and system, its own and of children that it has waited for


class ProcessTree:
    """A process and all that it started: CPU time, memory, page faults, threads, context switches.

    Memory is the sum of what each process has resident, so pages that two of them share count twice. CPU time comes in
    ticks of 10 ms; that of a child that ended between two looks is in its parent's.
    """

    every = 1

    def __init__(self, pid: int, root: Path = Path("/")) -> None:
        self._pid = pid
        self._proc = str(root / "proc")
        self._looks = 0
        self._most: dict[str, float] = {}
        # Thread -> its context switches when it was seen last, and those of all threads that have ended.
        self._switches: dict[str, tuple[int, int]] = {}
        self._ended = (0, 0)

    def read(self) -> Mapping[str, float]:
        """Return the counters; empty when the process is gone."""
        pids = self._members()
        stats = {pid: stat for pid in pids if (stat := self._stat(pid)) is not None}
        if not stats:
            return {}
        rows = stats.values()
        found = {
            "memory_bytes": float(sum(int(row[_RSS]) for row in rows) * _PAGE_BYTES),
            "processes": float(len(stats)),
            "threads": float(sum(int(row[_THREADS]) for row in rows)),
            **self._growing("cpu_time_s", sum(int(row[place]) for row in rows for place in _TIMES) * _TICK_S),
            **self._growing("page_faults_minor", _sum(rows, _MINOR, _CHILDREN_MINOR)),
            **self._growing("page_faults_major", _sum(rows, _MAJOR, _CHILDREN_MAJOR)),
        }
        if self._looks % _SLOW == 0:
            found |= self._context_switches(list(stats))
        self._looks += 1
        return found

    def close(self) -> None:
        """Nothing is held."""

    def _growing(self, name: str, value: float) -> dict[str, float]:
        """Return a counter that never shrinks: what a process did is counted nowhere while it is being reaped."""
        self._most[name] = max(self._most.get(name, 0.0), value)
        return {name: self._most[name]}

    def _stat(self, pid: int) -> list[bytes] | None:
        try:
            text = _read(f"{self._proc}/{pid}/stat")
        except OSError:
            return None
        # The name of a program may hold spaces and brackets.
        return text[text.rindex(b")") + 2 :].split()

    def _members(self) -> list[int]:
        """Return the process and its descendants."""
        found = [self._pid]
        for pid in found:
            if len(found) >= _MOST_PROCESSES:
                break
            found += [child for child in self._children(pid) if child not in found]
        return found

    def _children(self, pid: int) -> Iterator[int]:
        with suppress(OSError):
            for thread in self._threads(pid):
                yield from map(int, _read(f"{self._proc}/{pid}/task/{thread}/children").split())
            return
        if pid == self._pid and not Path(f"{self._proc}/{pid}/task/{pid}/children").exists():
            yield from self._session()

    def _session(self) -> Iterator[int]:
        """Yield the other processes of the session, on kernels that do not list children (CONFIG_PROC_CHILDREN)."""
        with os.scandir(self._proc) as entries:
            numbers = [int(entry.name) for entry in entries if entry.name.isdecimal()]
        for number in numbers:
            stat = self._stat(number) if number != self._pid else None
            if stat is not None and int(stat[_SESSION]) == self._pid:
                yield number

    def _threads(self, pid: int) -> list[str]:
        with os.scandir(f"{self._proc}/{pid}/task") as entries:
            return [entry.name for entry in entries][:_MOST_THREADS]

    def _context_switches(self, pids: list[int]) -> dict[str, float]:
        """Add up the context switches of all threads; those of threads that ended stay as they were seen last."""
        alive: dict[str, int] = {}
        for pid in pids:
            with suppress(OSError):
                alive.update((thread, pid) for thread in self._threads(pid))
        for thread in self._switches.keys() - alive.keys():
            self._end(thread)
        for thread, pid in list(alive.items())[:_MOST_THREADS]:
            with suppress(OSError):
                text = _read(f"{self._proc}/{pid}/task/{thread}/status")
                found = (
                    _after(text, b"\nvoluntary_ctxt_switches:"),
                    _after(text, b"\nnonvoluntary_ctxt_switches:"),
                )
                # Fewer than before: the number has been given to another thread.
                if found < self._switches.get(thread, (0, 0)):
                    self._end(thread)
                self._switches[thread] = found
        pairs = (self._ended, *self._switches.values())
        return {
            "context_switches_voluntary": float(sum(pair[0] for pair in pairs)),
            "context_switches_involuntary": float(sum(pair[1] for pair in pairs)),
        }

    def _end(self, thread: str) -> None:
        voluntary, involuntary = self._switches.pop(thread)
        self._ended = (self._ended[0] + voluntary, self._ended[1] + involuntary)


class ControlGroup:
    """The control group of a container: CPU time to the nanosecond, memory with its peak, how long it was stopped.

    Memory is what the kernel charges to the group, its file cache included.
    """

    every = 1

    def __init__(self, files: Mapping[str, Path]) -> None:
        """`files` are folders by controller: `cpu`, `cpuacct` and `memory` of version 1, or `` of version 2."""
        self._files = dict(files)

    @classmethod
    def of_container(cls, pid: int, container: str, root: Path = Path("/")) -> ControlGroup | None:
        """Return the group of a process that is in this container; None when it is not, or can't be seen from here."""
        try:
            lines = _read(str(root / "proc" / str(pid) / "cgroup")).decode().splitlines()
        except OSError:
            return None
        places: dict[str, Path | None] = {}
        for line in lines:
            _, names, path = [*line.split(":", 2), "", ""][:3]
            # Another machine's process has a number that here belongs to anybody.
            if container in path:
                places |= {name: _folder(root, names, path) for name in names.split(",")}
        files = {name: folder for name, folder in places.items() if folder is not None}
        return cls(files) if files else None

    def read(self) -> Mapping[str, float]:
        """Return the counters; empty when the group is gone."""
        return self._version_2(self._files[""]) if "memory" not in self._files else self._version_1()

    def close(self) -> None:
        """Nothing is held."""

    def _version_2(self, folder: Path) -> dict[str, float]:
        stat = _read(f"{folder}/cpu.stat")
        found = {
            "cgroup_cpu_time_s": _after(stat, b"usage_usec ") / 1e6,
            "throttled_s": _after(stat, b"\nthrottled_usec ") / 1e6,
            "throttled_periods": float(_after(stat, b"\nnr_throttled ")),
        }
        return found | self._numbers(
            folder, {"memory.current": "cgroup_memory_bytes", "memory.peak": "cgroup_memory_peak_bytes"}
        )

    def _version_1(self) -> dict[str, float]:
        names = {
            "memory.usage_in_bytes": "cgroup_memory_bytes",
            "memory.max_usage_in_bytes": "cgroup_memory_peak_bytes",
        }
        found = self._numbers(self._files["memory"], names)
        if "cpuacct" in self._files:
            found["cgroup_cpu_time_s"] = int(_read(f"{self._files['cpuacct']}/cpuacct.usage")) / 1e9
        if "cpu" in self._files:
            stat = _read(f"{self._files['cpu']}/cpu.stat")
            found["throttled_s"] = _after(stat, b"throttled_time ") / 1e9
            found["throttled_periods"] = float(_after(stat, b"nr_throttled "))
        return found

    @staticmethod
    def _numbers(folder: Path, names: Mapping[str, str]) -> dict[str, float]:
        found = {}
        for file, name in names.items():
            with suppress(OSError, ValueError):  # memory.peak came with Linux 5.19
                found[name] = float(int(_read(f"{folder}/{file}")))
        return found


class PackageEnergy:
    """Energy of the CPU packages and of memory beside them, of the whole machine (RAPL); only root may read it.

    Counts joules from the first look on; the hardware's counters begin anew after `max_energy_range_uj`.
    """

    every = 1

    def __init__(self, root: Path = Path("/")) -> None:
        self._zones: dict[str, _Zone] = {}
        for folder in sorted((root / "sys/class/powercap").glob("intel-rapl:*")):
            with suppress(OSError, ValueError):
                name = (folder / "name").read_text().strip()
                # `core` and `uncore` are parts of their package, `psys` holds it all once more.
                if name.startswith(("package", "dram")):
                    package = folder.name.removeprefix("intel-rapl:").replace(":", "_")
                    label = name.replace("-", "_") if name.startswith("package") else f"{name}_{package}"
                    self._zones[f"energy_{label}_j"] = _Zone(folder)

    def read(self) -> Mapping[str, float]:
        """Return joules so far, by zone."""
        return {name: zone.joules() for name, zone in self._zones.items()}

    def close(self) -> None:
        """Nothing is held."""


class _Zone:
    def __init__(self, folder: Path) -> None:
        self._path = f"{folder}/energy_uj"
        self._last = int(_read(self._path))
        self._range = int((folder / "max_energy_range_uj").read_text())
        self._total = 0

    def joules(self) -> float:
        now = int(_read(self._path))
        self._total += now - self._last if now >= self._last else now + self._range - self._last
        self._last = now
        return self._total / 1e6


def _read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _MOST_BYTES)
    finally:
        os.close(descriptor)


def _after(text: bytes, label: bytes) -> int:
    """Return the number that stands behind a label; 0 where there is none."""
    place = text.find(label)
    return 0 if place < 0 else int(text[place + len(label) :].split(maxsplit=1)[0])


def _sum(rows: Collection[Sequence[bytes]], *places: int) -> float:
    return float(sum(int(row[place]) for row in rows for place in places))


def _folder(root: Path, controllers: str, path: str) -> Path | None:
    """Return where the group at `path` is found; controllers of version 1 may be mounted together or alone."""
    top = root / "sys/fs/cgroup"
    names = [controllers, *controllers.split(",")] if controllers else [""]
    for name in names:
        folder = top / name / path.lstrip("/")
        if ".." not in folder.parts and folder.is_dir():
            return folder
    return None
