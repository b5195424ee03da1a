"""The record of a run as people read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlbundle.cli import output
from mlbundle.cli.tables import shorten_digests, wrapped
from mlbundle.runs.advice import reasons_beside_status, reasons_of
from mlbundle.wording import record_lines, results_profiles
from mlbundle.wording.scenario_text import scenario_text

if TYPE_CHECKING:
    from mlbundle.config import Settings

_NAMES, _LEAST_ROOM = 12, 20


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
        lines.append(("status", "; ".join([record["status"], *reasons_beside_status(record)])))
    lines += record_lines.seen(record)
    if record["error"]:
        error = record["error"]
        lines.append(("error", f"[{error['reference']}] {error['message']}"))
        lines += [(name, str(error[name])) for name in ("where", "hint") if error.get(name)]
    if record["accuracy"]:
        lines.append(("accuracy", _accuracy_text(record["accuracy"])))
    if result:
        lines += [
            *record_lines.latency(result),
            *record_lines.throughput(result),
            *record_lines.harness(record["scenario"]["name"], result["harness_overhead"]["ratio"]),
            *record_lines.of_scenario(record, result),
        ]
    lines += record_lines.used(record)
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
    lines += record_lines.warnings(record)
    # LoadGen's warnings and ours may be the same.
    twice = {n for n, line in enumerate(lines) if line[0] == "warning" and line in lines[:n]}
    return [*(line for n, line in enumerate(lines) if n not in twice), ("run", record["run_id"])]


def _framework_text(framework: dict[str, Any]) -> str:
    text, variant = f"{framework['name']} {framework['version']}", framework.get("variant")
    return text if variant in {None, framework["name"]} else f"{text}  (variant {variant})"


def _accuracy_text(accuracy: dict[str, Any]) -> str:
    text = f"{accuracy['metric']} {accuracy['value']:.4f} over {accuracy['samples']} samples"
    if accuracy["passed"] is None:
        return f"{text}; nothing is claimed"
    claim = f"{accuracy['expected']:.4f} +/- {accuracy['tolerance']:.4f}"
    return f"{text}; claimed {claim}: {'as claimed' if accuracy['passed'] else 'NOT AS CLAIMED'}"
