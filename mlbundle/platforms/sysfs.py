"""Reading the small files of /proc and /sys; whatever can't be read or understood is None."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

ROOT = "/"
# Enough for /proc/cpuinfo of a machine with 2,000 CPUs.
_LONGEST_BYTES = 8 << 20
_MOST_CPUS = 1 << 14
_MULTIPLES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def read_text(path: Path) -> str | None:
    """Return what a file says, without spaces around it; None when it can't be read or is empty."""
    try:
        with path.open("rb") as stream:
            return stream.read(_LONGEST_BYTES).decode("utf-8", "replace").strip("\0 \t\n") or None
    except OSError:
        return None


def read_number(path: Path) -> int | None:
    """Return the whole number that a file holds."""
    text = read_text(path)
    return int(text) if text is not None and re.fullmatch(r"-?\d{1,18}", text) else None


def read_size(path: Path) -> int | None:
    """Return the bytes of a size as the kernel writes it (`480M`)."""
    match = re.fullmatch(r"(\d{1,12})([KMG]?)", read_text(path) or "")
    return int(match.group(1)) * _MULTIPLES[match.group(2)] if match else None


def read_table(path: Path) -> dict[str, int]:
    """Return name -> number of a file with a name and a number on each line (`/proc/meminfo`, `/proc/vmstat`)."""
    found = {}
    for line in (read_text(path) or "").splitlines():
        words = line.replace(":", " ").split()
        if len(words) >= 2 and words[1].isdecimal():
            found[words[0]] = int(words[1])
    return found


def children(folder: Path, pattern: str) -> list[Path]:
    """Return what is in a folder by the number in its name, then by name; nothing when it can't be listed."""

    def order(path: Path) -> tuple[int, str]:
        digits = re.search(r"\d+", path.name)
        return (int(digits.group()) if digits else 0, path.name)

    try:
        return sorted(folder.glob(pattern), key=order)
    except OSError:
        return []


def cpu_list(text: str | None) -> tuple[int, ...]:
    """Return the CPUs of a list as the kernel writes it (`0-3,8`); what is no list is empty."""
    return tuple(sorted(set(_cpu_numbers(text or ""))))[:_MOST_CPUS]


def _cpu_numbers(text: str) -> Iterator[int]:
    for part in text.strip().split(","):
        match = re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", part)
        if match:
            first, last = int(match.group(1)), int(match.group(2) or match.group(1))
            yield from range(first, last + 1)


def cpu_ranges(numbers: Iterable[int]) -> str:
    """Return CPUs as the kernel writes them: (0, 1, 2, 8) -> `0-2,8`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
