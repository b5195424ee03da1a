"""The two loops of a pass that profiles: the same samples from the first on, and patience with a model that loads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mlbundle.worker import profiling
from mlbundle.worker.profilers.base import Profiler


class Predictor:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def predict(self, handle: Any, batch: Any) -> Any:
        self.seen.append(batch)
        return batch


class Seen(Profiler):
    def read(self, runs: Any, profile: Any) -> None:
        pass


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch):
    """A job, its watch, the sessions that were opened, and for how long each wait was allowed to be."""
    sessions: list[Any] = []
    waits: list[float] = []

    def session(job: Any, profile: Any = None) -> Any:
        waits.append(allowed[-1])
        one = SimpleNamespace(
            predictor=Predictor(),
            handle=None,
            close=lambda: None,
            blamed=profiling._profilers_fault,
        )
        sessions.append(one)
        return one

    allowed: list[float] = []
    monkeypatch.setattr(profiling, "Session", session)
    monkeypatch.setattr(profiling, "WARM_UP_NS", 0)
    monkeypatch.setattr(profiling, "_batches", lambda session, size: list("abcd"))
    monkeypatch.setattr(profiling, "_profiler", lambda job, level: Seen(level, {}))
    monkeypatch.setattr(profiling, "facts_of", lambda handle: {})
    monkeypatch.setattr(
        profiling.faulthandler, "dump_traceback_later", lambda wait_s, **_: allowed.append(wait_s)
    )
    job = SimpleNamespace(limits=SimpleNamespace(hang_timeout_s=100.0), scenario={})
    watched = profiling._Watched(job, SimpleNamespace(event=lambda event: None))  # type: ignore[arg-type]
    return job, watched, sessions, waits, allowed


def test_both_loops_begin_with_the_first_sample(parts) -> None:
    job, watched, sessions, _, _ = parts
    found = profiling._find(job, "framework", watched)
    assert found.batches == 4
    for session, queries in zip(sessions, (found.unprofiled_ns, found.runs), strict=True):
        timed = session.predictor.seen[-len(queries) :]
        assert timed == [list("abcd")[number % 4] for number in range(len(queries))]


def test_a_model_that_loads_has_the_time_of_every_pass(parts) -> None:
    job, watched, _, waits, allowed = parts
    profiling._find(job, "framework", watched)
    assert waits == [95.0, 95.0], "both times that it is opened"
    assert allowed[-1] == 75.0, "a profiler ends before the host gives up"
