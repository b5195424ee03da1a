"""Workers that lie: whatever one says, the run ends with a typed error and a record, and nothing lands elsewhere."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support import make_bundle

from mlbundle.config import load_settings
from mlbundle.errors import (
    EnvironmentLacks,
    MlbundleError,
    ProtocolBroken,
    WorkerCrashed,
    WorkerExceeded,
    WorkerHung,
)
from mlbundle.runs.execute import Execution
from mlbundle.runs.plan import RunOptions, make_plan
from mlbundle.runs.scenarios import scenario_options
from mlbundle.runtime.archive import WorkerArchive

FAKE = """
import io, json, os, struct, sys
import numpy as np

def frame(kind, payload):
    os.write(1, struct.pack(">IB", len(payload), kind) + payload)

def event(**document):
    frame(2, json.dumps({{"protocol": 1, "t_ns": 1, **document}}).encode())

def file(name, content, size=None, end=True):
    frame(3, json.dumps({{"name": name, "size": len(content) if size is None else size}}).encode())
    for i in range(0, len(content), 1 << 20):
        frame(4, content[i : i + (1 << 20)])
    if end:
        frame(5, b"{{}}")

def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()

HELLO = dict(kind="hello", versions={{"python": "3"}}, clocks={{"monotonic": 1, "realtime": 1}}, facts={{"distributions": {{}}}})
PASS = dict(folder="passes/01-measure", kind="measure", headline=True, queries=100, samples=100, busy_ns=1000, traced_queries=0)
MEASURE = dict(passes=[PASS], loop_overhead_ns=1.0, warm_up_queries=1, warm_up_settled=True, peak_memory_bytes=1)

def passes(*changes):
    return {{**MEASURE, "passes": [{{**PASS, **change}} for change in changes]}}

ACCURACY = dict(metric="top1", value=1.0, samples=24, predictions_sha256="0" * 64, outputs_sha256="0" * 64)
LATENCIES = npy(np.full(100, 10, np.int64))

def greet():
    event(**HELLO)
    length = struct.unpack(">IB", sys.stdin.buffer.read(5))[0]
    sys.stdin.buffer.read(length)

def results(measure=MEASURE, accuracy=ACCURACY, latencies=LATENCIES):
    file("passes/01-measure/latencies.npy", latencies)
    event(kind="result", pass_kind="measure", values=measure)
    event(kind="result", pass_kind="accuracy", values=accuracy)

def end():
    event(kind="end", status="completed")

