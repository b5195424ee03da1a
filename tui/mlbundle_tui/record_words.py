"""A record in the words of the command line: the verdict, what was found, what ran.

The lines of each scenario are those of `mlbundle runs show`, so both say the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlbundle.runs.advice import advice_for, reasons_beside_status, reasons_of
from mlbundle.wording import percentiles, record_lines, results_profiles, units
from mlbundle.wording.scenario_text import scenario_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Pair = tuple[str, str]
# What a run that broke off early had not been told yet.
_UNKNOWN = (None, "", "unknown")


def verdict(record: Mapping[str, Any]) -> tuple[str, str, list[str]]:
    """Return the verdict in a word, its style, and why: reasons, and what to do about them."""
    status, validity = str(record["status"]), record["validity"]
    error = record.get("error")
    if status != "completed":
        # That a cancelled run is cancelled is said by the word.
        why = [f"[{error['reference']}] {error['message']}"] if error else reasons_beside_status(record)
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
        lines += _latency(result)
        lines += record_lines.throughput(result)
        lines += record_lines.harness(record["scenario"]["name"], float(result["harness_overhead"]["ratio"]))
        lines += record_lines.of_scenario(record, result)
    lines += record_lines.used(record)
    lines += results_profiles.lines(record.get("profiles") or [])
    lines += record_lines.seen(record)
    return [*lines, *record_lines.warnings(record)]


def ran(record: Mapping[str, Any]) -> list[Pair]:
    """Return what was run, on what, and how: what somebody else needs to repeat it."""
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
        (
            "runtime",
            ", ".join(one for one in (record["runtime"], record.get("isolation")) if one not in _UNKNOWN),
        ),
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


def percentiles_of(result: Mapping[str, Any], names: Iterable[str]) -> list[Pair]:
    """Return some percentiles and what they are; those that so many queries can't tell are left out."""
    shown = percentiles.pairs(result.get("latency_ns") or {}, _queries(result), percentiles.WITH_TAIL)
    return [(name, text) for name, text in shown if name in names and text != "-"]


def _queries(result: Mapping[str, Any]) -> int | None:
    """Return what percentiles are of; LoadGen says itself what its can tell."""
    return None if "loadgen" in result or not result else int(result["queries"])


def _latency(result: Mapping[str, Any]) -> list[Pair]:
    """Return trimmed mean and percentiles, each in a line of its own, `-` where the queries are too few to tell."""
    latency = result.get("latency_ns") or {}
    found = percentiles.pairs(latency, _queries(result), percentiles.WITH_TAIL)
    mean = latency.get("trimmed_mean")
    return found if mean is None else [("trimmed mean", units.duration(mean)), *found]
