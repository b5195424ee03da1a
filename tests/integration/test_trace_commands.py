"""`mlbundle trace query`, `export` and `open` as a user meets them."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import signal
import stat
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest
from support import Cli, Outcome, command_line
from traced_run import TracedRun

SLOWEST = "select name, dur from slice where name = 'run'"
# What `trace open` says last, before it waits: without and with --keep.
WAITS = ("waiting for the trace to be taken; Ctrl-C gives up\n", "serving until Ctrl-C\n")
Ask = Callable[..., Outcome]


@pytest.fixture
def ask(cli: Cli, traced: TracedRun) -> Ask:
    """A command of `mlbundle trace` in the home with the traced run."""

    def run(command: str, *arguments: str | Path, **env: str) -> Outcome:
        return cli("trace", command, *arguments, env={**traced.env, **env})

    return run


@pytest.fixture
def damaged(traced: TracedRun, tmp_path: Path) -> tuple[Path, str]:
    """A home of its own with the same run, its trace cut short."""
    home = tmp_path / "damaged"
    shutil.copytree(traced.home, home)
    trace = home / "data" / "runs" / traced.run_id / "trace.pftrace.gz"
    trace.write_bytes(trace.read_bytes()[:-100])
    return home, traced.run_id


class Opened:
    """A running `mlbundle trace open` and its link."""

    def __init__(self, traced: TracedRun, *options: str, **env: str) -> None:
        clean = {k: v for k, v in os.environ.items() if k not in {"SSH_CONNECTION", "BROWSER", "DISPLAY"}}
        self.process = subprocess.Popen(
            command_line("trace", "open", *options),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**clean, **traced.env, **env},
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.link = self.process.stdout.readline().strip()
        self.said = ""
        while (line := self.process.stderr.readline()) and line not in WAITS:
            self.said += line

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def get(self, path: str = "", data: bytes | None = None) -> bytes:
        with urllib.request.urlopen(self.link + path, data=data, timeout=60) as answer:
            content = answer.read()
            assert isinstance(content, bytes)
            return content

    def end(self, number: int | None = None) -> tuple[int, str]:
        """Wait for the end, after a signal if one is given; returns status and the rest of stderr."""
        if number is not None:
            self.process.send_signal(number)
        _, stderr = self.process.communicate(timeout=60)
        return self.process.returncode, stderr


def test_a_query_in_every_format(ask: Ask, traced: TracedRun, tmp_path: Path) -> None:
    table = ask("query", "latest", SLOWEST).stdout.splitlines()
    assert [line.split()[0] for line in table] == ["name", "run"]
    document = ask("query", traced.run_id[:10], SLOWEST, "--json").document()
    assert document["schema"] == "mlbundle/trace-query/v1"
    assert document["columns"] == ["name", "dur"]
    (row,) = document["rows"]
    assert row["dur"] == int(table[1].split()[1])
    (tmp_path / "q.sql").write_text(f"select 1;\n-- the last one counts\n{SLOWEST};\n")
    found = ask("query", "latest", "--file", tmp_path / "q.sql", "--format", "csv").stdout
    assert list(csv.DictReader(io.StringIO(found))) == [{"name": "run", "dur": str(row["dur"])}]
    assert ask("query", SLOWEST, "--json").document()["rows"] == [row], "the latest run is meant"
    trace = traced.folder / "trace.pftrace.gz"
    assert ask("query", trace, SLOWEST, "--json").document()["rows"] == [row]


def test_questions_that_make_no_sense_are_refused(ask: Ask, tmp_path: Path) -> None:
    wrong = ask("query", "latest", "select nme from slice", "--json").error(2, "usage")
    assert wrong["message"] == "no such column: nme"
    assert wrong["hint"] == "there is: name"
    assert any("nme" in line for line in wrong["context"])
    (tmp_path / "q.sql").write_bytes(b"select '\xff'")
    for arguments in (
        [],
        ["latest"],
        ["latest", "select", "1"],
        ["latest", "select 1", "--file", "-"],
        ["latest", " "],
        ["latest", "--file", "q.sql"],
    ):
        ask("query", *arguments, "--json").error(2, "usage")
    ask("query", "20", "select 1", "--timeout", "0", "--json").error(2, "usage")
    ask("query", "nosuchrun", "select 1", "--json").error(2, "reference-not-found")


def test_ctrl_c_ends_a_query_at_once(traced: TracedRun, tmp_path: Path) -> None:
    endless = "with recursive n(i) as (select 1 union all select i + 1 from n) select count(*) from n"
    began = tmp_path / "began"
    node = tmp_path / "node"
    node.write_text(f'#!/bin/sh\ntouch {began}\nexec {shutil.which("node")} "$@"\n')
    node.chmod(0o755)
    env = {**os.environ, **traced.env, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    process = subprocess.Popen(
        command_line("trace", "query", "latest", endless, "--timeout", "10m"),
        stderr=subprocess.PIPE,
        text=True,
        env=env,
    )
    deadline = time.monotonic() + 60
    while not began.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)  # the answer never comes
    assert process.returncode == 130
    assert "Traceback" not in stderr


def test_without_a_processor_it_is_said_what_to_install(ask: Ask, tmp_path: Path) -> None:
    missing = ask("query", "latest", "select 1", "--json", PATH=str(tmp_path)).error(3, "tool-missing")
    assert "Node.js" in missing["hint"]


def test_a_run_without_a_trace_says_how_to_get_one(ask: Ask, traced: TracedRun, tmp_path: Path) -> None:
    home = tmp_path / "untraced"
    shutil.copytree(traced.home, home)
    (home / "data" / "runs" / traced.run_id / "trace.pftrace.gz").unlink()
    for command in (["query", "latest", "select 1"], ["export", "latest", "-o", "x"]):
        error = ask(*command, "--json", MLBUNDLE_HOME=str(home)).error(2, "reference-not-found")
        assert "--trace model" in error["hint"]
    shown = ask("open", "latest", MLBUNDLE_HOME=str(home))
    assert shown.status == 2
    assert "--trace model" in shown.stderr
    assert not (tmp_path / "x").exists()


def test_a_damaged_trace_is_told_by_every_command(
    ask: Ask, damaged: tuple[Path, str], tmp_path: Path
) -> None:
    home, run = damaged
    for command in (["query", run, "select 1"], ["export", run, "-o", "x.gz"], ["export", run, "-o", "x"]):
        error = ask(*command, "--json", MLBUNDLE_HOME=str(home)).error(5, "integrity")
        assert "cut short" in error["message"]
    shown = ask("open", run, "--no-browser", MLBUNDLE_HOME=str(home))
    assert (shown.status, shown.stdout) == (5, "")
    assert list(tmp_path.glob("x*")) == []


def test_a_run_that_broke_off_before_its_record_can_be_asked(
    ask: Ask, traced: TracedRun, tmp_path: Path
) -> None:
    home = tmp_path / "broken-off"
    shutil.copytree(traced.home, home)
    shutil.copytree(
        home / "data" / "runs" / traced.run_id, home / "data" / "runs" / "20990101T000000Z-abcdef"
    )
    (home / "data" / "runs" / "20990101T000000Z-abcdef" / "record.json").unlink()
    found = ask("query", "2099", "select 1 as one", "--json", MLBUNDLE_HOME=str(home)).document()
    assert found["rows"] == [{"one": 1}]


def test_exports_of_a_real_run(ask: Ask, traced: TracedRun, tmp_path: Path) -> None:
    document = ask("export", "latest", "--format", "csv", "-o", "tables", "--json").document()
    rows = {Path(file["path"]).name: file["rows"] for file in document["files"]}
    assert {"spans.csv", "counters.csv"} <= set(rows)
    assert len((tmp_path / "tables" / "spans.csv").read_text().splitlines()) == rows["spans.csv"] + 1
    ask("export", "latest", "--format", "chrome", "-o", "t.json")
    slices = [e for e in json.loads((tmp_path / "t.json").read_text())["traceEvents"] if e["ph"] == "X"]
    assert len(slices) == rows["spans.csv"]
    first = ask("export", "latest", "-o", "t.pftrace.gz")
    assert "t.pftrace.gz" in first.stdout
    assert (tmp_path / "t.pftrace.gz").read_bytes() == (traced.folder / "trace.pftrace.gz").read_bytes()
    again = ask("export", "latest", "-o", "t.pftrace.gz", "--json").error(2, "usage")
    assert "--force" in again["hint"]
    assert ask("export", "latest", "-o", "t.pftrace.gz", "--force").status == 0


def test_open_serves_until_the_trace_was_taken(traced: TracedRun) -> None:
    with Opened(traced, "--no-browser") as opened:
        assert b"digits-png" in opened.get()
        trace = opened.get(f"{traced.run_id}.pftrace.gz")
        assert trace == (traced.folder / "trace.pftrace.gz").read_bytes()
        assert opened.process.poll() is None
        opened.get("taken", data=b"")
        assert opened.end()[0] == 0
        assert str(traced.folder) in opened.said


@pytest.mark.parametrize(
    ("options", "taken", "number", "status"),
    [
        ((), False, signal.SIGINT, 130),
        (("--keep",), False, signal.SIGINT, 0),
        (("--keep",), True, signal.SIGTERM, 0),
        (("--offline",), False, signal.SIGINT, 0),
    ],
)
def test_ctrl_c_ends_it_quietly(
    traced: TracedRun, options: tuple[str, ...], taken: bool, number: int, status: int
) -> None:
    with Opened(traced, "--no-browser", *options) as opened:
        opened.get()
        if taken:
            opened.get("taken", data=b"")
            assert opened.get(), "it still serves"
        done, stderr = opened.end(number)
        assert done == status
        assert "rror" not in stderr
        assert "Traceback" not in stderr


def test_over_ssh_no_browser_is_opened_and_the_way_is_shown(traced: TracedRun, tmp_path: Path) -> None:
    ssh = {"SSH_CONNECTION": "192.0.2.1 50000 192.0.2.7 22", "DISPLAY": ":0"}
    with Opened(traced, **ssh) as opened:
        port = opened.link.split("/")[2].partition(":")[2]
        assert f"ssh -N -L {port}:127.0.0.1:{port}" in opened.said
        assert "192.0.2.7" in opened.said
        assert str(traced.folder / "trace.pftrace.gz") in opened.said


def test_the_browser_that_is_named_gets_the_link(traced: TracedRun, tmp_path: Path) -> None:
    browser = tmp_path / "browser"
    browser.write_text(
        f'#!/bin/sh\necho "$1" >{tmp_path}/opened.new && mv {tmp_path}/opened.new {tmp_path}/opened\n'
    )
    browser.chmod(browser.stat().st_mode | stat.S_IXUSR)
    with Opened(traced, "--keep", BROWSER=str(browser)) as opened:
        opened.get()
    assert "opened in a browser" in opened.said
    assert (tmp_path / "opened").read_text().strip() == opened.link


def test_a_port_that_is_taken_and_options_that_exclude_each_other(ask: Ask, traced: TracedRun) -> None:
    with Opened(traced, "--no-browser") as opened:
        port = opened.link.split("/")[2].partition(":")[2]
        refused = ask("open", "--no-browser", "--port", port)
    assert refused.status == 3
    assert f"port {port} is taken" in refused.stderr
    for options in (
        ["--offline", "--url"],
        ["--offline", "--ui", "https://a"],
        ["--ui", "nonsense"],
        ["--port", "0"],
    ):
        assert ask("open", *options).status == 2, options


def test_runs_are_completed_and_help_says_what_is_needed(cli: Cli, traced: TracedRun) -> None:
    program = shutil.which("mlbundle", path=f"{Path(command_line()[0]).parent}:{os.environ['PATH']}")

    def completed(begun: str, shell: str) -> str:
        words = {
            "COMP_WORDS": f"mlbundle trace query {begun}",
            "COMP_CWORD": "3" if shell == "bash" else begun,
            "_MLBUNDLE_COMPLETE": f"{shell}_complete",
        }
        env = {**os.environ, **traced.env, **words}
        return subprocess.run([program or "mlbundle"], capture_output=True, text=True, env=env).stdout

    assert traced.run_id in completed("20", "bash")
    assert "latest" not in completed("20", "bash")
    assert "digits-png onnxruntime" in completed("la", "fish")
    helped = cli("trace", "query", "--help").stdout
    assert "mlbundle[trace]" in helped
    assert "MLBUNDLE_TRACE_PROCESSOR" in helped
    assert {"open", "query", "export", "summary"} <= set(cli("trace", "--help").stdout.split())
