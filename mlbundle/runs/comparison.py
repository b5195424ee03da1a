"""Runs side by side: what each measured, and whether they say the same."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from mlbundle.analysis.agreement import Agreement, Tolerance, compare_outputs
from mlbundle.errors import OutputsDiffer, ReferenceNotFound, StorageFailed
from mlbundle.runs.catalog import list_runs, show_run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from mlbundle.config import Settings

OUTPUTS = "outputs.npz"
_MOST_RUNS = 1000


@dataclass(frozen=True)
class Row:
    """One run of a comparison; `agreement` is with the first one, `latency_ratio` its latency over the first's."""

    record: Mapping[str, Any]
    agreement: Agreement
    latency_ratio: float | None

    def to_document(self) -> dict[str, Any]:
        """Return the row as JSON-ready values; numbers that are not finite as text."""
        record = self.record
        result, accuracy = record.get("result") or {}, record.get("accuracy") or {}
        latency = result.get("latency_ns") or {}
        return {
            "run_id": record["run_id"],
            "model": f"{record['bundle']['name']}:{record['bundle']['version']}",
            "framework": record["framework"]["name"],
            "framework_version": record["framework"]["version"],
            "variant": record["framework"].get("variant"),
            "runtime": record["runtime"],
            "status": record["status"],
            "valid": record["validity"]["valid"],
            "trimmed_mean_ns": latency.get("trimmed_mean"),
            "p50_ns": latency.get("p50"),
            "p99_ns": latency.get("p99"),
            "throughput_per_s": result.get("throughput_per_s"),
            "accuracy": accuracy.get("value"),
            "samples": accuracy.get("samples"),
            "latency_ratio": self.latency_ratio,
            "same": self.agreement.same,
            **{name: _number(value) for name, value in asdict(self.agreement).items()},
        }


def compare_runs(settings: Settings, runs: Sequence[str], tolerance: Tolerance) -> list[Row]:
    """Return a row for each run, each held against the first. Raises ReferenceNotFound, StorageFailed."""
    records = [show_run(settings, run) for run in runs]
    outputs = [_outputs(settings.runs_dir / record["run_id"]) for record in records]
    first_ns = _trimmed_mean(records[0]) if records else None
    return [
        Row(
            record,
            compare_outputs(outputs[0], found, tolerance),
            None if first_ns is None or (own := _trimmed_mean(record)) is None else own / first_ns,
        )
        for record, found in zip(records, outputs, strict=True)
    ]


def latest_of_each(settings: Settings, model: str) -> list[str]:
    """Return the ids of a model's latest completed runs: one for each form, framework version and runtime.

    The oldest of them comes first. Raises ReferenceNotFound when there is none.
    """
    found: dict[tuple[Any, ...], str] = {}
    for row in list_runs(settings, limit=_MOST_RUNS, model=model):
        if row["status"] != "completed":
            continue
        framework = show_run(settings, row["run_id"])["framework"]
        key = (
            framework.get("variant") or framework["name"],
            framework["version"],
            row["runtime"],
            row["model"],
        )
        found.setdefault(key, row["run_id"])
    if not found:
        raise ReferenceNotFound(
            f"no completed run of {model!r}", hint="`mlbundle runs list` shows the runs made so far"
        )
    return sorted(found.values())


def require_same(rows: Sequence[Row]) -> None:
    """Raise OutputsDiffer unless all runs gave the same predictions, and outputs within the tolerance."""
    for row in rows[1:]:
        if row.agreement.same:
            continue
        agreement, reference = row.agreement, rows[0].record["run_id"]
        if agreement.same is None:
            what = "can't be compared: one of them kept no outputs, or they are of other shapes"
        elif agreement.differing_predictions:
            what = f"differ in {agreement.differing_predictions} predictions"
        else:
            what = f"differ by up to {agreement.max_difference:.3g}, beyond the tolerance"
        raise OutputsDiffer(f"the outputs of {row.record['run_id']} and {reference} {what}")


def _outputs(folder: Path) -> dict[str, Any]:
    """Return the arrays of a run's outputs; none where it kept none."""
    import numpy as np

    path = folder / OUTPUTS
    if not path.is_file():
        return {}
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except Exception as error:  # NumPy lets errors of many kinds through for a stranger's bytes
        raise StorageFailed(f"the outputs of a run can't be read: {error}", where=str(path)) from error


def _trimmed_mean(record: Mapping[str, Any]) -> float | None:
    latency = (record.get("result") or {}).get("latency_ns") or {}
    value = latency.get("trimmed_mean")
    return float(value) if value else None


def _number(value: float | None) -> float | str | None:
    return value if value is None or value - value == 0 else str(value)
