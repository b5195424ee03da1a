"""Whether this machine is fit to measure: looked at before a run and after it, never while the clock runs.

What is found warns and stands in the record; it stops nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlbundle.platforms import MachineState, cpu_list, cpu_ranges, machine_state, topology, usable_cpus
from mlbundle.platforms.state import cpu_times
from mlbundle.runtime.devices import gpus as gpus_here
from mlbundle.wire.cgroups import cgroup_limits
from mlbundle.wire.events import Warned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from mlbundle.platforms import Topology
    from mlbundle.platforms.state import CpuTimes
    from mlbundle.runtime.devices import Gpu

# The kernel counts in ticks of 10 ms, so a shorter look would see nothing.
_SAMPLE_S = 0.09
# Others may take this many CPUs, or this share of many, before it counts.
_OTHERS_CPUS, _OTHERS_SHARE = 0.34, 0.05
_STOLEN_SHARE = 0.01
_LEAST_TICKS = 50
_LOW_MEMORY_SHARE = 0.10
_PRESSURE_PERCENT = 5.0
_SWAPPED_PAGES = 256
_GPU_BUSY_PERCENT = 10
_LOWERED, _SLOW = 0.90, 0.50


@dataclass(frozen=True)
class Notice:
    """Something about the machine that can change a number."""

    reference: str
    message: str
    hint: str

    def to_event(self) -> Warned:
        """Return the event that tells it."""
        return Warned(reference=self.reference, message=self.message, hint=self.hint)

    def to_document(self) -> dict[str, str]:
        """Return the notice as JSON-ready values."""
        return dict(self.__dict__)


@dataclass(frozen=True)
class Demand:
    """What a run takes: threads, the CPUs that it is pinned to (empty: not pinned), a GPU.

    `own_group`: the worker lives in this process's control group, so that its quota holds for the worker.
    """

    threads: int = 1
    cpus: tuple[int, ...] = ()
    gpu: bool = False
    own_group: bool = True


@dataclass(frozen=True)
class _Moment:
    state: MachineState
    gpus: tuple[Gpu, ...]
    group_throttled: int | None

    def to_document(self) -> dict[str, Any]:
        return {**self.state.to_document(), "gpus": [gpu.state.to_document() for gpu in self.gpus]}


class Quiet:
    """Looks at the machine before and after one run; costs about 0.1 s before and nothing to speak of after."""

    def __init__(
        self,
        demand: Demand,
        *,
        root: Path = Path("/"),
        gpus: Callable[[], tuple[Gpu, ...]] = gpus_here,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._demand = demand
        self._root = root
        self._gpus = gpus
        self._sleep = sleep
        self._usable = tuple(usable_cpus())
        self._before: _Moment | None = None
        self._after: _Moment | None = None
        self._notices: list[Notice] = []

    @property
    def cpus(self) -> tuple[int, ...]:
        """The CPUs that the run may use."""
        return self._demand.cpus or self._usable

    def before(self) -> list[Notice]:
        """Look before the worker starts; returns what may disturb the run."""
        times = cpu_times(self._root)
        self._sleep(_SAMPLE_S)
        moment = self._look()
        self._before = moment
        found = [
            *_settings(self._demand, self.cpus, topology(self._root), _isolated(self._root)),
            *_quota(self._demand, cgroup_limits(self._root)["cpu_quota"]),
            *_power(moment.state),
            *_clocks(moment.state),
            *_memory(moment.state),
            *_others(times, moment.state.times, self._demand.cpus),
            *_busy_gpus(moment.gpus),
        ]
        self._notices += found
        return found

    def after(self) -> list[Notice]:
        """Look when the worker has ended; returns what disturbed the run. Nothing if `before` was not called."""
        if self._before is None:
            return []
        first, last = self._before, self._look()
        self._after = last
        found = [
            *_throttled(first, last),
            *_swapped(first.state, last.state),
            *_stolen(first.state.times, last.state.times),
            *_company(first.state.times, last.state.times, self._demand.threads),
            *_power(last.state),
            *_clocks(last.state),
        ]
        told = {notice.reference for notice in self._notices}
        new = [notice for notice in found if notice.reference not in told]
        self._notices += new
        return new

    def to_document(self) -> dict[str, Any]:
        """Return what goes into the record: `state` before and after the run, and `warnings`."""
        moments = {"before": self._before, "after": self._after}
        return {
            "state": {name: moment.to_document() for name, moment in moments.items() if moment is not None},
            "warnings": [notice.to_document() for notice in self._notices],
        }

    def _look(self) -> _Moment:
        return _Moment(
            state=machine_state(self.cpus, self._root),
            gpus=self._gpus() if self._demand.gpu else (),
            group_throttled=cgroup_limits(self._root)["throttled"] if self._demand.own_group else None,
        )


def _isolated(root: Path) -> tuple[int, ...]:
    try:
        return cpu_list((root / "sys/devices/system/cpu/isolated").read_text("ascii", "replace"))
    except OSError:
        return ()


def _settings(
    demand: Demand, cpus: tuple[int, ...], lay: Topology, isolated: tuple[int, ...]
) -> Iterator[Notice]:
    """Find what the run's own options do to its numbers."""
    sharing = lay.sharing(demand.cpus)
    cores = len(lay.cores(cpus))
    if demand.threads > len(cpus):
        yield Notice(
            "more-threads-than-cpus",
            f"{demand.threads} threads are asked for, and {len(cpus)} CPUs may be used",
            f"--threads {cores}",
        )
    elif demand.threads > cores:
        yield Notice(
            "threads-share-cores",
            f"{demand.threads} threads run on {cores} cores: some share one",
            f"--threads {cores}, or more cores",
        )
    elif sharing and demand.threads > 1:
        yield Notice(
            "threads-share-cores",
            f"some of the CPUs {cpu_ranges(demand.cpus)} share a core: {'; '.join(map(cpu_ranges, sharing))}",
            f"--cpus with one CPU of each core: {cpu_ranges(core[0] for core in lay.cores(demand.cpus))}",
        )
    nodes = {lay.nodes[cpu] for cpu in demand.cpus if cpu in lay.nodes}
    if len(nodes) > 1:
        yield Notice(
            "cpus-span-nodes",
            f"the CPUs {cpu_ranges(demand.cpus)} belong to {len(nodes)} memory nodes",
            "choose CPUs of one node: `mlbundle doctor` lists them",
        )
    if isolated and not set(demand.cpus) & set(isolated):
        yield Notice(
            "isolated-cpus-unused",
            f"the CPUs {cpu_ranges(isolated)} are kept free of other work, and the run does not use them",
            f"--cpus {cpu_ranges(isolated)}",
        )


