"""What differs between two run records, what can explain a difference in numbers first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SCHEMA = "mlbundle/run-diff/v1"
# Section -> where in a record it is found, in the order in which one looks for an explanation.
_EXPLAINING: dict[str, tuple[str, ...]] = {
    "framework": ("/framework", "/environment/framework"),
    "bundle": ("/bundle",),
    "scenario": ("/scenario", "/trace_level"),
    "limits": ("/environment/limits", "/environment/worker/cgroup", "/environment/worker/cpus"),
    "machine": (
        "/environment/machine",
        "/environment/gpus",
        "/environment/cpus_used",
        "/environment/emulated",
    ),
    "warnings": ("/environment/warnings",),
    "image": ("/image", "/environment/python_environment"),
    "distributions": ("/environment/distributions",),
    "variables": ("/environment/worker/variables",),
    "worker": (
        "/worker",
        "/environment/worker",
        "/runtime",
        "/isolation",
        "/environment/engine",
        "/mlbundle_version",
    ),
}
_MEASURED: dict[str, tuple[str, ...]] = {
    "validity": ("/status", "/validity", "/error"),
    "result": ("/result",),
    "accuracy": ("/accuracy",),
}
# What differs between any two runs; shown only when everything is asked for.
_OF_THE_MOMENT: dict[str, tuple[str, ...]] = {
    "resources": ("/resources",),
    "state": ("/environment/state",),
    "phases": ("/phases_s",),
    "moment": ("/started_at", "/finished_at", "/command", "/environment/isolation"),
}
_KEYS = {"/environment/warnings": "reference"}
_ROOTS = (*_EXPLAINING.values(), *_MEASURED.values(), *_OF_THE_MOMENT.values())
# Roots whose last part would not tell one value from another, or says nothing.
_SAID = {
    "/environment/framework": "predictor",
    "/environment/worker": "worker",
    "/environment/machine": "",
    "/environment/worker/variables": "",
}
# Places whose own words say too little.
_CALLED = {
    "/environment/framework/timed": "what is timed",
    "/environment/framework/providers": "runs on",
    "/bundle/set_digest": "digest of files",
    "/scenario/options/duration_s": "duration",
}


@dataclass(frozen=True, slots=True)
class Change:
    """One difference: `place` is a JSON pointer; a side is None where it has nothing (or null) there."""

    section: str
    place: str
    left: Any
    right: Any

    @property
    def ratio(self) -> float | None:
        """The right number by the left one, where both are numbers above 0."""
        numbers = [
            v for v in (self.left, self.right) if isinstance(v, int | float) and not isinstance(v, bool)
        ]
        return numbers[1] / numbers[0] if len(numbers) == 2 and min(numbers) > 0 else None

    @property
    def name(self) -> str:
        """What differs, in words: the place without what the section says already (`/machine/cpu/level`: cpu level)."""
        if self.place in _CALLED:
            return _CALLED[self.place]
        root = _root(self.place)
        said = _SAID.get(root, root.rpartition("/")[2])
        words = [said, *self.place.removeprefix(root).split("/")]
        shown = [word.replace("~1", "/").replace("~0", "~").replace("_", " ") for word in words if word]
        of_section = len(shown) > 1 and shown[0] == self.section
        return " ".join(shown[1:] if of_section else shown)

    @property
    def explains(self) -> bool:
        """Whether this is a condition of the run and not an outcome."""
        return self.section in _EXPLAINING

    def to_document(self) -> dict[str, Any]:
        """Return the change as JSON-ready values."""
        return {
            "section": self.section,
            "place": self.place,
            "left": self.left,
            "right": self.right,
            "ratio": self.ratio,
        }


@dataclass(frozen=True)
class RecordDifference:
    """The differences between two records."""

    left: str
    right: str
    changes: tuple[Change, ...]

    @property
    def same_conditions(self) -> bool:
        """Whether nothing differs that could explain other numbers."""
        return not any(change.explains for change in self.changes)

    def to_document(self) -> dict[str, Any]:
        """Return the document that `runs diff --json` prints."""
        return {
            "schema": SCHEMA,
            "left": self.left,
            "right": self.right,
            "same_conditions": self.same_conditions,
            "changes": [change.to_document() for change in self.changes],
        }


def diff_records(
    left: Mapping[str, Any], right: Mapping[str, Any], *, everything: bool = False
) -> RecordDifference:
    """Compare two run records; with `everything` also what differs between any two runs (clocks, phases, times)."""
    flat_left, flat_right = dict(_flatten("", left)), dict(_flatten("", right))
    sections = {**_EXPLAINING, **_MEASURED, **(_OF_THE_MOMENT if everything else {})}
    order = list(sections)
    changes = []
    for place in [*flat_left, *(place for place in flat_right if place not in flat_left)]:
        section = _section(place, sections)
        old, new = flat_left.get(place), flat_right.get(place)
        # A warning that both runs had is the same one, whatever its figures.
        both_warned = section == "warnings" and old is not None and new is not None
        if section is not None and old != new and (everything or not both_warned):
            changes.append(Change(section, place, old, new))
    changes.sort(key=lambda change: order.index(change.section))
    return RecordDifference(str(left["run_id"]), str(right["run_id"]), tuple(changes))


def _section(place: str, sections: Mapping[str, tuple[str, ...]]) -> str | None:
    """Return the section whose root is the longest above a place."""
    roots = [
        (len(root), name)
        for name, all_ in sections.items()
        for root in all_
        if place == root or place.startswith(f"{root}/")
    ]
    return max(roots)[1] if roots else None


def _root(place: str) -> str:
    """Return the longest root of any section that is above a place."""
    roots = [root for all_ in _ROOTS for root in all_ if place == root or place.startswith(f"{root}/")]
    return max(roots, key=len, default="")


def _flatten(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield every leaf by its JSON pointer; lists of plain values are leaves, lists of warnings go by name."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _flatten(f"{place}/{_escaped(str(name))}", item)
    elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        for position, item in enumerate(value):
            key = item.get(_KEYS.get(place)) if isinstance(item, dict) else None
            yield from _flatten(f"{place}/{position if key is None else _escaped(str(key))}", item)
    else:
        yield place, value


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
