"""What a scenario is given and what it returns."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, Sequence

from mlbundle.worker.emit import Emitter
from mlbundle.worker.spans import SpanRecorder


@dataclass(frozen=True)
class Subject:
    """The thing under load: `call(batch)` runs one of `batches`; `emitter` reports between queries.

    `batches` are of one sample each. `batches_of(size)` makes others, of that many samples, before anything is timed;
    `session` is the open model with its dataset and its pipeline, for a scenario that drives them itself. `number` is
    that of the process: 0, and more for repeats. `traced` says that spans are wanted.
    """

    call: Callable[[Any], Any]
    batches: Sequence[Any]
    emitter: Emitter
    seed: int
    batches_of: Callable[[int], Sequence[Any]] = lambda _size: ()
    session: Any = None
    number: int = 0
    traced: bool = False


@dataclass(frozen=True)
class Timings:
    """Times of each query in ns on CLOCK_MONOTONIC, in issue order, and the time the load was on.

    The latency of a query is `ends - scheduled` where it had a time to begin, else `ends - starts`.
    """

    starts_ns: array[int] = field(default_factory=lambda: array("q"))
    ends_ns: array[int] = field(default_factory=lambda: array("q"))
    busy_ns: int = 0
    scheduled_ns: array[int] | None = None


@dataclass(frozen=True)
class PassOutcome:
    """One pass of a scenario: its kind (`mlbundle.wire.passes.KINDS`), its times, and what it found.

    The result of the run is taken from the pass that is the `headline`. `values` are JSON values. Without `spans` of
    its own the queries of the headline become spans.
    """

    kind: str
    timings: Timings
    samples_per_query: int = 1
    headline: bool = False
    values: Mapping[str, Any] = field(default_factory=dict)
    spans: SpanRecorder | None = None


@dataclass(frozen=True)
class ScenarioOutcome:
    """All passes of a scenario in the order in which they ran, exactly one of them the headline.

    `values` holds findings of the whole: always `warm_up_settled` (bool), `warm_up_queries` and `loop_overhead_ns`
    (what the load generator itself costs a query); what else a scenario finds goes under a key of its own.
    """

    passes: Sequence[PassOutcome]
    values: Mapping[str, Any]


def measured_kind(subject: Subject) -> str:
    """Return the kind of a measured pass: the first is `measure`, those in further processes are `repeat`."""
    return "repeat" if subject.number else "measure"
