"""Layers and Kernels: where the time of a query goes, as tables with bars."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual.binding import Binding
from textual.widgets import Static

from mlbundle.runs.words import counted
from mlbundle.wording import units
from mlbundle_tui.run_tabs.base import READING, RunTab
from mlbundle_tui.widgets.plot import bar
from mlbundle_tui.widgets.row_table import Cell, Column, RowTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult

    from mlbundle.analysis.layers import KernelRow, LayerRow, TypeRow

_BAR = 16
_LAYERS = (
    Column("order", "#", 4, right=True),
    Column("name", "layer", 16, flex=3),
    Column("type", "type", 12, flex=1, from_width=64),
    Column("latency", "median", 9, right=True),
    Column("share", "", 6, right=True),
    Column("bar", "", _BAR, from_width=76),
    Column("mean", "trimmed mean", 12, right=True, from_width=136),
    Column("memory", "allocated", 11, right=True, from_width=96),
    Column("flops", "flops", 9, right=True, from_width=108),
    Column("rate", "flops/s", 9, right=True, from_width=120),
    Column("shape", "shape out", 14, flex=1, from_width=152),
)
_TYPES = (
    Column("type", "type", 16, flex=2),
    Column("count", "layers", 6, right=True),
    Column("latency", "median", 9, right=True),
    Column("share", "", 6, right=True),
    Column("bar", "", _BAR, from_width=60),
    Column("memory", "allocated", 11, right=True, from_width=76),
    Column("flops", "flops", 9, right=True, from_width=88),
)
_KERNELS = (
    Column("name", "kernel", 20, flex=3),
    Column("kind", "kind", 8, from_width=64),
    Column("count", "a query", 9, right=True),
    Column("latency", "latency", 9, right=True),
    Column("share", "", 6, right=True),
    Column("bar", "", _BAR, from_width=76),
    Column("each", "each", 9, right=True, from_width=92),
    Column("bytes", "bytes", 9, right=True, from_width=104),
)
# The columns that rows can be sorted by, in the order of `s`; a sort is called as its column.
_SORTS = ("latency", "memory", "flops", "name", "order")
_KERNEL_SORTS = ("latency", "each", "count", "bytes", "name")
_RISING = {"name", "order"}


class LayersTab(RunTab):
    """The layers of a query; grouped by type with `b`."""

    key, title = "layers", "Layers"
    DEFAULT_CSS = """
    RunTab #head { height: auto; max-height: 3; color: $text-muted; }
    LayersTab #layer { height: auto; max-height: 4; color: $text-muted; }
    """
    BINDINGS: ClassVar = [
        Binding("s", "sort", "Sort", id="layers.sort"),
        Binding("b", "group", "By type", id="layers.group"),
    ]

    def __init__(self, run: Any) -> None:
        super().__init__(run)
        self._layers: list[LayerRow] = []
        self._shown: list[LayerRow] = []
        self._types: list[TypeRow] = []
        self._sort, self._grouped = "latency", False

    def inside(self) -> ComposeResult:
        """Yield what is summed up, the table, and the layer under the cursor in full."""
        yield Static(READING, id="head", markup=False)
        yield RowTable(_LAYERS, id="layers")
        yield Static("", id="layer", markup=False)

    def read(self) -> tuple[list[LayerRow], list[TypeRow]]:
        """Read the layers of all profiled queries."""
        from mlbundle.analysis.layers import by_type
        from mlbundle.runs.layers import layers_of_run

        rows = layers_of_run(self.run.folder)
        return rows, by_type(rows)

    def show(self, found: tuple[list[LayerRow], list[TypeRow]]) -> None:
        """Show them, the slowest first."""
        self._layers, self._types = found
        self._show_rows()

    def focus_inside(self) -> None:
        """Give the keys to the table."""
        self.query_one(RowTable).focus()

    def command_line(self) -> str:
        """Return the command that shows the same."""
        return f"mlbundle trace summary {self.run.run_id}"

    def action_sort(self) -> None:
        """Sort by the next of latency, memory, flops, name and order."""
        self._sort = _after(self._sort, _SORTS)
        self._grouped = False
        self._show_rows()

    def action_group(self) -> None:
        """Show the types of layers, or the layers again."""
        self._grouped = not self._grouped
        self._show_rows()

    def on_row_table_highlighted(self) -> None:
        """Say all of the layer under the cursor."""
        self._show_layer()

    def on_row_table_header_pressed(self, event: RowTable.HeaderPressed) -> None:
        """Sort by the column."""
        if not self._grouped and event.key in _SORTS:
            self._sort = event.key
            self._show_rows()

    def _show_rows(self) -> None:
        from mlbundle.analysis.layers import sort_layers

        table = self.query_one(RowTable)
        total_ns = sum(row.p50_ns for row in self._layers)
        if self._grouped:
            table.set_columns(_TYPES)
            most_ns = max((row.p50_ns for row in self._types), default=1)
            table.set_rows([_type_cells(row, most_ns, total_ns) for row in self._types], cursor=0)
        else:
            self._shown = sort_layers(self._layers, self._sort)
            table.set_columns(_sorted_by(_LAYERS, self._sort))
            most_ns = max((row.p50_ns for row in self._layers), default=1)
            table.set_rows([_layer_cells(row, most_ns, total_ns) for row in self._shown], cursor=0)
        self.query_one("#head", Static).update(self._head())
        self._show_layer()

    def _head(self) -> Text:
        if not self._layers:
            return Text("the predictor told of no layers")
        total_ns = sum(row.p50_ns for row in self._layers)
        queries = max(row.queries for row in self._layers)
        by = "types of layers" if self._grouped else _by(_LAYERS, self._sort)
        means = f"{units.duration(total_ns)} a query (medians over {counted(queries, 'query', 'queries')})"
        layers = counted(len(self._layers), "layer", "layers")
        return Text(f"{layers}, {means}, {by}", no_wrap=True, overflow="ellipsis")

    def _show_layer(self) -> None:
        text = Text(no_wrap=True, overflow="ellipsis")
        place = self.query_one(RowTable).cursor
        if not self._grouped and place < len(self._shown):
            row = self._shown[place]
            text.append(row.name, style="bold")
            if row.original_name not in {"", row.name}:
                text.append(f"  the author's {row.original_name}")
            if row.provider:
                text.append(f"  on {row.provider}")
            text.append(f"\n{row.shape_in} → {row.shape_out}" if row.shape_in or row.shape_out else "\n")
            text.append(f"\ntrimmed mean {units.duration(row.latency_ns)}")
            if row.param_bytes:
                text.append(f"  weights {units.size(row.param_bytes)}")
            if row.flops is not None:
                text.append(f"  {row.flops:,} operations ({row.flops_source})")
        self.query_one("#layer", Static).update(text)


class KernelsTab(RunTab):
    """The kernels and operators of a query, by name."""

    key, title = "kernels", "Kernels"
    BINDINGS: ClassVar = [Binding("s", "sort", "Sort", id="kernels.sort")]

    def __init__(self, run: Any) -> None:
        super().__init__(run)
        self._kernels: list[KernelRow] = []
        self._sort = "latency"

    def inside(self) -> ComposeResult:
        """Yield what is summed up, and the table."""
        yield Static(READING, id="head", markup=False)
        yield RowTable(_KERNELS, id="kernels")

    def read(self) -> list[KernelRow]:
        """Read the kernels of all profiled queries."""
        from mlbundle.runs.layers import kernels_of_run

        return kernels_of_run(self.run.folder)

    def show(self, found: list[KernelRow]) -> None:
        """Show them, the slowest first."""
        self._kernels = found
        self._show_rows()

    def action_sort(self) -> None:
        """Sort by the next of latency, each, count, bytes and name."""
        self._sort = _after(self._sort, _KERNEL_SORTS)
        self._show_rows()

    def on_row_table_header_pressed(self, event: RowTable.HeaderPressed) -> None:
        """Sort by the column."""
        if event.key in _KERNEL_SORTS:
            self._sort = event.key
            self._show_rows()

    def _show_rows(self) -> None:
        from mlbundle.analysis.layers import sort_kernels

        found = self._kernels
        most = max((row.share for row in found), default=1)
        table = self.query_one(RowTable)
        table.set_columns(_sorted_by(_KERNELS, self._sort))
        table.set_rows([_kernel_cells(row, most) for row in sort_kernels(found, self._sort)], cursor=0)
        count = sum(row.per_query for row in found)
        total = units.duration(sum(row.latency_ns for row in found))
        text = f"{counted(len(found), 'name', 'names')}, {count:,.0f} a query, {total} (trimmed means over the queries)"
        self.query_one("#head", Static).update(f"{text}, {_by(_KERNELS, self._sort)}")

    def focus_inside(self) -> None:
        """Give the keys to the table."""
        self.query_one(RowTable).focus()

    def command_line(self) -> str:
        """Return the command that writes the same numbers."""
        return f"mlbundle trace export {self.run.run_id} --format csv"


def _after(sort: str, sorts: Sequence[str]) -> str:
    return sorts[(sorts.index(sort) + 1) % len(sorts)]


def _by(columns: Sequence[Column], sort: str) -> str:
    """Return what rows are sorted by, as the column is called."""
    return f"by {next(column.title for column in columns if column.key == sort).replace('#', 'order')}"


def _sorted_by(columns: Sequence[Column], sort: str) -> list[Column]:
    """Return the columns, with an arrow at the one that rows are sorted by."""
    arrow = " ↑" if sort in _RISING else " ↓"
    return [replace(column, title=column.title + arrow * (column.key == sort)) for column in columns]


def flops_text(value: float | None) -> str:
    """Return a number of operations: `8.17 G`."""
    if value is None:
        return ""
    for factor, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:.0f}"


def _size(value: int | None) -> str:
    return "" if value is None else units.size(value)


def _share(share: float) -> str:
    return f"{100 * share:.1f} %"


def _layer_cells(row: LayerRow, most_ns: int, total_ns: int) -> Sequence[Cell]:
    return (
        (str(row.order), "dim"),
        row.original_name or row.name,
        (row.type, "accent"),
        units.duration(row.p50_ns),
        (_share(row.p50_ns / max(1, total_ns)), "dim"),
        (bar(row.p50_ns / max(1, most_ns), _BAR), "accent"),
        units.duration(row.latency_ns),
        _size(row.alloc_bytes),
        flops_text(row.flops),
        flops_text(row.flops_per_s),
        (row.shape_out, "dim"),
    )


def _type_cells(row: TypeRow, most_ns: int, total_ns: int) -> Sequence[Cell]:
    return (
        row.type or "(no type)",
        str(row.layers),
        units.duration(row.p50_ns),
        (_share(row.p50_ns / max(1, total_ns)), "dim"),
        (bar(row.p50_ns / max(1, most_ns), _BAR), "accent"),
        _size(row.alloc_bytes),
        flops_text(row.flops),
    )


def _kernel_cells(row: KernelRow, most: float) -> Sequence[Cell]:
    return (
        row.name,
        (row.kind, "dim"),
        f"{row.per_query:.3g}",
        units.duration(row.latency_ns),
        (_share(row.share), "dim"),
        (bar(row.share / most if most else 0, _BAR), "accent"),
        units.duration(row.each_ns),
        _size(row.bytes),
    )
