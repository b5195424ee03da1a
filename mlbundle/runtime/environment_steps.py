"""How far the making of a Python environment is: steps, the lines that tell them, and the steps of such lines.

Who starts a run by a command has only what the command says. Both directions are here, so that they can't differ.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Making:
    """An environment is made now."""

    framework: str
    packages: int

    def __str__(self) -> str:
        return f"making the {self.framework} environment: {self.packages} packages, once for each lock"


@dataclass(frozen=True)
class Fetching:
    """Package `number`, from 1, of `total` begins to come; `size` is what pip says of it, it may be empty."""

    number: int
    total: int
    name: str
    version: str
    size: str = ""

    def __str__(self) -> str:
        return f"  ({self.number}/{self.total}) {self.name} {self.version} {self.size}".rstrip()


@dataclass(frozen=True)
class Placing:
    """All packages are here and are put in their places; nothing further is told until that is done."""

    packages: int

    def __str__(self) -> str:
        return f"  installing {self.packages} packages"


@dataclass(frozen=True)
class Made:
    """The environment is there, `seconds` after it was begun."""

    framework: str
    seconds: int

    def __str__(self) -> str:
        return f"  the {self.framework} environment is there after {self.seconds} s"


EnvironmentStep = Making | Fetching | Placing | Made

_NUMBER = r"(0|[1-9]\d{0,8})"
_MAKING = re.compile(rf"making the (\S+) environment: {_NUMBER} packages, once for each lock", re.ASCII)
_FETCHING = re.compile(rf"  \({_NUMBER}/{_NUMBER}\) (\S+) (\S+)(?: (.*\S))?", re.ASCII)
_PLACING = re.compile(rf"  installing {_NUMBER} packages", re.ASCII)
_MADE = re.compile(rf"  the (\S+) environment is there after {_NUMBER} s", re.ASCII)


def step_of(line: str) -> EnvironmentStep | None:
    """Return the step that a line tells, None for one that tells none."""
    if found := _FETCHING.fullmatch(line):
        return Fetching(int(found[1]), int(found[2]), found[3], found[4], found[5] or "")
    if found := _MAKING.fullmatch(line):
        return Making(found[1], int(found[2]))
    if found := _PLACING.fullmatch(line):
        return Placing(int(found[1]))
    if found := _MADE.fullmatch(line):
        return Made(found[1], int(found[2]))
    return None
