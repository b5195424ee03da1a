"""LoadGen's files as a submission shows them: its detail log, and the accuracy log that rules want cut short.

A detail log is text; lines that begin with `:::MLLOG ` hold a JSON object each, with `key`, `value` and `metadata`
(`is_error`). Read here apart from what reads it for the result of a run: a checker that shares its reader with what
it checks finds nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from mlbundle.errors import UsageError
from mlbundle.files import storage_failed

if TYPE_CHECKING:
    from pathlib import Path

SUMMARY, DETAIL, ACCURACY = "mlperf_log_summary.txt", "mlperf_log_detail.txt", "mlperf_log_accuracy.json"
MOST_ACCURACY_BYTES = 10 << 10
_MARK = b":::MLLOG"
_PREFIX = _MARK + b" "
_KEPT_BYTES = 4096
_CUT_LINE = b"\n...\n"
_CUT = b"\n\n...\n\n"
_MOST_LINE_BYTES = 64 << 20
_MOST_ERRORS = 100
# What is told of a whole test.
_TOLD_ONCE = ("effective_", "requested_", "result_", "early_stopping_", "qsl_reported_")
_PIECE_BYTES = 1 << 20
_SAMPLE = re.compile(rb'"qsl_idx"\s*:\s*(\d{1,12})')
# Samples a second, of the whole test; LoadGen says none for MultiStream. There it is the time from when it has made its
# queries until it writes what it found.
_RATES = {
    "SingleStream": "result_qps_with_loadgen_overhead",
    "Server": "result_completed_samples_per_sec",
    "Offline": "result_samples_per_second",
}
_GENERATED, _WRITTEN = "generated_query_count", "power_begin"
_ANSWER = re.compile(rb'"qsl_idx"\s*:\s*(\d{1,12})\s*,\s*"data"\s*:\s*"([0-9A-Fa-f]*)"')
_EDGE_BYTES = 64
_MOMENT = "%m-%d-%Y %H:%M:%S.%f"


@dataclass(frozen=True)
class DetailLog:
    """The last value of each key that is no list, the texts of all errors, and when each key was written, in ms.

    The times are of LoadGen's own clock, which nobody sets. `damage` is why MLCommons' checker could not read it, or
    would read something else.
    """

    values: dict[str, Any] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    times_ms: dict[str, float] = field(default_factory=dict)
    damage: list[str] = field(default_factory=list)

    def number(self, key: str) -> float | None:
        """Return a number, None where there is none."""
        value = self.values.get(key)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    def text(self, key: str) -> str:
        """Return a text, empty where there is none."""
        value = self.values.get(key)
        return value if isinstance(value, str) else ""

    @property
    def duration_s(self) -> float | None:
        """How long the test took by LoadGen's own clock, None where the log does not say.

        The clock on the wall, which may be set while a test runs, is asked where there is nothing else.
        """
        rate = self.number(_RATES.get(self.text("effective_scenario"), ""))
        queries, size = self.number("result_query_count"), self.number("effective_samples_per_query")
        if rate and queries and size and min(rate, queries, size) > 0:
            return queries * size / rate
        if {_GENERATED, _WRITTEN} <= self.times_ms.keys():
            return (self.times_ms[_WRITTEN] - self.times_ms[_GENERATED]) / 1000
        return self._on_the_wall_s()

    def _on_the_wall_s(self) -> float | None:
        try:
            begin, end = (datetime.strptime(self.text(f"power_{at}"), _MOMENT) for at in ("begin", "end"))  # noqa: DTZ007
        except ValueError:
            return None
        return (end - begin).total_seconds()


def read_detail(path: Path) -> DetailLog:
    """Read a detail log; what is no line of LoadGen's is passed over. Raises UsageError when it can't be read."""
    log = DetailLog()
    number = 0
    try:
        with path.open("rb") as stream:
            while line := stream.readline(_MOST_LINE_BYTES):
                number += 1
                why = _take(line, log)
                if number == 1 and not line.startswith(_PREFIX):
                    why = "is none of LoadGen's, and the first has to be"
                if why and len(log.damage) < _MOST_ERRORS:
                    log.damage.append(f"line {number} {why}")
    except OSError as error:
        raise UsageError(f"the log can't be read: {error.strerror}", where=str(path)) from error
    return log


def _take(line: bytes, log: DetailLog) -> str | None:
    """Add a line to a log; returns what is wrong with it, None for one that is right or none of LoadGen's."""
    try:
        text = line.decode("utf-8")
        if not line.startswith(_MARK):
            return None
        entry = json.loads(text[len(_MARK) :])
    except UnicodeDecodeError:
        return "is no UTF-8"
    except (ValueError, RecursionError):
        return "is no JSON"
    if not isinstance(entry, dict) or not isinstance(entry.get("key"), str):
        return "has no key"
    key, value, metadata = entry["key"], entry.get("value"), entry.get("metadata")
    told_again = key.startswith(_TOLD_ONCE) and key in log.values and log.values[key] != value
    if isinstance(value, str | int | float):
        log.values[key] = value
        time_ms = entry.get("time_ms")
        if isinstance(time_ms, int | float) and not isinstance(time_ms, bool):
            log.times_ms[key] = time_ms
    if not isinstance(metadata, dict) or "is_error" not in metadata:
        return "does not say whether it is an error"
    if metadata["is_error"] is True and len(log.errors) < _MOST_ERRORS:
        log.errors.append(str(value)[:500])
    if value is None and key.startswith(_TOLD_ONCE):
        return f"says nothing of {key}"
    # Of two values MLCommons' checker takes the first: two tests in one file are neither's log.
    return f"says something else of {key} than a line before it" if told_again else None


