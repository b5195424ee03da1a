"""The pane of something that is built or pulled: its command, how far it is, what it says."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from rich.text import Text
from textual._context import NoActiveAppError
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Log, Static

from mlbundle.errors import Interrupted, MlbundleError
from mlbundle.manifest.problems import printable
from mlbundle.wording import units
from mlbundle_tui.widgets.texts import fit

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.app import ComposeResult

    from mlbundle.config import Settings
    from mlbundle.runs.mending import Mending, Step
    from mlbundle.runs.readiness import Mend

_REFRESH_S = 0.5
_MOST_CHARACTERS = 2000


class MendingPane(Vertical):
    """One thing at a time; it goes on while other sections are shown, and ends with the UI."""

    DEFAULT_CSS = """
    MendingPane { height: 10; max-height: 40%; border-top: solid $panel; padding: 0 1; display: none; }
    MendingPane.-shown { display: block; }
    MendingPane > #mending-title { height: 2; }
    MendingPane > Log { height: 1fr; scrollbar-size-vertical: 1; }
    """

    class Ended(Message):
        """It has ended: `error` says how badly, None for well; `what` is what was done."""

        def __init__(self, what: Mend, error: MlbundleError | None) -> None:
            super().__init__()
            self.what = what
            self.error = error

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(id="mending")
        self._clock = clock
        self._begun = self._told = 0.0
        self._what: Mend | None = None
        self._mending: Mending | None = None
        self._said = ""

    @property
    def goes_on(self) -> bool:
        """Whether something is being built or pulled now."""
        return self._mending is not None

    @property
    def command(self) -> str:
        """The command that does the same as what goes on."""
        return self._what.command if self._what is not None else ""

    def compose(self) -> ComposeResult:
        """Yield a title of two lines and the log."""
        yield Static("", id="mending-title", markup=False)
        yield Log(id="mending-log", max_lines=2000, auto_scroll=True)

    def start(self, what: Mend, settings: Settings) -> None:
        """Begin in a process of its own, and follow it."""
        from mlbundle.runs.mending import Mending

        self._what, self._said = what, "beginning"
        self._begun = self._clock()
        self.add_class("-shown")
        self.query_one(Log).clear()
        self._mending = Mending(what, settings)
        self._title()
        # No worker of the UI: quitting would wait for it.
        threading.Thread(target=self._follow, args=(what, self._mending), daemon=True).start()

    def stop(self) -> None:
        """Stop what goes on."""
        if self._mending is not None:
            self._mending.terminate()

    def hide(self) -> None:
        """Close the pane of something that has ended."""
        if not self.goes_on:
            self.remove_class("-shown")

    def on_unmount(self) -> None:
        """End with the UI: nobody would hear how it goes on."""
        if self._mending is not None:
            self._mending.terminate()

    def _follow(self, what: Mend, mending: Mending) -> None:
        """Hear every step, in a thread of its own; what nobody looks at any more is heard to its end all the same."""
        error: MlbundleError | None = None
        end = ""
        try:
            for step in mending:
                self._tell(self._step, step)
            end = mending.result()
        except MlbundleError as caught:
            error = caught
        finally:
            mending.close()
        self._tell(self._end, what, end, error)

    def _tell(self, call: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError, NoActiveAppError):  # the UI is gone
            if self.is_attached:
                self.app.call_from_thread(call, *arguments)

    def _step(self, step: Step) -> None:
        if step.text:
            text = printable(step.text[:_MOST_CHARACTERS])
            self._said = text.strip()
            self.query_one(Log).write_line(text)
            self._title()
        elif self._clock() - self._told >= _REFRESH_S or step.done_bytes == step.total_bytes:
            share = f"{100 * step.done_bytes / step.total_bytes:.0f} % of " if step.total_bytes else ""
            self._said = f"{share}{units.size(step.total_bytes or step.done_bytes)}"
            self._title()

    def _end(self, what: Mend, end: str, error: MlbundleError | None) -> None:
        self._mending = None
        if error is None:
            self._said = printable(end)
        elif isinstance(error, Interrupted):
            self._said = "stopped"
        else:
            self._said = "failed"
            lines = [error.message, *error.context, f"what to do: {error.hint}" if error.hint else ""]
            # The first line of the pane would cut it.
            self.query_one(Log).write_lines(printable(line) for line in "\n".join(lines).splitlines() if line)
        self._title()
        self.post_message(self.Ended(what, error))

    def _title(self) -> None:
        assert self._what is not None
        self._told = self._clock()
        width = max(20, self.size.width - 2)
        seconds = f"  {self._told - self._begun:.0f} s"
        what = fit(self._what.title, width - len(seconds))
        title = Text(what, style="bold")
        title.append(f"  {self._said}"[: max(0, width - len(what) - len(seconds))], style="not bold")
        title.append(seconds, style="not bold")
        ends = "  x stops" if self.goes_on else "  c copies, esc closes"
        title.append(f"\n$ {fit(self._what.command, width - len(ends) - 2)}{ends}", style="not bold dim")
        self.query_one("#mending-title", Static).update(title)
