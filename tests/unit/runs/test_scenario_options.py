"""Options of scenarios: which go together, what is left out of a job, and files that are no such files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mlbundle.errors import UsageError
from mlbundle.runs.scenarios import read_arrivals, read_scenario_file, scenario_options
from mlbundle.wire.scenarios import COUNT, SCENARIOS


@pytest.mark.parametrize(
    ("scenario", "given"),
    [
        ("online", {"queries": "10"}),
        ("batched", {"queries": "10"}),
        ("pipeline", {"samples": "10"}),
        ("poisson", {"rate": "5", "queries": "10"}),
    ],
)
def test_a_number_to_measure_leaves_the_duration_out_and_excludes_one(scenario: str, given: Any) -> None:
    assert "duration_s" not in scenario_options(scenario, given)
    with pytest.raises(UsageError, match="and so does --duration"):
        scenario_options(scenario, {**given, "duration": "3s"})


def test_arrivals_have_their_own_duration(tmp_path: Path) -> None:
    path = tmp_path / "arrivals.txt"
    path.write_text("0\n0.5\n")
    assert "duration_s" not in scenario_options("poisson", {"arrivals": str(path)})
    with pytest.raises(UsageError, match="--arrivals says how long"):
        scenario_options("poisson", {"arrivals": str(path), "duration": "1s"})


def test_a_duration_alone_is_the_duration_and_the_minima_of_loadgen_go_together() -> None:
    assert scenario_options("online", {"duration": "2s"})["duration_s"] == 2
    assert scenario_options("online", {})["duration_s"] == 3
    found = scenario_options("single-stream", {"duration": "2s", "queries": "9"})
    assert (found["duration_s"], found["queries"]) == (2, 9)


def test_a_peak_is_not_searched_for_in_several_processes() -> None:
    given = {"find-peak": True, "target-latency": "10ms"}
    assert scenario_options("poisson", {**given, "repeats": 1})["find_peak"]
    with pytest.raises(UsageError, match="each search would find one of its own"):
        scenario_options("poisson", {**given, "repeats": 2})


@pytest.mark.parametrize(
    ("scenario", "name"),
    [(spec.name, option.name) for spec in SCENARIOS for option in spec.options if option.kind == COUNT],
)
@pytest.mark.parametrize("value", ["1e30", 10**400, "-1", "nan"])
def test_no_count_is_endless(scenario: str, name: str, value: Any) -> None:
    with pytest.raises(UsageError):
        scenario_options(scenario, {name: value})


@pytest.mark.parametrize("value", [-1, "48h", 1e30])
def test_a_warm_up_has_bounds(value: Any) -> None:
    with pytest.raises(UsageError, match="out of range") as raised:
        scenario_options("online", {"warmup": value})
    assert raised.value.hint == "between 0 and 86,400"


def test_files_without_end_are_not_read(tmp_path: Path) -> None:
    for read in (read_arrivals, read_scenario_file):
        with pytest.raises(UsageError, match="larger than 16 MiB"):
            read(Path("/dev/zero"))


def test_yaml_that_is_too_deep_or_grows_is_refused(tmp_path: Path) -> None:
    deep, bomb = tmp_path / "deep.yaml", tmp_path / "bomb.yaml"
    deep.write_text("scenario: online\nduration: " + "[" * 20_000)
    with pytest.raises(UsageError):
        read_scenario_file(deep)
    levels = [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 12)]
    bomb.write_text("scenario: online\nl0: &l0 [x]\n" + "\n".join(levels) + "\nduration: *l11\n")
    _, given = read_scenario_file(bomb)
    with pytest.raises(UsageError, match="--duration"):
        scenario_options("online", {"duration": given["duration"]})
