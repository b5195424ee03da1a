"""Every document that others may read is what its schema says, fresh from a run and as kept in `tests/golden`."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from support import ROOT, make_bundle

from mlbundle.resources import load_schema
from mlbundle.wire.events import event_from_document
from mlbundle.wire.job import job_from_document

GOLDEN = ROOT / "tests" / "golden"
HERE = ("--runtime", "process", "--python", sys.executable, "--duration", "700ms", "--warmup", "10ms")


def check(name: str, document: Any) -> None:
    import jsonschema

    validator = jsonschema.Draft202012Validator(load_schema(name))
    problems = [f"{e.json_path}: {e.message}" for e in validator.iter_errors(document)]
    assert problems == []


def test_the_documents_of_a_run(cli, home, tmp_path) -> None:
    record = cli("run", make_bundle(tmp_path / "mini"), *HERE, "--json").document()
    check("run", record)
    folder = home / "data" / "runs" / record["run_id"]
    check("job", json.loads((folder / "job.json").read_text()))
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert {"hello", "phase", "progress", "window", "result", "log", "end"} <= {e["kind"] for e in events}
    for event in events:
        check("event", event)


def test_the_documents_of_a_failed_run(cli, home, tmp_path) -> None:
    bundle = make_bundle(tmp_path / "raises", preprocess="raise RuntimeError('no')")
    check("error", cli("run", bundle, *HERE, "--trust", "--json").error(4, "worker-failed"))
    (folder,) = (home / "data" / "runs").iterdir()
    check("run", json.loads((folder / "record.json").read_text()))
    for line in (folder / "events.jsonl").read_text().splitlines():
        check("event", json.loads(line))


def test_what_the_doctor_says(cli) -> None:
    check("machine", cli("doctor", "--json").document())


@pytest.mark.parametrize("name", ["record-docker.json", "record-failed.json"])
def test_golden_records_are_still_read(name) -> None:
    check("run", json.loads((GOLDEN / name).read_text()))


def test_the_golden_job_is_still_read() -> None:
    document = json.loads((GOLDEN / "job.json").read_text())
    check("job", document)
    # Kept from before these were there: a job that does not say runs the framework's predictor on the CPU.
    written = json.loads(json.dumps(job_from_document(document).to_document()))
    assert written.pop("accelerator") == "cpu"
    assert written["model"].pop("predictor_file") is None
    assert written["limits"].pop("hang_timeout_s") == 120.0
    assert written == document


def test_golden_events_are_still_read() -> None:
    for line in (GOLDEN / "events.jsonl").read_text().splitlines():
        document = json.loads(line)
        check("event", document)
        event = event_from_document(document)
        assert event is not None
        assert event.to_document() == document
