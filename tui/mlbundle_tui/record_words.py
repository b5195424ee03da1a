"""A record in the words of the command line: the verdict, what was found, what ran.

The lines of each scenario are those of `mlbundle runs show`, so both say the same.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mlbundle.runs.advice import advice_for, reasons_of
from mlbundle.runs.words import counted
from mlbundle.wording import units

if TYPE_CHECKING:
    from collections.abc import Mapping

Pair = tuple[str, str]
# Part of a result -> module that knows how to say it.
_PARTS = {
    "poisson": "results_poisson", "peak": "results_poisson", "repeats": "results_poisson",
    "percentiles": "results_poisson", "loadgen": "results_loadgen", "tokens": "results_tokens",
    "batches": "results_batched", "pipeline": "results_pipeline", "cold_start": "results_cold_start",
}  # fmt: skip


def verdict(record: Mapping[str, Any]) -> tuple[str, str, list[str]]:
    """Return the verdict in a word, its style, and why: reasons, and what to do about them."""
    status, validity = str(record["status"]), record["validity"]
    error = record.get("error")
    if status != "completed":
        why = [f"[{error['reference']}] {error['message']}"] if error else list(validity["reasons"])
        if error and error.get("hint"):
            why.append(f"what to do: {error['hint']}")
        return status.upper(), "bad" if status == "failed" else "warn", why
    if validity["valid"]:
        return "VALID", "good", []
    advice = advice_for(record)
    return "INVALID", "bad", [*reasons_of(record), *([f"what to do: {advice}"] if advice else [])]


def claim(record: Mapping[str, Any]) -> tuple[str, str]:
    """Return what became of the author's claim, and the style of it; empty where nothing was checked."""
    accuracy = record.get("accuracy")
    if not accuracy:
        return "", ""
    text = f"{accuracy['metric']} {accuracy['value']:.4f} over {accuracy['samples']:,} samples"
    if accuracy["passed"] is None:
        return f"{text}, nothing is claimed", "dim"
    claimed = f"{accuracy['expected']:.4f} ± {accuracy['tolerance']:.4f} claimed"
    return (
        (f"{text}, {claimed}: as claimed", "good")
        if accuracy["passed"]
        else (f"{text}, {claimed}: NOT AS CLAIMED", "bad")
    )


def found(record: Mapping[str, Any]) -> list[Pair]:
    """Return what was measured, line by line."""
    result = record.get("result") or {}
    lines: list[Pair] = []
    if result:
        latency = result.get("latency_ns") or {}
        shown = [
            ("trimmed mean", "trimmed_mean"),
            *((p.replace("_", "."), p) for p in ("p50", "p90", "p99", "p99_9")),
        ]
        lines += [(name, units.duration(latency[key])) for name, key in shown if latency.get(key) is not None]
        amount = f"{counted(result['queries'], 'query', 'queries')} in {result['duration_s']:.2f} s"
        lines.append(("throughput", f"{units.rate(result['throughput_per_s'])}  ({amount})"))
        lines.append(("harness", _harness(result)))
    for module in dict.fromkeys(_PARTS[part] for part in result if part in _PARTS):
        lines += importlib.import_module(f"mlbundle.wording.{module}").lines(result)
    lines += _used(record)
    profiles = record.get("profiles") or []
    if profiles:
        lines += importlib.import_module("mlbundle.wording.results_profiles").lines(profiles)
    if record.get("seen"):
        lines += _seen(record["seen"])
    environment = record.get("environment") or {}
    lines += [("warning", str(one.get("message"))) for one in environment.get("warnings") or []]
    return lines


def ran(record: Mapping[str, Any]) -> list[Pair]:
    """Return what was run, on what, and how: what somebody else needs to repeat it."""
    from mlbundle.wording.scenario_text import scenario_text

    bundle, framework = record["bundle"], record["framework"]
    environment, image = record.get("environment") or {}, record.get("image") or {}
    named = f"{framework['name']} {framework['version']}".strip()
    if framework.get("variant") not in {None, framework["name"]}:
        named += f" (variant {framework['variant']})"
    machine = environment.get("machine") or {}
    lines = [
        ("bundle", f"{bundle['name']}:{bundle['version']}"),
        ("", str(bundle["manifest_digest"])),
        ("framework", named),
        ("scenario", scenario_text(record["scenario"])),
        ("runtime", f"{record['runtime']}, {record.get('isolation') or 'unknown'}"),
        ("image", str(image.get("ref") or "")),
        ("", str(image.get("config_digest") or "")),
        ("isolation", str(environment.get("isolation") or "")),
        ("machine", f"{machine.get('cpu_model') or ''} {machine.get('architecture') or ''}".strip()),
        ("trace", str(record["trace_level"])),
        ("started", str(record["started_at"])[:19].replace("T", " ") + " UTC"),
        (
            "took",
            units.duration(1e9 * sum((record.get("phases_s") or {}).values()))
            if record.get("phases_s")
            else "",
        ),
        ("mlbundle", str(record.get("mlbundle_version") or "")),
        ("run", str(record["run_id"])),
    ]
    return [(name, text) for name, text in lines if text]


def _harness(result: Mapping[str, Any]) -> str:
    ratio = float(result["harness_overhead"]["ratio"])
    return (
        "less than 0.1 % of the headline"
        if ratio - 1 < 0.0005
        else f"{100 * (ratio - 1):.1f} % of the headline"
    )


def _used(record: Mapping[str, Any]) -> list[Pair]:
    measured = (record.get("resources") or {}).get("measure") or {}
    texts = []
    if measured.get("cpu_share_mean") is not None:
        texts.append(f"{measured['cpu_share_mean']:.2f} CPUs")
    if measured.get("memory_peak_bytes") is not None:
        texts.append(units.size(measured["memory_peak_bytes"]))
    return [("used", ", ".join(texts))] if texts else []


def _seen(seen: Mapping[str, Any]) -> list[Pair]:
    texts = []
    if seen.get("queries"):
        texts.append(counted(seen["queries"], "query", "queries"))
    if seen.get("last_window"):
        texts.append(f"p50 {units.duration(seen['last_window']['p50_ns'])}")
    if seen.get("phase"):
        texts.append(f"ended in phase {seen['phase']}")
    return [("seen", ", ".join(texts))] if texts else []
