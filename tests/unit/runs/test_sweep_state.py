"""The folder of a sweep: what its log says after any kill, and what an attempt that nobody saw ending left."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlbundle.config import Settings, load_settings
from mlbundle.errors import IntegrityError, ReferenceNotFound, UsageError
from mlbundle.runs.sweep_attempt import SweepAttempt
from mlbundle.runs.sweep_axes import Forms, Matrix, make_cells
from mlbundle.runs.sweep_cell import begun_line, ended_line
from mlbundle.runs.sweep_drive import status_of
from mlbundle.runs.sweep_estimate import Estimate
from mlbundle.runs.sweep_plan import SweepPlan
from mlbundle.runs.sweep_state import (
    LOG,
    PLAN,
    SweepFolder,
    find_sweep,
    new_sweep,
    remove_sweep,
    sweep_folders,
)

SWEEP = "20260101T000000Z-abcdef"


@pytest.fixture
def settings(home: Path) -> Settings:
    return load_settings()


@pytest.fixture
def plan() -> SweepPlan:
    matrix = Matrix("mini", {"threads": ("1", "2", "3"), "duration": ("1s",)})
    digest = "sha256:" + "0" * 64
    cells = make_cells(matrix, digest, Forms(("onnxruntime",)))
    return SweepPlan("mini", "1.0.0", digest, tuple(cells), 1, Estimate(9.0))


@pytest.fixture
def folder(settings: Settings, plan: SweepPlan) -> SweepFolder:
    return new_sweep(settings, plan, ["mlbundle", "sweep", "run", "mini"])


def ended(cell: int, attempt: int, outcome: str, **more: Any) -> dict[str, Any]:
    return {"cell": cell, "attempt": attempt, "event": "ended", "outcome": outcome, **more}


def test_a_plan_is_kept_as_it_was_made(folder: SweepFolder, plan: SweepPlan) -> None:
    assert folder.plan() == plan
    assert folder.states() == {}


def test_the_log_says_which_cells_are_done(folder: SweepFolder, plan: SweepPlan) -> None:
    for cell, outcome in ((1, "completed"), (2, "lacking")):
        folder.append(begun_line(SweepAttempt(SWEEP, cell, 1)))
        folder.append(ended(cell, 1, outcome, good=True))
    folder.append(begun_line(SweepAttempt(SWEEP, 3, 1)))
    states = folder.states()
    assert {number: state.is_done for number, state in states.items()} == {1: True, 2: False, 3: False}
    assert states[3].under_way
    assert status_of(plan, states) == {"good": 1, "not_good": 0, "failed": 0, "lacking": 1, "left": 1}


def test_a_line_that_a_power_cut_tore_is_dropped_and_the_next_one_is_whole(
    folder: SweepFolder, plan: SweepPlan
) -> None:
    folder.append(begun_line(SweepAttempt(SWEEP, 1, 1)))
    whole = json.dumps(ended(1, 1, "completed"))
    for cut in range(1, len(whole) + 1):
        with (folder.path / LOG).open("a") as stream:
            stream.write(whole[:cut])
        assert folder.states()[1].under_way
        with folder.driving():
            assert folder.states()[1].under_way
    with folder.driving():
        folder.append(ended(1, 1, "completed"))
    assert folder.states()[1].is_done


@pytest.mark.parametrize("line", ["{}", "[]", "nonsense", '{"cell":"1","attempt":1,"event":"begun"}'])
def test_a_damaged_log_or_plan_is_refused_with_its_place(
    folder: SweepFolder, plan: SweepPlan, line: str
) -> None:
    folder.append(begun_line(SweepAttempt(SWEEP, 1, 1)))
    with (folder.path / LOG).open("a") as stream:
        stream.write(line + "\n")
    with pytest.raises(IntegrityError) as caught:
        folder.states()
    assert caught.value.where == f"{folder.path / LOG}:2"
    (folder.path / PLAN).write_text(line)
    with pytest.raises(IntegrityError):
        folder.plan()


def test_one_driver_at_a_time_and_what_is_driven_is_not_removed(
    folder: SweepFolder, settings: Settings
) -> None:
    with folder.driving():
        assert folder.is_driven()
        with pytest.raises(UsageError, match="another process"), SweepFolder(folder.path).driving():
            raise AssertionError
        with pytest.raises(UsageError, match="another process"):
            remove_sweep(SweepFolder(folder.path))
    assert not folder.is_driven()
    remove_sweep(folder)
    assert sweep_folders(settings) == []
    assert list(folder.path.parent.iterdir()) == []


def test_sweeps_are_found_by_the_beginning_of_their_id(settings: Settings, folder: SweepFolder) -> None:
    assert find_sweep(settings, "latest").path == folder.path
    assert find_sweep(settings, folder.sweep_id[:-3]).path == folder.path
    for wrong in ("", "1999", "../runs"):
        with pytest.raises(ReferenceNotFound):
            find_sweep(settings, wrong)


def test_the_log_says_when_what_is_under_way_began(folder: SweepFolder, plan: SweepPlan) -> None:
    folder.append(begun_line(SweepAttempt(SWEEP, 1, 1)))
    folder.append(ended(1, 1, "lacking"))
    line = begun_line(SweepAttempt(SWEEP, 1, 2))
    folder.append(line)
    assert folder.states()[1].begun_at == line["at"] != ""


def _run(settings: Settings, run_id: str, sweep: dict[str, Any] | None, status: str = "completed") -> None:
    folder = settings.runs_dir / run_id
    folder.mkdir(parents=True)
    record = {"schema": "mlbundle/run/v1", "status": status, "run_id": run_id, "validity": {"valid": True}}
    (folder / "record.json").write_text(json.dumps(record | ({} if sweep is None else {"sweep": sweep})))


@pytest.mark.parametrize(
    "said", [None, "half a rec", json.dumps({"schema": "mlbundle/error/v1", "exit_code": 130})]
)
@pytest.mark.parametrize("status", [None, -9])
def test_a_completed_record_is_the_result_even_if_nothing_was_said_of_it(
    settings: Settings, tmp_path: Path, said: str | None, status: int | None
) -> None:
    since = "2026-01-01T00:00:05.400Z"
    attempt = SweepAttempt(SWEEP, 3, 2)
    own = attempt.to_document()
    if said is not None:
        (tmp_path / "stdout.json").write_text(said)
    _run(settings, "20260101T000005Z-000001", {**own, "attempt": 1})
    _run(settings, "20260101T000006Z-000002", None)  # the same command, typed by somebody
    _run(settings, "20260101T000006Z-000003", {**own, "cell": 2})
    _run(settings, "20260101T000006Z-000004", {**own, "id": "20260101T000000Z-ffffff"})
    line = ended_line(attempt, tmp_path, settings, status=status, wall_s=None, since=since)
    assert (line["outcome"] == "completed", line["run_id"]) == (False, None)
    _run(settings, "20260101T000007Z-000005", own)
    line = ended_line(attempt, tmp_path, settings, status=status, wall_s=None, since=since)
    assert (line["outcome"], line["run_id"]) == ("completed", "20260101T000007Z-000005")
    assert (line["cell"], line["attempt"], line["good"], line["error"]) == (3, 2, True, None)


def test_what_stands_on_stdout_is_preferred_and_a_failed_run_is_found(
    settings: Settings, tmp_path: Path
) -> None:
    attempt, since = SweepAttempt(SWEEP, 1, 1), "2026-01-01T00:00:00.000Z"
    _run(settings, "20260101T000007Z-000003", attempt.to_document(), "failed")
    (tmp_path / "stdout.json").write_text(json.dumps(_error(4)))
    line = ended_line(attempt, tmp_path, settings, status=4, wall_s=1.0, since=since)
    assert (line["outcome"], line["run_id"]) == ("failed", "20260101T000007Z-000003")
    told = {"schema": "mlbundle/run/v1", "status": "completed", "run_id": "told", "validity": {"valid": True}}
    (tmp_path / "stdout.json").write_text(json.dumps(told))
    line = ended_line(attempt, tmp_path, settings, status=0, wall_s=1.0, since=since)
    assert (line["outcome"], line["run_id"]) == ("completed", "told")


def test_a_run_knows_its_attempt_from_its_driver_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = SweepAttempt(SWEEP, 12, 3)
    for name, value in attempt.variables().items():
        monkeypatch.setenv(name, value)
        assert SweepAttempt.of_environment() == attempt
        for nonsense in ("", value + "/1", value.replace("/12/", "/x/"), f"../{value}"):
            monkeypatch.setenv(name, nonsense)
            assert SweepAttempt.of_environment() is None


def _error(exit_code: int, **more: Any) -> dict[str, Any]:
    return {"schema": "mlbundle/error/v1", "reference": "x", "message": "m", "exit_code": exit_code, **more}


def _cases() -> Iterator[tuple[Any, int | None, str]]:
    """Yield what stands on an attempt's stdout, its status if somebody saw it, and what that means."""
    record = {"schema": "mlbundle/run/v1", "status": "completed", "run_id": "r", "validity": {"valid": True}}
    yield record, 0, "completed"
    yield record, None, "completed"
    yield {**record, "validity": {"valid": False, "reasons": ["x"]}}, 1, "completed"
    yield {**record, "status": "partial"}, None, "interrupted"
    for exit_code, outcome in ((1, "failed"), (2, "failed"), (4, "failed"), (5, "failed"), (3, "lacking")):
        yield _error(exit_code), exit_code, outcome
        yield _error(exit_code), None, outcome
    yield _error(4, reference="engine-died"), 4, "lacking"
    yield _error(4, fault="environment"), 4, "lacking"
    yield _error(4, fault="bundle"), 4, "failed"
    yield _error(143), 143, "interrupted"
    yield _error(130), None, "interrupted"
    yield None, None, "interrupted"
    yield "half a rec", None, "interrupted"
    yield None, -9, "lacking"
    yield "[]", 0, "failed"


@pytest.mark.parametrize(("said", "status", "outcome"), list(_cases()))
def test_what_an_attempt_left_says_how_it_ended(
    settings: Settings, tmp_path: Path, said: Any, status: int | None, outcome: str
) -> None:
    if said is not None:
        (tmp_path / "stdout.json").write_text(said if isinstance(said, str) else json.dumps(said))
    line = ended_line(
        SweepAttempt(SWEEP, 1, 1),
        tmp_path,
        settings,
        status=status,
        wall_s=1.0,
        since="2026-01-01T00:00:00.000Z",
    )
    assert line["outcome"] == outcome
    assert json.loads(json.dumps(line)) == line
    if outcome in {"failed", "lacking"}:
        assert line["error"]["message"]
