"""What is wrong with a manifest, where, what was expected and what was probably meant."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

Severity = Literal["error", "warning"]

MOST_PROBLEMS = 200
_SHOWN_CHARACTERS = 60
_NEAR = 0.7


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of a manifest.

    `line` and `column` count from 1 (columns in characters); `pointer` is the JSON pointer (RFC 6901) of the
    place in the file as its author wrote it.
    """

    severity: Severity
    file: str
    line: int
    column: int
    pointer: str
    message: str
    expected: str | None = None
    hint: str | None = None

    def to_document(self) -> dict[str, Any]:
        """Return the problem as JSON-ready values."""
        return {
            "severity": self.severity,
            "file": self.file,
            "line": self.line,
            "column": self.column,
            "pointer": self.pointer,
            "message": self.message,
            "expected": self.expected,
            "hint": self.hint,
        }

    def __str__(self) -> str:
        """Return the problem on one line, as compilers print theirs."""
        place = f"{self.file}:{self.line}:{self.column}"
        subject = f"{self.pointer}: " if self.pointer else ""
        expected = f"; expected {self.expected}" if self.expected else ""
        hint = f"; {self.hint}" if self.hint else ""
        return printable(f"{place}: {self.severity}: {subject}{self.message}{expected}{hint}")


def in_order(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return the problems without repetition, by line and column; at most MOST_PROBLEMS and a word on the rest."""
    ordered = sorted(dict.fromkeys(problems), key=lambda p: (p.line, p.column))
    if len(ordered) <= MOST_PROBLEMS:
        return tuple(ordered)
    # Errors come first when not all can be shown: none may hide behind warnings.
    ordered.sort(key=lambda p: p.severity != "error")
    rest = len(ordered) - MOST_PROBLEMS
    last = ordered[MOST_PROBLEMS]
    more = Problem(last.severity, last.file, last.line, last.column, "", f"and {rest} more problems")
    kept = sorted(ordered[:MOST_PROBLEMS], key=lambda p: (p.line, p.column))
    return (*kept, more)


def printable(text: str) -> str:
    """Return a text with control and other invisible characters escaped: it may go to a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def shown(value: object) -> str:
    """Return how a value of a manifest is named in a message: short, quoted if it is text, on one line."""
    if isinstance(value, str):
        cut = value if len(value) <= _SHOWN_CHARACTERS else value[:_SHOWN_CHARACTERS] + "…"
        return repr(cut)
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return "a mapping"
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value)


def near_miss(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that was probably meant, or None."""
    by_lower = {name.lower(): name for name in known}
    lowered = word[:_SHOWN_CHARACTERS].lower()
    for candidate in (lowered, lowered.replace("-", "_"), lowered.replace("_", "-")):
        if candidate in by_lower:
            return by_lower[candidate]
    close = difflib.get_close_matches(lowered, by_lower, n=1, cutoff=_NEAR)
    return by_lower[close[0]] if close else None


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """Return the hint that names the near miss, or None."""
    meant = near_miss(word, known)
    return None if meant is None else f"did you mean {meant!r}?"


def listing(words: Iterable[object]) -> str:
    """Return words as `one of a, b, c`, or the only one."""
    texts = [str(word) for word in words]
    return texts[0] if len(texts) == 1 else "one of " + ", ".join(texts)
