"""Fields of a form, a line each: enter writes or chooses, left and right change; letters stay keys of the screen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual import work
from textual.binding import Binding
from textual.containers import Horizontal
from textual.message import Message
from textual.suggester import SuggestFromList
from textual.widgets import Input, Static

from mlbundle.manifest.problems import printable
from mlbundle_tui.screens.dialogs import ask_choice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual import events
    from textual.app import ComposeResult

_MOST_CHARACTERS = 4096


@dataclass(frozen=True)
class FieldSpec:
    """A field: `choices` are (value, label); without any it is a text. `default` is what an empty text means."""

    key: str
    label: str
    about: str = ""
    default: str = ""
    choices: Sequence[tuple[str, str]] = ()

    def parts_of(self, value: str) -> tuple[str, str]:
        """Return the name of a choice, and what its label says of it: `online: one sample at a time`."""
        label = dict(self.choices).get(value, value)
        name, _, meaning = label.partition(": ")
        return (name, meaning) if value and name.startswith(value) else (label, "")


class Field(Horizontal, can_focus=True):
    """One line: label and value. `Changed` comes with every key, `Left` when it was written to its end."""

    DEFAULT_CSS = """
    Field { height: 1; padding: 0 1; }
    Field > .label { width: 13; color: $text-muted; }
    Field > .value { width: 1fr; height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
    Field > Input { width: 1fr; }
    Field.-bad > .label { color: $text-error; text-style: bold; }
    Field:focus { background: $primary 60%; }
    Field:focus > .label { color: $text; }
    Field.-editing > .value { display: none; }
    """
    BINDINGS: ClassVar = [
        Binding("enter", "edit", "Edit", id="field.edit"),
        Binding("left", "change(-1)", "Change", show=False, id="field.before"),
        Binding("right", "change(1)", "Change", id="field.next"),
        Binding("space", "change(1)", show=False, id="field.change"),
        Binding("up", "move(-1)", show=False, id="field.up"),
        Binding("down", "move(1)", show=False, id="field.down"),
        Binding("backspace,delete", "clear", "Clear", show=False, id="field.clear"),
        Binding("escape", "give_up", "Undo", id="field.undo"),
    ]

    class Changed(Message):
        """A field has another value."""

        def __init__(self, field: Field) -> None:
            super().__init__()
            self.field = field

        @property
        def control(self) -> Field:
            """The field."""
            return self.field

    def __init__(self, spec: FieldSpec, value: str = "") -> None:
        super().__init__(id="field-" + spec.key.replace(".", "-"))
        self.spec = spec
        self.value = value
        self.problem = ""
        self.suggestions: Sequence[str] = ()
        self._before = value

    @property
    def chosen_name(self) -> str:
        """The name of what is chosen, without what its label says of it."""
        return self.spec.parts_of(self.value)[0]

    @property
    def editing(self) -> bool:
        """Whether it is being written."""
        return self.has_class("-editing")

    def compose(self) -> ComposeResult:
        """Put the label beside the value."""
        yield Static(self.spec.label, classes="label", markup=False)
        yield Static(self._shown(), classes="value", markup=False)

    def set_value(self, value: str) -> None:
        """Take another value without telling anybody."""
        self.value = value
        self._show()

    def set_spec(self, spec: FieldSpec) -> None:
        """Take other choices or another default."""
        self.spec = spec
        self._show()

    def set_problem(self, problem: str) -> None:
        """Say that the value is not one that will do; empty takes it back."""
        self.problem = problem
        self.set_class(bool(problem), "-bad")
        self._show()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide what does not go."""
        if action == "change":
            return bool(self.spec.choices) and not self.editing
        if action == "clear":
            return not self.spec.choices and not self.editing
        if action == "give_up":
            return self.editing
        return True if action != "edit" else not self.editing

    def action_edit(self) -> None:
        """Write the text, or choose from the list."""
        if len(self.spec.choices) == 2:
            self.action_change(1)
        elif self.spec.choices:
            self._choose()
        else:
            self._begin()

    def action_change(self, step: int) -> None:
        """Take the next choice, or the one before."""
        values = [value for value, _ in self.spec.choices]
        place = values.index(self.value) if self.value in values else 0
        self._change(values[(place + step) % len(values)])

    def action_clear(self) -> None:
        """Take the default."""
        self._change("")

    def action_move(self, step: int) -> None:
        """Go to the next field, or the one before."""
        self._end()
        if step > 0:
            self.screen.focus_next(Field)
        else:
            self.screen.focus_previous(Field)

    def action_give_up(self) -> None:
        """Stop writing: the value is what it was."""
        self._change(self._before)
        self._end()
        self.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Tell of every key."""
        event.stop()
        if self.editing:
            self._change(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Take what was written."""
        event.stop()
        self._end()
        self.focus()

    def on_descendant_blur(self) -> None:
        """Take what was written when something else is gone to."""
        self._end()

    def on_click(self, event: events.Click) -> None:
        """A press on the value is `enter`; one beside it only goes there."""
        if not self.editing and event.widget is not None and event.widget.has_class("value"):
            self.action_edit()

    @work(exclusive=True)
    async def _choose(self) -> None:
        answer = await ask_choice(
            self.app,
            self.spec.label,
            [
                (value, f"{label}{'  (now)' if value == self.value else ''}")
                for value, label in self.spec.choices
            ],
        )
        if answer is not None:
            self._change(answer)

    def _begin(self) -> None:
        if self.editing:
            return
        self._before = self.value
        self.add_class("-editing")
        suggester = SuggestFromList(self.suggestions, case_sensitive=False) if self.suggestions else None
        line = Input(
            self.value,
            placeholder=self.spec.default,
            compact=True,
            max_length=_MOST_CHARACTERS,
            suggester=suggester,
        )
        self.mount(line)
        line.focus()

    def _end(self) -> None:
        if self.editing:
            self.remove_class("-editing")
            self.query(Input).remove()
            self._show()
            self.refresh_bindings()

    def _change(self, value: str) -> None:
        if value != self.value:
            self.value = value
            self._show()
            self.post_message(self.Changed(self))

    def _show(self) -> None:
        for value in self.query(".value").results(Static):
            value.update(self._shown())

    def _shown(self) -> Text:
        if self.spec.choices:
            text = Text.assemble(("< ", "dim"), printable(self.chosen_name), (" >", "dim"))
        else:
            # As it is written it stands between brackets, as it is chosen between arrows.
            said = (printable(self.value), "") if self.value else (printable(self.spec.default) or " ", "dim")
            text = Text.assemble(("[ ", "dim"), said, (" ]", "dim"))
        if self.problem:
            text.append(f"  ! {printable(self.problem)}", style="bold red")
        return text
