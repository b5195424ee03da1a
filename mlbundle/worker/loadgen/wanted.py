"""What a LoadGen test is asked for: durations, counts, the hints that a pilot gives, and the memory that they cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Mapping

from mlbundle.wire.job import Job
from mlbundle.wire.scenarios import BY_NAME
from mlbundle.worker.errors import WorkerError
from mlbundle.worker.loadgen.issue import BY_OPTION, IN_LINE
from mlbundle.worker.memory import in_words

OFFICIAL_DURATION_S = 600.0
QUICK_DURATION_S = 2.0
# Offline counts samples: MLPerf's rules want this many, or all of a smaller data set.
OFFLINE_SAMPLES = 24_576
QUICK_OFFLINE_SAMPLES = 64
# What LoadGen keeps of a query before it begins, and then of its latency: measured with 6.0.17 over up to 2 M queries.
QUERY_BYTES, FURTHER_SAMPLE_BYTES, OFFLINE_SAMPLE_BYTES = 370, 56, 400
# A closed loop gets queries for twice its duration at the latency that it expects, an open one for once.
_GENERATED = 2.0
# Queries may be this much faster than in the pilot's fast tenth before LoadGen runs out of them.
_HEADROOM = 1.5
# Where it costs so little, LoadGen gets more of them, twice as many up to so many times: on a machine that was busy in
# the pilot, queries may become much faster.
_CHEAP_BYTES, _MOST_DOUBLED = 32 << 20, 3
_OFFLINE_HEADROOM = 1.2
# What LoadGen and our callback take beside the model, at least: of a query, of each further sample, of one Offline.
_QUERY_NS, _FURTHER_SAMPLE_NS, _OFFLINE_SAMPLE_NS = 1_200, 200, 200
_OFFLINE_GENERATED = 1.1
# The rate of a Server test that nobody chose: a share of what one sample after the other allows.
_SERVER_LOAD = 0.4
# What LoadGen takes beside the model in Server: it sleeps until a query is due.
_SERVER_QUERY_NS = 12_000
_SERVER_MEMORY = 0.5
# The next pilot may find the model a little faster.
_FITTING_SHARE = 0.9
# The fewest queries of Server in MLCommons' configuration.
_SERVER_QUERIES = 100


@dataclass(frozen=True)
class Pilot:
    """What a raw loop found: time of one query in ns (fast tenth, median, mean); Offline: of `batch` samples.

    `issue` says where Server's queries are answered.
    """

    fast_ns: int
    median_ns: int
    mean_ns: float
    queries: int
    settled: bool
    batch: int = 1
    issue: str = IN_LINE

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Pilot:
        """Return the pilot that an earlier process wrote down."""
        return cls(**document)


@dataclass(frozen=True)
class Wanted:
    """A test as it is wanted; `min_queries` None means: what MLCommons' embedded configuration says.

    `issue` None: the pilot says where Server's queries are answered.
    """

    scenario: str
    min_duration_s: float
    min_queries: int | None
    samples_per_query: int = 1
    rate_per_s: float | None = None
    target_latency_s: float | None = None
    issue: str | None = None


def wanted_of(job: Job, total_samples: int) -> Wanted:
    """Return what a job wants of LoadGen."""
    options = job.scenario.get("options") or {}
    spec = BY_NAME[str(job.scenario["name"])]
    assert spec.loadgen is not None
    quick = bool(options.get("quick"))
    queries = options.get("queries")
    if spec.loadgen == "Offline" and queries is None:
        queries = min(total_samples, QUICK_OFFLINE_SAMPLES if quick else OFFLINE_SAMPLES)
    return Wanted(
        scenario=spec.loadgen,
        min_duration_s=QUICK_DURATION_S if quick else float(options.get("duration_s") or OFFICIAL_DURATION_S),
        min_queries=None if queries is None else int(queries),
        samples_per_query=int(options.get("samples_per_query") or 1),
        rate_per_s=options.get("rate_per_s"),
        target_latency_s=options.get("target_latency_s"),
        issue=BY_OPTION.get(str(options.get("issue"))),
    )


def within_reach(wanted: Wanted, pilot: Pilot) -> Wanted:
    """Return what is wanted; cut short where no rate can keep to the latency, as a sample alone takes longer."""
    if wanted.target_latency_s is None or wanted.target_latency_s * 1e9 > pilot.median_ns:
        return wanted
    return replace(wanted, min_duration_s=min(QUICK_DURATION_S, wanted.min_duration_s), min_queries=None)


@dataclass(frozen=True)
class Hints:
    """What LoadGen is told to expect, and the bytes that it takes for that beforehand."""

    expected_ns: int
    rate_per_s: float
    memory_bytes: int


def hints_of(wanted: Wanted, pilot: Pilot, free_bytes: int) -> Hints:
    """Return the hints for a test; a rate that nobody chose is one for which `free_bytes` suffice."""
    if wanted.scenario == "Server":
        return _server_hints(wanted, pilot, free_bytes)
    if wanted.scenario == "Offline":
        rate = _OFFLINE_HEADROOM * 1e9 / (pilot.mean_ns / pilot.batch + _OFFLINE_SAMPLE_NS)
        samples = max(rate * wanted.min_duration_s * _OFFLINE_GENERATED, wanted.min_queries or 0)
        return Hints(int(pilot.mean_ns), rate, int(samples * OFFLINE_SAMPLE_BYTES))
    beside_ns = _QUERY_NS + (wanted.samples_per_query - 1) * _FURTHER_SAMPLE_NS
    expected_ns = int(_HEADROOM * (pilot.fast_ns + beside_ns))
    rate_per_s, memory_bytes = 1e9 / expected_ns, _generated_bytes(wanted, expected_ns)
    for _ in range(_MOST_DOUBLED):
        if _generated_bytes(wanted, expected_ns // 2) > _CHEAP_BYTES:
            break
        expected_ns //= 2
        memory_bytes = _generated_bytes(wanted, expected_ns)
    return Hints(expected_ns, rate_per_s, memory_bytes)


def _generated_bytes(wanted: Wanted, expected_ns: int) -> int:
    """Return what LoadGen takes for the queries that it makes beforehand."""
    queries = max(_GENERATED * wanted.min_duration_s * 1e9 / expected_ns, wanted.min_queries or 0)
    return int(queries * _query_bytes(wanted))


def _server_hints(wanted: Wanted, pilot: Pilot, free_bytes: int) -> Hints:
    rate = server_rate(wanted, pilot)
    if wanted.rate_per_s is None:
        rate = max(1.0, min(rate, _SERVER_MEMORY * free_bytes / (wanted.min_duration_s * QUERY_BYTES)))
    queries = max(rate * wanted.min_duration_s, wanted.min_queries or 0)
    return Hints(int(pilot.mean_ns), rate, int(queries * QUERY_BYTES))


def server_rate(wanted: Wanted, pilot: Pilot) -> float:
    """Return the rate that was asked for, or a share of what the model can do."""
    return wanted.rate_per_s or _SERVER_LOAD / (pilot.mean_ns + _SERVER_QUERY_NS) * 1e9


def _query_bytes(wanted: Wanted) -> int:
    return QUERY_BYTES + (wanted.samples_per_query - 1) * FURTHER_SAMPLE_BYTES


def require_memory(wanted: Wanted, hints: Hints, limit_bytes: int, used_bytes: int) -> None:
    """Raise WorkerError when what LoadGen makes beforehand does not fit into the memory that there is."""
    needed_bytes = hints.memory_bytes + used_bytes
    if needed_bytes <= limit_bytes:
        return
    raise WorkerError(
        "loadgen-memory",
        "LoadGen makes its queries beforehand: {} for {:g} s at this speed, beside the {} in use; there are {}".format(
            in_words(hints.memory_bytes), wanted.min_duration_s, in_words(used_bytes), in_words(limit_bytes)
        ),
        fault="environment",
        hint="{}{}, or let it have {} or more (--memory) on a machine that has them".format(
            _fitting(wanted, hints, limit_bytes - used_bytes),
            ", or a lower --rate" if wanted.scenario == "Server" else "",
            in_words(-(-needed_bytes // (1 << 30)) << 30),
        ),
    )


def _fitting(wanted: Wanted, hints: Hints, free_bytes: int) -> str:
    """Return what to ask for instead: the longest duration that fits."""
    query_bytes = OFFLINE_SAMPLE_BYTES if wanted.scenario == "Offline" else _query_bytes(wanted)
    if (wanted.min_queries or 0) * query_bytes >= free_bytes:
        return "choose fewer --queries"
    longest_s = _FITTING_SHARE * wanted.min_duration_s * max(0, free_bytes) / hints.memory_bytes
    quick = ", or --quick" if min(longest_s, wanted.min_duration_s) > QUICK_DURATION_S else ""
    if longest_s < 1:
        return "choose a shorter --duration"
    return "--duration {}s fits here{}".format(int(longest_s), quick)


def require_samples(wanted: Wanted, loaded: int, total: int) -> None:
    """Raise WorkerError when a query wants more samples together than can be loaded."""
    if wanted.scenario != "MultiStream" or wanted.samples_per_query <= loaded:
        return
    what = "the data set has {}".format(total) if loaded == total else "{} fit in memory".format(loaded)
    raise WorkerError(
        "loadgen-samples",
        "a query has {} samples, {}".format(wanted.samples_per_query, what),
        fault="environment",
        hint="--samples-per-query {}, or fewer{}".format(
            loaded, "" if loaded == total else "; or more --memory"
        ),
    )


def expected_s(wanted: Wanted, hints: Hints) -> float:
    """Return how long a performance test is going to take: longer than asked where few queries a second come."""
    if wanted.scenario != "Server":
        return wanted.min_duration_s
    least = _SERVER_QUERIES if wanted.min_queries is None else wanted.min_queries
    return max(wanted.min_duration_s, least / hints.rate_per_s)


def memory_limit_bytes(job: Job, used_bytes: int) -> int:
    """Return how much memory this process may come to: the limit of the job, or what the machine still has."""
    try:
        with open("/proc/meminfo") as stream:
            free = [int(line.split()[1]) * 1024 for line in stream if line.startswith("MemAvailable:")]
    except (OSError, ValueError, IndexError):
        free = []
    return min([job.limits.memory_bytes, *(used_bytes + amount for amount in free)])
