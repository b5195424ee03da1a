"""From runs under LoadGen's scenarios to a tree of results for MLPerf Inference, open division.

    TREE/open/SUBMITTER/
        systems/SYSTEM.json         the system
        src/BENCHMARK/              how it was measured
        documentation/              the run records
        model_mapping.json          whose models ours stand for, where that is said
        results/SYSTEM/BENCHMARK/SCENARIO/
            performance/run_1/      LoadGen's files, untouched
            accuracy/               the same, accuracy.txt beside them, the accuracy log shortened as the rules want
            TEST01/                 a compliance test: performance/run_1/, accuracy/, and whether it was passed
            measurements.json user.conf README.md

A tree appears whole or not at all.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlbundle.errors import CheckFailed, UsageError
from mlbundle.files import storage_failed, sync_file_system, sync_folder
from mlbundle.runs.folder import JOB, RECORD
from mlbundle.runs.submission_benchmarks import official_name
from mlbundle.runs.submission_check import DRAFT, OPEN
from mlbundle.runs.submission_logs import (
    ACCURACY,
    DETAIL,
    SUMMARY,
    DetailLog,
    distinct_samples,
    file_sha256,
    read_detail,
    shortened,
)
from mlbundle.runs.submission_rules import (
    TESTS,
    accuracy_log_problems,
    answers_why_not,
    compliance_why_not,
    damage_of,
    not_in_suite,
    result_of,
    samples_asked,
    speed_why_not,
    suite_of,
    why_not,
)
from mlbundle.runs.submission_system import describe_measurement, describe_system, differing_facts
from mlbundle.wire.scenarios import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from mlbundle.config import Settings

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PERFORMANCE = "performance"
_AUDIT = "audit.config"
# What LoadGen was asked, under the names that its configuration files have for it: key -> (name, factor).
_USER_CONF = {
    "requested_single_stream_expected_latency_ns": ("target_latency", 1e-6),
    "requested_multi_stream_expected_latency_ns": ("target_latency", 1e-6),
    "requested_multi_stream_samples_per_query": ("samples_per_query", 1),
    "requested_server_target_qps": ("target_qps", 1),
    "requested_server_target_latency_ns": ("target_latency", 1e-6),
    "requested_offline_expected_qps": ("target_qps", 1),
    "requested_min_duration_ms": ("min_duration", 1),
    "requested_min_query_count": ("min_query_count", 1),
    "requested_performance_sample_count_override": ("performance_sample_count_override", 1),
}


@dataclass(frozen=True)
class Submission:
    """Who hands in what: names of folders, facts that only people know, and whose models ours stand for.

    `benchmarks` maps the name of a bundle to the model of MLPerf that it stands for; `details` are fields of the
    descriptions (see `submission_system`). Without a `system_type` it is the one whose suites have the scenarios.
    """

    submitter: str
    system_name: str
    status: str = "available"
    system_type: str | None = None
    benchmarks: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    """One run on its way into the tree; `reasons` are why it is no result."""

    folder: Path
    record: dict[str, Any]
    job: dict[str, Any]
    log: DetailLog
    reasons: tuple[str, ...] = ()

    @property
    def run_id(self) -> str:
        """The run."""
        return str(self.record["run_id"])

    @property
    def benchmark(self) -> str:
        """The bundle's name, as a folder is called."""
        return re.sub(r"[^A-Za-z0-9._-]+", "-", str(self.record["bundle"]["name"])).strip("-.").lower()

    @property
    def scenario(self) -> str:
        """LoadGen's name of the scenario."""
        return str(BY_NAME[self.record["scenario"]["name"]].loadgen)


