"""The record of a run as people read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlbundle.cli import output
from mlbundle.cli.tables import shorten_digests, wrapped
from mlbundle.runs.advice import reasons_of
from mlbundle.runs.words import counted
from mlbundle.wording import (
    percentiles,
    results_batched,
    results_cold_start,
    results_loadgen,
    results_pipeline,
    results_poisson,
    results_profiles,
    results_tokens,
    units,
)
from mlbundle.wording.scenario_text import scenario_text

if TYPE_CHECKING:
    from mlbundle.config import Settings

_NAMES, _LEAST_ROOM = 12, 20
_HARNESS_OF_P50 = "of p50 is the loop itself"
# A cold start has no loop, and what LoadGen costs in Server can't be told from waiting.
_HARNESS: dict[str, str | None] = {
    "offline": "of the throughput is lost to LoadGen",
    "pipeline": "of the time of a sample is threads and queues alone",
    "single-stream": "is what LoadGen adds to p50",
    "multi-stream": "is what LoadGen adds to p50",
    "server": None,
    "cold-start": None,
}


def show_record(record: dict[str, Any], settings: Settings) -> None:
    """Print a run record as the result table, in lines that fit the terminal if there is one."""
    width = output.terminal_width()
    for name, text in _result_lines(record, settings):
        for number, part in enumerate(_parts(text, width)):
            output.data(f"{'' if number else name:<{_NAMES}}{part}".rstrip())


def _parts(text: str, width: int | None) -> list[str]:
    """Return a text in lines beside the names; what can't be broken goes over the edge, whole."""
    if width is None or len(text) + _NAMES <= width:
        return [text]
    room = max(_LEAST_ROOM, width - _NAMES)
    return wrapped(" ".join(shorten_digests(word) for word in text.split(" ")), room)


def _result_lines(record: dict[str, Any], settings: Settings) -> list[tuple[str, str]]:
    bundle, framework, result = record["bundle"], record["framework"], record["result"]
    lines = [
        ("bundle", f"{bundle['name']}:{bundle['version']}  {bundle['manifest_digest']}"),
        ("framework", _framework_text(framework)),
        ("scenario", scenario_text(record["scenario"])),
    ]
    if record["status"] != "completed":
        lines.append(("status", "; ".join([record["status"], *_reasons(record)])))
    if record.get("seen"):
        lines += _seen_lines(record["seen"])
    if record["error"]:
        error = record["error"]
        lines.append(("error", f"[{error['reference']}] {error['message']}"))
        lines += [(name, str(error[name])) for name in ("where", "hint") if error.get(name)]
    if record["accuracy"]:
        lines.append(("accuracy", _accuracy_text(record["accuracy"])))
    if result:
        lines += [
            *_latency_lines(result),
            (
                "throughput",
                f"{units.rate(result['throughput_per_s'])}  {_amount(result)}",
            ),
            *_harness_lines(record["scenario"]["name"], result["harness_overhead"]["ratio"]),
            *_scenario_lines(record, result),
        ]
    lines += _used_lines(record["resources"].get("measure") or {})
    if result and not record["validity"]["valid"]:
        lines.append(("INVALID", "; ".join(reasons_of(record))))
    lines.append(("isolation", str(record["environment"].get("isolation", "unknown"))))
    if record["image"]:
        lines.append(("image", f"{record['image']['ref']}  {record['image']['config_digest']}"))
    folder = settings.runs_dir / record["run_id"]
    if record["status"] != "completed":
        lines.append(("log", str(folder / "worker.log")))
    lines += results_profiles.lines(record.get("profiles") or [], folder)
    if "trace" in record["files"]:
        lines.append(("trace", str(folder / record["files"]["trace"])))
    lines += [("warning", warning["message"]) for warning in record["environment"].get("warnings") or []]
    # LoadGen's warnings and ours may be the same.
    twice = {n for n, line in enumerate(lines) if line[0] == "warning" and line in lines[:n]}
    return [*(line for n, line in enumerate(lines) if n not in twice), ("run", record["run_id"])]


