"""The section Bundles: what can be chosen, what can run here, what is missing, and the way to mend it."""

from __future__ import annotations

import shlex
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from textual import on, work
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import Input, Static

from mlbundle.errors import IntegrityError, Interrupted, MlbundleError, UsageError
from mlbundle_tui.background import in_background
from mlbundle_tui.bundle_actions import edit, mend_for, network_options, verified_text
from mlbundle_tui.screens.base import Section
from mlbundle_tui.screens.dialogs import ask_choice, ask_text, confirm, show_error, show_text
from mlbundle_tui.widgets.bundle_table import BundleTable
from mlbundle_tui.widgets.bundle_tabs import BundleTabs
from mlbundle_tui.widgets.mending_pane import MendingPane

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType
    from textual.app import ComposeResult
    from textual.timer import Timer
    from textual.widgets import DataTable

    from mlbundle.runs.bundle_detail import BundleDetail
    from mlbundle.runs.bundle_filter import BundleFilter
    from mlbundle.runs.network import Network
    from mlbundle.runs.readiness import Here, Mend, Readiness
    from mlbundle.runs.shelf import BundleRow, Shelf
    from mlbundle_tui.context import Context

    Cancelled = Callable[[], bool]

_TYPING_S = 0.12
_MOVING_S = 0.08
_THREE_PANES = 150
_SORTS = ("name", "state", "task", "framework", "where", "size")
_CHANGES = frozenset({"mend", "remove", "editor"})


