"""How the environment in a run record, and what differs between two records, are shown to a person."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from mlbundle.cli import output
from mlbundle.cli.tables import shorten_digests
from mlbundle.wording import units

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mlbundle.runs.record_diff import Change, RecordDifference

Row = tuple[str, str, str]

_SHOWN_ITEMS = 3
_LONGEST_WORD = 24
_MEASURES: dict[str, Callable[[float], str]] = {
    "per_s": units.rate,
    "ns": units.duration,
    "s": lambda seconds: units.duration(seconds * 1e9),
    "bytes": lambda size_bytes: units.size(int(size_bytes)),
    "khz": lambda khz: f"{khz / 1000:.0f} MHz",
}
_UNIT = re.compile(r"_(per_s|ns|s|bytes|khz)\Z")
_UNIT_WORDS = re.compile(r" (?:per s|ns|s|bytes|khz)(?= |\Z)")
_CPU = {
    "sockets": "how many sockets",
    "cores": "how many cores",
    "numa_nodes": "how many memory nodes",
    "isolated": "isolated cpus no.",
    "virtual": "virtual",
    "turbo": "turbo",
    "scaling_driver": "scaling driver",
}
# Of the flags of a CPU those that decide which kernels a framework takes.
_TELLING = re.compile(r"avx|amx|fma|f16c|sse4|vnni|bf16|asimd|sve|sme|neon|i8mm|dotprod|fphp|atomics")


def show_environment(record: dict[str, Any]) -> None:
    """Print the environment of a record as a table of sections; what is not known is left out."""
    rows = [row for row in _rows(record) if row[2] not in {"", "None"}]
    before = ["", *(section for section, _, _ in rows)]
    # A section's name stands once, at its first row.
    shown = [
        ("" if row[0] == previous else row[0], *row[1:]) for previous, row in zip(before, rows, strict=False)
    ]
    output.table(("section", "what", "value"), shown)


def show_difference(found: RecordDifference, *, everything: bool = False) -> None:
    """Print what differs between two records; without `everything` long lists are folded."""
    if not found.changes:
        output.data("no difference")
        return
    rows = [
        (
            change.section,
            _without_unit(change.name),
            *_sides(change, everything=everything),
            "" if change.ratio is None else units.ratio(change.ratio),
        )
        for change in found.changes
        if everything or not _is_one_sided(change)
    ]
    if not everything:
        rows += _folded(found)
    order = {change.section: number for number, change in enumerate(found.changes)}
    rows.sort(key=lambda row: order[row[0]])
    output.table(("section", "what", found.left, found.right, "ratio"), rows)


def _is_one_sided(change: Change) -> bool:
    """Return whether this is a distribution that one of the runs does not have: frameworks bring dozens."""
    return change.section == "distributions" and (change.left is None) != (change.right is None)


def _folded(found: RecordDifference) -> Iterator[tuple[str, str, str, str, str]]:
    folded = [change for change in found.changes if _is_one_sided(change)]
    left = sum(change.right is None for change in folded)
    right = len(folded) - left
    if left:
        yield "distributions", "only on the left", f"{left} (--all lists them)", "-", ""
    if right:
        yield "distributions", "only on the right", "-", f"{right} (--all lists them)", ""


def _sides(change: Change, *, everything: bool) -> tuple[str, str]:
    left, right = change.left, change.right
    if isinstance(left, list) and isinstance(right, list):
        # Of two long lists only what the other lacks is worth reading.
        ours = [str(item) for item in left if item not in right]
        theirs = [str(item) for item in right if item not in left]
        if ours or theirs:
            return _listed(ours, everything=everything), _listed(theirs, everything=everything)
    name = change.place.rpartition("/")[2]
    # Latencies say their unit in the name of the whole group.
    parent = change.place.rpartition("/")[0].rpartition("/")[2]
    unit = name if _UNIT.search(name) else parent
    return _side(left, unit, everything=everything), _side(right, unit, everything=everything)


def _side(value: Any, name: str, *, everything: bool) -> str:
    text = _measure(name, value) or _text(value) or "-"
    if everything:
        return text
    return " ".join(_cut(word) for word in shorten_digests(text).split(" "))


def _cut(word: str) -> str:
    """Return the ends of a long word: references of images begin alike and end in what tells them apart."""
    half = _LONGEST_WORD // 2
    return word if len(word) <= _LONGEST_WORD else f"{word[:half]}…{word[-half + 1 :]}"


def _listed(items: list[str], *, everything: bool) -> str:
    more = len(items) - _SHOWN_ITEMS
    if everything or more <= 1:
        return " ".join(items) or "-"
    return f"{' '.join(items[:_SHOWN_ITEMS])} and {more} more"


def _measure(name: str, value: Any) -> str:
    """Return a number with the unit that its name ends in; nothing where there is none."""
    unit = _UNIT.search(name)
    if unit is None or isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    return _MEASURES[unit[1]](value)


def _without_unit(name: str) -> str:
    words = _UNIT_WORDS.sub("", name)
    return words.replace("p99 9", "p99.9")


def _rows(record: dict[str, Any]) -> Iterator[Row]:
    environment = record["environment"]
    machine = environment.get("machine", {})
    yield from _software(record)
    yield from _machine(machine)
    for number, gpu in enumerate(machine.get("gpus") or []):
        yield f"gpu {number}", "model", str(gpu["name"])
        yield f"gpu {number}", "memory", _size(gpu["memory_bytes"])
        for name in ("compute_capability", "driver", "cuda", "max_sm_mhz", "power_limit_w", "ecc", "mig"):
            yield f"gpu {number}", name.replace("_", " "), _text(gpu.get(name))
    yield from _cpus_used(environment.get("cpus_used") or {})
    yield from _given("asked for", environment.get("limits"))
    yield from _given("worker sees", (environment.get("worker") or {}).get("cgroup"))
    yield from _given("variables", (environment.get("worker") or {}).get("variables"))
    for moment, state in (environment.get("state") or {}).items():
        yield from _given(moment, state)
    for notice in environment.get("warnings") or []:
        yield "warnings", str(notice.get("reference")), str(notice.get("message"))
    yield from _given("distributions", environment.get("distributions"))


def _software(record: dict[str, Any]) -> Iterator[Row]:
    environment, image = record["environment"], record["image"] or {}
    worker, engine = environment.get("worker") or {}, environment.get("engine") or {}
    yield "software", "mlbundle", str(record["mlbundle_version"])
    yield "software", "framework", f"{record['framework']['name']} {record['framework']['version']}"
    yield "software", "isolation", _text(environment.get("isolation"))
    for name in ("ref", "config_digest", "manifest_digest", "index_digest"):
        yield "software", f"image {name.replace('_', ' ')}", _text(image.get(name))
    yield (
        "software",
        "engine",
        " ".join(_text(engine.get(n)) for n in ("kind", "version", "platform")).strip(),
    )
    yield "software", "worker", _text((record["worker"] or {}).get("sha256"))
    for name in ("python", "machine", "libc"):
        yield "software", f"worker's {name}", _text(worker.get(name))
    yield "software", "emulated", "yes" if environment.get("emulated") else ""
    yield from _given("framework", environment.get("framework"))


def _machine(machine: dict[str, Any]) -> Iterator[Row]:
    cpu = machine.get("cpu") or {}
    for name in ("system", "kernel", "architecture", "product"):
        yield "machine", name, _text(machine.get(name))
    yield "machine", "memory", _size(machine.get("memory_bytes"))
    yield "machine", "swap", _size(machine.get("swap_bytes"))
    for name in ("cgroup", "transparent_hugepages", "interconnects"):
        yield "machine", name.replace("_", " "), _text(machine.get(name))
    yield "cpu", "model", _text(machine.get("cpu_model"))
    yield "cpu", "level", _text(cpu.get("level"))
    yield "cpu", "cpus", f"{machine['cpu_usable']} of {machine['cpu_count']} usable" if machine else ""
    for name, said in _CPU.items():
        yield "cpu", said, _text(cpu.get(name))
    for name in ("governor", "smt"):
        yield "cpu", name, _text(machine.get(name))
    for name in ("min_khz", "max_khz"):
        yield "cpu", name.replace("_khz", " clock"), _mhz(cpu.get(name))
    for cache in cpu.get("caches") or []:
        text = f"{_size(cache['size_bytes'])}, shared by {cache['shared_by']}"
        yield "cpu", f"L{cache['level']} {cache['type']}", text
    yield "cpu", "flags", _flags(cpu.get("flags") or [])


def _flags(flags: list[str]) -> str:
    telling = [flag for flag in flags if _TELLING.match(flag)]
    more = len(flags) - len(telling)
    return " ".join(telling) + (f" and {more} more (--json)" if more else "")


def _cpus_used(used: dict[str, Any]) -> Iterator[Row]:
    """Yield what was used: numbers of CPUs, sockets and nodes as such, counts as counts."""
    yield "cpus used", "which", _text(used.get("list"))
    yield "cpus used", "how many", _text(used.get("count"))
    yield "cpus used", "how many cores", _text(used.get("cores"))
    yield "cpus used", "on sockets no.", _text(used.get("sockets"))
    yield "cpus used", "on memory nodes no.", _text(used.get("nodes"))
    yield "cpus used", "sharing a core", _text(used.get("sharing_a_core"))


def _given(section: str, values: Any) -> Iterator[Row]:
    """Yield a row for each value of a JSON object that holds any; names tell the units."""
    for name, value in (values or {}).items():
        if str(name).endswith("_bytes"):
            yield section, str(name).removesuffix("_bytes").replace("_", " "), _size(value)
        else:
            yield section, str(name), _text(value)


def _text(value: Any) -> str:
    if value is None or value in ([], {}):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " ".join(_text(item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{name} {_text(item)}" for name, item in value.items() if _text(item))
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _size(value: Any) -> str:
    return units.size(value) if isinstance(value, int) else ""


def _mhz(value: Any) -> str:
    return f"{value / 1000:.0f} MHz" if isinstance(value, int) else ""
