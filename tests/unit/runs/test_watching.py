"""What is seen of a run that is watched, from its events."""

from __future__ import annotations

from mlbundle.runs.queue import MACHINE_BUSY
from mlbundle.runs.running import RunningRun, waiting_order
from mlbundle.runs.watching import MOST_LINES, MOST_POINTS, MOST_WARNINGS, PhaseView, RunView, expected_phases
from mlbundle.wire.events import Counter, End, Event, Failed, Log, Phase, Progress, Warned, Window

S = 1_000_000_000


def watch(*events: Event, expected: tuple[str, ...] = ()) -> RunView:
    view = RunView(expected=expected)
    for event in events:
        view.take(event)
    return view


def phases(view: RunView) -> dict[str, PhaseView]:
    return {phase.name: phase for phase in view.phases()}


def test_phases_come_go_and_are_to_come() -> None:
    view = watch(
        Log(message="digits-cnn:1.0.0", t_ns=S),
        Phase(name="load", t_ns=S),
        Phase(name="load", state="done", t_ns=3 * S),
        Phase(name="measure", t_ns=3 * S),
        Progress(phase="measure", done=1.0, total=4.0, unit="s", eta_s=3.0, t_ns=4 * S),
        expected=("load", "measure", "collect"),
    )
    assert (view.model, view.phase, view.elapsed_s) == ("digits-cnn:1.0.0", "measure", 3.0)
    assert view.phases() == [
        PhaseView("load", "done", 2.0),
        PhaseView("measure", "under way", 1.0, 0.25, 3.0),
        PhaseView("collect", "to come", times=1),
    ]


def test_a_phase_that_comes_in_each_process_has_all_its_time() -> None:
    view = RunView()
    for begun_s in (1, 5):
        view.take(Phase(name="measure", t_ns=begun_s * S))
        view.take(Progress(phase="measure", done=3, total=10, unit="trials", t_ns=begun_s * S))
        view.take(Phase(name="measure", state="done", t_ns=(begun_s + 2) * S))
    assert phases(view)["measure"] == PhaseView("measure", "done", 4.0, times=2)
    view.take(Phase(name="measure", t_ns=8 * S))
    assert phases(view)["measure"] == PhaseView("measure", "under way", 4.0, times=3)
    view.take(Progress(phase="measure", done=3, total=10, unit="trials", eta_s=7.0, t_ns=9 * S))
    assert phases(view)["measure"] == PhaseView("measure", "under way", 5.0, 0.3, 7.0, "3 of 10 trials", 3)
    view.take(Progress(phase="measure", done=99, total=10, t_ns=9 * S))
    assert phases(view)["measure"].share == 1.0


def test_a_run_that_fails_in_a_phase_has_nothing_to_come() -> None:
    view = watch(
        Phase(name="load", t_ns=S),
        Failed(message="no graph", reference="x", t_ns=2 * S),
        End(status="failed", t_ns=2 * S),
        expected=("load", "measure"),
    )
    assert [(phase.name, phase.state) for phase in view.phases()] == [("load", "broken off")]
    assert view.failed is not None
    assert view.ended is not None
    assert [(line.level, line.text) for line in view.take_lines()] == [
        ("error", "no graph"),
        ("phase", "failed"),
    ]
    assert view.take_lines() == []


def test_a_run_whose_process_dies_says_nothing_of_it() -> None:
    view = watch(Phase(name="load", t_ns=S), expected=("load", "measure"))
    view.end()
    assert [(phase.name, phase.state) for phase in view.phases()] == [("load", "broken off")]
    assert view.ended is None


def test_a_run_that_waits() -> None:
    view = watch(Phase(name="image", t_ns=1), Phase(name="image", state="done", t_ns=2))
    view.take(Warned(reference=MACHINE_BUSY, message="waiting", t_ns=3))
    assert view.waiting
    view.take(Warned(reference="machine-loaded", message="other work", t_ns=4))
    assert view.waiting
    view.take(Phase(name="create", t_ns=5))
    assert not view.waiting
    assert [warned.message for warned in view.warnings] == ["waiting", "other work"]


def test_however_much_is_said_little_is_kept() -> None:
    view = RunView()
    for number in range(5 * MOST_POINTS):
        view.take(Window(queries=2, throughput=4.0, p50_ns=100, p99_ns=200 + number, t_ns=number * S))
        view.take(Counter(name="cpu", value=0.5, t_ns=number * S))
        view.take(Warned(message="again", t_ns=number * S))
    assert len(view.windows) <= MOST_POINTS
    assert len(view.counters["cpu"]) <= MOST_POINTS
    assert len(view.warnings) == MOST_WARNINGS
    assert view.warnings_left_out == 5 * MOST_POINTS - MOST_WARNINGS
    assert len(view.take_lines()) == MOST_LINES
    # Nothing is lost of what was counted, nor the worst of what was seen.
    assert view.queries == sum(point.queries for point in view.windows) == 10 * MOST_POINTS
    assert view.windows[-1].p99_ns == max(point.p99_ns for point in view.windows) == 199 + 5 * MOST_POINTS
    assert {point.p50_ns for point in view.windows} == {100}
    assert [point.t_s for point in view.windows] == sorted(point.t_s for point in view.windows)


def test_phases_that_a_job_has() -> None:
    assert "accuracy" in expected_phases({})
    assert "accuracy" not in expected_phases({"accuracy": None, "trace_level": "model"})
    assert "profile" in expected_phases({"accuracy": {}, "trace_level": "full"})
    assert "profile" not in expected_phases({"accuracy": {}, "trace_level": "model"})


def test_who_came_first_is_next() -> None:
    def run(name: str, since_ns: int) -> RunningRun:
        return RunningRun(name, "m", "", "", "", "", "", None, "", since_ns > 0, since_ns)

    assert waiting_order([run("b", 30), run("a", 40), run("goes on", 0), run("c", 20)]) == ["c", "b", "a"]


def test_events_of_another_clock_make_no_time_negative() -> None:
    view = RunView()
    for t_ns in (10 * S, 4 * S, -(1 << 62), 12 * S):
        view.take(Phase(name="load", t_ns=t_ns))
        view.take(Phase(name="load", state="done", t_ns=t_ns - S))
        view.take(Window(queries=1, throughput=1.0, p50_ns=1, p99_ns=1, t_ns=t_ns))
        view.take(Progress(phase="measure", done=9.0, total=4.0, eta_s=-3.0, t_ns=t_ns))
        assert view.elapsed_s >= 0
        assert all(phase.seconds >= 0 for phase in view.phases())
        assert all(point.t_s >= 0 for point in view.windows)
