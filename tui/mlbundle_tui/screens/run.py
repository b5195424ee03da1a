"""The section Run: a form, what a run of it would do, and the runs that go on."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual import work
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.css.query import NoMatches
from textual.widgets import Static

from mlbundle.errors import Interrupted, MlbundleError
from mlbundle.runs.starting import Starting
from mlbundle_tui import plan_text, run_form
from mlbundle_tui.background import beside
from mlbundle_tui.screens.base import Section
from mlbundle_tui.screens.dialogs import show_error
from mlbundle_tui.widgets.bare import BareHorizontal, BareVertical
from mlbundle_tui.widgets.field import Field
from mlbundle_tui.widgets.going_runs import GoingRuns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult
    from textual.timer import Timer

    from mlbundle.errors import UsageError
    from mlbundle.runs.bundle_facts import Form
    from mlbundle.runs.request import RunRequest
    from mlbundle_tui.app import MlbundleApp
    from mlbundle_tui.context import Context
    from mlbundle_tui.widgets.row_table import RowTable

_EACH_S = 1.0


class RunSection(Section):
    """The section Run. What is written is asked at once whether it would do."""

    name_of_section: ClassVar[str] = "run"
    DEBOUNCE_S: ClassVar[float] = 0.3
    DEFAULT_CSS = """
    RunSection #form { width: 1fr; min-width: 30; }
    RunSection #fields { height: 1fr; padding: 0; scrollbar-size-vertical: 1; }
    RunSection #fields Static.group { height: 1; padding: 0 1; text-style: bold; color: $text-accent; }
    RunSection #scenario-options { height: auto; }
    RunSection #scenario-options Field { padding: 0 1 0 3; }
    RunSection #advanced-fields { height: auto; display: none; }
    RunSection #advanced-fields Field { padding: 0 1 0 3; }
    RunSection #advanced-fields Field > .label { width: 11; }
    RunSection.-advanced #advanced-fields { display: block; }
    RunSection #scenario-options Field > .label { width: 17; }
    RunSection #about { height: 4; padding: 0 1; border-top: solid $panel; color: $text-muted; }
    RunSection #beside { width: 1fr; border-left: solid $panel; }
    RunSection.-wide #beside { width: 3fr; }
    RunSection.-wide #form { width: 2fr; }
    RunSection #plan { height: 1fr; padding: 0 1; scrollbar-size-vertical: 1; }
    RunSection #plan:focus { background: $foreground 4%; }
    RunSection #plan Static { width: 1fr; height: auto; }
    RunSection.-narrow #beside { display: none; }
    RunSection.-narrow.-plan #beside { display: block; border-left: none; }
    RunSection.-narrow.-plan #form { display: none; }
    """
    BINDINGS: ClassVar = [
        Binding("r", "run", "Run", id="run.start"),
        Binding("d", "show_plan", "Plan", id="run.plan"),
        Binding("o", "unfold", "More options", show=False, id="run.more"),
        Binding("a", "attach", "Watch", id="run.attach"),
        Binding("x", "stop", "Stop", id="run.stop"),
        Binding("escape", "back", "Back", show=False, id="run.back_to_form"),
    ]

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        from mlbundle.runs.request import RunRequest

        self.request: RunRequest = RunRequest.of_settings(context.settings)
        self.problems: dict[str, UsageError] = {}
        self._forms: Sequence[Form] = ()
        self._forms_of = ""
        self._own_names: Sequence[str] = ()
        self._waiting: Timer | None = None
        self._planning = threading.Lock()
        self._starting: Starting | None = None
        self._stop_starting = threading.Event()
        self._begun_s = 0.0

    # What is on the screen

    def body(self) -> ComposeResult:
        """Yield the form, and beside it the plan above the runs that go on."""
        with BareHorizontal():
            with BareVertical(id="form"):
                with VerticalScroll(id="fields", can_focus=False):
                    yield from run_form.fields(self.request, self.context.settings)
                yield Static("", id="about", markup=False)
            with Vertical(id="beside"):
                with VerticalScroll(id="plan"):
                    yield Static("", id="plan-text", markup=False)
                yield GoingRuns(self.context.settings, id="going-runs")

    def on_mount(self) -> None:
        """Stand on the bundle; look for runs that go on."""
        self._read_names()
        self._take_chosen()
        self.query_one("#field-reference", Field).focus()
        self._request_changed()
        self.going.look()
        self.set_interval(_EACH_S, self._show_said)

    def on_screen_resume(self) -> None:
        """Take the bundle that was chosen in another section."""
        if self.is_mounted:
            self._take_chosen()
            self.going.look()

    def on_descendant_focus(self) -> None:
        """Say what the field is about, and the command of what has the focus."""
        self._show_about()
        self.show_command()

    def on_row_table_highlighted(self) -> None:
        """Say the command of the run."""
        self.show_command()

    async def on_field_changed(self, event: Field.Changed) -> None:
        """Take what was written; a moment later the plan is made anew."""
        key, value = event.field.spec.key, event.field.value
        if key == run_form.ADVANCED:
            self._unfold(bool(value))
            return
        self.request = run_form.with_value(self.request, key, value)
        if key == "scenario":
            await self._show_options()
        self._request_changed()

    def on_going_runs_changed(self) -> None:
        """Offer to watch and stop runs where there are any."""
        self.refresh_bindings()
        self.show_command()

    @property
    def going(self) -> GoingRuns:
        """The runs that go on."""
        return self.query_one(GoingRuns)

    def command_line(self) -> str:
        """Return the command that would do the same; where a run that goes on has the focus, that which watches it."""
        run = self.going.chosen
        if self.going.table.has_focus and run is not None:
            return f"mlbundle runs attach {run.run_id}"
        return self.request.command_text(self.context.settings)

    def chosen(self) -> dict[str, str]:
        """Return what the form says as arguments, and the run under the cursor among those that go on."""
        command, run = self.request.command_text(self.context.settings), self.going.chosen
        found = {"BUNDLE": command.removeprefix("mlbundle run ")} if command else {}
        return found if run is None else {**found, "RUN": run.run_id}

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide what may not be done, or does not go."""
        if action in {"run", "stop"} and not self.context.may_run:
            return False
        if action == "stop" and self._starting is not None:
            return True
        if action in {"attach", "stop"}:
            return self.is_mounted and bool(self.going.runs)
        if action == "show_plan":
            return self.has_class("-narrow")
        return True

    # Keys

    def action_run(self) -> None:
        """Start what the form says."""
        bad = next(iter(self.problems), None)
        if bad is not None:
            self._go_to(bad)
            self.notify(self.problems[bad].message, severity="error", title="not yet", markup=False)
        elif self._starting is not None:
            self.notify("a run is being started", markup=False)
        else:
            self._start()

    def action_show_plan(self) -> None:
        """Show the plan where there is room for one pane only; again shows the form."""
        self.toggle_class("-plan")
        self.query_one("#plan" if self.has_class("-plan") else "#field-reference").focus()

    def action_unfold(self) -> None:
        """Show the options that are seldom written, or fold them again."""
        self._unfold(not self.has_class("-advanced"))
        self.query_one("#field-advanced", Field).focus()

    def action_back(self) -> None:
        """Go back to the form."""
        self.remove_class("-plan")
        if not isinstance(self.focused, Field):
            self.query_one("#field-reference", Field).focus()

    def action_attach(self) -> None:
        """Watch the chosen run among those that go on."""
        run = self.going.chosen
        if run is not None:
            self._watch(run.run_id)

    def action_stop(self) -> None:
        """Stop what is being started, else, after a question, the chosen run among those that go on."""
        run = self.going.chosen
        if self._starting is not None:
            self._stop_starting.set()
        elif run is not None and self.context.may_run:
            from mlbundle_tui.stopping import stop_run

            stop_run(self, self.context, run.run_id, f"{run.model} {run.scenario}", self.going.look)

    def action_refresh(self) -> None:
        """Look again at everything."""
        self._forms_of = ""
        self._read_names()
        self._request_changed()
        self.going.look()

    def on_row_table_selected(self, event: RowTable.Selected) -> None:
        """Watch the run that was opened."""
        event.stop()
        self.action_attach()

    # The form

    def _take_chosen(self) -> None:
        app = cast("MlbundleApp", self.app)
        chosen, network = app.chosen, app.chosen_network
        if not chosen and not self.request.reference.strip():
            chosen, network = app.offered
        if chosen:
            self.request = run_form.of_chosen(self.request, chosen, network)
            app.chosen, app.chosen_network = "", None
            for key in run_form.CHOSEN:
                self.query_one(f"#field-{key}", Field).set_value(run_form.value_of(self.request, key))
            self._request_changed()

    async def _show_options(self) -> None:
        """Show the options of the scenario that is chosen now."""
        holder = self.query_one("#scenario-options", Vertical)
        with self.app.batch_update():
            await holder.remove_children()
            await holder.mount(*run_form.option_fields(self.request, self._own_names))

    def _request_changed(self) -> None:
        found = self.request.problems()
        self.problems = {run_form.field_of(key, self.request): problem for key, problem in found.items()}
        for field in self.query(Field):
            problem = self.problems.get(field.spec.key)
            # What nobody has written yet is not wrong, it is missing: the pane says so.
            blank = field.spec.key in {"reference", run_form.OWN_NAME} and not field.value
            field.set_problem("" if problem is None or blank else problem.message)
        self.show_command()
        self._show_about()
        if self._waiting is not None:
            self._waiting.stop()
        self._waiting = self.set_timer(self.DEBOUNCE_S, self._plan)

    def _show_about(self) -> None:
        field = self._field()
        if field is None:
            return
        self.query_one("#about", Static).update(
            run_form.about(field.spec, field.value, self.request.scenario, self.problems.get(field.spec.key))
        )

    def _field(self) -> Field | None:
        focused = self.focused
        if isinstance(focused, Field):
            return focused
        parent = None if focused is None else focused.parent
        return parent if isinstance(parent, Field) else None

    def _go_to(self, key: str) -> None:
        self.remove_class("-plan")
        if run_form.is_advanced(key):
            self._unfold(True)
        with suppress(NoMatches):
            self.query_one("#field-" + key.replace(".", "-"), Field).focus()

    def _unfold(self, unfolded: bool) -> None:
        """Show the options that are seldom written, or fold them."""
        self.set_class(unfolded, "-advanced")
        field = self.query_one("#field-advanced", Field)
        field.set_spec(run_form.advanced_spec(self.request))
        field.set_value("yes" if unfolded else "")
        if unfolded:
            fields = self.query_one("#advanced-fields")
            self.call_after_refresh(lambda: fields.scroll_visible(animate=False))

    @work(group="names")
    async def _read_names(self) -> None:
        """Read the names that can be written for a bundle."""
        names = await beside(self, run_form.bundle_names, self.context.settings)
        self.query_one("#field-reference", Field).suggestions = names
        self._own_names = await beside(self, run_form.own_scenarios)

    # The plan

    @work(exclusive=True, group="plan")
    async def _plan(self) -> None:
        """Show what a run would do; what was asked before is no longer waited for."""
        request = self.request
        if self._starting is None:
            self._show_plan(plan_text.waiting(request, self.problems))
        if request.reference.strip() and request.reference != self._forms_of:
            await self._read_forms(request)
        if self.problems:
            return
        found = await beside(self, self._explained, request)
        if found is None or self._starting is not None:
            return
        if isinstance(found, MlbundleError):
            self._show_plan(plan_text.refused(found, request))
        else:
            self._show_plan(plan_text.explained(found, self.context.settings))

    async def _read_forms(self, request: RunRequest) -> None:
        forms = await beside(self, run_form.forms, request.reference.strip(), self.context.settings)
        self._forms, self._forms_of = forms, request.reference
        names = [form.name for form in forms]
        if forms and self.request.framework not in {"", *names, *(form.framework for form in forms)}:
            self.request = replace(self.request, framework="")
        field = self.query_one("#field-framework", Field)
        field.set_spec(run_form.framework_spec(forms))
        field.set_value(self.request.framework)
        self.show_command()

    def _explained(self, request: RunRequest) -> dict[str, Any] | MlbundleError | None:
        """Return what a run would do, or why there is none; None where something else is asked meanwhile."""
        with self._planning:
            if request is not self.request and request != self.request:
                return None
            try:
                found: dict[str, Any] = self.context.ask(
                    "plan", self.context.settings, request=asdict(request)
                )
                return found
            except MlbundleError as error:
                return error

    def _show_plan(self, text: Any) -> None:
        self.query_one("#plan-text", Static).update(text)

    # Runs

    @work(group="start")
    async def _start(self) -> None:
        """Start the run; what the command says on its way is shown where the plan was."""
        launcher = self.context.launcher
        assert launcher is not None
        self._starting, self._stop_starting = Starting(), threading.Event()
        self._begun_s = self.context.clock()
        self._show_said()
        self.going.say("a run is being started")
        self.refresh_bindings()
        try:
            options = self.request.run_options(self.context.settings)
            run_id = await beside(self, launcher.start, options, self._hear, self._stop_starting)
        except Interrupted:
            self.notify("stopped before it had begun", markup=False)
            return
        except MlbundleError as error:
            show_error(self.app, error)
            return
        finally:
            self._starting = None
            if self.display:
                self.going.say("")
                self.refresh_bindings()
                self._plan()
        self.going.look()
        self._watch(run_id)

    def _hear(self, line: str) -> None:
        """Take a line of the command that starts a run, from its thread."""
        with suppress(RuntimeError):  # the app has ended
            self.app.call_from_thread(self._take_line, line)

    def _take_line(self, line: str) -> None:
        if self._starting is not None:
            self._starting.take(line)
            self._show_said()

    def _show_said(self) -> None:
        if self._starting is not None and self.display:
            self._show_plan(plan_text.starting(self._starting, self.context.clock() - self._begun_s))
            self.query_one("#plan", VerticalScroll).scroll_end(animate=False)

    def _watch(self, run_id: str) -> None:
        from mlbundle_tui.screens.live import LiveRun

        self.app.push_screen(LiveRun(self.context, run_id))
