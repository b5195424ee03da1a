"""The command line itself: speed of `--help`, errors, formats, settings, completion."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from support import ROOT

from mlbundle.cli.main import COMMANDS

HEAVY = (
    "rich",
    "textual",
    "docker",
    "jsonschema",
    "numpy",
    "requests",
    "yaml",
    "perfetto",
    "google.protobuf",
)


def test_help_imports_nothing_heavy() -> None:
    script = "import sys; from mlbundle.cli.main import _run; _run(['--help']); "
    script += f"sys.stderr.write(' '.join(m for m in {HEAVY!r} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert "run" in done.stdout


def test_the_library_never_imports_the_user_interface_or_the_worker(tmp_path) -> None:
    files = [path.relative_to(ROOT).with_suffix("") for path in (ROOT / "mlbundle").rglob("*.py")]
    modules = [
        ".".join(path.parts) for path in files if "worker" not in path.parts and path.name != "__init__"
    ]
    script = "import sys, importlib\n"
    script += f"for name in {modules!r}: importlib.import_module(name)\n"
    script += "print([m for m in sys.modules if m.startswith(('mlbundle_tui', 'mlbundle.worker'))])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_has_help_and_the_table_tells_the_truth(cli, name) -> None:
    outcome = cli(name, "--help")
    assert outcome.status == 0, outcome.stderr
    assert "Usage: mlbundle" in outcome.stdout


def test_an_unknown_command_says_what_was_meant(cli) -> None:
    outcome = cli("packk")
    assert outcome.status == 2
    assert "Did you mean 'pack'?" in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_an_unknown_option_is_a_json_error_under_json(cli) -> None:
    cli("run", "digits-cnn", "--speed", "fast", "--json").error(2, "usage")


@pytest.mark.parametrize(
    "option",
    [("--duration", "soon"), ("--duration", "0s"), ("--memory", "much"), ("--cpus", "a"), ("--threads", "0")],
)
def test_options_that_make_no_sense_exit_2(cli, option) -> None:
    cli("run", "digits-cnn", *option, "--json").error(2, "usage")


def test_cpus_that_do_not_exist_are_the_environments_fault(cli) -> None:
    here = ("--runtime", "process", "--python", sys.executable)
    error = cli("run", "digits-cnn", *here, "--cpus", "999", "--json").error(4, "worker-failed")
    assert error["fault"] == "environment"


def test_settings_say_where_they_come_from(cli, home, tmp_path) -> None:
    (home / "config").mkdir()
    (home / "config" / "mlbundle.toml").write_text("pids = 100\nmemory_bytes = 1000000000\n")
    (tmp_path / "mlbundle.toml").write_text("pids = 200\n")
    environment = {"MLBUNDLE_OUT_BYTES": "5"}
    shown = cli("config", "show", "--json", env=environment, cwd=tmp_path).document()["settings"]
    assert (shown["pids"]["value"], shown["pids"]["origin"]) == (200, "mlbundle.toml")
    assert shown["memory_bytes"]["value"] == 1_000_000_000
    assert (shown["out_bytes"]["value"], shown["out_bytes"]["origin"]) == (5, "MLBUNDLE_OUT_BYTES")
    assert shown["runtime"]["origin"] == "default"


@pytest.mark.parametrize("text", ["speed = 1\n", "pids = 'many'\n", "runtime = 'moon'\n", "pids ="])
def test_bad_settings_are_named_with_their_file(cli, tmp_path, text) -> None:
    (tmp_path / "mlbundle.toml").write_text(text)
    error = cli("config", "show", "--json", cwd=tmp_path).error(2, "usage")
    assert "mlbundle.toml" in error["where"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_printed(cli, shell) -> None:
    assert "_MLBUNDLE_COMPLETE" in cli("completion", shell).stdout


def test_completion_knows_commands_and_built_in_names(cli) -> None:
    environment = {
        "_MLBUNDLE_COMPLETE": "bash_complete",
        "COMP_WORDS": "mlbundle run digits-",
        "COMP_CWORD": "2",
    }
    assert "digits-cnn" in cli(env=environment).stdout


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("run digits-cnn --framework torch-", {"torch-export", "torch-code"}),
        ("run digits-cnn --compliance TEST01,", {"TEST01,TEST04"}),
        ("run digits-cnn --issue in", {"in-line"}),
    ],
)
def test_completion_knows_forms_and_choices(cli, words, wanted) -> None:
    environment = {
        "_MLBUNDLE_COMPLETE": "bash_complete",
        "COMP_WORDS": f"mlbundle {words}",
        "COMP_CWORD": "4",
    }
    assert {line.partition(",")[2] for line in cli(env=environment).stdout.splitlines()} == wanted


def test_each_shell_has_its_line_in_the_help_of_completion(cli) -> None:
    lines = cli("completion", "--help").stdout.splitlines()
    assert sum(line.strip().startswith(("bash:", "zsh:", "fish:")) for line in lines) == 3


@pytest.mark.parametrize("output_format", ["table", "json", "jsonl", "csv", "markdown"])
def test_lists_come_in_every_format(cli, output_format) -> None:
    outcome = cli("list", "--format", output_format)
    assert outcome.status == 0
    assert "digits-cnn" in outcome.stdout
    assert outcome.stderr == ""
    if output_format == "json":
        assert json.loads(outcome.stdout)["schema"] == "mlbundle/bundles/v1"
    if output_format == "jsonl":
        assert {"digits-cnn", "digits-png", "digits-code"} == {
            json.loads(line)["name"] for line in outcome.stdout.splitlines()
        }


def test_doctor_says_what_works_and_gives_a_hint_for_what_does_not(cli, tmp_path) -> None:
    away = {"DOCKER_HOST": f"unix://{tmp_path}/no.sock"}
    outcome = cli("doctor", "--json", env=away)
    document = outcome.document()
    assert outcome.status == 0
    assert "process" in document["runtimes"]
    for check in document["checks"]:
        assert check["state"] == "ok" or check["hint"], check
    engine = next(c for c in document["checks"] if c["name"] == "container engine")
    assert engine["state"] == "no"
    assert "runtimes ready: process" in cli("doctor", env=away).stdout


def test_a_reader_that_goes_away_is_no_error() -> None:
    from support import command_line

    command = " ".join(command_line("list")) + " | head -c 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_data_folder_that_can_not_be_written_is_named(cli, tmp_path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    cli("run", "digits-cnn", "--json", env={"MLBUNDLE_HOME": str(folder)}).error(3, "storage-failed")


def test_a_full_or_absent_data_folder_is_named(cli) -> None:
    cli("run", "digits-cnn", "--json", env={"MLBUNDLE_HOME": "/proc/nowhere"}).error(3, "storage-failed")


def test_no_module_outside_the_output_prints() -> None:
    import ast

    for path in (ROOT / "mlbundle").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                raise AssertionError(f"{path}:{node.lineno} prints")


@pytest.mark.parametrize("group", [(), ("runs",), ("sweep",)])
def test_a_command_that_is_missing_is_answered_with_plain_help(cli, group) -> None:
    outcome = cli(*group)
    assert (outcome.status, outcome.stdout) == (2, "")
    assert outcome.stderr.startswith("Usage: mlbundle")
    assert "Commands:" in outcome.stderr
    assert outcome.stderr.splitlines()[-1].startswith("hint: name a command")
    assert "error[" not in outcome.stderr


@pytest.mark.parametrize("group", ["runs", "trace", "images", "sweep"])
def test_the_help_of_groups_is_not_cut(cli, group) -> None:
    assert "..." not in cli(group, "--help").stdout.partition("Commands:")[2]


def test_the_shell_to_complete_for_is_the_users(cli) -> None:
    assert cli("completion", env={"SHELL": "/usr/bin/fish"}).stdout == cli("completion", "fish").stdout
    unknown = cli("completion", env={"SHELL": "/bin/tcsh"})
    assert unknown.status == 2
    assert "bash|zsh|fish" in unknown.stderr


def test_forms_of_built_in_models_are_listed(cli) -> None:
    (cnn,) = [b for b in cli("list", "--json").document()["bundles"] if b["name"] == "digits-cnn"]
    assert cnn["variants"][:2] == ["onnxruntime", "torch"]
    line = next(line for line in cli("list").stdout.splitlines() if line.startswith("digits-cnn"))
    assert " ".join(cnn["variants"]) in line
