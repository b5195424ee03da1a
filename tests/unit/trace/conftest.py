"""Traces judged by Perfetto itself: one processor serves all tests of a session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from judge import TraceJudge, TraceProcessor, require_processor


@pytest.fixture(scope="session")
def processor() -> Iterator[TraceProcessor]:
    found = require_processor()
    yield found
    found.close()


@pytest.fixture
def judge(processor: TraceProcessor) -> Callable[[Path], TraceJudge]:
    def load(path: Path) -> TraceJudge:
        return TraceJudge(path, processor)

    return load
