"""What a worker and a framework say about themselves, held against types and sizes before it is believed."""

from __future__ import annotations

import math
from typing import Any

MOST_DISTRIBUTIONS = 10_000
MOST_CPUS = 1 << 14
MOST_VARIABLES = 1_000
MOST_VALUES = 64
LONGEST_TEXT = 1_000
LONGEST_VARIABLE = 64 << 10
_DEEPEST = 4
_MOST_ALTOGETHER = 512


def problem_of_facts(facts: Any) -> str | None:
    """Return what is wrong with the facts of a worker's first message, None when nothing is.

    Only what is installed must be said; a worker of an older version says no more.
    """
    distributions = facts.get("distributions")
    if not isinstance(distributions, dict) or len(distributions) > MOST_DISTRIBUTIONS:
        return "the worker does not say what is installed"
    texts = [facts.get("machine", ""), facts.get("libc", ""), *distributions.values()]
    if not all(isinstance(text, str) for text in texts):
        return "the worker describes its surroundings in values that are no text"
    if not _is_variables(facts.get("variables", {})):
        return "the worker's environment variables are no texts, too many or too long"
    if not _is_cpus(facts.get("cpus", [])):
        return "the worker's CPUs are no numbers, or too many"
    if not _is_group(facts.get("cgroup", {})):
        return "the worker's limits are no numbers and texts, or too many"
    return None


def capped(value: Any) -> Any:
    """Return JSON values that a framework said of itself, cut to what may go into a record.

    At most 64 values in each object or list, 512 altogether, four deep, texts of 1,000 characters; what is cut away
    is gone without a word, and what is no JSON becomes its text.
    """
    return _Cutter().cut(value, _DEEPEST)


class _Cutter:
    def __init__(self) -> None:
        self._left = _MOST_ALTOGETHER

    def cut(self, value: Any, depth: int) -> Any:
        """Return a value without what is too much of it."""
        self._left -= 1
        if isinstance(value, dict) and depth:
            named = list(value.items())[:MOST_VALUES]
            return {
                str(name)[:LONGEST_TEXT]: self.cut(item, depth - 1) for name, item in named if self._left > 0
            }
        if isinstance(value, list) and depth:
            return [self.cut(item, depth - 1) for item in value[:MOST_VALUES] if self._left > 0]
        if value is None or isinstance(value, bool) or _is_number(value):
            return value
        return str(value)[:LONGEST_TEXT] if not isinstance(value, dict | list) else "..."


def _is_number(value: Any) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) < 1 << 63
    return isinstance(value, float) and math.isfinite(value)


def _is_variables(value: Any) -> bool:
    if not isinstance(value, dict) or len(value) > MOST_VARIABLES:
        return False
    return all(isinstance(text, str) and len(text) <= LONGEST_VARIABLE for text in value.values())


def _is_cpus(value: Any) -> bool:
    if not isinstance(value, list) or len(value) > MOST_CPUS:
        return False
    return all(isinstance(cpu, int) and not isinstance(cpu, bool) and 0 <= cpu < MOST_CPUS for cpu in value)


def _is_group(value: Any) -> bool:
    if not isinstance(value, dict) or len(value) > MOST_VALUES:
        return False
    return all(
        item is None or _is_number(item) or (isinstance(item, str) and len(item) <= LONGEST_TEXT)
        for item in value.values()
    )
