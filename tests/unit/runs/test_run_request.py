"""What a form asks a run for: checked field by field, and said as a command line that asks for the same."""

from __future__ import annotations

import shlex
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from support import make_bundle

from mlbundle.cli.run import command as run_command
from mlbundle.config import load_settings
from mlbundle.errors import UsageError
from mlbundle.runs.quantities import bytes_text, parse_bytes, parse_cpus, parse_duration_s
from mlbundle.runs.request import TOGETHER, RunRequest, default_text, explain_request, forms_of, range_text
from mlbundle.wire.scenarios import BY_NAME, SCENARIOS

DIGITS = RunRequest(reference="digits-cnn")


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        ({}, set()),
        ({"reference": "  "}, {"reference"}),
        ({"threads": "0", "cpus": "3-1", "memory": "much"}, {"threads", "cpus", "memory"}),
        ({"memory": "9" * 400}, {"memory"}),
        ({"options": {"duration": "3x", "repeats": "99"}}, {"scenario.duration", "scenario.repeats"}),
        ({"options": {"duration": "3s", "queries": "7"}}, {TOGETHER}),
        ({"scenario": "poisson"}, {TOGETHER}),
        (
            {"seed": "x", "timeout": "soon", "python": "~/nowhere", "ca_file": "\0"},
            {"seed", "timeout", "python", "ca_file"},
        ),
        ({"scenario": "plugin:"}, {"scenario"}),
        ({"scenario": "plugin:online", "own_options": "size"}, {"scenario", "own_options"}),
        ({"scenario": "plugin:bursts", "own_options": "size='10"}, {"own_options"}),
        ({"scenario": "plugin:bursts", "own_options": "size=10", "options": {"duration": "3x"}}, set()),
        ({"scenario": "poisson", "options": {"rate": "200"}}, set()),
        ({"options": {"rate": "nonsense that online does not have"}}, set()),
        ({"scenario": "single-stream", "options": {"compliance": "TEST01"}, "accuracy": False}, {TOGETHER}),
    ],
)
def test_each_field_says_what_is_wrong_with_it(change: dict[str, object], fields: set[str]) -> None:
    problems = replace(DIGITS, **change).problems()  # type: ignore[arg-type]
    assert set(problems) == fields
    assert all(problem.message and problem.hint for problem in problems.values())


def test_the_messages_are_those_of_the_command_line() -> None:
    request = replace(DIGITS, options={"duration": "3x"}, cpus="3-1", memory="much")
    problems = request.problems()
    for option, text in (("duration", "3x"), ("cpus", "3-1"), ("memory", "much")):
        problem = problems[option if option in problems else f"scenario.{option}"]
        outcome = CliRunner().invoke(run_command, ["digits-cnn", f"--{option}", text])
        said = outcome.output if outcome.exception is None else f"{outcome.output} {outcome.exception}"
        assert problem.message in said, (problem, said)


def test_the_command_line_asks_for_the_same(tmp_path: Path) -> None:
    settings = load_settings()
    certificates = tmp_path / "ca.pem"
    certificates.touch()
    request = RunRequest(
        reference=str(tmp_path / "a name with 'quotes'"),
        framework="torch",
        scenario="poisson",
        options={"find-peak": "yes", "target-latency": "5ms", "batch-sizes": "1,2"},
        runtime="process",
        threads="2",
        cpus="0-1",
        memory="1GiB",
        trace_level="full",
        accuracy=False,
        trust=True,
        architecture="arm64",
        seed="-7",
        timeout="90s",
        python=sys.executable,
        concurrent=True,
        plain_http=True,
        ca_file=str(certificates),
    )
    words = shlex.split(request.command_text(settings))
    assert words[:2] == ["mlbundle", "run"]
    assert words[2:] == request.arguments(settings)
    context = run_command.make_context("run", request.arguments(settings))
    assert context.params["reference"] == request.reference
    assert (context.params["framework"], context.params["runtime"]) == ("torch", "process")
    assert (context.params["threads"], context.params["cpus"]) == (2, (0, 1))
    assert (context.params["memory_bytes"], context.params["trace_level"]) == (1 << 30, "full")
    assert context.params["no_accuracy"]
    assert context.params["trust"]
    assert (context.params["architecture"], context.params["seed"]) == ("arm64", -7)
    assert (context.params["hang_timeout_s"], context.params["python"]) == (90, Path(sys.executable))
    assert (context.params["concurrent"], context.params["plain_http"]) == (True, True)
    assert context.params["ca_file"] == certificates
    options = request.run_options(settings)
    assert (options.architecture, options.seed, options.hang_timeout_s) == ("arm64", -7, 90)
    assert (options.python, options.concurrent) == (Path(sys.executable), True)
    assert options.network == (True, certificates)
    assert options.scenario_options is not None
    assert options.scenario_options["find_peak"] is True
    assert options.command == ("mlbundle", "run", *request.arguments(settings))


