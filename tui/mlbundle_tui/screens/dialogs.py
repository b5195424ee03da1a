"""What opens above a screen: an error, a question, a line to enter, a text to read.

`confirm` and those that begin with `ask` wait for the answer: call them in an async worker (`@work`), never in a
handler, which would wait for itself. `show_error` and `show_text` return at once and may be called from any thread.
"""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from rich.text import Text
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Input, OptionList, Static
from textual.widgets.option_list import Option

from mlbundle.errors import WorkerFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rich.console import RenderableType
    from textual.app import App, ComposeResult
    from textual.widget import Widget

    from mlbundle.errors import MlbundleError

T = TypeVar("T")
_LOOK_S = 1.0
# A path, a place in a document, or the name of a file with a line.
_FILE = re.compile(r"^(/|~/|\.{1,2}/)|#|^[^:\s]*\.[A-Za-z]\w{0,7}(:\d+)*$")


class Dialog(ModalScreen[T]):
    """A box in the middle; esc closes it with `nothing`, the answer of who does not want."""

    DEFAULT_CSS = """
    Dialog { align: center middle; }
    Dialog > #dialog {
        width: 80%; min-width: 20; max-width: 100; height: auto; max-height: 90%;
        border: round $primary; border-title-style: bold; background: $surface; padding: 0 1;
    }
    Dialog.-narrow > #dialog { width: 100%; max-width: 100%; max-height: 100%; }
    Dialog > #dialog.-bad { border: round $error; }
    Dialog > #dialog.-large { width: 100%; max-width: 160; height: 90%; }
    Dialog #text { height: auto; max-height: 60vh; }
    Dialog .-large #text { height: 1fr; max-height: 100%; }
    Dialog #text Static { width: 1fr; height: auto; }
    Dialog #buttons { height: auto; align-horizontal: right; margin-top: 1; }
    Dialog Button { margin-left: 2; min-width: 8; width: auto; }
    Dialog OptionList { height: auto; max-height: 50vh; margin-top: 1; border: none; padding: 0; }
    Dialog OptionList:focus { border: none; }
    Dialog Input { margin-top: 1; }
    """
    BINDINGS: ClassVar = [
        Binding("escape", "close", "Close", id="dialog.close"),
        Binding("left,up", "app.focus_previous", show=False, id="dialog.previous"),
        Binding("right,down", "app.focus_next", show=False, id="dialog.next"),
    ]
    nothing: Any = None

    def __init__(self, title: str, *, classes: str = "") -> None:
        super().__init__()
        self._title = title
        self._box_classes = classes

    def compose(self) -> ComposeResult:
        """Put a title around what the dialog holds."""
        box = Vertical(*self.inside(), id="dialog", classes=self._box_classes)
        box.border_title = Text(self._title)
        yield box

    def inside(self) -> Iterator[Widget]:
        """Yield what is in the box."""
        raise NotImplementedError

    def action_close(self) -> None:
        """Close without an answer."""
        self.dismiss(self.nothing)


class TextDialog(Dialog[None]):
    """A text to read; `c` copies it, or what `copied` says instead."""

    BINDINGS: ClassVar = [
        Binding("c", "copy", "Copy", id="dialog.copy"),
        Binding("enter,q", "close", "Close", show=False, id="dialog.done"),
        Binding("up", "scroll(-1)", show=False, id="dialog.up"),
        Binding("down", "scroll(1)", show=False, id="dialog.down"),
        Binding("pageup", "scroll(-15)", show=False, id="dialog.page_up"),
        Binding("pagedown,space", "scroll(15)", show=False, id="dialog.page_down"),
    ]

    def __init__(self, title: str, text: RenderableType, *, copied: str = "", classes: str = "") -> None:
        super().__init__(title, classes=classes)
        self.text = text
        self.copied = copied or str(text)

    def inside(self) -> Iterator[Widget]:
        """Yield the text and a line that says what the keys do."""
        yield VerticalScroll(Static(self.text, markup=False), id="text")
        yield Static(Text("esc closes, c copies", style="dim", justify="right"))

    def action_copy(self) -> None:
        """Copy the text to the clipboard."""
        self.app.copy_to_clipboard(self.copied)
        self.notify("copied")

    def action_scroll(self, lines: int) -> None:
        """Move the text by lines."""
        self.query_one("#text", VerticalScroll).scroll_relative(y=lines, animate=False)


