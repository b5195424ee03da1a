"""`online`: one query of one sample at a time, the next when the answer is there."""

from __future__ import annotations

from typing import Any, Mapping

from mlbundle.worker.scenarios.base import PassOutcome, ScenarioOutcome, Subject, measured_kind
from mlbundle.worker.scenarios.closed import TAIL, Extent, Load, Order, run_measured, run_warm_up
from mlbundle.worker.scenarios.loop import loop_overhead_ns, quiet_interpreter


class OnlineScenario:
    """Closed loop, batch 1. Options: duration_s, queries (None: as many as fit), warmup ('auto' or seconds)."""

    name = "online"
    batch_size = 1
    # Answers may come token by token.
    by_token = True

    def __init__(self, options: Mapping[str, Any]) -> None:
        queries = options.get("queries")
        self._extent = Extent(
            int(float(options.get("duration_s", 3.0)) * 1e9), None if queries is None else int(queries)
        )
        self._warm_up = options.get("warmup", "auto")

    def run(self, subject: Subject) -> ScenarioOutcome:
        """Warm up, then measure; reports windows between chunks of queries."""
        order = Order(subject.batches, subject.seed)
        warm_up, measured = Load(subject.call, order), Load(subject.call, order)
        with quiet_interpreter():
            subject.emitter.phase("warm-up", "begun")
            settled = run_warm_up(warm_up, self._warm_up, subject.emitter)
            subject.emitter.phase("warm-up", "done")
            subject.emitter.phase("measure", "begun")
            run_measured(measured, self._extent, warm_up.median_ns(TAIL), subject.emitter)
            overhead_ns = loop_overhead_ns()
            subject.emitter.phase("measure", "done")
        values = {
            "warm_up_settled": settled,
            "warm_up_queries": len(warm_up.starts),
            "loop_overhead_ns": overhead_ns,
        }
        passes = (
            PassOutcome("warm-up", warm_up.timings()),
            PassOutcome(measured_kind(subject), measured.timings(), headline=True),
        )
        return ScenarioOutcome(passes, values)
