"""What a scenario is given and what it returns."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, Sequence

from mlbundle.worker.emit import Emitter


@dataclass(frozen=True)
class Subject:
    """The thing under load: `call(batch)` runs one of `batches`; `emitter` reports between queries."""

    call: Callable[[Any], Any]
    batches: Sequence[Any]
    emitter: Emitter
    seed: int


@dataclass(frozen=True)
class Timings:
    """Start and end of each query in ns on CLOCK_MONOTONIC, in issue order, and the time the load was on."""

    starts_ns: array[int] = field(default_factory=lambda: array("q"))
    ends_ns: array[int] = field(default_factory=lambda: array("q"))
    busy_ns: int = 0


@dataclass(frozen=True)
class ScenarioOutcome:
    """Timings of the warm-up and of the measured queries, and findings of the scenario's own."""

    warm_up: Timings
    measured: Timings
    samples_per_query: int
    values: Mapping[str, Any]
