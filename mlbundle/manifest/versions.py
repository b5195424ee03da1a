"""Version constraints in the manner of npm, decided with PEP 440's order of versions.

The semantics, in one place:

| written            | means                | note                                             |
| ------------------ | -------------------- | ------------------------------------------------ |
| `1.14.0`           | ==1.14.0             | three parts or more: exactly this version        |
| `1.14`, `1.14.x`   | >=1.14, <1.15        | what is left out, or `x`, `X`, `*`, may be any   |
| `>1.2`, `<=1.2`    | >=1.3, <1.3          | a short version stands for all that begin so     |
| `~1.2.3`, `~1.2.x` | >=1.2.3, <1.3        | the last part may grow; `~1` is `1.x`            |
| `^1.2.3`, `^0.1`   | >=1.2.3, <2; <0.2    | the first part that is not 0 stays               |
| `1.2 - 2.0`        | >=1.2, <2.1          | both ends included                               |
| `a b`, `a, b`      | a and b              |                                                  |
| `a || b`           | a or b               |                                                  |
| `*`, empty         | anything             | pre-releases too                                 |

A pre-release (`2.0.0-rc.1`, `2.0.0rc1`) fits only where the constraint names a pre-release itself, and is never
inside an upper bound (`<2.0` leaves 2.0.0rc1 out). A local build label (`2.1.0+cu121`) is passed over unless
the constraint names one. Versions follow PEP 440, which reads the semantic versions in use as well.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlbundle.errors import UsageError

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

_LONGEST = 256
_ANY = frozenset({"", "x", "X", "*"})
_OPERATOR_SPACE = re.compile(r"(>=|<=|~>|[<>=~^])\s+")
_HYPHEN = re.compile(r"(\S+)\s+-\s+(\S+)\Z")
_COMPARATOR = re.compile(r"(>=|<=|~>|[<>=~^])?v?(.*)\Z")
_PARTS = re.compile(
    r"(?P<release>(?:[0-9]{1,9}|[xX*])(?:\.(?:[0-9]{1,9}|[xX*])){0,4})(?P<suffix>[-+a-zA-Z][0-9A-Za-z.+-]*)?\Z"
)


@dataclass(frozen=True, slots=True)
class VersionConstraint:
    """A constraint on versions; make one with `parse`. One of `alternatives` must hold, all of its parts."""

    text: str
    alternatives: tuple[SpecifierSet, ...]

    @classmethod
    def parse(cls, text: str) -> VersionConstraint:
        """Return the constraint of a text; raises UsageError when it is none."""
        if len(text) > _LONGEST:
            raise _nonsense(text[:40] + "…", "it is too long")
        return cls(text, tuple(_alternative(part.strip(), text) for part in text.split("||")))

    def allows(self, version: str) -> bool:
        """Return whether a version fits; raises UsageError when the text is no version."""
        wanted = parse_version(version)
        return any(_fits(wanted, alternative) for alternative in self.alternatives)


def parse_version(text: str) -> Version:
    """Return a version; raises UsageError when the text is none (PEP 440, which reads semantic ones as well)."""
    from packaging.version import InvalidVersion, Version

    try:
        if len(text) > _LONGEST:
            raise InvalidVersion
        return Version(text)
    except (InvalidVersion, ValueError):
        raise UsageError(f"{text[:40]!r} is no version", hint="a version is written like 1.14.0") from None


def _fits(version: Version, alternative: SpecifierSet) -> bool:
    from packaging.version import Version

    if not len(alternative):
        return True
    if version.is_prerelease and not any(
        Version(s.version.removesuffix(".*")).is_prerelease for s in alternative
    ):
        return False
    return alternative.contains(version, prereleases=True)


def _alternative(part: str, whole: str) -> SpecifierSet:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    hyphen = _HYPHEN.match(part)
    try:
        if hyphen:
            bounds = [*_at_least(hyphen.group(1)), *_at_most(hyphen.group(2))]
        else:
            words = _OPERATOR_SPACE.sub(r"\1", part).replace(",", " ").split()
            bounds = [bound for word in words for bound in _comparator(word)]
        return SpecifierSet(",".join(bounds))
    except (_Nonsense, InvalidSpecifier, ValueError) as error:
        raise _nonsense(whole, str(error) if isinstance(error, _Nonsense) else None) from None


class _Nonsense(ValueError):
    """A part of a constraint that has no meaning."""


def _nonsense(text: str, reason: str | None) -> UsageError:
    because = f": {reason}" if reason else ""
    return UsageError(
        f"{text!r} is no version constraint{because}",
        hint="written like 1.14.0, >=1.12.0 <2.0, ~1.2.x, ^0.1, 1.x, 1.2 - 2.0, 1.x || 2.x or *",
    )


def _split(version: str) -> tuple[list[int], bool, str]:
    """Return the stated parts of a version, whether it is whole (three parts or more), and its suffix."""
    match = _PARTS.match(version)
    if match is None:
        raise _Nonsense(f"{version!r} is no version")
    words = match.group("release").split(".")
    stated: list[int] = []
    for word in words:
        if word in _ANY:
            break
        stated.append(int(word))
    if any(word not in _ANY for word in words[len(stated) :]):
        raise _Nonsense(f"{version!r} has a number after an x")
    suffix = match.group("suffix") or ""
    whole = len(stated) >= 3
    if suffix and not whole:
        raise _Nonsense(f"{version!r} has a suffix but fewer than three parts")
    return stated, whole, suffix


def _text(parts: list[int], suffix: str = "") -> str:
    from packaging.version import InvalidVersion, Version

    try:
        return str(Version(".".join(map(str, parts)) + suffix))
    except InvalidVersion:
        raise _Nonsense(f"{suffix!r} is no suffix of a version") from None


def _next(parts: list[int]) -> str:
    """Return the first version after all that begin with these parts."""
    return _text([*parts[:-1], parts[-1] + 1])


def _public(text: str) -> str:
    """Return a version without its build label, which an ordered comparison can't have."""
    return text.partition("+")[0]


def _at_least(version: str) -> list[str]:
    parts, _whole, suffix = _split(version)
    return [f">={_public(_text(parts, suffix))}"] if parts else []


def _at_most(version: str) -> list[str]:
    parts, whole, suffix = _split(version)
    if whole:
        return [f"<={_public(_text(parts, suffix))}"]
    return [f"<{_next(parts)}"] if parts else []


def _comparator(word: str) -> list[str]:
    match = _COMPARATOR.match(word)
    assert match is not None
    operator, version = match.group(1) or "=", match.group(2)
    parts, whole, suffix = _split(version)
    if not parts:
        if operator in {"<", ">"}:
            raise _Nonsense(f"nothing is {'below' if operator == '<' else 'above'} every version")
        return []
    text = _text(parts, suffix)
    match operator:
        case ">=":
            return _at_least(version)
        case "<=":
            return _at_most(version)
        case "<":
            return [f"<{_public(text)}"]
        case ">":
            return [f">{_public(text)}"] if whole else [f">={_next(parts)}"]
        case "~" | "~>":
            return [f">={_public(text)}", f"<{_next(parts[:2])}"]
        case "^":
            return [f">={_public(text)}", f"<{_next(_stable(parts))}"]
        case _:
            return [f"=={text}"] if whole else [f">={text}", f"<{_next(parts)}"]


def _stable(parts: list[int]) -> list[int]:
    """Return the parts that a caret keeps: up to the first that is not 0, or all that are stated."""
    for position, part in enumerate(parts[:3]):
        if part:
            return parts[: position + 1]
    return parts[:3]
