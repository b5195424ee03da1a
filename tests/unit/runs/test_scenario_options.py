"""Options of scenarios: which go together, what is left out of a job, and files that are no such files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from mlbundle.cli.scenario import chosen_scenario, scenario_arguments
from mlbundle.errors import UsageError
from mlbundle.runs.scenarios import (
    check_compliance,
    places_in_file,
    read_arrivals,
    read_scenario_file,
    scenario_options,
)
from mlbundle.wire.scenarios import COUNT, SCENARIOS
from mlbundle.wording.scenario_text import scenario_text


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
    assert raised.value.hint == "between 0 s and 86,400 s"


def test_the_names_of_a_record_are_taken_too() -> None:
    found = scenario_options("poisson", {"rate_per_s": 400.0, "duration_s": 2.0})
    assert (found["rate_per_s"], found["duration_s"]) == (400, 2)
    with pytest.raises(UsageError, match="--rate is said twice"):
        scenario_options("poisson", {"rate_per_s": 400.0, "rate": 5})


@pytest.mark.parametrize(
    ("scenario", "given", "text"),
    [
        ("poisson", {"rate": "400", "duration": "1.5s", "target-latency": "10us"}, None),
        ("batched", {"batch-sizes": "1,8", "warmup": "250ms"}, None),
        ("single-stream", {"quick": True, "compliance": "TEST01,TEST04"}, None),
        ("server", {"rate": "0.5", "duration": "2m"}, "server  --duration 120s --rate 0.5"),
    ],
)
def test_the_scenario_of_a_record_is_shown_as_it_is_written(scenario: str, given: Any, text: Any) -> None:
    options = scenario_options(scenario, given)
    shown = scenario_text({"name": scenario, "options": options})
    assert text is None or shown == text
    assert chosen("--scenario", *shown.split()) == (scenario, options)


def test_every_problem_of_a_file_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "poisson.yml"
    path.write_text("scenario: poisson\n# busy\nrate: abc\nduration: 1h30\n")
    name, given = read_scenario_file(path)
    with pytest.raises(UsageError, match="--rate: 'abc'") as raised:
        scenario_options(name, given, places_in_file(path))
    assert raised.value.where == f"{path}:3"
    assert raised.value.context == (f"{path}:4: --duration: '1h30' is not what it takes",)


def test_poisson_without_a_load_and_with_two(tmp_path: Path) -> None:
    path = tmp_path / "arrivals.txt"
    path.write_text("0\n0.5\n")
    with pytest.raises(UsageError, match="needs a rate, or arrivals") as raised:
        scenario_options("poisson", {})
    assert "--arrivals FILE" in str(raised.value.hint)
    with pytest.raises(UsageError, match="both say when samples come"):
        scenario_options("poisson", {"rate": 5, "arrivals": str(path)})
    with pytest.raises(UsageError, match="--queries 3 are more than the 2 arrivals"):
        scenario_options("poisson", {"queries": 3, "arrivals": str(path)})
    assert scenario_options("poisson", {"queries": 1, "arrivals": str(path)})["queries"] == 1


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [("0\nhello\n", 2, "is no time in seconds"), ("0\n0.1\n0.05\n", 3, "0.05 comes before 0.1")],
)
def test_arrivals_that_are_none_are_told_with_their_line(
    tmp_path: Path, text: str, line: int, why: str
) -> None:
    path = tmp_path / "arrivals.txt"
    path.write_text(text)
    with pytest.raises(UsageError, match=why) as raised:
        read_arrivals(path)
    assert raised.value.where == f"{path}:{line}"


def test_a_compliance_test_that_needs_the_accuracy_run_wants_it() -> None:
    check_compliance({"compliance": ["TEST04"]}, accuracy=False)
    check_compliance({"compliance": ["TEST01"]}, accuracy=True)
    with pytest.raises(UsageError, match="TEST01 compares"):
        check_compliance({"compliance": ["TEST01"]}, accuracy=False)


def chosen(*arguments: str) -> tuple[str, dict[str, Any]]:
    """Return what the command line makes of the options of a scenario."""
    found: list[tuple[str, dict[str, Any]]] = []
    command = click.command()(scenario_arguments(lambda **given: found.append(chosen_scenario(given))))
    command.main(list(arguments), standalone_mode=False)
    return found[0]


def test_what_is_said_on_the_command_line_is_newer_than_the_file_and_is_said_once(tmp_path: Path) -> None:
    path = tmp_path / "online.yml"
    path.write_text("scenario: online\nduration_s: 9\nwarmup: 1s\n")
    name, options = chosen("--scenario-file", str(path), "--duration", "2s")
    assert (name, options["duration_s"], options["warmup"]) == ("online", 2, 1)
    assert chosen("--scenario-file", str(path), "--set", "duration=3s")[1]["duration_s"] == 3
    for name in ("duration", "duration_s"):
        with pytest.raises(UsageError, match="is said twice"):
            chosen("--duration", "1s", "--set", f"{name}=500ms")
    path.write_text("scenario: onlin\n")
    with pytest.raises(UsageError, match="unknown scenario 'onlin'") as raised:
        chosen("--scenario-file", str(path))
    assert raised.value.where == str(path)
    assert str(raised.value.hint).startswith("did you mean online? one of: online, ")


def test_a_scenario_of_your_own_has_a_name_of_its_own_and_no_options_of_ours() -> None:
    assert chosen("--scenario", "plugin:bursts", "--set", "size=8") == ("bursts", {"size": "8"})
    for name, why in (("plugin:", "has no name"), ("plugin:online", "is a scenario of ours")):
        with pytest.raises(UsageError, match=why):
            chosen("--scenario", name)
    with pytest.raises(UsageError, match="--rate is an option of scenarios of ours") as raised:
        chosen("--scenario", "plugin:bursts", "--rate", "3")
    assert "--set rate=VALUE" in str(raised.value.hint)


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