def read_entry(settings: Settings, record: dict[str, Any]) -> Entry:
    """Return a run with its logs. Raises UsageError for one that is none of LoadGen's or lacks its logs."""
    run_id, scenario = record["run_id"], str(record["scenario"]["name"])
    spec = BY_NAME.get(scenario)
    if spec is None or spec.loadgen is None:
        wanted = ", ".join(spec.name for spec in BY_NAME.values() if spec.loadgen)
        raise UsageError(
            f"run {run_id} is of the scenario {scenario}: only LoadGen's results can be handed in",
            hint=f"run it again under one of {wanted}",
        )
    folder = settings.runs_dir / run_id
    for place in _wanted_files():
        if not (folder / place).is_file():
            accuracy = "; without --no-accuracy" if place.startswith("loadgen/accuracy") else ""
            raise UsageError(
                f"run {run_id} has no {place}", where=str(folder), hint=f"let it run to its end{accuracy}"
            )
    log = read_detail(folder / "loadgen" / _PERFORMANCE / DETAIL)
    if log.text("effective_scenario") != spec.loadgen:
        raise UsageError(
            f"the log of run {run_id} is of {log.text('effective_scenario') or 'no scenario'}, not {spec.loadgen}",
            where=str(folder),
        )
    # Much is known twice: from the logs, and from the record.
    reasons = tuple(dict.fromkeys(_why_not(folder, record, log)))
    return Entry(folder, record, _json(folder / JOB), log, reasons)


def write_submission(
    entries: Sequence[Entry], submission: Submission, tree: Path, *, allow_invalid: bool = False
) -> bool:
    """Write the tree of some runs of one system; returns whether it is a draft.

    Raises UsageError for runs that don't go together or names that can't be folders, CheckFailed for runs that are no
    results (unless `allow_invalid` makes that a draft), StorageFailed.
    """
    _check_together(entries, submission, tree)
    reasons = [f"{entry.run_id}: {reason}" for entry in entries for reason in entry.reasons]
    if reasons and not allow_invalid:
        raise CheckFailed(
            "these runs can't be handed in",
            context=reasons,
            hint="run without --quick and until LoadGen says VALID; --allow-invalid writes a draft all the same",
        )
    try:
        tree.parent.mkdir(parents=True, exist_ok=True)
        making = Path(tempfile.mkdtemp(prefix=f".{tree.name}.", dir=tree.parent))
        try:
            making.chmod(0o755)
            _Writer(making / OPEN / submission.submitter, submission, draft=bool(reasons)).write(entries)
            if reasons:
                _text(making / OPEN / submission.submitter / DRAFT, _draft(reasons))
            with suppress(FileNotFoundError):
                tree.rmdir()  # an empty folder may be there
            _sync(making)
            making.rename(tree)
        except BaseException:
            shutil.rmtree(making, ignore_errors=True)
            raise
        sync_folder(tree.parent)
    except OSError as error:
        raise storage_failed(error, tree) from error
    return bool(reasons)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_file_system(descriptor)
    finally:
        os.close(descriptor)


def _wanted_files() -> Iterator[str]:
    for name in (SUMMARY, DETAIL):
        yield f"loadgen/{_PERFORMANCE}/{name}"
    for name in (SUMMARY, DETAIL, ACCURACY):
        yield f"loadgen/accuracy/{name}"


def _why_not(folder: Path, record: Mapping[str, Any], log: DetailLog) -> Iterator[str]:
    """Yield why a run is no result: what its logs say, what we know beside them, and whatever the record says."""
    silent = True
    for reason in (*_why_not_by_itself(folder, record, log), *_by_the_record(record)):
        silent = False
        yield reason
    if silent and not record["validity"]["valid"]:
        yield "the record says that it is not valid"
    found = _loadgen(record)
    if silent and found.get("submission_valid") is False:
        yield from found.get("submission_reasons") or ["the record says that it is none to hand in"]


def _loadgen(record: Mapping[str, Any]) -> dict[str, Any]:
    return (record.get("result") or {}).get("loadgen") or {}


