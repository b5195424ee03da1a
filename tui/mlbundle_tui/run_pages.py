"""Pages of the index of runs as they come into sight, below the runs that go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlbundle.runs.catalog import RunPage

PAGE = 500
_KEPT_PAGES = 8


class RunPages:
    """Rows by number: those that go on come first. Of the pages of the index the last few are kept."""

    def __init__(self) -> None:
        self.going: list[dict[str, Any]] = []
        self.total = 0
        self.generation = 0
        self._pages: dict[int, list[dict[str, Any]]] = {}
        self._asked: set[int] = set()

    @property
    def count(self) -> int:
        """How many rows there are."""
        return len(self.going) + self.total

    @property
    def is_read(self) -> bool:
        """Whether anything of the index was read."""
        return bool(self._pages)

    def row(self, number: int) -> dict[str, Any] | None:
        """Return a row, None of one that is not there, or not yet."""
        if 0 <= number < len(self.going):
            return self.going[number]
        page, place = divmod(number - len(self.going), PAGE)
        rows = self._pages.get(page, ())
        return rows[place] if place < len(rows) else None

    def rows_here(self) -> Iterator[dict[str, Any]]:
        """Yield the rows that are here: those that go on, and those of the pages that are kept."""
        yield from self.going
        for rows in self._pages.values():
            yield from rows

    def wanted(self, number: int) -> int | None:
        """Return the page that a row stands in, once: when it is neither here nor asked for."""
        page = (number - len(self.going)) // PAGE
        if page < 0 or number >= self.count or page in self._pages or page in self._asked:
            return None
        self._asked.add(page)
        return page

    def begin_anew(self) -> int:
        """Something else is wanted: answers to what was asked before are no longer taken. Returns the generation."""
        self._asked = {0}
        self.generation += 1
        return self.generation

    def take(self, page: int, generation: int, found: RunPage) -> bool:
        """Take a page that was read; returns False where something else is wanted by now."""
        if generation != self.generation:
            return False
        if page == 0:
            self._pages.clear()
        while len(self._pages) >= _KEPT_PAGES:
            oldest = next(iter(self._pages))
            self._asked.discard(oldest)
            del self._pages[oldest]
        self._pages[page], self.total = found.rows, found.total
        return True

    def place_of(self, run_id: str) -> int | None:
        """Return the number of a run's row, if it goes on or stands on the first page."""
        ids = [row["run_id"] for row in [*self.going, *self._pages.get(0, ())]]
        return ids.index(run_id) if run_id in ids else None
