"""What a build does, in words: the engine speaks in lines of the recipe."""

from __future__ import annotations

import re

_STEP = re.compile(r"Step \d+/\d+ : (FROM|COPY|RUN) ")
_WORDS = (
    ("COPY --from=", "copying the environment into the image"),
    ("COPY ", "taking the wheels in"),
    ("loadgen-source.lock", "compiling LoadGen, where that is asked for"),
    ("apt-get install", "looking for a Python in the base image; Debian's is installed where there is none"),
    ("pip install", "installing {wheels}"),
    ("ldconfig", "telling the linker where CUDA's libraries are"),
    ("check.py", "looking whether the image can import what it is for"),
)
"""What a step of our recipe holds -> what it does; the first that fits."""


def step_words(line: str, wheels: str) -> str | None:
    """Return what a line of the engine's says is done now, None for one that says nothing of the kind.

    `wheels` says how many there are and how large. Steps that are no more than settings are passed over.
    """
    found = _STEP.match(line)
    if found is None or found[1] == "FROM":
        return None
    words = next((words for part, words in _WORDS if part in line), None)
    return " ".join(line.split())[:100] if words is None else words.format(wheels=wheels)


def wheels_words(count: int, size_bytes: int) -> str:
    """Return how many wheels there are and how large: `15 wheels (290 MB)`."""
    return f"{count} {'wheel' if count == 1 else 'wheels'} ({size_bytes / 1e6:.0f} MB)"
