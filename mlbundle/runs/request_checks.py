"""The fields of a request for a run, read one by one: empty means that nothing was said."""

from __future__ import annotations

import shlex
from pathlib import Path

from mlbundle.errors import UsageError
from mlbundle.runs.quantities import parse_bytes, parse_cpus, parse_duration_s

_MOST_THREADS = 1024


def read_threads(text: str) -> int | None:
    """Return a number of threads. Raises UsageError."""
    if not text.strip():
        return None
    try:
        number = int(text)
    except ValueError:
        number = 0
    if not 1 <= number <= _MOST_THREADS:
        raise UsageError(
            f"{text.strip()!r} is no number of threads",
            hint=f"write a whole number from 1 to {_MOST_THREADS}",
        )
    return number


def read_seed(text: str) -> int | None:
    """Return a seed. Raises UsageError."""
    try:
        return int(text) if text.strip() else None
    except ValueError:
        raise UsageError(f"{text.strip()!r} is no seed", hint="write a whole number") from None


def read_cpus(text: str) -> tuple[int, ...]:
    """Return the numbers of CPUs. Raises UsageError."""
    return parse_cpus(text) if text.strip() else ()


def read_memory(text: str) -> int | None:
    """Return a size in bytes. Raises UsageError."""
    return parse_bytes(text.strip()) if text.strip() else None


def read_timeout(text: str) -> float | None:
    """Return a time in seconds. Raises UsageError."""
    return parse_duration_s(text) if text.strip() else None


def read_file(text: str) -> Path | None:
    """Return the path of a file that is there. Raises UsageError."""
    if not text.strip():
        return None
    path = Path(text.strip())
    try:
        there = path.is_file()
    except (OSError, ValueError):
        there = False
    if not there:
        hint = (
            "write its whole path: no shell reads this" if text.strip().startswith("~") else "write its path"
        )
        raise UsageError(f"there is no file {text.strip()}", hint=hint)
    return path


def read_words(text: str) -> list[str]:
    """Return the words of a text as a shell takes it apart: `a=1 'b=two words'`. Raises UsageError."""
    try:
        return shlex.split(text)
    except ValueError:
        raise UsageError(
            f"{text!r} has a quote that does not end", hint="write NAME=VALUE NAME=VALUE"
        ) from None
