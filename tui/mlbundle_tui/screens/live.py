"""A run while it goes on: its phases, what it measures, what it takes and what it says, drawn once a second at most.

The run does not know of it: its events are read from its folder, and it goes on when this screen is left.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual import work
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.widgets import Digits, Log, Static

from mlbundle.errors import MlbundleError, error_of_document
from mlbundle.runs.folder import WORKER_LOG
from mlbundle.wording import units
from mlbundle_tui import affinity, live_text
from mlbundle_tui.background import beside
from mlbundle_tui.live_source import LiveSource, Seen
from mlbundle_tui.run_tabs.latency import Histogram, seconds
from mlbundle_tui.screens.base import Section
from mlbundle_tui.screens.dialogs import show_error
from mlbundle_tui.stopping import stop_run
from mlbundle_tui.widgets.plot import Plot, Series

if TYPE_CHECKING:
    from textual import events
    from textual.app import App, ComposeResult
    from textual.timer import Timer

    from mlbundle.runs.latencies import LatencyView
    from mlbundle_tui.context import Context

_EACH_S = 1.0
_MOST_LINES = 2000
_LOW, _NARROW = 30, 80
_KEPT_OFF_S = 5.0


class BigNumber(Vertical):
    """A number that can be read from across the room, its name and unit above it."""

    DEFAULT_CSS = """
    BigNumber { width: 1fr; height: 4; }
    BigNumber > Static { height: 1; color: $text-muted; }
    BigNumber > Digits { width: 1fr; text-style: bold; }
    """

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title = title

    def compose(self) -> ComposeResult:
        """Put the name above the number."""
        yield Static(self._title, markup=False)
        yield Digits("")

    def show(self, text: str) -> None:
        """Show a number with its unit, as `1.23 ms`."""
        number, _, unit = text.partition(" ")
        self.query_one(Static).update(Text.assemble(self._title, (f"  {unit}", "bold")), layout=False)
        self.query_one(Digits).update(number)


class LiveRun(Section):
    """A run that goes on, above the screen that it was opened from; when it has ended, what came of it."""

    name_of_section: ClassVar[str] = "run"
    DEFAULT_CSS = """
    LiveRun #title { height: 1; padding: 0 1; }
    LiveRun #line, LiveRun #brief { height: auto; max-height: 3; padding: 0 1; display: none; }
    LiveRun #title, LiveRun #phases, LiveRun #resources { text-wrap: nowrap; text-overflow: ellipsis; }
    LiveRun #upper { height: 1fr; }
    LiveRun #side { width: 38; padding: 0 1; border-right: solid $panel; }
    LiveRun #phases, LiveRun #resources { height: auto; }
    LiveRun #resources { margin-top: 1; }
    LiveRun #warnings { height: 1fr; margin-top: 1; }
    LiveRun #measured { width: 1fr; padding: 0 1; }
    LiveRun #numbers { height: 4; }
    LiveRun #plots { height: 1fr; }
    LiveRun Histogram { display: none; margin-left: 2; text-wrap: nowrap; text-overflow: ellipsis; }
    LiveRun.-ended.-wide Histogram { display: block; }
    LiveRun #log-title { height: 1; padding: 0 1; color: $text-accent; text-style: bold; }
    LiveRun Log { height: 30%; min-height: 3; padding: 0 1; background: $background;
        scrollbar-size: 1 1; overflow-x: hidden; }
    LiveRun #worker-log { display: none; }
    LiveRun.-worker #worker-log { display: block; }
    LiveRun.-worker #events { display: none; }
    LiveRun.-large #upper { display: none; }
    LiveRun.-large Log { height: 1fr; }
    LiveRun.-small #numbers { display: none; }
    LiveRun.-small #line { display: block; }
    LiveRun.-thin #brief { display: block; }
    LiveRun.-thin #side { display: none; }
    """
    BINDINGS: ClassVar = [
        Binding("space", "freeze", "Freeze", id="live.freeze"),
        Binding("x", "stop", "Stop", id="live.stop"),
        Binding("l", "next_log", "Log", id="live.log"),
        Binding("enter", "open", "Results", id="live.open"),
        Binding("escape", "back", "Leave", id="live.back"),
    ]

    def __init__(self, context: Context, run_id: str) -> None:
        super().__init__(context)
        self.run_id = run_id
        self.folder = context.settings.runs_dir / run_id
        self.frozen = False
        self.seen: Seen | None = None
        self._source = LiveSource(context.settings, run_id, context.clock)
        self._reading = False
        self._alive_once = False
        self._over = False
        self._lines: dict[str, int] = {}

    # What is on the screen

    def body(self) -> ComposeResult:
        """Yield phases and resources, beside them numbers and plots; the log below."""
        yield Static(f"run {self.run_id}", id="title", markup=False)
        yield Static("", id="line", markup=False)
        yield Static("", id="brief", markup=False)
        with Horizontal(id="upper"):
            with Vertical(id="side"):
                yield Static("", id="phases", markup=False)
                yield Static("", id="resources", markup=False)
                yield Static("", id="warnings", markup=False)
            with Vertical(id="measured"):
                with Horizontal(id="numbers"):
                    yield BigNumber("throughput")
                    yield BigNumber("p50")
                    yield BigNumber("p99")
                with Horizontal(id="plots"):
                    yield Plot("latency", y_text=units.duration, x_text=seconds)
                    yield Histogram()
        yield Static("events", id="log-title", markup=False)
        yield Log(id="events", max_lines=_MOST_LINES)
        yield Log(id="worker-log", max_lines=_MOST_LINES)

    def on_mount(self) -> None:
        """Read what has happened, and look once a second from then on."""
        self.query_one("#events", Log).focus()
        self.set_interval(_EACH_S, self._look_if_needed)
        self._look_if_needed()
        self.show_command()

    def on_unmount(self) -> None:
        """Let the run's files go."""
        self._source.close()

    def on_resize(self, event: events.Resize) -> None:
        """Show large numbers where there is room for them."""
        width, height = event.size.width, event.size.height
        self.set_class(width < _NARROW or height < _LOW, "-small")
        self.set_class(width < _NARROW, "-thin")
        for log in self.query(Log):
            self.call_after_refresh(log.scroll_end, animate=False)

    def command_line(self) -> str:
        """Return the command that shows the same, or what came of it."""
        return f"mlbundle runs {'show' if self._over else 'attach'} {self.run_id}"

    def chosen(self) -> dict[str, str]:
        """Return the run that is watched."""
        return {"RUN": self.run_id}

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide what may not be done, or does not go."""
        if action == "stop":
            return self.context.may_run and not self._over
        if action == "freeze":
            return not self._over
        return self._over if action == "open" else True

    # Keys

    def action_freeze(self) -> None:
        """Keep the display as it is, while events are still read; again shows what is now."""
        self.frozen = not self.frozen
        if self.seen is not None:
            # What is being read is shown when it was read.
            if not self.frozen and not self._reading:
                self._draw(self.seen)
            self._title(self.seen)

    def action_stop(self) -> None:
        """Stop the run, after a question."""
        name = self.seen.view.model if self.seen is not None else ""
        stop_run(self, self.context, self.run_id, name, self._look_if_needed)

    def action_next_log(self) -> None:
        """Show the events, what the worker wrote, and that over the whole screen."""
        steps = [(), ("-worker",), ("-worker", "-large"), ("-large",)]
        now = tuple(name for name in ("-worker", "-large") if self.has_class(name))
        at_end = [log for log in self.query(Log) if not log.display or log.is_vertical_scroll_end]
        wanted = steps[(steps.index(now) + 1) % len(steps)]
        for name in ("-worker", "-large"):
            self.set_class(name in wanted, name)
        name = "worker.log: what the worker wrote" if "-worker" in wanted else "events"
        self.query_one("#log-title", Static).update(
            f"{name}, over the whole screen" if "-large" in wanted else name
        )
        self.query_one("#worker-log" if "-worker" in wanted else "#events", Log).focus()
        for log in at_end:
            self.call_after_refresh(log.scroll_end, animate=False)
        self._source.wants_log = "-worker" in wanted
        self._look_if_needed()

    def action_open(self) -> None:
        """Open the page of the run that has ended."""
        from mlbundle_tui.screens.run_page import RunPage

        self.app.switch_screen(RunPage(self.context, self.run_id))

    def action_back(self) -> None:
        """Leave the screen; the run goes on."""
        self.app.pop_screen()

    def action_refresh(self) -> None:
        """Look now."""
        self._look_if_needed()

    # Looking

    def _look_if_needed(self) -> None:
        if not self._reading and not (self._over and not self._source.wants_log):
            self._look()

    @work(group="look")
    async def _look(self) -> None:
        """Read what is new, and show it unless the display is frozen."""
        self._reading = True
        try:
            seen = await beside(self, self._source.read)
        finally:
            self._reading = False
        self.seen = seen
        if not self._alive_once and seen.driven:
            self._alive_once = True
            self._keep_off(seen)
        # Drawn at once: every picture costs time that the run could want.
        with self.app.batch_update():
            if not self.frozen:
                self._draw(seen)
            self._title(seen)
        if seen.over and not self._over:
            self._over = True
            self._finish()

    def _keep_off(self, seen: Seen) -> None:
        """Leave the CPUs to the run that it is pinned to, also when this screen is left."""
        cpus = (seen.job.get("limits") or {}).get("cpus") or ()
        if cpus:
            affinity.keep_off(self.folder, [int(cpu) for cpu in cpus])
            _let_go_later(self.app)

    @work(group="finish")
    async def _finish(self) -> None:
        """Show what came of the run."""
        affinity.look()
        if self.frozen:
            self.action_freeze()
        self.refresh_bindings()
        self.show_command()
        try:
            record = await beside(self, self._source.record, close=not self.context.readonly)
            found = await beside(self, _latencies, self.folder, record)
        except MlbundleError as error:
            show_error(self.app, error)
            return
        assert self.seen is not None
        self.query_one("#title", Static).update(live_text.ended_title(self.run_id, self.seen, record))
        self.query_one("#brief", Static).update(live_text.ended_brief(self.seen, record))
        result = live_text.ended_numbers(record, found)
        if result is not None:
            self._show_numbers(result)
        if found is not None and found.bars:
            self.add_class("-ended")
            self.query_one(Histogram).set_bars(found.bars)
        error_document = (record or {}).get("error")
        if self._alive_once and error_document and self.is_current:
            failure = error_of_document(error_document)
            if failure.hint and WORKER_LOG in failure.hint:
                failure.hint += f"; {self._log_key()} shows it when this is closed"
            show_error(self.app, failure)

    def _log_key(self) -> str:
        found = [a.binding for a in self.active_bindings.values() if a.binding.id == "live.log"]
        return self.app.get_key_display(found[0]) if found else "the log"

    # Drawing

    def _title(self, seen: Seen) -> None:
        if not self._over:
            self._put("#title", live_text.title(self.run_id, seen, frozen=self.frozen))

    def _draw(self, seen: Seen) -> None:
        view = seen.view
        with self.app.batch_update():
            self._put("#phases", live_text.phases(view.phases(), back=self._back()))
            self._put("#resources", live_text.resources(view.counters))
            self._put("#warnings", live_text.warnings(view))
            if not self._over:
                self._put("#brief", live_text.brief(seen))
            if not self._over:
                self._show_numbers(live_text.live_numbers(view))
            self.query_one(Plot).set_series(_series(seen))
            log = self.query_one("#events", Log)
            log.write_lines(live_text.log_lines(view.take_lines()), scroll_end=log.is_vertical_scroll_end)
            self._draw_log(seen)

    def _back(self) -> str:
        """Return the theme's colour of what is not yet filled; a theme of the terminal's own colours has none."""
        panel = self.app.theme_variables.get("panel", "")
        return panel if panel.startswith("#") else ""

    def _show_numbers(self, found: live_text.Numbers | None) -> None:
        self._put("#line", live_text.numbers(found))
        if found is not None:
            for big, text in zip(
                self.query(BigNumber), (found.throughput, found.p50, found.p99), strict=True
            ):
                big.show(text)

    def _put(self, name: str, text: Text) -> None:
        """Show a text; all is laid out anew only where it takes more or fewer lines than the last one."""
        place = self.query_one(name, Static)
        width = max(1, place.content_size.width)
        lines = sum(1 + (len(line) - 1) // width for line in text.plain.split("\n"))
        place.update(text, layout=place.display and self._lines.get(name) != lines)
        self._lines[name] = lines

    def _draw_log(self, seen: Seen) -> None:
        log = self.query_one("#worker-log", Log)
        # Who has gone up in it reads it: it stays where it is.
        if seen.log is not None and log.is_vertical_scroll_end:
            log.clear()
            log.write_lines(seen.log or ["nothing was written so far"])


def _let_go_later(app: App[Any]) -> None:
    """Take the CPUs back when the runs have ended, whatever screen is shown then."""

    def look() -> None:
        if not affinity.look():
            timer.stop()

    timer: Timer = app.set_interval(_KEPT_OFF_S, look)


def _series(seen: Seen) -> list[Series]:
    windows = seen.view.windows
    if len(windows) < 2:
        return []
    begin_s = windows[0].t_s
    return [
        Series("p99", "yellow", [(window.t_s - begin_s, window.p99_ns) for window in windows]),
        Series("p50", "cyan", [(window.t_s - begin_s, window.p50_ns) for window in windows]),
    ]


def _latencies(folder: Any, record: dict[str, Any] | None) -> LatencyView | None:
    from mlbundle.runs.latencies import latency_view

    with suppress(MlbundleError):
        if record is not None:
            return latency_view(folder, record)
    return None