def _by_the_record(record: Mapping[str, Any]) -> Iterator[str]:
    yield from record["validity"]["reasons"]
    for test, found in (_loadgen(record).get("compliance") or {}).items():
        if not found["passed"]:
            yield f"{test} failed: {found['why']}"


def _why_not_by_itself(folder: Path, record: Mapping[str, Any], log: DetailLog) -> Iterator[str]:
    if record["status"] != "completed":
        yield f"the run is {record['status']}"
    if (record["scenario"].get("options") or {}).get("quick"):
        yield "it was a quick run"
    yield from why_not(log)
    found = record.get("accuracy")
    if not found:
        yield "its accuracy is not known"
    elif found.get("passed") is False:
        yield f"its accuracy is {found['value']:g}, the bundle claims {found.get('expected') or 0:g}"
    accuracy = read_detail(folder / "loadgen" / "accuracy" / DETAIL)
    yield from (f"LoadGen reports an error in the accuracy test: {error}" for error in accuracy.errors)
    yield from (f"in the accuracy test {problem}" for problem in damage_of(accuracy))
    wanted = samples_asked(accuracy)
    answered = distinct_samples(folder / "loadgen" / "accuracy" / ACCURACY)
    if wanted is None or answered != wanted:
        yield f"the accuracy test answered {answered} samples of {wanted or 'an unknown number'}"
    for problem in accuracy_log_problems(folder / "loadgen" / "accuracy" / ACCURACY):
        yield f"the accuracy log {problem}"
    yield from _compliance(folder, record, log)


def _compliance(folder: Path, record: Mapping[str, Any], log: DetailLog) -> Iterator[str]:
    logs, wanted = folder / "loadgen", (record["scenario"].get("options") or {}).get("compliance") or ()
    for test in TESTS:
        if (logs / test / DETAIL).is_file():
            scenario, answers = log.text("effective_scenario"), logs / "accuracy" / ACCURACY
            yield from (
                f"{test}: {problem}" for problem in compliance_why_not(logs / test, scenario, log, answers)
            )
        elif test in wanted:
            yield f"{test}: there is no log of it"


def _check_together(entries: Sequence[Entry], submission: Submission, tree: Path) -> None:
    for name, value in (("--submitter", submission.submitter), ("--system-name", submission.system_name)):
        if not _NAME.fullmatch(value):
            raise UsageError(
                f"{name}: {value!r} can't be the name of a folder", hint="letters, digits, `.`, `_` and `-`"
            )
    unknown = submission.benchmarks.keys() - {str(entry.record["bundle"]["name"]) for entry in entries}
    if unknown:
        raise UsageError(
            f"--benchmark: none of the runs is of {sorted(unknown)[0]!r}",
            hint="MODEL=BENCHMARK, MODEL as the bundle's name",
        )
    scenarios = [entry.scenario for entry in entries]
    chosen = submission.system_type
    if chosen is not None and (wrong := not_in_suite(chosen, scenarios)):
        raise UsageError(
            f"--system-type {chosen}: that suite has no {', '.join(wrong)}",
            hint=f"--system-type {suite_of(scenarios)}",
        )
    seen: dict[tuple[str, str], str] = {}
    for entry in entries:
        other = seen.setdefault((entry.benchmark, entry.scenario), entry.run_id)
        if other != entry.run_id:
            raise UsageError(
                f"runs {other} and {entry.run_id} are both {entry.scenario} of {entry.benchmark}",
                hint="name one of them",
            )
        if differing := differing_facts(entries[0].record, entry.record):
            what = ", ".join(differing)
            raise UsageError(
                f"runs {entries[0].run_id} and {entry.run_id} are not of one system: they differ in {what}",
                hint="one tree for each machine and framework; `mlbundle compare` shows what differs",
            )
    if tree.exists() and (not tree.is_dir() or any(tree.iterdir())):
        raise UsageError("there is something already", where=str(tree), hint="name a new folder with -o")


