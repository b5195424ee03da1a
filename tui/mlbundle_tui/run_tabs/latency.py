"""Latency: over the time of the run, as a histogram, and as percentiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.binding import Binding
from textual.containers import Container
from textual.widget import Widget
from textual.widgets import Static

from mlbundle.runs.words import counted
from mlbundle.wording import units
from mlbundle_tui.run_tabs.base import READING, RunTab
from mlbundle_tui.widgets.plot import Plot, Series, columns, folded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult

    from mlbundle.runs.latencies import Bar, LatencyView
    from mlbundle_tui.run_tabs.base import ShownRun

_MOST_OF_P50 = 20
_LEAST_BARS = 5
# A line above the percentiles that stand beside the bars, and one that the last sentence may take more.
_BESIDE = 2
_GAP = "   "


def seconds(value_s: float) -> str:
    """Return a moment of a run."""
    return units.duration(value_s * 1e9) if value_s else "0 s"


def histogram(bars: Sequence[Bar], width: int, height: int) -> Text:
    """Return bars as lines of a title, columns and an axis: each several characters wide, or several added up."""
    text = Text.assemble(("histogram", "bold"), ("  the last bar has all beyond p99", "dim"), no_wrap=True)
    text.truncate(width, overflow="ellipsis")
    if not bars or height < 4 or width < 1:
        return text
    counts = folded([bar.queries for bar in bars], width)
    each = width // len(counts)
    for line in columns(counts, height - 2):
        text.append("\n" + "".join(character * each for character in line), style="cyan")
    low, high = units.duration(bars[0].from_ns), units.duration(bars[-1].from_ns)
    room = each * len(counts) - len(low)
    text.append(f"\n{low}{high:>{room}}" if room > len(high) else f"\n{low}"[: width + 1], style="dim")
    return text


class Histogram(Widget):
    """Bars from the least latency to p99; the last has all beyond."""

    DEFAULT_CSS = "Histogram { height: 1fr; width: 1fr; min-height: 5; }"

    def __init__(self) -> None:
        super().__init__()
        self._bars: Sequence[Bar] = ()

    def set_bars(self, bars: Sequence[Bar]) -> None:
        """Show other bars."""
        self._bars = bars
        self.refresh()

    def render(self) -> Text:
        """Return the bars in the room there is."""
        return histogram(self._bars, self.size.width, self.size.height)


class LatencyTab(RunTab, can_focus=True):
    """The latencies of the headline; `s` shows them up to the largest, in equal ratios."""

    key, title = "latency", "Latency"
    SCOPED_CSS = False  # its rules look at the width of the page above
    DEFAULT_CSS = """
    LatencyTab #below { height: 2fr; }
    LatencyTab Plot { height: 3fr; }
    LatencyTab #percentiles { width: 1fr; height: auto; }
    RunPage.-wide LatencyTab #below { layout: horizontal; }
    RunPage.-wide LatencyTab Histogram { width: 2fr; }
    RunPage.-wide LatencyTab #percentiles { width: 1fr; padding: 1 0 0 4; }
    """

    BINDINGS: ClassVar = [Binding("s", "scale", "Scale", id="latency.scale")]

    def __init__(self, run: ShownRun) -> None:
        super().__init__(run)
        self._found: LatencyView | None = None
        self._log = False

    def inside(self) -> ComposeResult:
        """Yield the plot, and histogram and percentiles below."""
        yield Plot("latency over time", y_text=units.duration, x_text=seconds)
        with Container(id="below"):
            yield Histogram()
            yield Static(READING, id="percentiles")

    def read(self) -> LatencyView:
        """Read the latencies of the headline, and sum them up."""
        from mlbundle.runs.latencies import latency_view

        return latency_view(self.run.folder, self.run.record)

    def show(self, found: LatencyView) -> None:
        """Show them."""
        self._found = found
        self._show_plot()
        self.query_one(Histogram).set_bars(found.bars)
        self.query_one(Histogram).display = bool(found.bars)
        self._show_percentiles()

    def on_resize(self) -> None:
        """Lay the percentiles out anew: beside one another, or in wide terminals one below another."""
        self.call_after_refresh(self._show_percentiles)

    def focus_inside(self) -> None:
        """Take the keys."""
        self.focus()

    def action_scale(self) -> None:
        """Show all latencies in equal ratios, or most of them in equal steps again."""
        self._log = not self._log
        self._show_plot()

    def _show_plot(self) -> None:
        if self._found is not None:
            series, most = latency_series(self._found), scale_of(self._found)
            self.query_one(Plot).set_series(series, most=most, log=self._log)

    def _show_percentiles(self) -> None:
        if self._found is not None:
            text = self._percentiles(self._found, self.size.width)
            self.query_one("#percentiles", Static).update(text)
            # Where there is little room the plot gives way, and neither the bars nor the last percentiles.
            wide, width = self.screen.has_class("-wide"), max(1, self.size.width)
            lines = sum(1 + (len(line) - 1) // width for line in text.plain.splitlines())
            above = _BESIDE if wide else _LEAST_BARS if self._found.bars else 0
            self.query_one("#below").styles.min_height = lines + above

    def _percentiles(self, found: LatencyView, width: int) -> Text:
        """Return the percentiles one below another in a wide terminal, else beside one another, none of them cut."""
        pairs = [("least", found.least_ns), *((f"p{p:g}", ns) for p, ns in found.percentiles.items())]
        text, room = Text(), 0
        for name, value_ns in [*pairs, ("most", found.most_ns)]:
            value = units.duration(value_ns)
            if self.screen.has_class("-wide"):
                text.append(f"{name:<6}", style="dim").append(f"{value:>9}\n")
                continue
            taken = len(f"{name} {value}")
            text.append(_GAP if room >= taken + len(_GAP) else "\n" if text else "")
            room = (room - len(_GAP) if room >= taken + len(_GAP) else width) - taken
            text.append(f"{name} ", style="dim").append(value)
        of = "windows said while it ran" if found.source == "windows" else f"the pass {found.kind}"
        queries = counted(found.queries, "query", "queries")
        took = units.duration(self._duration_s(found) * 1e9)
        text.append(f"\n{queries} in {took}, of {of}", style="dim")
        return text

    def _duration_s(self, found: LatencyView) -> float:
        """Return what the result says of the same queries: the time between them belongs to it."""
        result = self.run.record.get("result") or {}
        return float(result["duration_s"] if result.get("queries") == found.queries else found.duration_s)


def latency_series(found: LatencyView) -> list[Series]:
    """Return the largest and the median of each moment as lines."""
    return [
        Series("largest", "yellow", [(bucket.t_s, bucket.most_ns) for bucket in found.buckets]),
        Series("median", "cyan", [(bucket.t_s, bucket.p50_ns) for bucket in found.buckets]),
    ]


def scale_of(found: LatencyView) -> float:
    """Return where the axis of latencies ends: one query that took thousands of times as long hides no others."""
    most = max(bucket.most_ns for bucket in found.buckets)
    median = found.percentiles.get(50.0, most)
    return float(min(most, _MOST_OF_P50 * max(1, median)))
