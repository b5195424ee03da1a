"""What a worker says of its passes, checked: nothing of it is believed before its type, its range and its files fit."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlbundle.errors import ProtocolBroken
from mlbundle.wire.passes import KINDS, LATENCIES, MOST_FOLDERS, folder_number

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_HINT = "see worker.log in the run's folder"


@dataclass(frozen=True)
class PassFindings:
    """One pass: the folder of its files, how much was done in it, and what its scenario adds."""

    folder: str
    kind: str
    headline: bool
    queries: int
    samples: int
    busy_ns: int
    traced_queries: int
    values: Mapping[str, Any]


@dataclass(frozen=True)
class MeasureFindings:
    """What a measuring process says of itself."""

    passes: tuple[PassFindings, ...]
    loop_overhead_ns: float
    warm_up_queries: int
    warm_up_settled: bool
    peak_memory_bytes: int
    values: Mapping[str, Any]

    @property
    def headline(self) -> PassFindings:
        """The pass from which the result is taken."""
        return next(found for found in self.passes if found.headline)


@dataclass(frozen=True)
class AccuracyFindings:
    """What the accuracy pass says of itself, checked."""

    metric: str
    value: float
    samples: int
    predictions_sha256: str
    outputs_sha256: str


def read_measure(values: Mapping[str, Any]) -> MeasureFindings:
    """Check what a worker says of a measuring process. Raises ProtocolBroken."""
    listed = values.get("passes")
    if not isinstance(listed, list) or not 0 < len(listed) <= MOST_FOLDERS:
        raise not_said("passes")
    passes = tuple(_read_pass(found) for found in listed)
    if sum(found.headline for found in passes) != 1 or len({found.folder for found in passes}) != len(passes):
        raise not_said("passes")
    return MeasureFindings(
        passes=passes,
        loop_overhead_ns=number(values, "loop_overhead_ns"),
        warm_up_queries=count(values, "warm_up_queries"),
        warm_up_settled=values.get("warm_up_settled") is True,
        peak_memory_bytes=count(values, "peak_memory_bytes"),
        values=values,
    )


def _read_pass(values: Any) -> PassFindings:
    if not isinstance(values, dict):
        raise not_said("passes")
    folder, kind = values.get("folder"), values.get("kind")
    if kind not in KINDS or not isinstance(folder, str) or not folder.endswith(f"-{kind}"):
        raise not_said("kind")
    if folder_number(folder) is None or folder.count("/") != 1:
        raise not_said("folder")
    headline = values.get("headline") is True
    return PassFindings(
        folder=folder,
        kind=kind,
        headline=headline,
        queries=count(values, "queries", least=1 if headline else 0),
        samples=count(values, "samples", least=1 if headline else 0),
        busy_ns=count(values, "busy_ns", least=1 if headline else 0),
        traced_queries=count(values, "traced_queries"),
        values=values,
    )


def read_accuracy(values: Mapping[str, Any], metric: str) -> AccuracyFindings:
    """Check what a worker says of its accuracy pass. Raises ProtocolBroken."""
    return AccuracyFindings(
        metric=metric,
        value=number(values, "value"),
        samples=count(values, "samples", least=1),
        predictions_sha256=_digest(values, "predictions_sha256"),
        outputs_sha256=_digest(values, "outputs_sha256"),
    )


def load_times(folder: Path, name: str, queries: int) -> Any:
    """Return an array of times that a worker sent, int64 ns, one a query.

    Raises ProtocolBroken when the file is not what the worker said it is.
    """
    import numpy as np

    try:
        # Mapped, not read: a header that promises more than the file holds is refused before memory is taken.
        times = np.load(folder / name, allow_pickle=False, mmap_mode="r")
    except Exception as error:  # NumPy lets errors of many kinds through for a stranger's bytes
        raise ProtocolBroken(f"the worker's times can't be read: {error}"[:1000], where=name) from error
    if not isinstance(times, np.ndarray):
        raise ProtocolBroken("the worker's times are no array", where=name)
    if times.ndim != 1 or times.dtype != np.int64 or len(times) != queries:
        raise ProtocolBroken("the worker's times are not what it said of them", where=name)
    return times


def load_latencies(folder: Path, found: PassFindings) -> Any:
    """Return the latencies of a pass, int64 ns, one a query. Raises ProtocolBroken."""
    latencies = load_times(folder, f"{found.folder}/{LATENCIES}", found.queries)
    if len(latencies) and latencies.min() < 0:
        raise ProtocolBroken("the worker's times are not what it said of them", where=found.folder)
    return latencies


def check_closed_loop(found: PassFindings, latencies: Any) -> None:
    """Check that a pass took at least as long as its queries, one after another. Raises ProtocolBroken."""
    if int(latencies.sum(dtype="float64")) > found.busy_ns:
        raise not_said("busy_ns")


def number(values: Mapping[str, Any], name: str) -> float:
    """Return a number that a worker said, 0 or more. Raises ProtocolBroken."""
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e18:
        raise not_said(name)
    return float(value)


def count(values: Mapping[str, Any], name: str, *, least: int = 0) -> int:
    """Return a whole number that a worker said. Raises ProtocolBroken."""
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 1 << 62:
        raise not_said(name)
    return value


def _digest(values: Mapping[str, Any], name: str) -> str:
    value = values.get(name)
    if not isinstance(value, str) or re.fullmatch("[0-9a-f]{64}", value) is None:
        raise not_said(name)
    return value


def not_said(name: str) -> ProtocolBroken:
    """Return the error of a result that lacks a part."""
    return ProtocolBroken(f"the worker's result lacks or garbles {name!r}", hint=_HINT)
