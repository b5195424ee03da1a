"""Counters: what was seen of the worker from outside, as small charts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.containers import ItemGrid, VerticalScroll
from textual.widgets import Static

from mlbundle.runs.told import told
from mlbundle.runs.words import counted
from mlbundle_tui.run_tabs.base import READING, RunTab
from mlbundle_tui.run_tabs.latency import seconds
from mlbundle_tui.widgets.plot import Plot, Series

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.app import ComposeResult

    from mlbundle.runs.counters import CounterSeries, CounterView


class CountersTab(RunTab):
    """A chart for each counter."""

    key, title = "counters", "Counters"
    DEFAULT_CSS = """
    CountersTab VerticalScroll { height: 1fr; scrollbar-size-vertical: 1; }
    CountersTab ItemGrid { height: auto; grid-gutter: 1 3; }
    CountersTab Plot { height: 8; }
    """

    def inside(self) -> ComposeResult:
        """Yield what is told about all, and the charts."""
        yield Static(READING, id="head", markup=False)
        with VerticalScroll(can_focus=True):
            yield ItemGrid(min_column_width=36)

    def read(self) -> CounterView:
        """Read the samples."""
        from mlbundle.runs.counters import counter_view

        return counter_view(self.run.folder)

    def show(self, found: CounterView) -> None:
        """Show a chart for each, with the phases below."""
        sampling = (self.run.record.get("resources") or {}).get("sampling") or {}
        every = f", looked at every {told('interval_s', sampling.get('interval_s'))}" if sampling else ""
        counters = counted(len(found.series), "counter", "counters")
        self.query_one("#head", Static).update(
            f"{counters} of the worker as the system counts them{every}; beside each name its mean over all phases"
        )
        grid = self.query_one(ItemGrid)
        grid.remove_children()
        marks = sorted(found.phases, key=lambda phase: _rank(phase[1]))
        for series in found.series:
            plot = Plot(_title(series), y_text=_text(series), x_text=seconds)
            plot.set_series([Series("", "cyan", series.points)], marks=marks)
            grid.mount(plot)

    def focus_inside(self) -> None:
        """Let the keys scroll."""
        self.query_one(VerticalScroll).focus()

    def command_line(self) -> str:
        """Return the command that shows what they came to."""
        return f"mlbundle trace summary {self.run.run_id}"


def _rank(phase: str) -> int:
    """Return how soon a phase is named where there is no room for all: what is measured comes first."""
    order = ("measure", "warm-up", "load")
    return order.index(phase) if phase in order else len(order)


def _text(series: CounterSeries) -> Callable[[float], str]:
    if series.is_rate and series.unit == "s":
        return "{:.2f} CPUs".format
    per = "/s" if series.is_rate else ""
    if not series.unit:
        return lambda value: (f"{value:,.0f}" if value >= 100 else f"{value:.3g}") + per
    return lambda value: told(series.unit, value) + per


def _title(series: CounterSeries) -> str:
    """Return the name and the mean."""
    return f"{series.name.replace('_', ' ')}  {_text(series)(series.mean)}"