class _Writer:
    """Writes what one submitter hands in; `root` is the submitter's folder."""

    def __init__(self, root: Path, submission: Submission, *, draft: bool) -> None:
        self._root = root
        self._submission = submission
        self._draft = draft

    def write(self, entries: Sequence[Entry]) -> None:
        chosen = {
            "division": OPEN,
            "submitter": self._submission.submitter,
            "status": self._submission.status,
            "system_name": self._submission.system_name,
            "system_type": self._submission.system_type or suite_of(entry.scenario for entry in entries),
        }
        system = describe_system(entries[0].record, chosen, self._submission.details)
        _document(self._root / "systems" / f"{self._submission.system_name}.json", system)
        if self._submission.benchmarks:
            names = {str(entry.record["bundle"]["name"]): entry.benchmark for entry in entries}
            # The checker takes what stands here as it is: its own names, no aliases.
            mapping = {
                names[name]: official_name(model) for name, model in self._submission.benchmarks.items()
            }
            _document(self._root / "model_mapping.json", mapping)
        for benchmark in sorted({entry.benchmark for entry in entries}):
            _text(self._root / "src" / benchmark / "README.md", _source(entries[0]))
        _text(self._root / "documentation" / "README.md", _DOCUMENTATION)
        for entry in entries:
            self._write_entry(entry)

    def _write_entry(self, entry: Entry) -> None:
        place = Path(self._submission.system_name) / entry.benchmark / entry.scenario
        folder, logs = self._root / "results" / place, entry.folder / "loadgen"
        _copy_logs(logs / _PERFORMANCE, folder / _PERFORMANCE / "run_1")
        _copy_logs(logs / "accuracy", folder / "accuracy", without=ACCURACY)
        _bytes(folder / "accuracy" / ACCURACY, shortened(logs / "accuracy" / ACCURACY))
        _text(folder / "accuracy" / "accuracy.txt", _accuracy(entry))
        for test in TESTS:
            if (logs / test / DETAIL).is_file():
                _write_compliance(entry, test, folder / test)
        _document(folder / "measurements.json", describe_measurement(entry.job, self._submission.details))
        _text(folder / "user.conf", _user_conf(entry))
        _text(folder / "README.md", _readme(entry, draft=self._draft))
        for name in (RECORD, JOB):
            _copy(entry.folder / name, self._root / "documentation" / place / name)


def _write_compliance(entry: Entry, test: str, folder: Path) -> None:
    """Write a compliance test: its logs, what it was asked, and, as MLCommons' scripts do, whether it was passed."""
    logs = entry.folder / "loadgen"
    _copy_logs(logs / test, folder / _PERFORMANCE / "run_1", without=_AUDIT)
    if (logs / test / _AUDIT).is_file():
        _copy(logs / test / _AUDIT, folder / _AUDIT)
    log = read_detail(logs / test / DETAIL)
    (key, wanted), (_, found) = result_of(entry.scenario, entry.log), result_of(entry.scenario, log)
    speeds = [f"{key}: {wanted:.12g} in the performance test, {found:.12g} in {test}"]
    problems = speed_why_not(logs / test, entry.scenario, entry.log)
    _text(folder / "verify_performance.txt", _verdict(speeds, problems))
    if test == "TEST01":
        answers = logs / test / ACCURACY
        problems = answers_why_not(answers, logs / "accuracy" / ACCURACY)
        _text(folder / "verify_accuracy.txt", _verdict([], problems))
        if answers.is_file():
            _bytes(folder / "accuracy" / ACCURACY, shortened(answers))
            _text(folder / "accuracy" / "accuracy.txt", f"hash={file_sha256(answers)}\n")


def _verdict(facts: Sequence[str], problems: Iterable[str]) -> str:
    found = list(problems)
    return "\n".join([*facts, *found, "TEST FAIL" if found else "TEST PASS"]) + "\n"