{body}
"""

HONEST = "greet(); results(); end()"

LIES = {
    "no hello": ("event(kind='end')", ProtocolBroken),
    "says nothing and leaves": ("", WorkerCrashed),
    "hello twice": ("greet(); event(**HELLO)", ProtocolBroken),
    "another protocol": (
        "frame(2, json.dumps({**HELLO, 'protocol': 9, 't_ns': 1}).encode())",
        ProtocolBroken,
    ),
    "rubbish": ("os.write(1, b'GET / HTTP/1.1' * 10)", ProtocolBroken),
    "a giant frame": ("os.write(1, struct.pack('>IB', 1 << 31, 2))", ProtocolBroken),
    "half a frame": ("greet(); os.write(1, struct.pack('>IB', 100, 2) + b'{')", ProtocolBroken),
    "an event that is a list": ("greet(); frame(2, b'[1]')", ProtocolBroken),
    "deep json": ("greet(); frame(2, b'[' * 100000)", ProtocolBroken),
    "a huge integer": (
        "greet(); frame(2, b'{\"protocol\": 1, \"t_ns\": ' + b'9' * 5000 + b'}')",
        ProtocolBroken,
    ),
    "a time that is text": ("greet(); event(kind='phase', name='load', t_ns='noon')", ProtocolBroken),
    "a phase that is a list": ("greet(); event(kind='phase', name=['load'])", ProtocolBroken),
    "a window of text": ("greet(); event(kind='window', throughput='fast')", ProtocolBroken),
    "a window of nan": ("greet(); event(kind='window', throughput=float('nan'))", ProtocolBroken),
    "values that are a list": (
        "greet(); event(kind='result', pass_kind='measure', values=[1])",
        ProtocolBroken,
    ),
    "distributions that are a number": (
        "HELLO['facts'] = {'distributions': 7}; greet(); results(); end()",
        ProtocolBroken,
    ),
    "a version that is a list": (
        "HELLO['facts'] = {'distributions': {'a': [1]}}; greet(); results(); end()",
        ProtocolBroken,
    ),
    "no result": ("greet(); end()", ProtocolBroken),
    "no accuracy": (
        "greet(); file('passes/01-measure/latencies.npy', LATENCIES)\nevent(kind='result', pass_kind='measure', values=MEASURE); end()",
        ProtocolBroken,
    ),
    "queries of text": ("greet(); results(measure=passes({'queries': 'many'})); end()", ProtocolBroken),
    "no passes": ("greet(); results(measure={**MEASURE, 'passes': []}); end()", ProtocolBroken),
    "passes of text": ("greet(); results(measure={**MEASURE, 'passes': ['one']}); end()", ProtocolBroken),
    "two headlines": (
        "greet(); results(measure=passes({}, {'folder': 'passes/02-measure'})); end()",
        ProtocolBroken,
    ),
    "no headline": ("greet(); results(measure=passes({'headline': False})); end()", ProtocolBroken),
    "one folder twice": ("greet(); results(measure=passes({}, {'headline': False})); end()", ProtocolBroken),
    "a folder elsewhere": (
        "greet(); results(measure=passes({'folder': '../../etc-measure'})); end()",
        ProtocolBroken,
    ),
    "a folder of another kind": (
        "greet(); results(measure=passes({'kind': 'batch'})); end()",
        ProtocolBroken,
    ),
    "a kind of one's own": (
        "greet(); results(measure=passes({'kind': 'x', 'folder': 'passes/01-x'})); end()",
        ProtocolBroken,
    ),
    "a folder that was not sent": (
        "greet(); results(measure=passes({'folder': 'passes/05-measure'})); end()",
        ProtocolBroken,
    ),
    "a repeat that nobody asked for": (
        "greet(); results(); event(kind='result', pass_kind='repeat:1', values=MEASURE); end()",
        ProtocolBroken,
    ),
    "infinite overhead": (
        "greet(); results(measure={**MEASURE, 'loop_overhead_ns': float('inf')}); end()",
        ProtocolBroken,
    ),
    "negative time": ("greet(); results(measure=passes({'busy_ns': -5})); end()", ProtocolBroken),
    "accuracy of nan": (
        "greet(); results(accuracy={**ACCURACY, 'value': float('nan')}); end()",
        ProtocolBroken,
    ),
    "a digest of text": (
        "greet(); results(accuracy={**ACCURACY, 'outputs_sha256': '\\x1b[31m'}); end()",
        ProtocolBroken,
    ),
    "fewer latencies": ("greet(); results(latencies=npy(np.ones(5, np.int64))); end()", ProtocolBroken),
    "floating latencies": ("greet(); results(latencies=npy(np.ones(100))); end()", ProtocolBroken),
    "negative latencies": ("greet(); results(latencies=npy(-np.ones(100, np.int64))); end()", ProtocolBroken),
    "pickled latencies": (
        "greet(); results(latencies=npy(np.array([object()] * 100))); end()",
        ProtocolBroken,
    ),
    "latencies of a lying size": (
        "head = npy(np.zeros(1, np.int64)).replace(b'(1,), }          ', b'(9999999999,), } '); greet(); results(latencies=head); end()",
        ProtocolBroken,
    ),
    "latencies with a nested header": (
        "head = b'\\x93NUMPY\\x01\\x00' + struct.pack('<H', 2000) + b'(' * 2000; greet(); results(latencies=head); end()",
        ProtocolBroken,
    ),
    "no array at all": ("greet(); results(latencies=b'hello'); end()", ProtocolBroken),
    "a path upwards": ("greet(); file('../../evil', b'x')", ProtocolBroken),
    "an absolute path": ("greet(); file('/tmp/mlbundle-evil', b'x')", ProtocolBroken),
    "the record": ("greet(); file('record.json', b'{}')", ProtocolBroken),
    "the owner's lock": ("greet(); file('owner.lock', b'')", ProtocolBroken),
    "a name with a line end": ("greet(); file('outputs.npz\\n', b'x')", ProtocolBroken),
    "the same file twice": ("greet(); file('outputs.npz', b'x'); file('outputs.npz', b'x')", ProtocolBroken),
    "longer than said": ("greet(); file('outputs.npz', b'xxxx', size=2)", ProtocolBroken),
    "shorter than said": ("greet(); file('outputs.npz', b'x', size=5)", ProtocolBroken),
    "a negative size": ("greet(); file('outputs.npz', b'', size=-1)", ProtocolBroken),
    "data without a file": ("greet(); frame(4, b'x')", ProtocolBroken),
    "a file in a file": (
        "greet(); file('outputs.npz', b'', size=9, end=False); file('passes/01-measure/spans.npz', b'')",
        ProtocolBroken,
    ),
    "a job to the host": ("greet(); frame(1, b'{}')", ProtocolBroken),
    "a file before hello": ("file('outputs.npz', b'x')", ProtocolBroken),
    "leaves in the middle of a file": (
        "greet(); file('outputs.npz', b'x', size=9, end=False)",
        WorkerCrashed,
    ),
    "too many bytes": ("greet(); file('outputs.npz', b'', size=1 << 40)", WorkerExceeded),
    "events without end": ("greet()\nwhile True: event(kind='log', message='x' * 60000)", WorkerExceeded),
    "a giant event": ("greet(); event(kind='log', message='x' * 1000000)", ProtocolBroken),
    "windows without end": ("greet()\nwhile True: event(kind='window')", WorkerExceeded),
    "a phase of its own": ("greet(); event(kind='phase', name='collect')", ProtocolBroken),
    "results without end": (
        "greet()\nwhile True: event(kind='result', pass_kind='x', values={})",
        ProtocolBroken,
    ),
    "the same result twice": ("greet(); results(); results()", ProtocolBroken),
    "a constant that is no json": (
        'greet(); frame(2, b\'{"protocol": 1, "kind": "log", "x": NaN}\')',
        ProtocolBroken,
    ),
    "half a character": (
        "HELLO['facts'] = {'distributions': {'onnxruntime': '\\ud800'}}; greet()",
        ProtocolBroken,
    ),
    "clocks that can not be": (
        "HELLO['clocks'] = {'monotonic': 2**63 - 1, 'realtime': -2**62}; greet()",
        ProtocolBroken,
    ),
    "latencies in a zip": (
        "b = io.BytesIO(); np.savez(b, a=np.ones(100)); greet(); results(latencies=b.getvalue()); end()",
        ProtocolBroken,
    ),
    "latencies in a broken zip": ("greet(); results(latencies=b'PK\\x03\\x04' * 9); end()", ProtocolBroken),
    "spans of a pass that is not ours": (
        "greet(); file('passes/100-measure/spans.npz', b'x')",
        ProtocolBroken,
    ),
    "a long name": ("greet(); file('x' * 3000000, b'x')", ProtocolBroken),
    "another framework": (
        "HELLO['facts'] = {'distributions': {'onnxruntime': '0.1'}}; greet(); end()",
        EnvironmentLacks,
    ),
    "says goodbye and fails": ("greet(); results(); end(); os._exit(139)", WorkerCrashed),
    "spans that are none": (
        "greet(); file('passes/01-measure/spans.npz', b'PK' * 100); results(); end()",
        MlbundleError,
    ),
}


SECOND = "event(kind='result', pass_kind='repeat:1', values={**MEASURE, 'passes': [{**PASS, 'folder': %r}]})"
BATCH = """greet(); file('passes/01-batch/latencies.npy', LATENCIES)
event(kind='result', pass_kind='measure', values={**MEASURE, 'search': {'ended': 'given'}, 'passes':
    [{**PASS, 'kind': 'batch', 'folder': 'passes/01-batch', 'batch_size': 4096, 'samples': 409600}]})
