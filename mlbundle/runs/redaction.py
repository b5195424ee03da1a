"""What is taken out of a document before others may see it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any


def redact(text: str) -> str:
    """Return a text with the user's home folder written as `~`."""
    home = str(Path.home())
    return re.sub(rf"{re.escape(home)}(?=/|$)", "~", text) if len(home) > 1 else text


def redacted(value: Any) -> Any:
    """Return JSON values with every text redacted."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {name: redacted(item) for name, item in value.items()}
    return [redacted(item) for item in value] if isinstance(value, list) else value