class _Question(Dialog[bool]):
    """Yes or no; no is what enter means, unless told otherwise."""

    nothing = False
    BINDINGS: ClassVar = [
        Binding("y", "answer(True)", "Yes", id="dialog.yes"),
        Binding("n", "answer(False)", "No", id="dialog.no"),
    ]

    def __init__(self, question: str, detail: str, yes: str, over: Callable[[], bool] | None) -> None:
        super().__init__(yes)
        self._question, self._detail, self._yes = question, detail, yes
        self._over = over

    def inside(self) -> Iterator[Widget]:
        """Yield the question, what it means, and the two answers."""
        text = Text(self._question, style="bold")
        if self._detail:
            text.append("\n\n" + self._detail, style="not bold")
        yield VerticalScroll(Static(text), id="text", can_focus=False)
        yield Horizontal(
            Button("No (n)", id="no", compact=True),
            Button(f"{self._yes} (y)", id="yes", variant="warning", compact=True),
            id="buttons",
        )

    def on_mount(self) -> None:
        """Stand on the answer that changes nothing."""
        self.query_one("#no").focus()
        if self._over is not None:
            self.set_interval(_LOOK_S, self._look)

    def _look(self) -> None:
        if self._over is not None and self._over():
            self.dismiss(False)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Answer with the button."""
        self.dismiss(event.button.id == "yes")

    def action_answer(self, answer: bool) -> None:
        """Answer with a key."""
        self.dismiss(answer)


class _Line(Dialog[str | None]):
    """A line to enter; empty is no answer."""

    BINDINGS: ClassVar = [
        Binding("up", "app.focus_previous", show=False, id="dialog.previous"),
        Binding("down", "app.focus_next", show=False, id="dialog.next"),
    ]

    def __init__(self, title: str, value: str, placeholder: str, check: Callable[[str], str | None]) -> None:
        super().__init__(title)
        self._value, self._placeholder, self._check = value, placeholder, check

    def inside(self) -> Iterator[Widget]:
        """Yield the line, and what is wrong with it below."""
        yield Input(self._value, placeholder=self._placeholder, max_length=4096)
        yield Static("enter takes it, esc does not", id="wrong", markup=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Answer with the line, or say what is wrong with it."""
        line = event.value.strip()
        wrong = self._check(line) if line else None
        if wrong:
            self.query_one("#wrong", Static).update(Text(wrong, style="bold"))
        else:
            self.dismiss(line or None)


class _Lines(Dialog[dict[str, str] | None]):
    """Lines that may stay empty, and below them the command that they make; enter takes them all."""

    DEFAULT_CSS = """
    _Lines Input { margin-top: 0; }
    _Lines .label { margin-top: 1; color: $text-muted; }
    _Lines #command-line { margin-top: 1; }
    """
    BINDINGS: ClassVar = [
        Binding("up", "app.focus_previous", show=False, id="dialog.previous"),
        Binding("down", "app.focus_next", show=False, id="dialog.next"),
    ]

    def __init__(
        self, title: str, lines: Mapping[str, str], told: Callable[[dict[str, str]], str], yes: str
    ) -> None:
        super().__init__(title)
        self._asked, self._told, self._yes = lines, told, yes

    def inside(self) -> Iterator[Widget]:
        """Yield a name and a line for each, the command, and what the keys do."""
        for key, label in self._asked.items():
            yield Static(Text(label), classes="label")
            yield Input(id=key, max_length=512, compact=True)
        yield Static(self._told({}), id="command-line", markup=False)
        yield Static(
            Text(f"enter {self._yes}, esc does not, ↓ goes on", style="dim", justify="right"), id="wrong"
        )

    def _values(self) -> dict[str, str]:
        return {str(line.id): line.value.strip() for line in self.query(Input) if line.value.strip()}

    def on_input_changed(self) -> None:
        """Show the command as it is now."""
        self.query_one("#command-line", Static).update(self._told(self._values()))

    def on_input_submitted(self) -> None:
        """Answer with the lines; what is one word has no gap."""
        wrong = next((key for key, value in self._values().items() if len(value.split()) > 1), None)
        if wrong is not None:
            self.query_one(f"#{wrong}", Input).focus()
            self.query_one("#wrong", Static).update(Text("this is one word, without spaces", style="bold"))
        else:
            self.dismiss(self._values())


