"""Which attempt of a sweep a run is: told to `mlbundle run` by its driver, and written into the run's record."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any, Self

VARIABLE = "MLBUNDLE_SWEEP_ATTEMPT"
_TEXT = re.compile(r"(\d{8}T\d{6}Z-[0-9a-f]{6})/(\d{1,9})/(\d{1,9})", re.ASCII)


@dataclass(frozen=True)
class SweepAttempt:
    """An attempt; cells and attempts count from 1."""

    sweep_id: str
    cell: int
    attempt: int

    @classmethod
    def of_environment(cls) -> Self | None:
        """Return what the driver told us; None where nobody did."""
        found = _TEXT.fullmatch(os.environ.get(VARIABLE, ""))
        return None if found is None else cls(found[1], int(found[2]), int(found[3]))

    def variables(self) -> dict[str, str]:
        """Return the environment variables that tell it to a run."""
        return {VARIABLE: f"{self.sweep_id}/{self.cell}/{self.attempt}"}

    def to_document(self) -> dict[str, Any]:
        """Return the attempt as records write it."""
        return {"id": self.sweep_id, "cell": self.cell, "attempt": self.attempt}
