"""What the panels of the section Machine show: renderables made of values, nothing asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from mlbundle.manifest.problems import printable
from mlbundle.wording import units
from mlbundle_tui.widgets.texts import fit, pairs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from mlbundle.runs.disk import DiskRow
    from mlbundle.runtime.image_list import ImageStatus

_CHECKS = {"ok": ("●", "green"), "warn": ("◐", "yellow"), "no": ("✗", "red")}
_IMAGES = {
    "ready": ("●", "green"), "outdated": ("◐", "yellow"), "moved": ("◐", "yellow"), "new": ("◐", "yellow"),
    "differs": ("✗", "red"), "gone": ("✗", "red"), "unknown": ("?", "yellow"),
}  # fmt: skip


def checks(document: Mapping[str, Any]) -> RenderableType:
    """Return what was tried, what is wrong first, each with what to do."""
    order = {"no": 0, "warn": 1, "ok": 2}
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(width=6, no_wrap=True)
    table.add_column(overflow="fold")
    for check in sorted(document["checks"], key=lambda check: order[check["state"]]):
        sign, colour = _CHECKS[check["state"]]
        state = Text(no_wrap=True)
        state.append(sign, style=colour)
        state.append(f" {check['state']}")
        found = Text(f"{check['name']}: ", style="bold" if check["state"] == "no" else "")
        found.append(printable(check["found"]), style="not bold")
        if check["hint"]:
            found.append(f"\n{printable(check['hint'])}", style="not bold dim")
        table.add_row(state, found)
    runtimes = ", ".join(document["runtimes"]) or "none"
    return Group(Text(f"runtimes ready: {runtimes}", style="bold"), Text(), table)


def facts(document: Mapping[str, Any]) -> RenderableType:
    """Return what this machine is: system, processor, memory, devices, engine, folders."""
    machine, cpu = document["machine"], document["machine"]["cpu"]
    cores = f"{machine['cpu_usable']} of {machine['cpu_count']} usable"
    if cpu.get("cores"):
        cores += f", {cpu['cores']} cores in {cpu['sockets']} sockets, {cpu['numa_nodes']} NUMA nodes"
    caches = ", ".join(
        f"L{cache['level']}{cache['type'][0] if cache['level'] == 1 else ''} {units.size(cache['size_bytes'])}"
        for cache in cpu.get("caches") or ()
    )
    engine = document["engine"]
    rows: list[tuple[str, str | Text]] = [
        ("mlbundle", document["mlbundle_version"]),
        ("system", f"{machine['system']} {machine['kernel']} ({machine['architecture']})"),
        ("product", machine["product"] or ""),
        ("processor", f"{machine['cpu_model']}{', virtual' if cpu.get('virtual') else ''}"),
        ("cpus", cores),
        ("level", cpu.get("level") or ""),
        ("caches", caches),
        ("governor", machine["governor"] or "can't be read"),
        ("memory", f"{units.size(machine['memory_bytes'])}, swap {units.size(machine['swap_bytes'] or 0)}"),
        ("gpus", "\n".join(_gpu(gpu) for gpu in machine["gpus"]) or "none"),
        ("links", ", ".join(machine["interconnects"])),
        ("engine", "none answers" if engine is None else f"{engine['kind']} {engine['version']}"),
        ("cgroup", machine["cgroup"] or ""),
        ("python", machine["python"]),
        ("data", document["folders"]["data"]),
        ("cache", document["folders"]["cache"]),
        ("labels", "\n".join(f"{name}={value}" for name, value in document["labels"].items())),
    ]
    return pairs([(key, value) for key, value in rows if value])


def images(found: Sequence[ImageStatus]) -> RenderableType:
    """Return the images that there are for this machine, and which of them are here."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", expand=False)
    for name in ("image", "state", "size", "digest"):
        table.add_column(name, justify="right" if name == "size" else "left", overflow="fold")
    for image in found:
        sign, colour = _IMAGES.get(image.state, ("○", ""))
        state = Text(no_wrap=True)
        state.append(sign, style=colour)
        state.append(f" {image.state}")
        key = image.key
        size = "" if image.size_bytes is None else units.size(image.size_bytes)
        digest = (image.config_digest or "").removeprefix("sha256:")[:12]
        table.add_row(Text(fit(f"{key.framework} {key.version} {key.accelerator}", 60)), state, size, digest)
    hints = dict.fromkeys(printable(image.hint) for image in found if image.hint)
    return Group(table, *(Text(hint, style="dim") for hint in hints))


def disk(rows: Sequence[DiskRow]) -> RenderableType:
    """Return what takes how much space; what takes none is left out."""
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(overflow="fold")
    table.add_column(justify="right", no_wrap=True)
    for row in rows:
        if not row.amount.files and row.name != "total":
            continue
        name = Text(f"{row.name}, {row.amount.files:,} files", style="bold" if row.name == "total" else "")
        if row.what:
            name.append(f"\n  {row.what}", style="dim")
        table.add_row(name, Text(units.size(row.amount.size_bytes)))
    return table


def _gpu(gpu: Mapping[str, Any]) -> str:
    memory = gpu.get("memory_bytes")
    size = f", {units.size(memory)}" if memory else ""
    return f"{gpu['name']}{size}"