def _quota(demand: Demand, quota: float | None) -> Iterator[Notice]:
    # The harness beside the framework takes time too, so the quota must be above the threads.
    if demand.own_group and quota is not None and quota <= demand.threads:
        yield Notice(
            "cpu-quota",
            f"this process may use {quota:g} CPUs' worth of time: the worker will be stopped again and again",
            "raise the CPU quota of the container or service that this runs in",
        )


def _power(state: MachineState) -> Iterator[Notice]:
    if state.on_battery:
        yield Notice("on-battery", "this machine runs on its battery: clocks may be held down", "plug it in")
    if state.power_profile in {"low-power", "quiet", "cool"}:
        yield Notice(
            "power-profile",
            f"the power profile is {state.power_profile!r}: clocks may be held down",
            "powerprofilesctl set performance",
        )


def _clocks(state: MachineState) -> Iterator[Notice]:
    others = [governor for governor in state.governors if governor != "performance"]
    if others:
        yield Notice(
            "cpu-governor",
            f"the CPU clocks follow the governor {', '.join(others)}: they change with the load",
            "for steady numbers: cpupower frequency-set -g performance",
        )
    if state.limit_khz and state.max_khz and state.limit_khz < _LOWERED * state.max_khz:
        yield Notice(
            "clock-limited",
            f"the CPU clock is limited to {state.limit_khz / 1000:.0f} MHz of {state.max_khz / 1000:.0f} MHz",
            "lift it with cpupower frequency-set --max, or state the limit beside the numbers",
        )
    elif not others and state.clocks_khz and state.max_khz and max(state.clocks_khz) < _SLOW * state.max_khz:
        yield Notice(
            "clock-low",
            f"the CPUs run at {max(state.clocks_khz) / 1000:.0f} MHz of {state.max_khz / 1000:.0f} MHz",
            "look for heat or a power limit: the machine does not give its full speed",
        )


def _memory(state: MachineState) -> Iterator[Notice]:
    available, total = state.memory_available_bytes, state.memory_total_bytes
    free = "" if available is None else f"{available / (1 << 30):.1f} GiB are available"
    waited = state.pressure.get("memory", 0.0)
    if available is not None and total is not None and available < _LOW_MEMORY_SHARE * total:
        message = f"memory is short on this machine: {free} of {total / (1 << 30):.1f}"
        yield Notice("memory-pressure", message, "end what is not needed")
    elif waited > _PRESSURE_PERCENT:
        # Of a container with a small limit as well: what is available on the machine does not help it.
        message = f"something waited for memory in {waited:.0f} % of the last 10 s" + (
            f", though {free}" if free else ""
        )
        yield Notice("memory-pressure", message, "end what is not needed, or what keeps to its memory limit")


