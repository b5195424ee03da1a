"""The section Machine: what works here, what this machine is, the images, and what takes how much space."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual import on, work
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.widgets import Static

from mlbundle.errors import Interrupted, MlbundleError
from mlbundle_tui.background import in_background
from mlbundle_tui.bundle_actions import asked_for
from mlbundle_tui.screens.base import Section
from mlbundle_tui.screens.dialogs import ask_choice, confirm, error_text, show_error, show_text
from mlbundle_tui.widgets.bare import BareGrid
from mlbundle_tui.widgets.mending_pane import MendingPane

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import RenderableType
    from textual.app import ComposeResult

    from mlbundle.runs.disk import DiskRow
    from mlbundle.runtime.image_list import ImageStatus
    from mlbundle_tui.context import Context

# Panel -> its title, and the command that says the same.
_PANELS = {
    "checks": ("what works", "mlbundle doctor"),
    "facts": ("this machine", "mlbundle doctor --json"),
    "images": ("images for it", "mlbundle images list --this-machine"),
    "disk": ("disk", "mlbundle du"),
}


class Panel(VerticalScroll):
    """One of the four: a title, the command that says the same, and a text."""

    DEFAULT_CSS = """
    Panel { border: round $panel; padding: 0 1; }
    Panel { border-title-style: bold; border-title-color: $text; border-subtitle-color: $text-muted; }
    Panel { scrollbar-size-vertical: 1; height: 1fr; }
    Panel:focus { border: round $primary; }
    Panel > Static { width: 1fr; height: auto; }
    """

    def __init__(self, name: str) -> None:
        super().__init__(Static(Text("looking …", style="dim"), markup=False), id=name)
        title, command = _PANELS[name]
        self.shown: RenderableType = ""
        self.border_title = Text(title)
        self.border_subtitle = Text(command)

    def show(self, what: RenderableType) -> None:
        """Show a text."""
        self.shown = what
        self.query_one(Static).update(what)


class MachineSection(Section):
    """Four panels; each is filled when its answer is there."""

    name_of_section: ClassVar[str] = "machine"
    DEFAULT_CSS = """
    MachineSection #panels { grid-size: 2 2; grid-columns: 3fr 2fr; grid-rows: 3fr 2fr; height: 1fr; }
    MachineSection.-narrow #panels { layout: vertical; overflow-y: auto; }
    MachineSection.-narrow Panel { height: auto; }
    """
    BINDINGS: ClassVar = [
        Binding("p", "mend", "Pull or build", id="machine.mend"),
        Binding("x", "stop_mending", "Stop", id="machine.stop"),
        Binding("enter", "enlarge", "Enlarge", id="machine.enlarge"),
        Binding("right_square_bracket", "app.focus_next", "Panels", id="machine.panel_after"),
        Binding("left_square_bracket", "app.focus_previous", show=False, id="machine.panel_before"),
        Binding("escape", "back", show=False, id="machine.back"),
    ]

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._images: list[ImageStatus] = []

    def body(self) -> ComposeResult:
        """Yield the panels, and the pane of what is built or pulled."""
        yield BareGrid(*(Panel(name) for name in _PANELS), id="panels")
        yield MendingPane(self.context.clock)

    def on_mount(self) -> None:
        """Begin to look; the first panel has the focus."""
        self.query_one("#checks").focus()
        self.action_refresh()

    def on_descendant_focus(self) -> None:
        """Show the command of the panel that has the focus."""
        self.show_command()

    @property
    def pane(self) -> MendingPane:
        """The pane of what is built or pulled."""
        return self.query_one(MendingPane)

    def command_line(self) -> str:
        """Return the command that says what the panel with the focus says."""
        if self.pane.goes_on:
            return self.pane.command
        focused = self.focused.id if self.focused is not None else None
        return _PANELS.get(focused or "checks", _PANELS["checks"])[1]

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide what this UI may not do, and what makes no sense now."""
        if action == "mend":
            return not (self.context.readonly or self.context.demo)
        if action == "stop_mending":
            return self.is_mounted and bool(self.query(MendingPane)) and self.pane.goes_on
        return True

    def action_refresh(self) -> None:
        """Look anew."""
        self._examine()
        self._list_images()
        self._count()

    @work(exclusive=True, group="examine")
    async def _examine(self) -> None:
        from mlbundle_tui.widgets import machine_views

        document = await self._asked("checks", _examined)
        if document is not None:
            self._panel("checks").show(machine_views.checks(document))
            self._panel("facts").show(machine_views.facts(document))

    @work(exclusive=True, group="images")
    async def _list_images(self) -> None:
        from mlbundle_tui.widgets import machine_views

        found = await self._asked("images", _images_for_here)
        if found is not None:
            self._images = found
            self._panel("images").show(machine_views.images(found))

    @work(exclusive=True, group="disk")
    async def _count(self) -> None:
        from mlbundle_tui.widgets import machine_views

        rows = await self._asked("disk", _disk)
        if rows is not None:
            self._panel("disk").show(machine_views.disk(rows))

    async def _asked(self, panel: str, question: Callable[[Context], Any]) -> Any:
        """Return an answer; what went wrong is shown where the answer would be."""
        try:
            return await in_background(question, self.context)
        except MlbundleError as error:
            self._panel(panel).show(error_text(error))
        except OSError as error:
            self._panel(panel).show(Text(str(error)))
        return None

    def _panel(self, name: str) -> Panel:
        return self.query_one(f"#{name}", Panel)

    def action_enlarge(self) -> None:
        """Show the panel with the focus over the whole screen."""
        if isinstance(self.focused, Panel):
            title, command = _PANELS[str(self.focused.id)]
            show_text(self.app, title, self.focused.shown, copied=command, large=True)

    def action_back(self) -> None:
        """Close the pane of what has ended."""
        self.pane.hide()

    @work(exclusive=True, group="ask")
    async def action_mend(self) -> None:
        """Build or pull an image for this machine that is not here: of several, the one that is chosen."""
        from mlbundle.runs.readiness import Here
        from mlbundle.runs.shelf_states import image_mends

        if self.pane.goes_on:
            self.notify("one thing at a time: x stops what goes on")
            return
        mends = image_mends(self._images, Here(self.context.settings, self.context.ask))
        if not mends:
            self.notify("every image for this machine is here")
            return
        choices = [(str(n), f"{mend.title}\n  {mend.command}") for n, mend in enumerate(mends)]
        chosen = await ask_choice(self.app, "Images that are not here", choices)
        mend = mends[int(chosen)] if chosen is not None else None
        if mend is not None and (mend := await asked_for(self.app, mend)) is not None:
            self.pane.start(mend, self.context.settings)
            self.refresh_bindings()
            self.show_command()

    @work(exclusive=True, group="ask")
    async def action_stop_mending(self) -> None:
        """Ask, and stop what is built or pulled."""
        if self.pane.goes_on and await confirm(self.app, f"Stop `{self.pane.command}`?", yes="Stop"):
            self.pane.stop()

    @on(MendingPane.Ended)
    def _ended(self, event: MendingPane.Ended) -> None:
        self.refresh_bindings()
        if event.error is not None and not isinstance(event.error, Interrupted):
            show_error(self.app, event.error)
        self.show_command()
        self.action_refresh()


def _examined(context: Context) -> dict[str, Any]:
    found: dict[str, Any] = context.ask("machine", context.settings)
    return found


def _images_for_here(context: Context) -> list[ImageStatus]:
    from mlbundle.platforms import this_architecture
    from mlbundle.runtime.devices import nvidia_driver
    from mlbundle.runtime.image_list import image_from_document

    accelerators = {"cpu", "gpu"} if nvidia_driver() else {"cpu"}
    here = this_architecture()
    return [
        image
        for image in map(image_from_document, context.ask("images", context.settings))
        if image.key.architecture == here and image.key.accelerator in accelerators
    ]


def _disk(context: Context) -> Sequence[DiskRow]:
    from mlbundle.runs.disk import disk_row_from_document

    return [disk_row_from_document(row) for row in context.ask("disk", context.settings)]
