"""What `pipeline` adds to a result: how busy each operator was, and how long it waited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlbundle.runs.measured import count, not_said, number
from mlbundle.runs.throughputs import throughput_reasons

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from mlbundle.runs.measured import MeasureFindings

_MOST_STAGES = 1024
_MOST_NAME = 200
_TIMES = ("busy_ns", "starved_ns", "blocked_ns")
_HOW = (
    "1 + time a sample of as many stages that do nothing, threads and queues alone, measured in the same process, "
    "over that of the pipeline"
)


def add(
    _folder: Path, processes: Sequence[MeasureFindings], options: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Return `pipeline` and its own `harness_overhead`, and why the result is not valid. Raises ProtocolBroken."""
    found = processes[0].headline
    said = found.values.get("pipeline")
    if not isinstance(said, dict):
        raise not_said("pipeline")
    stages = said.get("stages")
    if not isinstance(stages, list) or not 0 < len(stages) <= _MOST_STAGES:
        raise not_said("stages")
    batch_size = count(said, "batch_size", least=1)
    if batch_size != options.get("batch_size", 1):
        raise not_said("batch_size")
    if options.get("samples") is not None and found.samples != options["samples"]:
        raise not_said("samples")
    sample_ns = found.busy_ns / found.samples
    ratio = 1 + number(processes[0].values, "loop_overhead_ns") / sample_ns
    pipeline = {
        "samples_per_s": 1e9 / sample_ns,
        "batch_size": batch_size,
        "threads": count(said, "threads", least=1),
        "stages": [_stage(stage, found.busy_ns) for stage in stages],
    }
    # A latency is mostly of queues, and says little of the pace.
    reasons = throughput_reasons(found.queries, found.busy_ns)
    return {"pipeline": pipeline, "harness_overhead": {"ratio": ratio, "how": _HOW}}, reasons


def _stage(said: Any, wall_ns: int) -> dict[str, Any]:
    """Return one operator; `share` is that of the time in which it worked."""
    if not isinstance(said, dict):
        raise not_said("stages")
    name = said.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= _MOST_NAME or not name.isprintable():
        raise not_said("name")
    items = count(said, "items")
    busy_ns, starved_ns, blocked_ns = (count(said, time) for time in _TIMES)
    # It is one thread: it can't have worked for longer than there was between the first read and the last answer.
    if busy_ns > wall_ns:
        raise not_said("busy_ns")
    return {
        "name": name,
        "items": items,
        "busy_s": busy_ns / 1e9,
        "share": busy_ns / wall_ns,
        "mean_ns": busy_ns / max(1, items),
        "starved_s": starved_ns / 1e9,
        "blocked_s": blocked_ns / 1e9,
    }
