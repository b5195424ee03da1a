"""Traces of other tools beside a run's, as a user puts them there; and traces that go to stdout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from datetime import datetime
from pathlib import Path

import pytest
from judge import TraceJudge
from support import Cli, command_line
from traced_run import TracedRun

from mlbundle.trace.stored import unpacked

COUNT = "select name, count(*) as n from slice where name in ('run', 'request', 'other') group by 1"


@pytest.fixture
def mine(cli: Cli, home: Path, traced: TracedRun) -> TracedRun:
    """The traced run in a home of its own."""
    shutil.copytree(traced.home, home, dirs_exist_ok=True)
    return TracedRun(home, traced.run_id)


def spans(path: Path, run: TracedRun, name: str, after_s: float = 0.0) -> Path:
    """Write a span of OpenTelemetry that begins so long after the run."""
    record = json.loads((run.folder / "record.json").read_text())
    begin = int((datetime.fromisoformat(record["started_at"]).timestamp() + after_s) * 1e9)
    span = {"name": name, "startTimeUnixNano": str(begin), "endTimeUnixNano": str(begin + 1000)}
    path.write_text(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}))
    return path


def test_what_was_imported_is_kept_and_opened_by_every_command(
    cli: Cli, mine: TracedRun, tmp_path: Path
) -> None:
    first = spans(tmp_path / "first.json", mine, "request")
    done = cli("trace", "import", first)
    assert "latest --imported` shows it" in done.stderr
    found = cli("trace", "query", "--imported", COUNT, "--format", "csv").stdout.splitlines()
    assert found[1:] == ["request,1", "run,1"]
    again = cli("trace", "import", "latest", spans(tmp_path / "o.json", mine, "other"), "--json")
    assert "--force" in again.error(2, "usage")["hint"]
    assert cli("trace", "export", "--imported", "-o", "a.pftrace.gz").status == 0
    imported = mine.folder / "trace-imported.pftrace.gz"
    assert (tmp_path / "a.pftrace.gz").read_bytes() == imported.read_bytes()
    assert cli("trace", "import", "latest", tmp_path / "o.json", "--force").status == 0
    with TraceJudge(imported) as trace:
        assert trace.losses() == {}
        assert {"other", "run"} <= {s.name for s in trace.slices()}
    refused = cli("trace", "export", "--imported", "--format", "chrome", "-o", "t.json", "--json")
    refused.error(2, "usage")
    assert not (tmp_path / "t.json").exists()


def test_its_file_is_compressed_by_its_name_and_never_written_over(
    cli: Cli, mine: TracedRun, tmp_path: Path
) -> None:
    found = spans(tmp_path / "s.json", mine, "request")
    assert cli("trace", "import", "latest", found, "-o", "both.pftrace").status == 0
    content = (tmp_path / "both.pftrace").read_bytes()
    assert content[:1] == b"\x0a"
    assert cli("trace", "query", "both.pftrace", COUNT, "--format", "csv").stdout.endswith("run,1\n")
    cli("trace", "import", "latest", found, "-o", "both.pftrace", "--json").error(2, "usage")
    own = mine.folder / "trace.pftrace.gz"
    before = own.read_bytes()
    cli("trace", "import", "latest", found, "-o", own, "--force", "--json").error(2, "usage")
    cli("trace", "import", "latest", found, "-o", "no/such/file", "--json").error(2, "usage")
    assert (tmp_path / "both.pftrace").read_bytes() == content
    assert own.read_bytes() == before


def test_what_is_of_another_time_or_kind_is_refused(cli: Cli, mine: TracedRun, tmp_path: Path) -> None:
    later = spans(tmp_path / "later.json", mine, "request", after_s=1e5)
    assert "went on" in cli("trace", "import", "latest", later, "--json").error(2, "usage")["message"]
    assert not (mine.folder / "trace-imported.pftrace.gz").exists()
    forced = cli("trace", "import", "latest", later, "--force", "-o", "l.gz")
    assert "nothing of" in forced.stderr
    wrong = cli("trace", "import", later, "--from", "kineto", "--json").error(2, "usage")
    assert "OpenTelemetry" in wrong["message"]
    for arguments in (["latest"], ["no.json"], ["latest", "no.json"]):
        cli("trace", "import", *arguments, "--json").error(2, "usage")
    missing = cli("trace", "query", "--imported", "select 1", "--json").error(2, "reference-not-found")
    assert "trace import" in missing["hint"]


def test_a_trace_goes_to_stdout(traced: TracedRun, cli: Cli, tmp_path: Path) -> None:
    def exported(*options: str) -> bytes:
        command = command_line("trace", "export", "-o", "-", *options)
        return subprocess.run(command, stdout=subprocess.PIPE, env={**os.environ, **traced.env}).stdout

    assert exported() == b"".join(unpacked(traced.folder / "trace.pftrace.gz"))
    assert json.loads(exported("--format", "chrome"))["traceEvents"]
    for options in (["--format", "csv"], ["--json"]):
        done = cli("trace", "export", "-o", "-", *options, env=traced.env)
        assert (done.status, (tmp_path / "-").exists()) == (2, False)
    cut = f"{' '.join(command_line('trace', 'export', '-o', '-', '--format', 'chrome'))} | head -c 9"
    done = subprocess.run(cut, shell=True, capture_output=True, env={**os.environ, **traced.env})
    assert (done.stdout, done.stderr) == (b'{"display', b""), "whoever has read enough hears no complaint"
