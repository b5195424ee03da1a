"""A worker whose host is gone without a word, or that is asked to end: it leaves, and takes the measuring process along."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import make_bundle

from mlbundle.config import load_settings
from mlbundle.runs.plan import RunOptions, make_plan
from mlbundle.wire import frames, presence

ENVIRONMENT = 12


class Worker:
    """A worker of the `process` runtime that has its job and measures."""

    def __init__(self, bundle: Path, log: Path) -> None:
        options = RunOptions(
            str(bundle),
            runtime="process",
            python=Path(sys.executable),
            scenario_options={"duration_s": 60.0, "queries": None, "warmup": 0.01, "repeats": 1},
        )
        plan = make_plan(options, load_settings())
        launch = plan.launch(log)
        self.said: list[dict[str, Any]] = []
        self._decoder = frames.FrameDecoder()
        self.connection = plan.runtime.start(launch)
        self.until(lambda: self.said)
        self.say(frames.encode_document(frames.JOB, plan.job(launch).to_document()))
        self.until(lambda: any(e["kind"] == "phase" and e["name"] == "measure" for e in self.said))

    def say(self, data: bytes) -> None:
        self.connection.send(data, 60.0)

    def until(self, condition: Callable[[], Any], timeout_s: float = 60.0) -> None:
        """Listen until something is so, the worker has ended, or time is over."""
        deadline = time.monotonic() + timeout_s
        while not condition() and time.monotonic() < deadline:
            data = self.connection.read(0.05)
            if data == b"":
                return
            for frame in self._decoder.feed(data or b""):
                if frame.kind == frames.EVENT:
                    self.said.append(frame.document())

    def measuring(self) -> list[int]:
        """The process that measures, as long as it lives."""
        place = self.connection.place()
        assert place is not None
        children = Path(f"/proc/{place.pid}/task/{place.pid}/children")
        return [int(pid) for pid in children.read_text().split()] if children.exists() else []


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    started = Worker(make_bundle(tmp_path / "mini"), tmp_path / "worker.log")
    yield started
    started.connection.stop()


def test_a_worker_leaves_when_the_host_breaks_its_promise_to_be_heard(worker: Worker) -> None:
    worker.until(lambda: False, timeout_s=1.2)  # a host that has promised nothing may be silent
    (child,) = worker.measuring()
    for _ in range(8):
        worker.say(bytes([3]))
        worker.until(lambda: False, timeout_s=0.45)
    assert worker.measuring() == [child], "it was heard in time"
    silent_at = time.monotonic()
    worker.until(lambda: False, timeout_s=60)
    assert worker.connection.wait(60).status == ENVIRONMENT
    assert time.monotonic() - silent_at > 1
    assert [(e["reference"], e["fault"]) for e in worker.said if e["kind"] == "error"] == [
        ("host-silent", "environment")
    ]
    assert not Path(f"/proc/{child}").exists()


def test_a_worker_that_is_asked_to_end_says_so_and_leaves(worker: Worker) -> None:
    (child,) = worker.measuring()
    place = worker.connection.place()
    assert place is not None
    os.kill(place.pid, signal.SIGTERM)
    worker.until(lambda: False, timeout_s=60)
    assert worker.connection.wait(60).status == ENVIRONMENT
    (failed,) = [event for event in worker.said if event["kind"] == "error"]
    assert (failed["reference"], failed["fault"]) == ("worker-terminated", "environment")
    assert not Path(f"/proc/{child}").exists()


@pytest.mark.engine
@pytest.mark.usefixtures("in_image_home")
def test_the_host_is_heard_in_a_container_for_as_long_as_it_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlbundle.runs.execute import Execution

    monkeypatch.setattr(presence, "WITHIN_S", 3)
    monkeypatch.setattr(presence, "EVERY_S", 0.5)
    options = {"duration_s": 4.5, "queries": None, "warmup": 0.01, "repeats": 1}
    bundle = str(make_bundle(tmp_path / "mini"))
    settings = load_settings()
    plan = make_plan(
        RunOptions(bundle, runtime="docker", scenario_options=options, concurrent=True), settings
    )
    execution = Execution(plan, settings)
    for _ in execution.events():
        pass
    assert execution.record is not None
    assert execution.record["status"] == "completed"
