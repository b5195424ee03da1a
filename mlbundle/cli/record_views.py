"""How the environment in a run record, and what differs between two records, are shown to a person."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlbundle.cli import output, units

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlbundle.runs.record_diff import Change, RecordDifference

Row = tuple[str, str, str]


def show_environment(record: dict[str, Any]) -> None:
    """Print the environment of a record as a table of sections; what is not known is left out."""
    rows = [row for row in _rows(record) if row[2] not in {"", "None"}]
    before = ["", *(section for section, _, _ in rows)]
    # A section's name stands once, at its first row.
    shown = [
        ("" if row[0] == previous else row[0], *row[1:]) for previous, row in zip(before, rows, strict=False)
    ]
    output.table(("section", "what", "value"), shown)


def show_difference(found: RecordDifference) -> None:
    """Print what differs between two records."""
    if not found.changes:
        output.data("no difference")
        return
    rows = [
        (
            change.section,
            change.place,
            *_sides(change),
            "" if change.ratio is None else f"x{change.ratio:.3g}",
        )
        for change in found.changes
    ]
    output.table(("section", "place", found.left, found.right, "ratio"), rows)


def _sides(change: Change) -> tuple[str, str]:
    left, right = change.left, change.right
    if isinstance(left, list) and isinstance(right, list):
        # Of two long lists only what the other lacks is worth reading.
        ours = [str(item) for item in left if item not in right]
        theirs = [str(item) for item in right if item not in left]
        if ours or theirs:
            return " ".join(ours) or "-", " ".join(theirs) or "-"
    return _text(left) or "-", _text(right) or "-"


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
    yield from _given("cpus used", environment.get("cpus_used"))
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
    for name in ("sockets", "cores", "numa_nodes", "isolated", "virtual", "turbo", "scaling_driver"):
        yield "cpu", name.replace("_", " "), _text(cpu.get(name))
    for name in ("governor", "smt"):
        yield "cpu", name, _text(machine.get(name))
    for name in ("min_khz", "max_khz"):
        yield "cpu", name.replace("_khz", " clock"), _mhz(cpu.get(name))
    for cache in cpu.get("caches") or []:
        text = f"{_size(cache['size_bytes'])}, shared by {cache['shared_by']}"
        yield "cpu", f"L{cache['level']} {cache['type']}", text
    yield "cpu", "flags", _text(cpu.get("flags"))


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
