"""What several rounds of the same cells come to: the mean of their headlines, and how far these lie apart."""

from __future__ import annotations

import json
import statistics
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LEAST = 2


def groups_of(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a group for each kind of cell (documents of a sweep's result), in the order in which they come first.

    `rounds` are those with a number, `good` how many of these are valid; `mean`, `lowest`, `highest` and `interval` (of
    the mean, 0.95, null for a single round) are of the headline, in its unit. They are null where no round has one.
    """
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for cell in cells:
        kinds.setdefault(json.dumps([cell["scenario"], sorted(cell["values"].items())]), []).append(cell)
    return [_group(same) for same in kinds.values()]


def _group(same: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    from mlbundle.analysis.intervals import CONFIDENCE, mean_interval

    told = [cell for cell in same if cell["headline_value"] is not None]
    values = [float(cell["headline_value"]) for cell in told]
    several = len(values) >= _LEAST
    return {
        "scenario": same[0]["scenario"],
        "values": same[0]["values"],
        "cells": [cell["cell"] for cell in same],
        "rounds": len(told),
        "good": sum(bool(cell["good"]) for cell in told),
        "headline": told[0]["headline"] if told else None,
        "headline_unit": told[0]["headline_unit"] if told else None,
        "mean": statistics.fmean(values) if values else None,
        "lowest": min(values, default=None),
        "highest": max(values, default=None),
        "confidence": CONFIDENCE,
        "interval": [max(0.0, bound) for bound in mean_interval(values)] if several else None,
    }
