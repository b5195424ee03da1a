"""Rows of layers or of kernels while they are added, and the file that they become."""

from __future__ import annotations

import io
from typing import Any, Mapping, Sequence

import numpy as np

from mlbundle.wire import columns

# What a table of names may hold; longer ones are cut, as nobody can read them. A run has up to three passes that
# profile, and all of their names go into one table of 65,536.
MOST_NAME_CHARACTERS = 1000
MOST_STRINGS = 20_000
# NumPy gives every text of a table the room of the longest.
_MOST_TABLE_CHARACTERS = 5 << 20


class Rows:
    """Rows as lists, columns at the end. What does not fit the file is cut, or left out and counted.

    `wanted` are the columns that a row can't be without, `choices` the texts that some columns are limited to.
    """

    def __init__(
        self,
        numbers: Sequence[str],
        texts: Sequence[str],
        wanted: Sequence[str],
        choices: Mapping[str, Sequence[str]],
    ) -> None:
        self._numbers, self._texts, self._choices = numbers, texts, choices
        self._wanted = frozenset(wanted)
        self._columns: dict[str, Any] = {name: [] for name in (*numbers, *texts)}
        self._strings: dict[str, int] = {"": 0}
        self.left_out = 0
        self.nameless = 0
        self._shortened = 0

    def __len__(self) -> int:
        return len(self._columns[self._numbers[0]])

    def add(self, values: Mapping[str, int | str]) -> None:
        """Add a row. Raises TypeError or ValueError for one that is none."""
        self._check(values)
        if len(self) >= columns.MAX_ROWS:
            self.left_out += 1
            return
        # All values are made before one is kept: a row is whole or not there.
        row = {name: _number(values.get(name, columns.UNKNOWN)) for name in self._numbers}
        row.update((name, self._intern(str(values.get(name, "")))) for name in self._texts)
        for name, value in row.items():
            self._columns[name].append(value)

    def _check(self, values: Mapping[str, int | str]) -> None:
        unknown = values.keys() - self._columns.keys()
        if unknown:
            raise TypeError("no such column: {}".format(", ".join(sorted(unknown))))
        missing = self._wanted - values.keys()
        if missing:
            raise TypeError("a row lacks {}".format(", ".join(sorted(missing))))
        for name, allowed in self._choices.items():
            if values.get(name, allowed[0]) not in allowed:
                raise ValueError("{} is one of {}".format(name, ", ".join(map(repr, allowed))))

    def _intern(self, text: str) -> int:
        known = self._strings.get(text)
        if known is not None:
            return known
        is_long, text = len(text) > MOST_NAME_CHARACTERS, printable(text)
        if len(self._strings) >= MOST_STRINGS and text not in self._strings:
            self.nameless += 1
            return 0
        self._shortened += is_long and text not in self._strings
        return self._strings.setdefault(text, len(self._strings))

    def _room(self) -> int:
        """Return how many characters each text of the file may have."""
        return min(MOST_NAME_CHARACTERS, max(1, _MOST_TABLE_CHARACTERS // len(self._strings)))

    def too_long(self) -> int:
        """Return how many texts are not whole in the file."""
        room = self._room()
        cut = sum(len(text) > room for text in self._strings)
        return cut if room < MOST_NAME_CHARACTERS else self._shortened

    def arrays(self, *names: str) -> list[Any]:
        """Return columns of numbers as int64 arrays."""
        return [np.array(self._columns[name], np.int64) for name in names]

    def is_text(self, name: str, text: str) -> Any:
        """Return in which rows a column of texts has this one, as a mask."""
        return np.array(self._columns[name], np.int64) == self._strings.get(text, columns.UNKNOWN)

    def keep(self, kept: Any, changed: Mapping[str, Any]) -> None:
        """Keep the rows of a mask, with columns that have changed; nothing can be added afterwards."""
        self._columns = {
            name: np.array(changed.get(name, column), np.int64)[kept]
            for name, column in self._columns.items()
        }

    def to_bytes(self) -> bytes:
        """Return the file."""
        buffer = io.BytesIO()
        room = self._room()
        arrays: dict[str, Any] = {columns.STRINGS: np.array([text[:room] for text in self._strings], np.str_)}
        for name, values in self._columns.items():
            arrays[name] = np.array(values, np.int64)
        np.savez_compressed(buffer, **arrays)
        return buffer.getvalue()


def printable(text: str) -> str:
    """Return a text without what can't be shown, and cut where it is too long."""
    text = text[:MOST_NAME_CHARACTERS]
    return text if text.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in text)


def _number(value: Any) -> int:
    value = int(value)
    return value if columns.UNKNOWN <= value < 1 << 62 else columns.UNKNOWN
