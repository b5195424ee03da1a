"""Events: what a run says while it happens, one JSON object each, the same for every consumer.

The host assigns `seq` and `source`; `t_ns` is CLOCK_MONOTONIC. Readers pass over kinds they do not know.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, Callable, ClassVar, Mapping

PHASES = (
    "plan",
    "image",
    "environment",
    "create",
    "start",
    "load",
    "warm-up",
    "measure",
    "accuracy",
    "profile",
    "collect",
    "verify",
)
# The level of a log line that who watches a run wants to see; others are for the log.
NOTICE = "notice"
FAULTS = ("bundle", "framework", "environment", "mlbundle")


@dataclass(frozen=True)
class Event:
    """What all events share; `seq` and `source` are the host's to give."""

    kind: ClassVar[str] = ""
    t_ns: int = 0
    seq: int = -1
    source: str = "worker"

    def to_document(self, protocol: int = 1) -> dict[str, Any]:
        """Return the event as the JSON object that is written down."""
        body = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        head = {
            "protocol": protocol,
            "seq": body.pop("seq"),
            "source": body.pop("source"),
            "t_ns": body.pop("t_ns"),
        }
        return {**head, "kind": self.kind, **body}


@dataclass(frozen=True)
class Hello(Event):
    """The worker is there: its versions, its clocks and what it found in its surroundings."""

    kind: ClassVar[str] = "hello"
    versions: Mapping[str, str] = field(default_factory=dict)
    clocks: Mapping[str, int] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Phase(Event):
    """A phase has begun or is done."""

    kind: ClassVar[str] = "phase"
    name: str = ""
    state: str = "begun"


@dataclass(frozen=True)
class Progress(Event):
    """How far a phase is; `eta_s` is None while nobody can tell."""

    kind: ClassVar[str] = "progress"
    phase: str = ""
    done: float = 0
    total: float | None = None
    unit: str = ""
    eta_s: float | None = None


@dataclass(frozen=True)
class Window(Event):
    """What was measured since the window before: at most two a second, made between queries."""

    kind: ClassVar[str] = "window"
    phase: str = "measure"
    queries: int = 0
    throughput: float = 0.0
    p50_ns: int = 0
    p90_ns: int = 0
    p99_ns: int = 0


@dataclass(frozen=True)
class Counter(Event):
    """One value of a host-side sampler."""

    kind: ClassVar[str] = "counter"
    name: str = ""
    value: float = 0.0
    unit: str = ""


@dataclass(frozen=True)
class Log(Event):
    """A line worth keeping."""

    kind: ClassVar[str] = "log"
    level: str = "info"
    message: str = ""


@dataclass(frozen=True)
class Warned(Event):
    """Something that does not stop the run and that the user should know."""

    kind: ClassVar[str] = "warning"
    reference: str = ""
    message: str = ""
    hint: str | None = None


@dataclass(frozen=True)
class Failed(Event):
    """The run can't go on; `fault` says whose fault it is."""

    kind: ClassVar[str] = "error"
    reference: str = ""
    message: str = ""
    hint: str | None = None
    fault: str = "mlbundle"


@dataclass(frozen=True)
class Result(Event):
    """What one pass found: `pass_kind` names it, `values` holds JSON-ready findings."""

    kind: ClassVar[str] = "result"
    pass_kind: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class End(Event):
    """The last event; from the worker it says that all passes were completed."""

    kind: ClassVar[str] = "end"
    status: str = "completed"
    clocks: Mapping[str, int] = field(default_factory=dict)


EVENT_TYPES: dict[str, type[Event]] = {
    cls.kind: cls for cls in (Hello, Phase, Progress, Window, Counter, Log, Warned, Failed, Result, End)
}


def event_from_document(document: Mapping[str, Any]) -> Event | None:
    """Return the typed event of a JSON object; None for a kind this version does not know.

    Unknown keys are passed over. Raises ValueError when a known kind carries a value of a wrong type.
    """
    cls = EVENT_TYPES.get(str(document.get("kind")))
    if cls is None:
        return None
    values = {}
    for field_ in dataclasses.fields(cls):
        if field_.name in document:
            value = document[field_.name]
            if not _CHECKS[str(field_.type)](value):
                raise ValueError("{} of a {} event is no {}".format(field_.name, cls.kind, field_.type))
            values[field_.name] = value
    return cls(**values)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63


def _is_number(value: Any) -> bool:
    return _is_integer(value) or (isinstance(value, float) and math.isfinite(value))


def _is_mapping(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


# By the annotation of a field, as it is written above.
_CHECKS: dict[str, Callable[[Any], bool]] = {
    "str": _is_text,
    "int": _is_integer,
    "float": _is_number,
    "float | None": lambda value: value is None or _is_number(value),
    "str | None": lambda value: value is None or _is_text(value),
    "Mapping[str, str]": _is_mapping(_is_text),
    "Mapping[str, int]": _is_mapping(_is_integer),
    "Mapping[str, Any]": _is_mapping(lambda _value: True),
}
