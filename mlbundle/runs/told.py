"""Values of records as people read them: the unit is in the name (`p50_ns`, `memory_bytes`)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlbundle.runs.record_diff import Change, diff_records
from mlbundle.runs.words import duration, rate, significant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_SIZES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_MEASURE = re.compile(r"_(bytes|ns|s|per_s|khz|mhz|w|percent|c)$")
_SPELLED = {
    "cpu": "CPU",
    "cpus": "CPUs",
    "gpu": "GPU",
    "smt": "SMT",
    "pids": "PIDs",
    "ecc": "ECC",
    "cuda": "CUDA",
}


@dataclass(frozen=True)
class Fact:
    """A line of an environment: a section, what it is about, its value; `here` is this machine's where that differs."""

    section: str
    name: str
    value: str
    here: str | None = None


def told(name: str, value: Any) -> str:
    """Return a value as text, in the unit that its name ends in; empty for what says nothing."""
    if value is None or value in ([], {}, ""):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        unit = _MEASURE.search(f"_{name}")
        if unit is not None:
            return _UNITS[unit[1]](value)
        return f"{value:,}" if isinstance(value, int) and value >= 10_000 else f"{value:.6g}"
    if isinstance(value, list):
        return " ".join(filter(None, (told("", item) for item in value)))
    if isinstance(value, dict):
        return ", ".join(f"{named(k)} {told(k, v)}" for k, v in value.items() if told(k, v))
    return str(value)


def named(name: str) -> str:
    """Return a name as words, without its unit: `memory_bytes` is `memory`."""
    words = _MEASURE.sub("", name).replace("_", " ").strip() or name
    return " ".join(_SPELLED.get(word, word) for word in words.split(" "))


def size(size_bytes: float) -> str:
    """Return a size: `1.50 MiB`."""
    for factor, unit in _SIZES:
        if size_bytes >= factor:
            return f"{significant(size_bytes / factor)} {unit}"
    return f"{size_bytes:.0f} B"


def environment_facts(record: Mapping[str, Any], here: Mapping[str, Any] | None = None) -> list[Fact]:
    """Return what a record says of where it ran, section by section, what was warned of first.

    `here`: the facts of this machine (`environment.machine_document`); lines that differ there say so.
    """
    environment = record.get("environment") or {}
    found = [
        Fact("warnings", str(one.get("reference")), str(one.get("message")))
        for one in environment.get("warnings") or []
        if isinstance(one, dict)
    ]
    found += _facts("software", _software(record))
    found += _facts("framework", environment.get("framework"))
    machine = environment.get("machine") or {}
    other = {change.place: change for change in _machine_changes(machine, here or {})} if here else {}
    for path, fact in _paths("machine", machine, "/environment/machine"):
        change = other.pop(path, None)
        left_out = path.endswith("/flags")
        if fact.value and not left_out:
            found.append(
                fact if change is None else Fact(*_parts(fact), told(_last(path), change.right) or "-")
            )
    for name in ("cpus_used", "limits"):
        found += _facts(named(name), environment.get(name))
    worker = environment.get("worker") or {}
    found += _facts("worker", {k: v for k, v in worker.items() if k != "variables"})
    found += _facts("variables", worker.get("variables"), spelled=False)
    for moment, state in (environment.get("state") or {}).items():
        found += _facts(f"state {moment}", state)
    found += _facts("distributions", environment.get("distributions"), spelled=False)
    order = list(dict.fromkeys(fact.section for fact in found))
    return sorted(found, key=lambda fact: order.index(fact.section))


def machine_changes(record: Mapping[str, Any], here: Mapping[str, Any]) -> list[Change]:
    """Return what differs between the machine of a record (left) and this one (right)."""
    return _machine_changes((record.get("environment") or {}).get("machine") or {}, here)


def _machine_changes(machine: Mapping[str, Any], here: Mapping[str, Any]) -> list[Change]:
    # GPUs are looked at only for runs that use one, and Python is that of the command, not of the run.
    passed_over = {"gpus", "python"} | {name for name in here if name not in machine}
    left, right = (
        {"run_id": "", "environment": {"machine": {k: v for k, v in one.items() if k not in passed_over}}}
        for one in (machine, here)
    )
    return list(diff_records(left, right).changes)


def _software(record: Mapping[str, Any]) -> dict[str, Any]:
    framework, image, worker = (record.get(name) or {} for name in ("framework", "image", "worker"))
    environment = record.get("environment") or {}
    return {
        "mlbundle": record.get("mlbundle_version"),
        "framework": f"{framework.get('name', '')} {framework.get('version', '')}".strip(),
        "isolation": environment.get("isolation"),
        "image": image.get("ref"),
        "image_digest": image.get("config_digest"),
        "engine": environment.get("engine"),
        "worker": worker.get("sha256"),
        "emulated": environment.get("emulated"),
    }


def _facts(section: str, values: Any, *, spelled: bool = True) -> list[Fact]:
    found = []
    for name, value in (values or {}).items():
        text = told(name, value)
        if text:
            found.append(Fact(section, named(name) if spelled else str(name), text))
    return found


def _paths(section: str, values: Mapping[str, Any], path: str) -> Iterator[tuple[str, Fact]]:
    """Yield the leaves of a document with their JSON pointers; lists of objects are one line each."""
    for name, value in values.items():
        here = f"{path}/{name}"
        if isinstance(value, dict):
            yield from _paths(named(name) if path.endswith("/machine") else section, value, here)
        elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
            for number, item in enumerate(value):
                yield f"{here}/{number}", Fact(section, f"{named(name)} {number}", told(name, item))
        else:
            yield here, Fact(section, named(name), told(name, value))


def _parts(fact: Fact) -> tuple[str, str, str]:
    return fact.section, fact.name, fact.value


def _last(path: str) -> str:
    return path.rpartition("/")[2]


_UNITS: dict[str, Callable[[float], str]] = {
    "bytes": size,
    "ns": duration,
    "s": lambda value: duration(value * 1e9),
    "per_s": rate,
    "khz": lambda value: f"{value / 1000:.0f} MHz",
    "mhz": lambda value: f"{value:.0f} MHz",
    "w": lambda value: f"{value:.4g} W",
    "percent": lambda value: f"{value:.4g} %",
    "c": lambda value: f"{value:.4g} C",
}
