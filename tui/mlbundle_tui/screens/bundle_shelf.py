"""Bundles on the screen: the table, the chosen one beside it, and all that is read for them beside the event loop."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from textual import on
from textual.containers import VerticalScroll
from textual.widgets import Input, Static

from mlbundle.errors import MlbundleError
from mlbundle_tui.background import in_background
from mlbundle_tui.screens.base import Section
from mlbundle_tui.widgets.bare import BareHorizontal, BareVertical
from mlbundle_tui.widgets.bundle_table import BundleTable
from mlbundle_tui.widgets.bundle_tabs import BundleTabs
from mlbundle_tui.widgets.mending_pane import MendingPane

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType
    from textual.app import ComposeResult
    from textual.timer import Timer

    from mlbundle.runs.bundle_detail import BundleDetail
    from mlbundle.runs.bundle_filter import BundleFilter
    from mlbundle.runs.network import Network
    from mlbundle.runs.readiness import Here, Readiness
    from mlbundle.runs.shelf import BundleRow, Shelf
    from mlbundle_tui.context import Context

    Cancelled = Callable[[], bool]

_MOVING_S = 0.08
_THREE_PANES = 150


class BundleShelf(Section):
    """The table of bundles, and what is known of the chosen one; what can be done with it stands in the subclass."""

    DEFAULT_CSS = """
    BundleShelf #bundles-panes { height: 1fr; }
    BundleShelf #shelf { width: 3fr; }
    BundleShelf #filter { height: 1; border: none; padding: 0 1; background: $surface; }
    BundleShelf #filter:focus { background: $boost; }
    BundleShelf #state { height: 1; color: $text-muted; padding: 0 1; }
    BundleShelf #here { display: none; width: 1fr; border-left: solid $panel; padding: 0 1; }
    BundleShelf #here { scrollbar-size-vertical: 1; }
    BundleShelf #here Static { width: 1fr; height: auto; }
    BundleShelf.-three #here { display: block; }
    BundleShelf.-narrow #detail { display: none; }
    BundleShelf.-narrow.-details #shelf { display: none; }
    BundleShelf.-narrow.-details #detail { display: block; width: 1fr; border-left: none; }
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._shelf: Shelf | None = None
        self._here: Here | None = None
        self._sort = "name"
        self._details: dict[str, BundleDetail | MlbundleError] = {}
        self._history: list[dict[str, Any]] = []
        self._working = "reading the library …"
        self._typing: Timer | None = None
        self._moving: Timer | None = None
        self._sources: dict[str, Network] = {}
        # What was last asked for with `o` and opened nothing.
        self._mistaken = ""

    def body(self) -> ComposeResult:
        """Yield the filter and the table, the tabs, and the pane of what is built or pulled."""
        with BareHorizontal(id="bundles-panes"):
            with BareVertical(id="shelf"):
                yield Input(
                    placeholder="/ filter: words, task: framework: arch: accelerator: state: where:",
                    compact=True,
                    id="filter",
                    max_length=1000,
                )
                yield BundleTable()
                yield Static("", id="state", markup=False)
            yield BundleTabs()
            with VerticalScroll(id="here", can_focus=False):
                yield Static("", id="here-text", markup=False)
        yield MendingPane(self.context.clock)

    def on_mount(self) -> None:
        """Begin to read; the table is there at once."""
        self.table.focus()
        self._say()
        self._start("open", self._open)

    def on_resize(self) -> None:
        """Show what can run here beside the tabs where there is room for it."""
        self.set_class(self.size.width >= _THREE_PANES, "-three")

    def on_screen_resume(self) -> None:
        """Look anew at what can run here if that changed meanwhile."""
        self._look_if_changed()

    def runs_changed(self) -> None:
        """A run may have made what it needs."""
        super().runs_changed()
        self._look_if_changed()

    def _look_if_changed(self) -> None:
        if self._here is not None and not self.pane.goes_on and self._here.changed():
            self.action_refresh()

    @property
    def table(self) -> BundleTable:
        """The table."""
        return self.query_one(BundleTable)

    @property
    def tabs(self) -> BundleTabs:
        """The tabs."""
        return self.query_one(BundleTabs)

    @property
    def pane(self) -> MendingPane:
        """The pane of what is built or pulled."""
        return self.query_one(MendingPane)

    @property
    def wanted(self) -> BundleFilter:
        """What the line of filter means."""
        from mlbundle.runs.bundle_filter import parse_filter

        return parse_filter(self.query_one("#filter", Input).value)

    # Reading

    def action_refresh(self) -> None:
        """Read the library anew, and ask the machine anew what is here."""
        self._details.clear()
        if self._here is not None:
            self._here.forget()
        self.table.forget()
        if self._shelf is not None:
            self._shelf.forget_states()
        self._start("open", self._open)

    def _open(self, cancelled: Cancelled) -> None:
        """Open the shelf, put the built-in models on it, and take in the library."""
        from mlbundle.runs.bundle_sources import built_in_rows
        from mlbundle.runs.readiness import Here
        from mlbundle.runs.shelf import Shelf

        try:
            shelf = self._shelf or Shelf(self.context.settings)
            self._shelf, self._here = shelf, self._here or Here(self.context.settings, self.context.ask)
            shelf.put(built_in_rows())
            self._tell(cancelled, self._query)
            if self.context.folder is not None:
                self._put_source(str(self.context.folder), cancelled)
            if shelf.sync(cancelled):
                self._tell(cancelled, self._query)
        finally:
            self._tell(cancelled, self._say, "")

    def _start(self, group: str, work: Callable[..., None], *arguments: object) -> None:
        """Do something in a thread of its own, in place of what goes on in its group; quitting does not wait for it.

        `work` is called with a question first: whether it is still wanted.
        """

        async def run() -> None:
            over = threading.Event()
            try:
                await in_background(work, over.is_set, *arguments)
            finally:
                over.set()

        # Not a coroutine yet: one that is replaced before it begins would never be awaited.
        self.run_worker(cast("Any", run), group=group, exclusive=True)

    def _tell(self, cancelled: Cancelled, call: Callable[..., None], *arguments: object) -> None:
        """Do something in the event loop, from a thread."""
        with suppress(RuntimeError):  # the app has ended
            if not cancelled() and self.is_attached:
                self.app.call_from_thread(call, *arguments)

    def _query(self) -> None:
        """Show what fits the filter."""
        if self._shelf is None:
            return
        wanted = self.wanted
        self.table.show(self._shelf, wanted, self._sort)
        self._say()
        self._look()
        self.workers.cancel_group(self, "read")
        if wanted.wants_manifests:
            self._start("read", self._read_all, wanted)
        if not self.table.rows_shown:
            self.tabs.show("")

    def _judge_near(self) -> None:
        """Find out what can run here of the bundles that are seen."""
        unknown = [row for row in self.table.near() if self.table.judged(row.key) is None]
        if unknown:
            self._start("judge", self._judge, unknown)

    def _read_all(self, cancelled: Cancelled, wanted: BundleFilter) -> None:
        """Read what the filter asks for of every bundle; what fits is shown anew at the end."""
        shelf, changed = self._shelf, False
        if shelf is None:
            return
        while not cancelled() and shelf.read_some(limit=50):
            changed = True
            self._tell(cancelled, self._say, f"reading manifests: {shelf.unread():,} to go")
        if wanted.wants_states:
            changed = self._judge_all(cancelled, wanted) or changed
        self._tell(cancelled, self._say, "")
        if changed:
            self._tell(cancelled, self._show_again)

    def _judge_all(self, cancelled: Cancelled, wanted: BundleFilter) -> bool:
        """Note the state of every bundle that the rest of the filter lets through; whether any was unknown."""
        shelf, here = self._shelf, self._here
        assert shelf is not None
        assert here is not None
        rest, offset, changed = wanted.without_state(), 0, False
        while not cancelled() and (page := shelf.page(rest, offset=offset)):
            offset += len(page)
            for row in page:
                if cancelled():
                    break
                if not row.state:
                    self.context.judge(row, shelf, here)
                    changed = True
            self._tell(cancelled, self._say, f"looking what can run here: {offset:,} so far")
        return changed

    def _judge(self, cancelled: Cancelled, rows: list[BundleRow]) -> None:
        shelf, here = self._shelf, self._here
        if shelf is None or here is None:
            return
        for row in rows:
            if cancelled():
                return
            ready = self.context.judge(row, shelf, here)
            self._tell(cancelled, self._judged, shelf.row(row.key) or row, ready)

    def _judged(self, row: BundleRow, ready: Readiness) -> None:
        self.table.note(row, ready)
        chosen = self.table.chosen
        if chosen is not None and chosen.key == row.key:
            self._show_tab()

    def _show_again(self) -> None:
        if self._shelf is not None:
            self.table.show(self._shelf, self.wanted, self._sort)
            self._say()
            self._look()

    def _say(self, working: str | None = None) -> None:
        """Say below the table how many there are, and what is being read."""
        if working is not None:
            self._working = working
        table = self.table
        if not table.rows_shown:
            empty = "nothing fits: esc clears the filter" if self.query_one("#filter", Input).value else ""
            text = self._working or empty or "no bundles: o opens a folder or a registry"
        else:
            shown = f"{table.cursor + 1:,} of {table.total:,}"
            sources = f" · {', '.join(self._sources)}" if self._sources else ""
            text = f"{shown} · by {self._sort}{sources}" + (f" · {self._working}" if self._working else "")
        self.query_one("#state", Static).update(text)
        self.show_command()

    # The chosen bundle

    @on(BundleTable.Highlighted)
    def _moved(self, event: BundleTable.Highlighted) -> None:
        if event.row >= len(self.table.rows_shown) - 1 and self.table.more():
            self._say()
        if self._moving is not None:
            self._moving.stop()
        self._moving = self.set_timer(_MOVING_S, self._look)

    def _look(self) -> None:
        """Show the bundle under the cursor: what is known at once, the rest from a worker."""
        self._say()
        self._history = []
        self._show_tab(from_top=True)
        row = self.table.chosen
        if row is not None:
            self._start("look", self._look_into, row, self.tabs.tab)
            self._judge_near()

    def _look_into(self, cancelled: Cancelled, row: BundleRow, tab: str) -> None:
        from mlbundle.runs.bundle_detail import look_into

        if row.key not in self._details:
            try:
                self._details[row.key] = look_into(row, self.context.settings, self._network(row))
            except MlbundleError as error:
                self._details[row.key] = error
        if tab == "history":
            self._history = self._runs_of(row)
        self._tell(cancelled, self._show_if_chosen, row.key)

    def _runs_of(self, row: BundleRow) -> list[dict[str, Any]]:
        from glob import escape

        from mlbundle.store.database import DATABASE, RunDatabase

        return RunDatabase(self.context.settings.data_dir / DATABASE).rows(model=escape(row.name))

    def _show_if_chosen(self, key: str) -> None:
        row = self.table.chosen
        if row is not None and row.key == key:
            self._show_tab()

    def _show_tab(self, *, from_top: bool = False) -> None:
        from mlbundle_tui.widgets import bundle_views

        self.tabs.show(self._tab_text(), from_top=from_top)
        row = self.table.chosen
        ready = self.table.judged(row.key) if row is not None else None
        # What is wrong with the manifest stands in the overview.
        said = row is None or (ready is not None and bool(row.problem) and ready.problem == row.problem)
        self.query_one("#here-text", Static).update("" if said else bundle_views.ways(ready, None))

    def _tab_text(self) -> RenderableType:
        from mlbundle_tui.screens.dialogs import error_text
        from mlbundle_tui.widgets import bundle_views

        row = self.table.chosen
        if row is None:
            return ""
        found = self._details.get(row.key)
        ready = self.table.judged(row.key)
        detail = None if isinstance(found, MlbundleError) else found
        tab = self.tabs.tab
        if tab == "overview":
            return bundle_views.overview(row, detail, ready)
        if tab == "images":
            return bundle_views.ways(ready, detail)
        if tab == "history":
            return bundle_views.history(self._history)
        if isinstance(found, MlbundleError):
            return error_text(found)
        if found is None:
            return ""
        if tab == "assets":
            return bundle_views.assets(found)
        return bundle_views.manifest(found, dark=self.app.current_theme.dark, colour=not self.app.no_color)

    def _put_source(self, text: str, cancelled: Cancelled) -> int:
        """Put the bundles of a folder or a repository on the shelf; returns how many there are."""
        from pathlib import Path

        from mlbundle.runs.bundle_sources import REGISTRY_SCHEME, folder_rows, parse_source, registry_rows

        assert self._shelf is not None
        place, network = parse_source(text)
        if place.startswith(REGISTRY_SCHEME):
            rows = registry_rows(place, network, cancelled)
        else:
            rows = folder_rows(Path(place).expanduser(), cancelled)
        count = 0
        for row, facts in rows:
            self._shelf.put([(row, facts)])
            count += 1
        if count:
            self._sources[place] = network
        return count

    def _network(self, row: BundleRow) -> Network | None:
        """Return how the registry of a bundle is reached."""
        return next((way for place, way in self._sources.items() if row.reference.startswith(place)), None)
