"""The only time that may stand in what we sign: the one that SOURCE_DATE_EPOCH gives.

The variable is described at reproducible-builds.org; without it nothing we write says when it was written.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime

from mlbundle.errors import UsageError

_VARIABLE = "SOURCE_DATE_EPOCH"
_LAST_S = 253_402_300_799
"""The end of the year 9999, in seconds since 1970: later times have no RFC 3339 form."""


def source_date() -> datetime | None:
    """Return the time in UTC, None when the variable is not set; raises UsageError when it is no number of seconds."""
    text = os.environ.get(_VARIABLE)
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 12 and int(text) <= _LAST_S):
        raise UsageError(f"{_VARIABLE} is {text[:40]!r}", hint="it is a whole number of seconds since 1970")
    return datetime.fromtimestamp(int(text), UTC)


def source_date_text() -> str | None:
    """Return the time as RFC 3339 has it (`2026-11-20T14:25:03Z`), None when the variable is not set."""
    date = source_date()
    return None if date is None else date.strftime("%Y-%m-%dT%H:%M:%SZ")