def _reasons(record: dict[str, Any]) -> list[str]:
    """Return why a run that did not end is no result, but for the words that only say its status again."""
    reasons: list[str] = record["validity"]["reasons"]
    return [reason for reason in reasons if reason != f"the run is {record['status']}"]


def _seen_lines(seen: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what was seen of a run that did not come to its end."""
    texts = []
    found = []
    measured = seen.get("measured")
    if measured:
        times = "  ".join(
            f"{name} {units.duration(measured[f'{name}_ns'])}" for name in ("p50", "p90", "p99")
        )
        text = f"{times}  over {counted(measured['queries'], 'query', 'queries')}; no result, as the run did not end"
        found.append(("measured", text))
    elif seen.get("queries"):
        texts.append(counted(seen["queries"], "query", "queries"))
    if seen.get("last_window") and not measured:
        texts.append(f"p50 {units.duration(seen['last_window']['p50_ns'])}")
    if seen.get("phase"):
        texts.append(f"ended in phase {seen['phase']}")
    return [*found, ("seen", ", ".join(texts))] if texts else found


def _latency_lines(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what is known of the latency: LoadGen gives some percentiles, by its own rules, and no trimmed mean."""
    latency = result["latency_ns"]
    # LoadGen's are over samples, which one query has many of.
    queries = None if "loadgen" in result else result["queries"]
    shown = percentiles.texts(latency, queries)
    texts = ["  ".join(shown)] if shown else []
    if latency.get("trimmed_mean") is not None:
        texts.insert(0, f"{units.duration(latency['trimmed_mean'])} trimmed mean")
    return [("latency" if number == 0 else "", text) for number, text in enumerate(texts)]


def _harness_lines(scenario: str, ratio: float) -> list[tuple[str, str]]:
    """Return what the harness costs, in words of the scenario's headline; nothing where it can't be told."""
    words = _HARNESS.get(scenario, _HARNESS_OF_P50)
    share = 1 - 1 / ratio if scenario == "offline" else ratio - 1
    # Of a time that two measurements make up there is no more than all of it.
    share = min(share, 1.0) if scenario == "pipeline" else share
    if words is None:
        return []
    text = "less than 0.1 %" if share < 0.0005 else f"{100 * share:.1f} %"
    return [("harness", f"{text} {words}")]


def _used_lines(measured: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what the worker used while it was measured, as far as it was seen."""
    texts = []
    if measured.get("cpu_share_mean") is not None:
        texts.append(f"{measured['cpu_share_mean']:.2f} CPUs")
    if measured.get("memory_peak_bytes") is not None:
        texts.append(units.size(measured["memory_peak_bytes"]))
    return [("used", ", ".join(texts))] if texts else []


def _scenario_lines(record: dict[str, Any], result: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what the scenario adds; each part of a result has a module that knows how to say it."""
    found = results_poisson.lines(result)
    found += results_loadgen.lines(result, record["scenario"]["options"], record["validity"]["reasons"])
    for key, module in (
        ("tokens", results_tokens),
        ("batches", results_batched),
        ("pipeline", results_pipeline),
        ("cold_start", results_cold_start),
    ):
        if key in result:
            found += module.lines(result)
    return found


def _framework_text(framework: dict[str, Any]) -> str:
    text, variant = f"{framework['name']} {framework['version']}", framework.get("variant")
    return text if variant in {None, framework["name"]} else f"{text}  (variant {variant})"


def _amount(result: dict[str, Any]) -> str:
    return f"({counted(result['queries'], 'query', 'queries')} in {result['duration_s']:.2f} s)"


def _accuracy_text(accuracy: dict[str, Any]) -> str:
    text = f"{accuracy['metric']} {accuracy['value']:.4f} over {accuracy['samples']} samples"
    if accuracy["passed"] is None:
        return f"{text}; nothing is claimed"
    claim = f"{accuracy['expected']:.4f} +/- {accuracy['tolerance']:.4f}"
    return f"{text}; claimed {claim}: {'as claimed' if accuracy['passed'] else 'NOT AS CLAIMED'}"
