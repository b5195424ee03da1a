"""The scenarios that we know and their options: what a user may ask for, and what a job then says.

A scenario of somebody else (an entry point in the image or in a plug-in) has no entry here; its options go to it as
they are written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SECONDS = "seconds"
COUNT = "count"
COUNTS = "counts"
NUMBER = "number"
FLAG = "flag"
FILE = "file"
WARM_UP = "warm-up"
NAMES = "names"
CHOICE = "choice"
"""Kinds of values. `file` is one that the host reads, `warm-up` 'auto' or seconds, `counts` and `names` are lists."""


@dataclass(frozen=True)
class Option:
    """One option: `name` as users write it, `key` as the job has it, with its unit."""

    name: str
    key: str
    kind: str
    help: str
    default: Any = None
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class ScenarioSpec:
    """A scenario: its options, and how LoadGen calls it if it is one of LoadGen's."""

    name: str
    summary: str
    options: tuple[Option, ...]
    loadgen: str | None = None

    def option(self, name: str) -> Option | None:
        """Return the option that users write as `name`."""
        return next((option for option in self.options if option.name == name), None)

    def defaults(self) -> dict[str, Any]:
        """Return the keys and values of a job whose user said nothing."""
        return {option.key: option.default for option in self.options if option.default is not None}


_DAY_S = 86_400.0
_MOST_QUERIES = 10**9


def _duration(default: float, help_text: str = "How long to measure.") -> Option:
    return Option("duration", "duration_s", SECONDS, help_text, default, least=0.001, most=_DAY_S)


def _queries(help_text: str, name: str = "queries") -> Option:
    return Option(name, name, COUNT, help_text, least=1, most=_MOST_QUERIES)


_QUERIES = _queries("Measure this many queries instead of a duration.")
_WARM_UP = Option(
    "warmup", "warmup", WARM_UP, "`auto` (until it settles) or a duration.", "auto", least=0, most=_DAY_S
)
_REPEATS = Option(
    "repeats",
    "repeats",
    COUNT,
    "Measure this often, each time in a new process; the result then has an interval.",
    1,
    least=1,
    most=32,
)
_TARGET = Option(
    "target-latency",
    "target_latency_s",
    SECONDS,
    "The latency that queries must keep to; what does counts as goodput.",
    least=1e-6,
    most=_DAY_S,
)
_QUICK = Option(
    "quick", "quick", FLAG, "A few seconds instead of the official minimum; not valid for a submission."
)
_COMPLIANCE = Option(
    "compliance", "compliance", NAMES, "Run these compliance tests as well.", choices=("TEST01", "TEST04")
)
_MIN_DURATION = Option(
    "duration", "duration_s", SECONDS, "At least this long.  [official: 10m]", least=0.1, most=_DAY_S
)
_MIN_QUERIES = _queries("At least this many queries, however long they take.  [official]")


def _token_limit(name: str, what: str) -> Option:
    text = "The {} that answers must keep to, of models that generate.  [LoadGen: 100ms]".format(what)
    return Option(name + "-latency", name + "_latency_s", SECONDS, text, least=1e-6, most=_DAY_S)


_LOADGEN = (_MIN_DURATION, _MIN_QUERIES, _QUICK, _COMPLIANCE)

SCENARIOS: tuple[ScenarioSpec, ...] = (
    ScenarioSpec(
        "online",
        "one sample at a time, the next when the answer is there",
        (_duration(3.0), _QUERIES, _WARM_UP, _REPEATS),
    ),
    ScenarioSpec(
        "batched",
        "batches of growing size, the next when the answer is there",
        (
            Option(
                "batch-sizes",
                "batch_sizes",
                COUNTS,
                "Sizes to try.  [doubling until the throughput no longer grows]",
                least=1,
                most=65_536,
            ),
            _duration(1.0, "How long to measure each size."),
            _queries("Batches of each size instead of a duration."),
            _WARM_UP,
        ),
    ),
    ScenarioSpec(
        "poisson",
        "samples that arrive at random, whether or not the ones before are answered",
        (
            Option("rate", "rate_per_s", NUMBER, "Samples a second.", least=1e-3, most=1e7),
            Option(
                "arrivals",
                "arrivals",
                FILE,
                "Replay these arrivals instead: a file with one time in seconds a line, in rising order.",
            ),
            _duration(10.0),
            _queries("Measure this many arrivals instead of a duration."),
            _WARM_UP,
            _REPEATS,
            _TARGET,
            Option(
                "percentile",
                "percentile",
                NUMBER,
                "The percentile that must keep to the target latency.",
                99.0,
                least=50,
                most=99.99,
            ),
            Option("find-peak", "find_peak", FLAG, "Find the highest rate that keeps to the target latency."),
        ),
    ),
    ScenarioSpec(
        "pipeline",
        "files in, predictions out: every operator at work at the same time",
        (
            _duration(5.0),
            _queries("This many samples instead of a duration.", "samples"),
            Option("batch-size", "batch_size", COUNT, "Samples a batch.", 1, least=1, most=65_536),
        ),
    ),
    ScenarioSpec(
        "cold-start",
        "from the start of a process to its first answer, several times",
        (Option("repeats", "repeats", COUNT, "How often, each time in a new process.", 5, least=1, most=32),),
    ),
    ScenarioSpec("single-stream", "MLPerf LoadGen: SingleStream", (*_LOADGEN,), "SingleStream"),
    ScenarioSpec(
        "multi-stream",
        "MLPerf LoadGen: MultiStream, 8 samples a query",
        (
            *_LOADGEN,
            Option(
                "samples-per-query", "samples_per_query", COUNT, "Samples a query.", 8, least=1, most=1024
            ),
        ),
        "MultiStream",
    ),
    ScenarioSpec(
        "server",
        "MLPerf LoadGen: Server, arrivals at random",
        (
            *_LOADGEN,
            Option("rate", "rate_per_s", NUMBER, "Queries a second.  [from a pilot]", least=1e-3, most=1e7),
            _TARGET,
            _token_limit("ttft", "time to the first token"),
            _token_limit("tpot", "time of each token after it"),
            Option(
                "find-peak", "find_peak", FLAG, "Let LoadGen find the highest rate that keeps to the limits."
            ),
            Option(
                "issue",
                "issue",
                CHOICE,
                "Where the model runs: `in-line` (LoadGen's thread), `thread` (beside it).  [auto: by a pilot]",
                choices=("auto", "in-line", "thread"),
            ),
        ),
        "Server",
    ),
    ScenarioSpec("offline", "MLPerf LoadGen: Offline, all samples at once", (*_LOADGEN,), "Offline"),
)
BY_NAME = {spec.name: spec for spec in SCENARIOS}
