"""Which runs are wanted, as people type it: `model:resnet* scenario:online status:invalid since:7d docker`.

A word with a name before a colon (or `=`) is compared with that column: `*` and `?` are wildcards, without them a part
of the text is enough. Any other word may stand in any column. Every word must fit, capital letters or not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# What a run's status is called for people: a result that is not valid, or of a quick run, is called so.
STATUS = (
    "CASE WHEN status <> 'completed' THEN status WHEN NOT valid THEN 'invalid' WHEN quick THEN 'quick' "
    "ELSE 'completed' END"
)
# The form of a model has its own name only where there are several for one framework.
_FORM = "framework || ' ' || framework_version || ' ' || ifnull(variant, '')"
_COLUMNS = {
    "model": "model",
    "framework": _FORM,
    "scenario": "scenario",
    "status": STATUS,
    "runtime": "runtime || ' ' || ifnull(isolation, '')",
    "trace": "trace_level",
    "digest": "manifest_digest || ' ' || ifnull(image_digest, '')",
    "run": "run_id",
}
NAMES = (*_COLUMNS, "since")
"""The names that may stand before a colon."""

_VERSIONED = "model || ':' || model_version"
_ANY = (_VERSIONED, "framework", "variant", "scenario", "headline", "runtime", "isolation", STATUS, "run_id")
_FROM_BEGIN = ("status", "scenario", "trace")
_WORD = re.compile(rf"({'|'.join(NAMES)})[:=](.*)", re.DOTALL)
_AGE = re.compile(r"(\d{1,6})([mhdw])")
_LONGEST = timedelta(weeks=1000)
_AGES = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
# Columns by which runs can be sorted -> what they are compared by. Runs that lack a value come last either way.
_SORTS = {
    "run": "run_id",
    "model": _VERSIONED,
    "framework": _FORM,
    "scenario": "scenario",
    "runtime": "runtime || ' ' || ifnull(isolation, '')",
    "status": STATUS,
    "headline": "headline_value",
    "p50": "p50_ns",
    "p99": "p99_ns",
    "throughput": "throughput_per_s",
    "accuracy": "accuracy",
}
SORTS = tuple(_SORTS)
"""What runs can be sorted by."""
_MOST_FIRST = frozenset({"run", "throughput", "accuracy"})


@dataclass(frozen=True)
class RunFilter:
    """Conditions over the rows of runs, as SQL with its values."""

    conditions: tuple[str, ...] = ()
    values: tuple[str, ...] = ()

    def narrowed(self, condition: str, *values: str) -> RunFilter:
        """Return the filter with a condition more."""
        return RunFilter((*self.conditions, condition), (*self.values, *values))

    @property
    def where(self) -> str:
        """What stands after WHERE."""
        return " AND ".join(("1", *self.conditions))


def parse_filter(text: str, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> RunFilter:
    """Return the filter that a text means; any text means one, so it can be used while it is typed."""
    conditions, values = [], []
    for word in text.split():
        match = _WORD.fullmatch(word)
        name, value = (match[1], match[2]) if match else ("", word)
        if not value:
            continue
        age = _AGE.fullmatch(value)
        if name == "since" and age:
            moment = now() - min(timedelta(**{_AGES[age[2]]: int(age[1])}), _LONGEST)
            conditions.append("started_at >= ?")
            values.append(f"{moment:%Y-%m-%dT%H:%M:%S}")
        elif name == "since":
            conditions.append("started_at >= ?")
            values.append(value)
        else:
            places = _places(name, value)
            pattern = _pattern(value, from_begin=name in _FROM_BEGIN)
            conditions.append("(" + " OR ".join(rf"{place} LIKE ? ESCAPE '\'" for place in places) + ")")
            values += [pattern] * len(places)
    return RunFilter(tuple(conditions), tuple(values))


def only(chosen: RunFilter, *, model: str | None = None, framework: str | None = None) -> RunFilter:
    """Return a filter that lets through only runs of a model, and of a framework or a form of a model.

    `model` may have wildcards, and is the whole name where it has none.
    """
    if model:
        chosen = chosen.narrowed("model GLOB ?", model)
    if framework:
        either = "(lower(framework) = lower(?) OR lower(variant) = lower(?))"
        chosen = chosen.narrowed(either, framework, framework)
    return chosen


def most_first(sort: str) -> bool:
    """Return whether what is largest or latest comes first where nothing else is said: it does where more is better."""
    return sort in _MOST_FIRST


def order_by(sort: str, *, descending: bool) -> str:
    """Return what stands after ORDER BY; runs that are alike come newest first. Raises KeyError."""
    column = _SORTS[sort]
    direction = "DESC" if descending else "ASC"
    if column == "run_id":
        return f"run_id {direction}"
    # Latencies and rates are not compared with one another.
    unit = "headline_unit, " if sort == "headline" else ""
    return f"{column} IS NULL, {unit}{column} COLLATE NOCASE {direction}, run_id DESC"


def _places(name: str, value: str) -> tuple[str, ...]:
    if name == "model" and ":" in value:
        return (_VERSIONED,)
    return (_COLUMNS[name],) if name else _ANY


def _pattern(value: str, *, from_begin: bool) -> str:
    """Return the pattern of LIKE for a value; what has no wildcards may stand anywhere, or at the beginning."""
    escaped = re.sub(r"([%_\\])", r"\\\1", value)
    if "*" in value or "?" in value:
        return escaped.replace("*", "%").replace("?", "_")
    return f"{escaped}%" if from_begin else f"%{escaped}%"
