"""The section Bundles: what can be chosen, what can run here, what is missing, and the way to mend it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, ClassVar, cast

from textual import on, work
from textual.binding import Binding
from textual.widgets import Input

from mlbundle.errors import IntegrityError, Interrupted, MlbundleError, UsageError
from mlbundle_tui.bundle_actions import (
    asked_for,
    copy_text,
    edit,
    mend_for,
    network_options,
    verified_text,
)
from mlbundle_tui.screens.bundle_shelf import BundleShelf
from mlbundle_tui.screens.dialogs import ask_choice, ask_text, confirm, show_error, show_text
from mlbundle_tui.widgets.bundle_table import BundleTable
from mlbundle_tui.widgets.mending_pane import MendingPane

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlbundle.runs.readiness import Mend
    from mlbundle.runs.shelf import BundleRow
    from mlbundle_tui.app import MlbundleApp

    Cancelled = Callable[[], bool]

_TYPING_S = 0.12
_SORTS = ("name", "state", "task", "framework", "where", "size")
_CHANGES = frozenset({"mend", "remove", "editor"})


class BundlesSection(BundleShelf):
    """What can be done with bundles."""

    name_of_section: ClassVar[str] = "bundles"
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

    def chosen(self) -> dict[str, str]:
        """Return the bundle under the cursor."""
        row = self.table.chosen
        return {} if row is None or row.where == "to make" else {"BUNDLE": shlex.quote(row.reference)}

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide what this UI may not do, and what makes no sense now."""
        if action in _CHANGES | {"run_bundle"} and (self.context.readonly or self.context.demo):
            return action == "run_bundle" and not self.context.readonly
        if action == "stop_mending":
            return self.is_mounted and bool(self.query(MendingPane)) and self.pane.goes_on
        return True

    @on(BundleTable.Selected)
    def _selected(self) -> None:
        if not self.context.readonly:
            self.action_run_bundle()

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
        self.table.cursor = 0
        self._query()

    def offer(self) -> None:
        """Offer the bundle under the cursor to a form that has none."""
        row = self.table.chosen if self.is_mounted else None
        if row is not None and row.where != "to make":
            cast("MlbundleApp", self.app).offered = row.reference, self._network(row)

    def action_run_bundle(self) -> None:
        """Go to the section Run with this bundle."""
        row = self.table.chosen
        if row is None:
            return
        if row.where == "to make":
            self.action_mend()
            return
        app = cast("MlbundleApp", self.app)
        app.chosen, app.chosen_network = row.reference, self._network(row)
        app.action_section("run")

    @work(exclusive=True, group="ask")
    async def action_open_source(self) -> None:
        """Ask for a folder or a repository, and put its bundles on the shelf."""
        place = await ask_text(
            self.app,
            "Bundles of a folder or of a repository",
            placeholder="a folder, or oci://HOST/REPOSITORY [--plain-http] [--ca-file FILE]",
            value=self._mistaken or str(self.context.folder or ""),
        )
        if place is not None:
            self._mistaken = place
            self._say(f"looking into {place} …")
            self._start("source", self._add_source, place)

    def _add_source(self, cancelled: Cancelled, place: str) -> None:
        try:
            if not self._put_source(place, cancelled) and not cancelled():
                hint = "a bundle is a folder with model.yml, or a file that ends with .mlb"
                raise UsageError(f"there is no bundle in {place}", hint=hint)
            self._mistaken = ""
        finally:
            self._tell(cancelled, self._say, "")
            self._tell(cancelled, self._query)

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

    @work(exclusive=True, group="ask")
    async def action_editor(self) -> None:
        """Open the manifest in $EDITOR; one that can't be changed is said to be a copy first."""
        row = self.table.chosen
        found = self._details.get(row.key) if row is not None else None
        if row is None or found is None or isinstance(found, MlbundleError) or not found.text:
            return
        path = found.path if row.where == "folder" else None
        if path is None and not await confirm(
            self.app, "Open a copy in the editor?", detail=copy_text(row), yes="Open"
        ):
            return
        try:
            edit(self.app.suspend, found.text, path)
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
        if mends[0].kind == "generate":
            detail = f"{mends[0].about}.\n\n$ {mends[0].command}"
            if not await confirm(self.app, f"{mends[0].title}?", detail=detail, yes="Make"):
                return
        elif len(mends) > 1:
            choices = [
                (str(n), f"{mend.title}\n  {mend.about}\n  $ {mend.command}") for n, mend in enumerate(mends)
            ]
            chosen = await ask_choice(self.app, f"What {row.name} wants here", choices) or ""
        mend: Mend | None = mends[int(chosen)] if chosen else None
        if mend is not None and (mend := await asked_for(self.app, mend)) is not None:
            self._begin(mend)

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