def _copy_logs(source: Path, target: Path, *, without: str | None = None) -> None:
    for path in sorted(source.iterdir()):
        # LoadGen makes a file for its trace whether or not it writes one.
        if path.name != without and path.is_file() and not path.is_symlink() and path.stat().st_size:
            _copy(path, target / path.name)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target, follow_symlinks=False)
    target.chmod(0o644)


def _bytes(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _text(path: Path, text: str) -> None:
    _bytes(path, text.encode("utf-8", "replace"))


def _document(path: Path, document: Mapping[str, Any]) -> None:
    _text(path, json.dumps(document, indent=4) + "\n")


def _json(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        document = json.loads(path.read_bytes())
        if isinstance(document, dict):
            return document
    return {}


def _accuracy(entry: Entry) -> str:
    """Return accuracy.txt: the value as the official scripts print it, and the digest of the whole accuracy log."""
    found = entry.record.get("accuracy") or {}
    lines = []
    if found:
        value, samples = float(found["value"]), int(found["samples"])
        lines.append(f"accuracy={100 * value:.3f}%, good={round(value * samples)}, total={samples}")
        lines.append(f"metric={found['metric']}")
    lines.append(f"hash={file_sha256(entry.folder / 'loadgen' / 'accuracy' / ACCURACY)}")
    return "\n".join(lines) + "\n"


def _user_conf(entry: Entry) -> str:
    lines = [
        "# What LoadGen was asked, from its own detail log. Latencies and durations are in milliseconds."
    ]
    for key, (name, factor) in _USER_CONF.items():
        value = entry.log.number(key)
        if value:
            lines.append(f"{entry.benchmark}.{entry.scenario}.{name} = {value * factor:.12g}")
    return "\n".join(lines) + "\n"


def _draft(reasons: Sequence[str]) -> str:
    listed = "\n".join(f"- {reason}" for reason in reasons)
    return f"# A draft, not for submission\n\nThese runs are no results:\n\n{listed}\n"


def _readme(entry: Entry, *, draft: bool) -> str:
    record = entry.record
    bundle, image = record["bundle"], record.get("image")
    lines = [f"# {entry.benchmark}, {entry.scenario}", ""]
    if draft:
        lines += ["**A draft, not for submission.**", ""]
    if entry.reasons:
        lines += ["This run is no result:", "", *(f"- {reason}" for reason in entry.reasons), ""]
    lines += [
        f"- bundle: {bundle['name']}:{bundle['version']}",
        f"- its manifest: {bundle['manifest_digest']}",
        f"- all its files: {bundle['set_digest']}",
        f"- framework: {record['framework']['name']} {record['framework']['version']}",
        f"- runtime: {record['runtime']}, {record['isolation']}",
        f"- image: {image['ref']} {image['config_digest']}" if image else "- image: none",
        f"- mlbundle {record['mlbundle_version']}, run {entry.run_id}, {record['started_at']}",
        "",
        "To repeat it:",
        "",
        f"    {record['command'] or 'mlbundle run ' + bundle['name']}",
        "",
        "LoadGen's logs are as it wrote them; a long accuracy log is shortened as the rules want, its digest is in",
        "`accuracy/accuracy.txt`.",
        "",
    ]
    return "\n".join(lines)


def _source(entry: Entry) -> str:
    return (
        f"# Source\n\nMeasured with mlbundle {entry.record['mlbundle_version']}: `pip install "
        f"mlbundle=={entry.record['mlbundle_version']}`. The model, its pre- and post-processing and its data set are "
        "one bundle,\nwhose digest stands in the README.md of each result; `mlbundle verify` checks it byte by byte. "
        "The part that\nran beside LoadGen is the worker whose digest stands in `documentation/` (`record.json`, "
        "`worker`).\n"
    )


_DOCUMENTATION = (
    "# Documentation\n\nFor each result: `record.json`, what was run, where, how and what came out, and `job.json`, "
    "what the worker was asked.\n"
)