class BundlesSection(Section):
    """The table of bundles, and what is known of the chosen one."""

    name_of_section: ClassVar[str] = "bundles"
    DEFAULT_CSS = """
    BundlesSection #bundles-panes { height: 1fr; }
    BundlesSection #shelf { width: 3fr; }
    BundlesSection #filter { height: 1; border: none; padding: 0 1; background: $surface; }
    BundlesSection #filter:focus { background: $boost; }
    BundlesSection #bundles { height: 1fr; background: transparent; scrollbar-size-horizontal: 0; }
    BundlesSection #state { height: 1; color: $text-muted; padding: 0 1; }
    BundlesSection #here { display: none; width: 1fr; border-left: solid $panel; padding: 0 1; }
    BundlesSection #here { scrollbar-size-vertical: 1; }
    BundlesSection #here Static { width: 1fr; height: auto; }
    BundlesSection.-three #here { display: block; }
    BundlesSection.-narrow #detail { display: none; }
    BundlesSection.-narrow.-details #shelf { display: none; }
    BundlesSection.-narrow.-details #detail { display: block; width: 1fr; border-left: none; }
    """
    BINDINGS: ClassVar = [
        Binding("r", "run_bundle", "Run", id="bundles.run"),
        Binding("slash", "filter", "Filter", id="bundles.filter"),
        Binding("p", "mend", "Pull or build", id="bundles.mend"),
        Binding("x", "stop_mending", "Stop", id="bundles.stop"),
        Binding("v", "verify", "Verify", id="bundles.verify"),
        Binding("o", "open_source", "Open", id="bundles.open"),
        Binding("d,delete", "remove", "Remove", show=False, id="bundles.remove"),
        Binding("y", "raw", "Manifest", show=False, id="bundles.raw"),
        Binding("e", "editor", "Edit", show=False, id="bundles.edit"),
        Binding("s", "sort", "Sort", show=False, id="bundles.sort"),
        Binding("left_square_bracket", "tab(-1)", "Tab before", show=False, id="bundles.tab_before"),
        Binding("right_square_bracket", "tab(1)", "Tabs", id="bundles.tab_after"),
        Binding("escape", "back", "Back", show=False, id="bundles.back"),
    ]

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

    # What is on the screen

    def body(self) -> ComposeResult:
        """Yield the filter and the table, the tabs, and the pane of what is built or pulled."""
        with Horizontal(id="bundles-panes"):
            with Vertical(id="shelf"):
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

    def command_line(self) -> str:
        """Return the command that does what the chosen tab shows, or what `r` does."""
        row = self.table.chosen
        if row is None:
            return "mlbundle list"
        name = shlex.quote(row.reference)
        if row.where == "to make":
            return f"mlbundle generate {name}"
        if self.pane.goes_on:
            return self.pane.command
        ready = self.table.judged(row.key)
        if row.where == "registry" and self.tabs.tab == "overview":
            return f"mlbundle pull {name}{network_options(self._network(row))}"
        commands = {
            "manifest": f"mlbundle inspect {name}",
            "assets": f"mlbundle inspect {name} --files",
            "images": ready.mends[0].command if ready is not None and ready.mends else "mlbundle images list",
            "history": f"mlbundle runs list --model {shlex.quote(row.name)}",
        }
        otherwise = f"mlbundle {'inspect' if self.context.readonly else 'run'} {name}"
        return commands.get(self.tabs.tab, otherwise)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide what this UI may not do, and what makes no sense now."""
        if action in _CHANGES | {"run_bundle"} and (self.context.readonly or self.context.demo):
            return action == "run_bundle" and not self.context.readonly
        if action == "stop_mending":
            return self.is_mounted and bool(self.query(MendingPane)) and self.pane.goes_on
        return True

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
            self._shelf, self._here = shelf, self._here or Here(self.context.settings)
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

        self.run_worker(run(), group=group, exclusive=True)

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
        from mlbundle.runs.shelf_states import judge

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
                    judge(row, shelf, here)
                    changed = True
            self._tell(cancelled, self._say, f"looking what can run here: {offset:,} so far")
        return changed

    def _judge(self, cancelled: Cancelled, rows: list[BundleRow]) -> None:
        from mlbundle.runs.shelf_states import judge

        shelf, here = self._shelf, self._here
        if shelf is None or here is None:
            return
        for row in rows:
            if cancelled():
                return
            ready = judge(row, shelf, here)
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
            shown = f"{table.cursor_row + 1:,} of {table.total:,}"
            sources = f" · {', '.join(self._sources)}" if self._sources else ""
            text = f"{shown} · by {self._sort}{sources}" + (f" · {self._working}" if self._working else "")
        self.query_one("#state", Static).update(text)
        self.show_command()

    # The chosen bundle

    @on(BundleTable.RowHighlighted)
    def _moved(self, event: DataTable.RowHighlighted) -> None:
        if event.cursor_row >= len(self.table.rows_shown) - 1 and self.table.more():
            self._say()
        if self._moving is not None:
            self._moving.stop()
        self._moving = self.set_timer(_MOVING_S, self._look)

    @on(BundleTable.RowSelected)
    def _selected(self) -> None:
        if not self.context.readonly:
            self.action_run_bundle()

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

        from mlbundle.runs.execute import DATABASE
        from mlbundle.store.database import RunDatabase

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
        self.query_one("#here-text", Static).update(bundle_views.ways(ready, None) if row is not None else "")

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

    # What can be done

    def action_filter(self) -> None:
        """Go to the line of filter."""
        self.remove_class("-details")
        self.query_one("#filter", Input).focus()

    @on(Input.Changed, "#filter")
    def _typed(self) -> None:
        if self._typing is not None:
            self._typing.stop()
        self._typing = self.set_timer(_TYPING_S, self._query)

    @on(Input.Submitted, "#filter")
    def _entered(self) -> None:
        self.table.focus()

    def action_back(self) -> None:
        """Leave the filter, the details or the pane; at last clear the filter."""
        line = self.query_one("#filter", Input)
        if line.has_focus and line.value:
            line.value = ""
        elif self.has_class("-details"):
            self.remove_class("-details")
            self.table.focus()
        elif not self.table.has_focus:
            self.table.focus()
        elif self.pane.has_class("-shown") and not self.pane.goes_on:
            self.pane.hide()
        else:
            line.value = ""

    def action_tab(self, by: int) -> None:
        """Go to another tab; on a narrow screen they take the place of the table."""
        if self.has_class("-narrow") and not self.has_class("-details"):
            self.add_class("-details")
            self.query_one("#tab-body").focus()
            by = 0
        self.tabs.turn(by)
        self._look()

    def action_sort(self) -> None:
        """Sort by the next column."""
        self._sort = _SORTS[(_SORTS.index(self._sort) + 1) % len(_SORTS)]
        self.table.move_cursor(row=0, animate=False)
        self._query()

    def action_run_bundle(self) -> None:
        """Go to the section Run with this bundle."""
        row = self.table.chosen
        if row is None:
            return
        if row.where == "to make":
            hint = f"`mlbundle generate {row.reference}` makes a folder of it; o opens that folder here"
            show_error(self.app, UsageError(f"{row.name} is not made yet", hint=hint))
            return
        if network_options(self._network(row)):
            hint = "p pulls it into the library: a run does not know how its registry is reached"
            show_error(self.app, UsageError(f"{row.name} is not here yet", hint=hint))
            return
        self.app.chosen = row.reference  # type: ignore[attr-defined]
        self.app.action_section("run")  # type: ignore[attr-defined]

    @work(exclusive=True, group="ask")
    async def action_open_source(self) -> None:
        """Ask for a folder or a repository, and put its bundles on the shelf."""
        place = await ask_text(
            self.app,
            "Bundles of a folder or of a repository",
            placeholder="a folder, or oci://HOST/REPOSITORY [--plain-http] [--ca-file FILE]",
            value=str(self.context.folder or ""),
        )
        if place is not None:
            self._say(f"looking into {place} …")
            self._start("source", self._add_source, place)

    def _add_source(self, cancelled: Cancelled, place: str) -> None:
        try:
            if not self._put_source(place, cancelled) and not cancelled():
                hint = "a bundle is a folder with model.yml, or a file that ends with .mlb"
                raise UsageError(f"there is no bundle in {place}", hint=hint)
        finally:
            self._tell(cancelled, self._say, "")
            self._tell(cancelled, self._query)

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

    def action_raw(self) -> None:
        """Show the manifest over the whole screen."""
        row = self.table.chosen
        found = self._details.get(row.key) if row is not None else None
        if isinstance(found, MlbundleError):
            show_error(self.app, found)
        elif found is not None and row is not None:
            from mlbundle_tui.widgets import bundle_views

            shown = bundle_views.manifest(
                found, dark=self.app.current_theme.dark, colour=not self.app.no_color
            )
            show_text(self.app, f"{row.name} {row.version}", shown, copied=found.text, large=True)

    def action_editor(self) -> None:
        """Open the manifest in $EDITOR; one inside a bundle can't be changed, so a copy is opened."""
        row = self.table.chosen
        found = self._details.get(row.key) if row is not None else None
        if row is None or found is None or isinstance(found, MlbundleError):
            return
        try:
            edit(self.app.suspend, found.text, found.path if row.where == "folder" else None)
        except MlbundleError as error:
            show_error(self.app, error)
        self._details.pop(row.key, None)
        self._look()

    @work(exclusive=True, group="ask")
    async def action_mend(self) -> None:
        """Build or pull what is missing: of several things, the one that is chosen."""
        row = self.table.chosen
        ready = self.table.judged(row.key) if row is not None else None
        if row is None or ready is None:
            return
        if self.pane.goes_on:
            self.notify("one thing at a time: x stops what goes on")
            return
        mends = [mend_for(mend, row, self._network(row)) for mend in ready.mends]
        if not mends:
            self.notify(
                "nothing is missing here"
                if ready.state == "ready"
                else ready.problem or "nothing would help here"
            )
            return
        chosen = "0"
        if len(mends) > 1:
            choices = [(str(n), f"{mend.title}\n  {mend.command}") for n, mend in enumerate(mends)]
            chosen = await ask_choice(self.app, f"What {row.name} wants here", choices) or ""
        if chosen:
            self._begin(mends[int(chosen)])

    def _begin(self, mend: Mend) -> None:
        self.pane.start(mend, self.context.settings)
        self.refresh_bindings()
        self.show_command()

    @on(MendingPane.Ended)
    def _ended(self, event: MendingPane.Ended) -> None:
        self.refresh_bindings()
        if event.error is not None and not isinstance(event.error, Interrupted):
            show_error(self.app, event.error)
        elif event.error is None:
            self.notify(f"done: {event.what.title}")
        self.action_refresh()

    @work(exclusive=True, group="ask")
    async def action_stop_mending(self) -> None:
        """Ask, and stop what is built or pulled."""
        if self.pane.goes_on and await confirm(self.app, f"Stop `{self.pane.command}`?", yes="Stop"):
            self.pane.stop()

    @work(exclusive=True, group="ask")
    async def action_remove(self) -> None:
        """Ask, and take the bundle out of the library."""
        row = self.table.chosen
        if row is None or self._shelf is None:
            return
        if row.where != "library":
            self.notify(f"{row.where}: only what is in the library can be removed")
            return
        detail = f"$ mlbundle rm {shlex.quote(row.reference)}\n\nIts blobs stay until `mlbundle gc`."
        if await confirm(self.app, f"Take {row.reference} out of the library?", detail=detail, yes="Remove"):
            try:
                self._shelf.remove(row.key)
            except MlbundleError as error:
                show_error(self.app, error)
            self._query()

    def action_verify(self) -> None:
        """Check every byte of the bundle."""
        row = self.table.chosen
        if row is None:
            return
        if row.where in {"built in", "to make"} or row.digest is None:
            self.notify(
                "this is a manifest and no bundle yet: `mlbundle pack` makes one, which can be verified"
            )
            return
        self._say(f"verifying {row.name} …")
        self._start("verify", self._verify, row)

    def _verify(self, cancelled: Cancelled, row: BundleRow) -> None:
        told = [self.context.clock()]

        def progress(done: int, total: int) -> None:
            if cancelled():
                raise Interrupted("stopped")
            if self.context.clock() - told[0] >= 1:
                told[0] = self.context.clock()
                self._tell(cancelled, self._say, f"verifying {row.name}: {100 * done // max(total, 1)} %")

        try:
            text = verified_text(row, self.context.settings, self._network(row), progress)
            self._tell(cancelled, show_text, self.app, "verified", text)
        except IntegrityError as error:
            entry = self._shelf.entry(row.key) if self._shelf is not None else None
            if entry is not None:
                error.hint = entry.mending_hint
            raise
        finally:
            self._tell(cancelled, self._say, "")
