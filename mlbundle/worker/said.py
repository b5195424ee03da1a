"""What a predictor says of itself, made fit for the protocol: few JSON values of a few characters, whatever it was."""

from __future__ import annotations

import math
from typing import Any

MOST_ITEMS = 64
MOST_TEXT = 1000
_DEEPEST = 3


def facts_of(handle: Any) -> dict[str, Any]:
    """Return the `facts` of a predictor's handle as JSON values; none where it has none.

    Raises TypeError where they are no dictionary.
    """
    facts = getattr(handle, "facts", None)
    return {} if facts is None else plain_facts(facts, "a handle")


def plain_facts(facts: Any, whose: str) -> dict[str, Any]:
    """Return facts as JSON values. Raises TypeError where they are no dictionary."""
    if not isinstance(facts, dict):
        raise TypeError("the facts of {} are a dictionary, not a {}".format(whose, type(facts).__name__))
    return {_text(name): _plain(value, 1) for name, value in list(facts.items())[:MOST_ITEMS]}


def _plain(value: Any, depth: int) -> Any:
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = value.item()  # a number of NumPy's
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if abs(value) < 1 << 63 else str(value)[:MOST_TEXT]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if isinstance(value, dict) and depth < _DEEPEST:
        return {_text(name): _plain(item, depth + 1) for name, item in list(value.items())[:MOST_ITEMS]}
    if isinstance(value, (list, tuple)) and depth < _DEEPEST:
        return [_plain(item, depth + 1) for item in value[:MOST_ITEMS]]
    return _text(value)


def _text(value: Any) -> str:
    return str(value)[:MOST_TEXT].encode("utf-8", "replace").decode("utf-8")