def _others(
    first: Mapping[int, CpuTimes], last: Mapping[int, CpuTimes], pinned: tuple[int, ...]
) -> Iterator[Notice]:
    cpus = [cpu for cpu in (pinned or first) if cpu in first and cpu in last]
    busy = _busy_cpus(first, last, cpus)
    if busy > max(_OTHERS_CPUS, _OTHERS_SHARE * len(cpus)):
        yield Notice(
            "machine-loaded",
            f"other work keeps {busy:.1f} of {len(cpus)} CPUs busy",
            "wait for it to end, or pin the run to idle CPUs with --cpus",
        )


def _busy_gpus(found: tuple[Gpu, ...]) -> Iterator[Notice]:
    busy = [gpu for gpu in found if (gpu.state.utilisation_percent or 0) > _GPU_BUSY_PERCENT]
    if busy:
        yield Notice(
            "gpu-busy",
            f"a GPU is busy already ({busy[0].name}, {busy[0].state.utilisation_percent} %)",
            "wait for the other work to end (`nvidia-smi` lists it), or set CUDA_VISIBLE_DEVICES",
        )


def _throttled(first: _Moment, last: _Moment) -> Iterator[Notice]:
    events = _growth(first.state.throttled, last.state.throttled)
    if events:
        yield Notice(
            "cpu-throttled",
            f"the CPUs were slowed down by heat {events} times during the run",
            "let the machine cool down, and repeat",
        )
    stops = _growth(first.group_throttled, last.group_throttled)
    if stops:
        yield Notice(
            "cpu-quota",
            f"the CPU quota stopped this process and its worker {stops} times during the run",
            "raise the CPU quota of the container or service that this runs in",
        )
    reasons = sorted({reason for gpu in last.gpus for reason in gpu.state.throttled_by})
    if reasons:
        yield Notice(
            "gpu-throttled",
            f"a GPU does not run at full speed: {', '.join(reasons)}",
            "look at its cooling and its power limit (`nvidia-smi -q -d PERFORMANCE`)",
        )


def _swapped(first: MachineState, last: MachineState) -> Iterator[Notice]:
    pages = _growth(first.swapped_pages, last.swapped_pages)
    if pages > _SWAPPED_PAGES:
        yield Notice(
            "machine-swapped",
            f"the machine moved {pages} pages of memory to or from disk during the run",
            "free some memory, and repeat",
        )


def _stolen(first: Mapping[int, CpuTimes], last: Mapping[int, CpuTimes]) -> Iterator[Notice]:
    both = first.keys() & last.keys()
    ticks = sum(last[cpu].total - first[cpu].total for cpu in both)
    stolen = sum(last[cpu].stolen - first[cpu].stolen for cpu in both)
    if ticks >= _LEAST_TICKS and stolen > _STOLEN_SHARE * ticks:
        yield Notice(
            "cpu-stolen",
            f"the hypervisor gave {100 * stolen / ticks:.1f} % of the CPUs' time to others during the run",
            "measure on a machine of its own, or repeat and compare the spread",
        )


def _company(first: Mapping[int, CpuTimes], last: Mapping[int, CpuTimes], threads: int) -> Iterator[Notice]:
    """Find out whether more was busy than the run can explain: its threads, and one for all that surrounds them."""
    cpus = [cpu for cpu in first if cpu in last and last[cpu].total - first[cpu].total >= _LEAST_TICKS]
    busy = _busy_cpus(first, last, cpus)
    if threads < len(cpus) and busy > min(threads + 1.0, 0.95 * len(cpus)):
        yield Notice(
            "machine-loaded",
            f"{busy:.1f} CPUs were busy during the run, which asked for {threads} threads",
            "others were at work, or the framework took more threads than it was given: repeat, and look at `top`",
        )


def _busy_cpus(first: Mapping[int, CpuTimes], last: Mapping[int, CpuTimes], cpus: Iterable[int]) -> float:
    shares = []
    for cpu in cpus:
        ticks = last[cpu].total - first[cpu].total
        shares.append((last[cpu].busy - first[cpu].busy) / ticks if ticks > 0 else 0.0)
    return sum(shares)


def _growth(first: int | None, last: int | None) -> int:
    return 0 if first is None or last is None else max(0, last - first)
