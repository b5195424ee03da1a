"""A run before it has a folder: what is done for it now, told from the lines of the command that starts it."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field

_MAKING = re.compile(r"making the (\S+) environment")
_MADE = re.compile(r"\s+the \S+ environment is there after")
_PACKAGE = re.compile(r"\s+\((\d+)/(\d+)\) (\S+)")
_INSTALLING = re.compile(r"\s+installing \d+ packages")
_MOST_LINES = 200


@dataclass
class Starting:
    """`stage` is `plan` or `environment`; `done` of `total` packages are here, `now` is what comes next.

    The last of them are put in their places when all are here: that is told of no further.
    """

    stage: str = "plan"
    now: str = ""
    done: int = 0
    total: int = 0
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_MOST_LINES))

    def take(self, line: str) -> None:
        """Take a line that the command said."""
        self.lines.append(line)
        if making := _MAKING.match(line):
            self.stage, self.now, self.done, self.total = "environment", f"of {making[1]}", 0, 0
        elif _MADE.match(line):
            self.stage, self.now, self.done, self.total = "plan", "", 0, 0
        elif package := _PACKAGE.match(line):
            # It is said when it begins to come.
            self.done, self.total, self.now = int(package[1]) - 1, int(package[2]), package[3]
        elif _INSTALLING.match(line):
            self.done, self.now = self.total, "all are here and are put in their places"

    @property
    def share(self) -> float | None:
        """How much is done, 0 to 1; None where nobody can tell."""
        return self.done / self.total if self.total else None