event(kind='result', pass_kind='accuracy', values=ACCURACY); end()"""
STREAM = """greet(); stage = {'name': 'x', 'items': 1, 'busy_ns': 1, 'starved_ns': 1, 'blocked_ns': 0}
results(measure=passes({'pipeline': {'batch_size': 1, 'threads': 3, 'stages': [stage]}})); end()"""
OTHER_THAN_ASKED = {
    "one process of three": ("greet(); results(); end()", "online", {"repeats": 3}),
    "two processes and one folder": (
        f"greet(); results(); {SECOND % 'passes/01-measure'}; end()",
        "online",
        {"repeats": 2},
    ),
    "faster than its slowest query": (
        "greet(); results(measure=passes({'busy_ns': 9})); end()",
        "online",
        {},
    ),
    "faster than its queries together": (
        "greet(); results(measure=passes({'busy_ns': 999})); end()",
        "online",
        {},
    ),
    "more samples than queries": (
        "greet(); results(measure=passes({'samples': 10**12})); end()",
        "online",
        {},
    ),
    "another number of queries": ("greet(); results(); end()", "online", {"queries": 5000}),
    "a size of batches that nobody asked for": (BATCH, "batched", {"batch-sizes": "1,2"}),
    "another number of samples": (STREAM, "pipeline", {"samples": 7}),
}


@pytest.fixture
def plan_with(tmp_path: Path):
    settings = load_settings()
    bundle = make_bundle(tmp_path / "mini")

    def make(body: str, scenario: str = "online", **given: Any):
        script = tmp_path / "worker-fake.py"
        script.write_text(FAKE.format(body=body))
        options = RunOptions(
            str(bundle),
            runtime="process",
            python=Path(sys.executable),
            hang_timeout_s=60.0,
            scenario=scenario,
            scenario_options=scenario_options(scenario, given),
        )
        plan = make_plan(options, settings)
        return dataclasses.replace(plan, worker=WorkerArchive(script, "0" * 64, "0")), settings

    return make


def test_an_honest_fake_is_believed(plan_with) -> None:
    plan, settings = plan_with(HONEST)
    execution = Execution(plan, settings)
    list(execution.events())
    assert execution.record is not None
    assert execution.record["status"] == "completed"
    assert execution.record["result"]["latency_ns"]["p50"] == 10


@pytest.mark.parametrize("name", sorted(LIES))
def test_a_lying_worker_ends_in_a_typed_error(plan_with, tmp_path, name) -> None:
    body, kind = LIES[name]
    plan, settings = plan_with(body)
    execution = Execution(plan, settings)
    with pytest.raises(kind) as caught:
        list(execution.events())
    assert caught.value.exit_code == (3 if kind is EnvironmentLacks else 4)
    assert len(str(caught.value)) < 5000
    assert caught.value.reference != "mlbundle-error", "an error that nobody foresaw"
    folder = settings.runs_dir / plan.run_id
    record = json.loads((folder / "record.json").read_text())
    assert record["status"] == "failed"
    assert not list(folder.rglob("*.part"))
    lines = (folder / "events.jsonl").read_text().splitlines()
    assert len(lines) < 10_000, "the number of events is limited, too"
    for line in lines:
        json.loads(line)
    assert not (settings.runs_dir.parent / "evil").exists()
    assert not Path("/tmp/mlbundle-evil").exists()
    assert sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) < 200 << 20


@pytest.mark.parametrize("name", sorted(OTHER_THAN_ASKED))
def test_what_was_not_asked_for_or_can_not_be_is_not_believed(plan_with, name) -> None:
    body, scenario, given = OTHER_THAN_ASKED[name]
    plan, settings = plan_with(body, scenario, **given)
    execution = Execution(plan, settings)
    with pytest.raises(ProtocolBroken, match=r"the worker's result lacks|without a result of repeat:1"):
        list(execution.events())
    assert execution.record is not None
    assert (execution.record["status"], execution.record["result"]) == ("failed", None)


def test_repeats_that_say_what_was_asked_are_believed(plan_with) -> None:
    sent = "file('passes/02-measure/latencies.npy', LATENCIES)"
    plan, settings = plan_with(
        f"greet(); results(); {sent}; {SECOND % 'passes/02-measure'}; end()", repeats=2
    )
    execution = Execution(plan, settings)
    list(execution.events())
    assert execution.record is not None
    assert execution.record["result"]["repeats"]["processes"] == 2


def test_control_characters_of_a_worker_do_not_reach_the_terminal(cli, tmp_path) -> None:
    code = "raise RuntimeError('\\x1b]0;owned\\x07\\x1b[31mred')"
    bundle = make_bundle(tmp_path / "colour", preprocess=code)
    options = ("--runtime", "process", "--python", sys.executable, "--trust")
    outcome = cli("run", bundle, *options)
    assert outcome.status == 4
    assert "owned" in outcome.stderr
    assert "\x1b" not in outcome.stderr + outcome.stdout


def test_a_worker_that_floods_stderr_does_not_hold_the_host(plan_with) -> None:
    plan, settings = plan_with("greet(); frame(2, b'[1]')\nwhile True: os.write(2, b'x' * 65536)")
    with pytest.raises(ProtocolBroken):
        list(Execution(plan, settings).events())


def test_a_worker_that_never_reads_its_job_is_given_up(plan_with, tmp_path, monkeypatch) -> None:
    plan, _ = plan_with("event(**HELLO)\nimport time\nwhile True: time.sleep(1)")
    monkeypatch.setenv("MLBUNDLE_START_TIMEOUT_S", "1")
    long = dataclasses.replace(plan.model, preprocess="x = 1\n" * 40_000)
    with pytest.raises(WorkerHung):
        list(Execution(dataclasses.replace(plan, model=long), load_settings()).events())


def test_a_damaged_index_does_not_spoil_a_run(cli, home, tmp_path) -> None:
    (home / "data").mkdir(parents=True)
    (home / "data" / "runs.sqlite").write_bytes(b"rubbish" * 1000)
    options = ("--runtime", "process", "--python", sys.executable, "--duration", "100ms")
    outcome = cli("run", make_bundle(tmp_path / "kept"), *options, "--json")
    assert outcome.document()["status"] == "completed"
    assert "the run is kept in its folder" in outcome.stderr
    (home / "data" / "runs.sqlite").unlink()
    rows = cli("runs", "list", "--json").document()["runs"]
    assert [row["run_id"] for row in rows] == [outcome.document()["run_id"]]


@pytest.mark.parametrize("content", ["5\n", "", "{not json\n", '{"message": 7}\n'])
def test_odd_folders_among_the_runs_are_passed_over_or_closed(cli, home, content) -> None:
    runs = home / "data" / "runs"
    (runs / "notes").mkdir(parents=True)
    left = runs / "20260101T000000Z-abcdef"
    left.mkdir()
    (left / "events.jsonl").write_text(content)
    foreign = runs / "20260101T000001Z-abcdef"
    foreign.mkdir()
    (foreign / "record.json").write_text('{"somebody": "else"}')
    rows = cli("runs", "list", "--json").document()["runs"]
    assert [(row["run_id"], row["status"]) for row in rows] == [(left.name, "partial")]
    assert not list((runs / "notes").iterdir())
