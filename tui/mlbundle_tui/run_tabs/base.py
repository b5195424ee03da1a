"""What the tabs of a run's page share: they read in a thread, and say why there is nothing to show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual import work
from textual.compose import compose
from textual.containers import Vertical
from textual.widgets import Static
from textual.worker import get_current_worker

from mlbundle.errors import IntegrityError, MlbundleError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from textual.app import ComposeResult

    from mlbundle_tui.context import Context

ODD = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
"""What comes of a record that somebody edited or that another program wrote: anything may lack or be something else."""

READING = "reading …"
"""What stands where something will be shown in a moment."""


@dataclass(frozen=True)
class ShownRun:
    """The run that a page shows."""

    context: Context
    run_id: str
    record: dict[str, Any]

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return self.context.settings.runs_dir / self.run_id

    def odd(self, error: Exception) -> MlbundleError:
        """Return in words that the record, or what was measured, is not as it should be."""
        message = f"this can't be shown: the run's files are not as mlbundle writes them ({error!r:.200})"
        return IntegrityError(message, where=str(self.folder), hint="y shows the record as it is")


class RunTab(Vertical):
    """A tab; subclasses say what is read (`read`, in a thread) and how that is shown (`show`)."""

    DEFAULT_CSS = """
    RunTab { height: 1fr; padding: 0 1; }
    RunTab > #head.-line { height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
    RunTab > .nothing {
        display: none; height: 1fr; color: $text-muted; content-align: center middle; text-align: center;
    }
    RunTab.-nothing > * { display: none; }
    RunTab.-nothing > .nothing { display: block; }
    """
    key: ClassVar[str] = ""
    title: ClassVar[str] = ""

    def __init__(self, run: ShownRun) -> None:
        super().__init__(id=f"tab-{self.key}")
        self.run = run
        self._problem: MlbundleError | None = None

    def compose(self) -> ComposeResult:
        """Yield what the tab holds, and what stands there while it holds nothing."""
        try:
            yield from compose(self, self.inside())
        except ODD as error:
            self._problem = self.run.odd(error)
        yield Static("", classes="nothing", markup=False)

    def inside(self) -> ComposeResult:
        """Yield the widgets of the tab."""
        raise NotImplementedError

    def on_mount(self) -> None:
        """Begin to read."""
        if self._problem is not None:
            self.show_nothing(self._problem)
        else:
            self.load()

    @work(thread=True, exclusive=True)
    def load(self) -> None:
        """Read in a thread, show in the loop."""
        try:
            found = self.read()
        except MlbundleError as error:
            self._hand_over(self.show_nothing, error)
        except ODD as error:
            self._hand_over(self.show_nothing, self.run.odd(error))
        else:
            self._hand_over(self._show, found)

    def read(self) -> Any:
        """Return what is shown; called in a thread. Raises MlbundleError."""
        raise NotImplementedError

    def show(self, found: Any) -> None:
        """Show what was read."""
        raise NotImplementedError

    def show_nothing(self, error: MlbundleError) -> None:
        """Say why there is nothing."""
        text = Text(error.message, style="bold")
        if error.hint:
            text.append(f"\n\n{error.hint}", style="not bold")
        self.query_one(".nothing", Static).update(text)
        self.add_class("-nothing")
        # What can't be seen takes no keys.
        focused = self.screen.focused
        if focused is not None and self in focused.ancestors_with_self:
            self.screen.set_focus(None)
        self.refresh_bindings()

    def focus_inside(self) -> None:
        """Give the keys to the tab."""

    def command_line(self) -> str:
        """Return the command that shows the same, or repeats the run."""
        return f"mlbundle runs show {self.run.run_id}"

    def changed(self) -> None:
        """Say that the command line may be another now."""
        page: Any = self.screen
        page.show_command()

    def _show(self, found: Any) -> None:
        if self.has_class("-nothing"):
            self.remove_class("-nothing")
            if self.screen.focused is None and self.is_on_screen:
                self.focus_inside()
        try:
            self.show(found)
        except ODD as error:
            self.show_nothing(self.run.odd(error))

    def _hand_over(self, call: Callable[[Any], None], found: Any) -> None:
        if not get_current_worker().is_cancelled:
            self.app.call_from_thread(call, found)
