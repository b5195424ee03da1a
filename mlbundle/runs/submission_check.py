"""Checks a tree of results for MLPerf Inference, open division: every rule that can be checked without its round.

Rules: MLCommons' inference submission rules, v6.1, and gates of our own where the official checker lets through what no
reader would believe: a result that LoadGen calls INVALID, an error in its log, a test that was shorter than it was to
be, samples without an answer. Of what depends on the official model, the sizes and the latency of a few models are
checked; the rest is for the official checker.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from mlbundle.errors import UsageError
from mlbundle.runs.submission_benchmarks import (
    SEED_NAMES,
    SEEDS,
    mapping_problems,
    model_of,
    unmet_accuracy,
    unmet_performance,
)
from mlbundle.runs.submission_logs import (
    ACCURACY,
    DETAIL,
    MOST_ACCURACY_BYTES,
    SUMMARY,
    DetailLog,
    distinct_samples,
    file_sha256,
    is_cut,
    read_detail,
)
from mlbundle.runs.submission_rules import (
    accuracy_log_problems,
    compliance_why_not,
    damage_of,
    not_in_suite,
    samples_asked,
    why_not,
)
from mlbundle.runs.submission_system import (
    MEASUREMENT_FIELDS,
    NOT_STATED,
    STATUSES,
    SYSTEM_FIELDS,
    SYSTEM_TYPES,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SCENARIOS = ("SingleStream", "MultiStream", "Server", "Offline")
OPEN = "open"
DRAFT = "DRAFT.md"
_TRACE = "mlperf_log_trace.json"
_PERFORMANCE_FILES = (SUMMARY, DETAIL)
_ACCURACY_FILES = (SUMMARY, DETAIL, ACCURACY, "accuracy.txt")
_MOST_FILE_BYTES = 50 << 20
_MOST_JSON_BYTES = 1 << 20
_MOST_FILES = 100_000
# The checker multiplies them.
_COUNTS = ("number_of_nodes", "accelerators_per_node")
# It adds these to one text.
_NOTES = ("hw_notes", "sw_notes")
_COUNT = re.compile(r"\d{1,9}")
_HASH = re.compile(r"^hash=([0-9a-f]{64})$", re.MULTILINE)
_TOTAL = re.compile(r"\btotal=(\d{1,12})\b")
_ACCURACY = re.compile(r"^[A-Za-z0-9 _-]+[=:]\s*[0-9.]+", re.MULTILINE)


@dataclass(frozen=True)
class Finding:
    """What is wrong with a place in the tree; warnings do not make it invalid."""

    place: str
    message: str
    severity: str = "error"
    hint: str | None = None

    def to_document(self) -> dict[str, Any]:
        """Return the finding as JSON-ready values."""
        return asdict(self)


def check_submission(tree: Path) -> list[Finding]:
    """Return everything that is wrong with a tree, in the order of its places. Raises UsageError when it is none."""
    if not tree.is_dir():
        raise UsageError(
            "there is no such folder", where=str(tree), hint="name the folder that holds `open/`"
        )
    return sorted(_Check(tree).run(), key=lambda finding: (finding.place, finding.severity, finding.message))


def results_of(tree: Path) -> list[tuple[str, str, str, str]]:
    """Return (submitter, system, benchmark, scenario) of every result in the open division of a tree."""
    found = [path for path in tree.glob(f"{OPEN}/*/results/*/*/*") if path.is_dir()]
    return sorted((path.parts[-5], path.parts[-3], path.parts[-2], path.parts[-1]) for path in found)


def rounds_of(tree: Path) -> list[str]:
    """Return the rounds of MLPerf whose seeds the results of a tree were measured with, as far as they are known."""
    logs = tree.glob(f"{OPEN}/*/results/*/*/*/performance/run_1/{DETAIL}")
    found = {_seeds_of(read_detail(path)) for path in logs}
    return [name for name, seeds in SEEDS.items() if seeds in found]


def _seeds_of(log: DetailLog) -> tuple[Any, ...]:
    return tuple(log.values.get(f"effective_{name}") for name in SEED_NAMES)


def _spelled(name: str, value: str) -> str:
    # The checker minds upper and lower case in this field alone.
    return value if name == "system_type" else value.lower()


def _beginning(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(_MOST_JSON_BYTES)


@dataclass(frozen=True)
class _Mapping:
    models: dict[str, Any]
    findings: list[Finding]


class _Check:
    def __init__(self, tree: Path) -> None:
        self._tree = tree
        self._seeds: dict[tuple[Any, ...], str] = {}

    def run(self) -> Iterator[Finding]:
        yield from self._files()
        yield from self._names()
        for division in self._folders(self._tree):
            if division.name == OPEN:
                for submitter in self._folders(division):
                    yield from self._submitter(submitter)
            else:
                yield self._at(division, "only the open division is checked", hint="put it under open/")
        if not results_of(self._tree):
            yield Finding(f"{OPEN}/", "there is no result: open/SUBMITTER/results/SYSTEM/BENCHMARK/SCENARIO")

    def _files(self) -> Iterator[Finding]:
        for number, path in enumerate(sorted(self._tree.rglob("*"))):
            if number >= _MOST_FILES:
                yield Finding("", f"more than {_MOST_FILES} files")
                return
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                yield self._at(path, "is neither a file nor a folder", hint="put the file itself there")
            elif path.is_file() and path.stat().st_size > _MOST_FILE_BYTES:
                yield self._at(path, f"has more than {_MOST_FILE_BYTES >> 20} MiB")
            elif path.name == DRAFT:
                yield self._at(path, "this is a draft, not for submission")

    def _names(self) -> Iterator[Finding]:
        for path in (*self._tree.iterdir(), *(self._tree / OPEN).glob("*")):
            if path.is_file() and (path.parent.name == OPEN or path.suffix not in {".md", ".pdf"}):
                yield self._at(path, "is outside of the submitter's folder")
        for path in (self._tree / OPEN).rglob("*"):
            if path.name.startswith(".") or " " in path.name or path.name == "__pycache__":
                yield self._at(
                    path, "can't be called that: no blank, no dot at the beginning, no __pycache__"
                )
            elif path.is_dir() and not path.is_symlink() and not any(path.iterdir()):
                yield self._at(path, "is an empty folder")

    def _submitter(self, folder: Path) -> Iterator[Finding]:
        for name in ("systems", "results", "src", "documentation"):
            if not (folder / name).is_dir():
                severity = "warning" if name == "documentation" else "error"
                yield self._at(folder / name, "is missing", severity=severity)
        mapping = self._mapping(folder / "model_mapping.json")
        yield from mapping.findings
        systems = {path.name for path in self._folders(folder / "results")}
        for path in self._folders(folder / "results"):
            yield from self._system(folder / "systems" / f"{path.name}.json", folder, path)
            for benchmark in self._folders(path):
                model = model_of(benchmark.name, mapping.models)
                if model is None:
                    yield self._at(
                        benchmark,
                        "stands for none of MLPerf's models: no name of theirs, and nothing in model_mapping.json",
                        hint="--benchmark when the tree is made",
                    )
                for scenario in self._folders(benchmark):
                    yield from self._result(scenario, model)
        for path in sorted((folder / "systems").glob("*.json")):
            if path.stem not in systems:
                yield self._at(path, "is a system without a result", severity="warning")

    def _mapping(self, path: Path) -> _Mapping:
        if not path.exists():
            return _Mapping({}, [])
        document = self._json(path)
        if not document or not all(isinstance(name, str) for name in document.values()):
            return _Mapping({}, [self._at(path, "is no JSON object from names to models of MLPerf")])
        problems = [
            self._at(path, problem, severity=severity) for severity, problem in mapping_problems(document)
        ]
        return _Mapping(document, problems)

    def _system(self, path: Path, submitter: Path, results: Path) -> Iterator[Finding]:
        if not path.is_file():
            yield self._at(path, "the description of the system is missing")
            return
        document = self._json(path)
        if document is None:
            yield self._at(path, "is no JSON object")
            return
        yield from self._fields(path, document)
        expected = {
            "submitter": (submitter.name.lower(),),
            "division": (OPEN,),
            "status": STATUSES,
            "system_type": (*SYSTEM_TYPES, "edge,datacenter"),
        }
        for name, values in expected.items():
            if name in document and (
                not isinstance(document[name], str) or _spelled(name, document[name]) not in values
            ):
                yield self._at(path, f"the field {name} is {document[name]!r}, not {' or '.join(values)}")
        scenarios = {path.name for path in results.glob("*/*") if path.name in SCENARIOS}
        system_type = str(document.get("system_type"))
        if system_type.lower() in expected["system_type"] and (wrong := not_in_suite(system_type, scenarios)):
            yield self._at(path, f"the field system_type is {system_type!r}, and there is {', '.join(wrong)}")

    def _fields(self, path: Path, document: dict[str, Any]) -> Iterator[Finding]:
        for name, meaningful in SYSTEM_FIELDS.items():
            if name not in document:
                yield self._at(path, f"the field {name} is missing")
            elif meaningful and not document[name]:
                yield self._at(
                    path, f"the field {name} says nothing", hint="N/A is an answer, so is the text 0"
                )
            elif document[name] == NOT_STATED:
                yield self._at(
                    path, f"the field {name} is not stated", severity="warning", hint="--details FILE"
                )
        for name in _COUNTS:
            if document.get(name) and not _COUNT.fullmatch(str(document[name])):
                yield self._at(path, f"the field {name} is {document[name]!r}, no whole number")
        for name in _NOTES:
            if not isinstance(document.get(name) or "", str):
                yield self._at(path, f"the field {name} is no text")
        if document.get("is_network") not in (None, ""):
            yield self._at(path, "the field is_network is of the network division")

    def _result(self, folder: Path, model: str | None) -> Iterator[Finding]:
        if folder.name not in SCENARIOS:
            yield self._at(folder, f"is no scenario; scenarios are {', '.join(SCENARIOS)}")
            return
        log = self._log(folder / "performance" / "run_1" / DETAIL)
        yield from self._performance(folder, log, model)
        yield from self._accuracy(folder, model)
        for name in ("user.conf", "README.md"):
            if not (folder / name).is_file() or (folder / name).stat().st_size == 0:
                yield self._at(folder / name, "is missing or empty")
        yield from self._measurements(folder / "measurements.json")
        for test in sorted(folder.glob("TEST*")):
            run = test / "performance" / "run_1"
            if not (run / DETAIL).is_file():
                yield self._at(test, f"has no performance/run_1/{DETAIL}")
                continue
            problems = compliance_why_not(run, folder.name, log, folder / "accuracy" / ACCURACY)
            yield from (self._at(test, problem) for problem in problems)

    def _log(self, path: Path) -> DetailLog:
        return read_detail(path) if path.is_file() else DetailLog()

    def _performance(self, folder: Path, log: DetailLog, model: str | None) -> Iterator[Finding]:
        run = folder / "performance" / "run_1"
        yield from self._present(run, _PERFORMANCE_FILES)
        yield from self._nothing_else(run, (*_PERFORMANCE_FILES, ACCURACY))
        if (run / DETAIL).is_file():
            yield from (self._at(run / DETAIL, reason) for reason in why_not(log))
            yield from (self._at(run / DETAIL, problem) for problem in unmet_performance(model, log))
            yield from self._of_the_same(folder, run / DETAIL, log)

    def _accuracy(self, folder: Path, model: str | None) -> Iterator[Finding]:
        run = folder / "accuracy"
        yield from self._present(run, _ACCURACY_FILES)
        yield from self._nothing_else(run, _ACCURACY_FILES)
        log = DetailLog()
        if (run / DETAIL).is_file():
            log = read_detail(run / DETAIL)
            if log.text("effective_test_mode") != "AccuracyOnly":
                yield self._at(run / DETAIL, f"LoadGen ran in the mode {log.text('effective_test_mode')}")
            yield from (self._at(run / DETAIL, f"LoadGen reports an error: {error}") for error in log.errors)
            yield from (self._at(run / DETAIL, problem) for problem in damage_of(log))
            yield from (
                self._at(run / DETAIL, problem) for problem in unmet_accuracy(model, samples_asked(log))
            )
            if samples_asked(log) is None:
                yield self._at(run / DETAIL, "the log does not say how many samples were answered")
            yield from self._of_the_same(folder, run / DETAIL, log)
        yield from self._accuracy_log(run, log)

    def _accuracy_log(self, run: Path, log: DetailLog) -> Iterator[Finding]:
        path, text = run / ACCURACY, ""
        if (run / "accuracy.txt").is_file():
            content = _beginning(run / "accuracy.txt")
            text = content.decode("utf-8", "replace")
            if text.encode() != content:
                yield self._at(run / "accuracy.txt", "is no UTF-8 text")
            if not _ACCURACY.search(text):
                yield self._at(run / "accuracy.txt", "holds no accuracy", hint="accuracy=76.5%")
            if not _HASH.search(text):
                yield self._at(
                    run / "accuracy.txt", f"holds no digest of the whole {ACCURACY}", hint="hash=…"
                )
        if not path.is_file():
            return
        if path.stat().st_size > MOST_ACCURACY_BYTES:
            yield self._at(path, f"is not shortened: more than {MOST_ACCURACY_BYTES >> 10} KiB")
        yield from (self._at(path, problem) for problem in accuracy_log_problems(path))
        wanted = samples_asked(log)
        total = _TOTAL.search(text)
        if total and wanted is not None and int(total[1]) != wanted:
            yield self._at(run / "accuracy.txt", f"is of {total[1]} samples, not of {wanted:.0f}")
        if is_cut(path):
            return  # the whole log is elsewhere
        if (digest := _HASH.search(text)) and digest[1] != file_sha256(path):
            yield self._at(path, "does not have the digest that accuracy.txt says")
        answered = distinct_samples(path)
        if wanted is not None and answered != wanted:
            yield self._at(path, f"has answers to {answered} samples of {wanted:.0f}")

    def _of_the_same(self, folder: Path, path: Path, log: DetailLog) -> Iterator[Finding]:
        scenario = log.text("effective_scenario")
        if scenario != folder.name:
            yield self._at(path, f"is a log of the scenario {scenario or 'unknown'}, not {folder.name}")
        seeds = _seeds_of(log)
        first = self._seeds.setdefault(seeds, self._place(path))
        if first != self._place(path):
            return
        if len(self._seeds) > 1:
            yield self._at(path, "has other seeds than the other logs: of another round, or chosen")
        elif seeds not in SEEDS.values():
            known = ", ".join(SEEDS)
            yield self._at(
                path, f"has the seeds of no round that is known here ({known})", severity="warning"
            )

    def _measurements(self, path: Path) -> Iterator[Finding]:
        document = self._json(path) if path.is_file() else None
        if document is None:
            yield self._at(path, "is missing or no JSON object")
            return
        for name in MEASUREMENT_FIELDS:
            if not document.get(name):
                yield self._at(path, f"the field {name} is missing or says nothing")
            elif document[name] == NOT_STATED:
                yield self._at(
                    path, f"the field {name} is not stated", severity="warning", hint="--details FILE"
                )

    def _present(self, folder: Path, names: tuple[str, ...]) -> Iterator[Finding]:
        for name in names:
            if not (folder / name).is_file():
                yield self._at(folder / name, "is missing")

    def _nothing_else(self, folder: Path, names: tuple[str, ...]) -> Iterator[Finding]:
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.is_file() and path.name not in {*names, _TRACE}:
                yield self._at(path, "does not belong there", severity="warning")

    def _json(self, path: Path) -> dict[str, Any] | None:
        try:
            if path.stat().st_size > _MOST_JSON_BYTES:
                return None
            document = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        return document if isinstance(document, dict) else None

    def _folders(self, folder: Path) -> list[Path]:
        found = sorted(folder.iterdir()) if folder.is_dir() else []
        return [path for path in found if path.is_dir() and not path.is_symlink() and path.name[0] != "."]

    def _place(self, path: Path) -> str:
        return str(path.relative_to(self._tree))

    def _at(self, path: Path, message: str, *, severity: str = "error", hint: str | None = None) -> Finding:
        return Finding(self._place(path), message, severity, hint)