def test_a_scenario_of_ones_own_has_options_that_nobody_here_knows() -> None:
    settings = load_settings()
    request = replace(DIGITS, scenario="plugin:bursts", own_options="size=10 'name=two words'")
    assert request.command_text(settings) == (
        "mlbundle run digits-cnn --scenario plugin:bursts --set size=10 --set 'name=two words'"
    )
    options = request.run_options(settings)
    assert (options.scenario, options.scenario_options) == ("bursts", {"size": "10", "name": "two words"})


# Every run of a form is detached, its plan stands beside it, it is a scenario file that is filled in, and nothing is
# printed.
LEFT_OUT = {"--detach", "--dry-run", "--scenario-file", "--format", "--json"}


def test_every_option_of_the_command_line_can_be_asked_for() -> None:
    texts = {
        field.name: "x" if field.type == "str" else field.name != "accuracy"
        for field in fields(RunRequest)
        if field.type in {"str", "bool"}
    }
    everything = replace(DIGITS, **{**texts, "own_options": "a=1"})  # type: ignore[arg-type]
    asked = {"--scenario", "--runtime"}
    for name in [*BY_NAME, "plugin:own"]:
        spec = BY_NAME.get(name)
        options = {} if spec is None else {option.name: "1" for option in spec.options}
        asked |= {*replace(everything, scenario=name, options=options).arguments(load_settings())}
    known = {option for one in run_command.params for option in one.opts if option.startswith("--")}
    # --arch in full, and what every command has.
    known -= {"--architecture", "--verbose", "--quiet"}
    assert known - asked == LEFT_OUT


def test_what_is_the_default_is_not_said() -> None:
    settings = load_settings()
    assert RunRequest.of_settings(settings, "digits-cnn").command_text(settings) == "mlbundle run digits-cnn"
    assert RunRequest.of_settings(settings).command_text(settings) == ""


def test_a_bundle_whose_name_begins_like_an_option() -> None:
    arguments = replace(DIGITS, reference="--dry-run", threads="2").arguments(load_settings())
    context = run_command.make_context("run", arguments)
    assert (context.params["reference"], context.params["dry_run"]) == ("--dry-run", False)


def test_forms_of_what_is_here_and_of_what_is_not(tmp_path: Path) -> None:
    settings = load_settings()
    assert [form.name for form in forms_of(str(make_bundle(tmp_path / "mini")), settings)] == ["onnxruntime"]
    assert forms_of("oci://nowhere.invalid/a/b:1", settings) == ()


def test_nothing_is_fetched_to_explain() -> None:
    with pytest.raises(UsageError, match="not here yet"):
        explain_request(replace(DIGITS, reference="oci://nowhere.invalid/a/b:1"), load_settings())


def test_a_run_is_explained(tmp_path: Path) -> None:
    settings = load_settings()
    request = RunRequest(
        reference=str(make_bundle(tmp_path / "mini")), options={"queries": "7"}, runtime="process"
    )
    document = explain_request(request, settings)
    assert document["job"]["scenario"] == {
        "name": "online",
        "options": {"warmup": "auto", "repeats": 1, "queries": 7},
    }
    assert not settings.runs_dir.exists()


def test_every_option_has_its_default_in_words_that_it_takes() -> None:
    for spec in SCENARIOS:
        for option in spec.options:
            text = default_text(option)
            request = replace(DIGITS, scenario=spec.name, options={option.name: text})
            assert f"scenario.{option.name}" not in request.problems(), (spec.name, option.name, text)
    duration = BY_NAME["online"].option("duration")
    assert duration is not None
    assert (default_text(duration), range_text(duration)) == ("3s", "1ms to 86400s")


@given(st.text(max_size=20))
def test_any_text_is_a_quantity_or_is_refused(text: str) -> None:
    for parse in (parse_bytes, parse_duration_s, parse_cpus):
        hint = "none was needed"
        try:
            parse(text)
        except UsageError as error:
            hint = str(error.hint)
        assert hint


@given(st.integers(1, 1 << 50))
def test_sizes_are_written_as_they_are_read(size_bytes: int) -> None:
    assert parse_bytes(bytes_text(size_bytes)) == size_bytes