class _Choice(Dialog[str | None]):
    """One of several; enter takes the one that is marked."""

    BINDINGS: ClassVar = [
        Binding("up", "app.focus_previous", show=False, id="dialog.previous"),
        Binding("down", "app.focus_next", show=False, id="dialog.next"),
    ]

    def __init__(self, title: str, choices: Sequence[tuple[str, str]]) -> None:
        super().__init__(title)
        self._choices = choices

    def inside(self) -> Iterator[Widget]:
        """Yield the list."""
        yield OptionList(*(Option(Text(label)) for _, label in self._choices))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Answer with the choice."""
        self.dismiss(self._choices[event.option_index][0])


def show_error(app: App[Any], error: MlbundleError) -> None:
    """Show an error: reference, message, where, context and hint. One that is shown already is not shown twice."""
    text = error_text(error)
    _on_app(app, lambda: _push_once(app, TextDialog(error.reference, text, classes="-bad")))


def show_text(
    app: App[Any], title: str, text: RenderableType, *, copied: str = "", large: bool = False
) -> None:
    """Show a text (`large`: over the whole screen); `copied` is what `c` copies of something that is no plain text."""
    dialog = TextDialog(title, text, copied=copied, classes="-large" if large else "")
    _on_app(app, lambda: _push_once(app, dialog))


async def confirm(
    app: App[Any],
    question: str,
    *,
    detail: str = "",
    yes: str = "Yes",
    over: Callable[[], bool] | None = None,
) -> bool:
    """Ask and return the answer; esc and enter mean no. In a worker only.

    `over` is asked every second whether there is nothing left to decide: then the question goes, and means no.
    """
    return await app.push_screen_wait(_Question(question, detail, yes, over))


async def ask_text(
    app: App[Any],
    title: str,
    *,
    value: str = "",
    placeholder: str = "",
    check: Callable[[str], str | None] = lambda _: None,
) -> str | None:
    """Ask for a line; None when there is none. `check` says what is wrong with a line. In a worker only."""
    return await app.push_screen_wait(_Line(title, value, placeholder, check))


async def ask_lines(
    app: App[Any], title: str, lines: Mapping[str, str], told: Callable[[dict[str, str]], str], *, yes: str
) -> dict[str, str] | None:
    """Ask for words by name (name -> label); those left empty are not in the answer. In a worker only.

    `told` gives the command that does the same, `yes` says what enter does. None when it is not wanted.
    """
    return await app.push_screen_wait(_Lines(title, lines, told, yes))


async def ask_choice(app: App[Any], title: str, choices: Sequence[tuple[str, str]]) -> str | None:
    """Ask for one of `choices` (answer, label); None when none is taken. In a worker only."""
    return await app.push_screen_wait(_Choice(title, choices))


def error_text(error: MlbundleError) -> Text:
    """Return what an error says, as it is shown and copied."""
    text = Text(error.message, style="bold")
    if error.where:
        # What a worker says has no place but a name; else a place is not always a file: a digest, what was pinned.
        at = "the worker calls it " if isinstance(error, WorkerFailed) else ""
        at = at or ("at " if _FILE.search(error.where) else "")
        text.append(f"\n\n{at}{error.where}", style="not bold")
    if error.context:
        text.append("\n\n" + "\n".join(error.context), style="not bold dim")
    if error.hint:
        text.append("\n\nwhat to do: ", style="bold")
        text.append(error.hint, style="not bold")
    return text


def _push_once(app: App[Any], dialog: TextDialog) -> None:
    top = app.screen
    if not (isinstance(top, TextDialog) and top.copied == dialog.copied):
        app.push_screen(dialog)


def _on_app(app: App[Any], call: Callable[[], None]) -> None:
    if app._thread_id == threading.get_ident():
        call()
    else:
        app.call_from_thread(call)
