"""Reads what MLCommons' LoadGen writes: its detail log and its accuracy log.

`mlperf_log_detail.txt` has a line `:::MLLOG {…}` for each finding: `key`, `value`, and `metadata` with `is_error` and
`is_warning` (the format of MLPerf's logging). `mlperf_log_accuracy.json` is an array with one answer a line.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MARK = ":::MLLOG "
_LONGEST_LINE = 16 << 20
_MOST_LINES = 1_000_000
_MOST_SAID = 64
_LONGEST_SAID = 1000
# Said of nearly every run: LoadGen's own log needed more room.
_OWN_AFFAIR = "Logging allocation detected"


class LogUnreadable(ValueError):
    """The file is no log of LoadGen."""


@dataclass(frozen=True)
class DetailLog:
    """The last value of each key, and what LoadGen called errors, warnings and reasons of invalidity.

    Warnings about the room of its own log are left out.
    """

    values: dict[str, Any]
    errors: tuple[str, ...]
    warnings: tuple[str, ...]
    invalid_reasons: tuple[str, ...]

    @property
    def valid(self) -> bool:
        """Whether LoadGen says VALID."""
        return self.values.get("result_validity") == "VALID"

    def scalars(self, prefix: str) -> dict[str, Any]:
        """Return the keys that begin so and have one plain value, under their own names."""
        return {
            key: value
            for key, value in self.values.items()
            if key.startswith(prefix) and isinstance(value, str | bool | int | float)
        }


def read_detail_log(path: Path) -> DetailLog:
    """Return what a detail log says. Raises LogUnreadable, OSError."""
    values: dict[str, Any] = {}
    errors: list[str] = []
    warnings: list[str] = []
    reasons: list[str] = []
    for line in _lines(path):
        if not line.startswith(_MARK):
            continue
        entry = _entry(line[len(_MARK) :])
        key, value, metadata = entry.get("key"), entry.get("value"), entry.get("metadata")
        if not isinstance(key, str) or not isinstance(metadata, dict):
            raise LogUnreadable(f"an entry without a key: {line[:80]!r}")
        values[key] = value
        if metadata.get("is_error") is True:
            errors.append(_said(value))
        elif metadata.get("is_warning") is True:
            if not _said(value).startswith(_OWN_AFFAIR):
                warnings.append(_said(value))
        elif key == "result_invalid_reason":
            reasons.append(_said(value))
    if not values:
        raise LogUnreadable("it holds no entry")
    return DetailLog(
        values, tuple(errors[:_MOST_SAID]), tuple(warnings[:_MOST_SAID]), tuple(reasons[:_MOST_SAID])
    )


def read_messages(path: Path) -> Iterator[str]:
    """Yield what LoadGen says in sentences, in order. Raises LogUnreadable, OSError."""
    for line in _lines(path):
        if line.startswith(_MARK):
            entry = _entry(line[len(_MARK) :])
            if entry.get("key") == "generic_message":
                yield _said(entry.get("value"))


def read_accuracy_log(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (sample, the bytes of its answer in hex) of an accuracy log. Raises LogUnreadable, OSError."""
    for line in _lines(path):
        text = line.strip().rstrip(",")
        if text in {"[", "]", ""}:
            continue
        entry = _entry(text)
        index, data = entry.get("qsl_idx"), entry.get("data")
        if isinstance(index, bool) or not isinstance(index, int) or not isinstance(data, str):
            raise LogUnreadable(f"an answer without a sample: {text[:80]!r}")
        yield index, data


def _lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", errors="strict", newline="\n") as stream:
        for count in range(_MOST_LINES + 1):
            try:
                line = stream.readline(_LONGEST_LINE)
            except UnicodeDecodeError as error:
                raise LogUnreadable("it is no text") from error
            if not line:
                return
            if len(line) == _LONGEST_LINE or count == _MOST_LINES:
                raise LogUnreadable("it is too long")
            yield line


def _entry(text: str) -> dict[str, Any]:
    try:
        entry = json.loads(text, parse_constant=_no_number, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise LogUnreadable(f"{' '.join(str(error).split())[:100]}: {text[:80]!r}") from error
    if not isinstance(entry, dict):
        raise LogUnreadable(f"no object: {text[:80]!r}")
    return entry


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is no number")
    return value


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number")


def _said(value: Any) -> str:
    return " ".join(str(value).split())[:_LONGEST_SAID]