def distinct_samples(path: Path) -> int:
    """Return how many samples of the data set an accuracy log has an answer for. Raises StorageFailed."""
    found: set[bytes] = set()
    rest = b""
    try:
        with path.open("rb") as stream:
            while piece := stream.read(_PIECE_BYTES):
                text = rest + piece
                matches = list(_SAMPLE.finditer(text))
                # A number at the very end may go on in the next piece.
                found.update(match[1] for match in matches if match.end() < len(text))
                done = [match.end() for match in matches if match.end() < len(text)]
                rest = text[max([len(text) - 64, *done[-1:]]) :]
    except OSError as error:
        raise storage_failed(error, path) from error
    found.update(match[1] for match in _SAMPLE.finditer(rest))
    return len(found)


def answers_of(path: Path) -> dict[int, bytes]:
    """Return sample -> digest of the answer that an accuracy log has for it, an entry a line. Raises StorageFailed."""
    found = {}
    try:
        with path.open("rb") as stream:
            while line := stream.readline(_MOST_LINE_BYTES):
                if match := _ANSWER.search(line):
                    found[int(match[1])] = hashlib.sha256(match[2].lower()).digest()
    except OSError as error:
        raise storage_failed(error, path) from error
    return found


def is_cut(path: Path) -> bool:
    """Return whether an accuracy log was shortened as the rules want it. Raises StorageFailed."""
    try:
        with path.open("rb") as stream:
            return _CUT_LINE in stream.read(MOST_ACCURACY_BYTES)
    except OSError as error:
        raise storage_failed(error, path) from error


def is_whole(path: Path) -> bool:
    """Return whether an accuracy log begins and ends as a JSON array does. Raises StorageFailed."""
    try:
        with path.open("rb") as stream:
            head = stream.read(_EDGE_BYTES)
            stream.seek(max(0, path.stat().st_size - _EDGE_BYTES))
            return head.lstrip().startswith(b"[") and stream.read().rstrip().endswith(b"]")
    except OSError as error:
        raise storage_failed(error, path) from error


def file_sha256(path: Path) -> str:
    """Return the digest of a file, in hex. Raises StorageFailed."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise storage_failed(error, path) from error


def shortened(path: Path) -> bytes:
    """Return an accuracy log as a submission may hold it: whole up to 10 KiB, else its beginning and its end."""
    try:
        with path.open("rb") as stream:
            head = stream.read(MOST_ACCURACY_BYTES + 1)
            if len(head) <= MOST_ACCURACY_BYTES:
                return head
            stream.seek(-_KEPT_BYTES, 2)
            return head[:_KEPT_BYTES] + _CUT + stream.read()
    except OSError as error:
        raise storage_failed(error, path) from error
