"""A run before it has a folder: what is done for it now, told from the lines of the command that starts it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from mlbundle.runtime.environment_steps import Fetching, Made, Making, Placing, step_of

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
        match step_of(line):
            case Making(framework=framework):
                self.stage, self.now, self.done, self.total = "environment", f"of {framework}", 0, 0
            case Fetching(number=number, total=total, name=name):
                # It is said when it begins to come.
                self.done, self.total, self.now = number - 1, total, name
            case Placing():
                self.done, self.now = self.total, "all are here and are put in their places"
            case Made():
                self.stage, self.now, self.done, self.total = "plan", "", 0, 0

    @property
    def share(self) -> float | None:
        """How much is done, 0 to 1; None where nobody can tell."""
        return self.done / self.total if self.total else None
