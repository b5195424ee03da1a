"""Summary: the verdict first, then the numbers, then what ran."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from rich.console import Group
from rich.table import Table
from rich.text import Text
from textual.containers import Container, Vertical, VerticalScroll
from textual.widgets import Digits, Static

from mlbundle.store.headline import headline_of, is_quick
from mlbundle.wording import run_rows
from mlbundle_tui import record_words, run_words
from mlbundle_tui.run_tabs.base import RunTab
from mlbundle_tui.widgets.texts import Folded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult

_NAMES = 13
# Of so many numbers there is room beside one another in 80 columns.
_TILES = 4


class Tile(Vertical):
    """A number, large, with what it is and its unit."""

    DEFAULT_CSS = """
    Tile { width: auto; height: 5; margin-right: 4; }
    Tile Static { width: auto; color: $text-muted; }
    Tile Digits { width: auto; }
    Tile.-first Digits { color: $text-primary; }
    """

    def __init__(self, name: str, text: str, *, first: bool = False) -> None:
        super().__init__(classes="-first" if first else None)
        self._named, self._text = name, text

    def compose(self) -> ComposeResult:
        """Yield name and unit, and the digits below."""
        number, _, unit = self._text.partition(" ")
        yield Static(Text(f"{self._named}  [{unit}]" if unit else self._named))
        yield Digits(number)


class SummaryTab(RunTab):
    """What came out, in the order in which one asks."""

    key, title = "summary", "Summary"
    SCOPED_CSS = False  # its rules look at the width of the page above
    DEFAULT_CSS = """
    SummaryTab VerticalScroll { height: 1fr; scrollbar-size-vertical: 1; }
    SummaryTab #verdict { height: auto; padding: 0 1; margin-bottom: 1; border-left: thick $warning; }
    SummaryTab #verdict.-good { border-left: thick $success; }
    SummaryTab #verdict.-bad { border-left: thick $error; }
    SummaryTab #tiles { layout: horizontal; height: 5; overflow: hidden; padding: 0 1; }
    SummaryTab #columns { height: auto; }
    SummaryTab #columns Static { width: 1fr; height: auto; padding: 0 1; }
    RunPage.-narrow SummaryTab #tiles { display: none; }
    RunPage.-normal SummaryTab Tile.-beyond { display: none; }
    RunPage.-wide SummaryTab #columns { layout: horizontal; }
    """
    BINDINGS: ClassVar = []

    def inside(self) -> ComposeResult:
        """Yield verdict, tiles, and two columns of lines."""
        record = self.run.record
        with VerticalScroll(can_focus=True):
            yield Static(self._verdict(), id="verdict", classes=f"-{record_words.verdict(record)[1]}")
            tiles = list(self._tiles())
            if tiles:
                yield Container(*tiles, id="tiles")
            with Container(id="columns"):
                yield Static(_lines("what was found", record_words.found(record)))
                yield Static(_lines("what ran", record_words.ran(record)))

    def load(self) -> None:  # type: ignore[override]
        """Nothing is read: the record is there."""

    def focus_inside(self) -> None:
        """Let the keys scroll."""
        self.query_one(VerticalScroll).focus()

    def command_line(self) -> str:
        """Return the command that repeats the run."""
        return str(self.run.record.get("command") or "") or super().command_line()

    def _verdict(self) -> Text:
        record = self.run.record
        word, _, why = record_words.verdict(record)
        text = Text(word, style="bold")
        if is_quick(record):
            text.append("  quick: shorter than the rules of its scenario", style="not bold")
        for reason in why:
            text.append(f"\n{reason}", style="not bold")
        claim, _ = record_words.claim(record)
        if claim:
            text.append(f"\n{claim}", style="not bold")
        return text

    def _tiles(self) -> list[Tile]:
        record = self.run.record
        headline = headline_of(record)
        if headline is None:
            return []
        found = [Tile(headline.name, run_rows.measure_text(headline.value, headline.unit), first=True)]
        percentiles_ns = record_words.percentiles_of(record["result"], ("p50", "p99"))
        found += [Tile(name, text) for name, text in percentiles_ns if headline.name != name]
        if headline.unit != "per_s":
            found.append(Tile("throughput", run_words.rate_text(record["result"]["throughput_per_s"])))
        accuracy: dict[str, Any] = record.get("accuracy") or {}
        if accuracy:
            found.append(Tile(str(accuracy["metric"]), f"{accuracy['value']:.4f}"))
        for tile in found[_TILES:]:
            tile.add_class("-beyond")
        return found


def _lines(title: str, pairs: Sequence[tuple[str, str]]) -> Group:
    """Return a title, and names and texts in two columns; long texts go on below."""
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(width=_NAMES, no_wrap=True)
    table.add_column(ratio=1, overflow="fold")
    for name, text in pairs:
        table.add_row(Text(name, style="dim"), Folded(Text(text)))
    return Group(Text(title, style="bold"), table, Text(""))
