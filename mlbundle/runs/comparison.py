"""Runs side by side: what each measured, and whether they say the same."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from mlbundle.analysis.agreement import Agreement, Tolerance, compare_outputs
from mlbundle.errors import OutputsDiffer, ReferenceNotFound, StorageFailed
from mlbundle.runs.catalog import forms_of_run, list_runs, show_run
from mlbundle.store.headline import headline_of, is_quick
from mlbundle.wire.scenarios import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from mlbundle.config import Settings

OUTPUTS = "outputs.npz"
_MOST_RUNS = 1000
# Options that say how long or how often is measured, and not what.
_EXTENT = frozenset({
    "duration_s", "queries", "samples", "repeats", "warmup", "quick", "compliance",
})  # fmt: skip
# How exactly it is known what a run ran in, best first.
_ISOLATION = ("pinned", "hash-locked")


@dataclass(frozen=True)
class Row:
    """One run of a comparison; `agreement` is with the reference.

    `ratio` is its headline over the reference's, `latency_ratio` its trimmed mean over that one; None where they were
    not measured the same way, and then `not_comparable` says what differs. `other_model` is the name of another model
    than the reference's: its ratio is between models, not between ways to run one.
    """

    record: Mapping[str, Any]
    agreement: Agreement
    ratio: float | None
    latency_ratio: float | None
    is_reference: bool = False
    not_comparable: str | None = None
    other_model: str | None = None

    def to_document(self) -> dict[str, Any]:
        """Return the row as JSON-ready values; numbers that are not finite as text."""
        record = self.record
        result, accuracy = record.get("result") or {}, record.get("accuracy") or {}
        latency = result.get("latency_ns") or {}
        warnings = (record.get("environment") or {}).get("warnings") or []
        headline = headline_of(record)
        return {
            "run_id": record["run_id"],
            "reference": self.is_reference,
            "model": f"{record['bundle']['name']}:{record['bundle']['version']}",
            "framework": record["framework"]["name"],
            "framework_version": record["framework"]["version"],
            "variant": record["framework"].get("variant"),
            "scenario": record["scenario"]["name"],
            "runtime": record["runtime"],
            "isolation": record.get("isolation"),
            "status": record["status"],
            "valid": record["validity"]["valid"],
            "quick": is_quick(record),
            "reasons": record["validity"]["reasons"],
            "error": (record.get("error") or {}).get("reference"),
            "warnings": [str(warning.get("reference")) for warning in warnings],
            "headline": None if headline is None else headline.name,
            "headline_value": None if headline is None else headline.value,
            "headline_unit": None if headline is None else headline.unit,
            "ratio": self.ratio,
            "not_comparable": self.not_comparable,
            "other_model": self.other_model,
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


def compare_runs(
    settings: Settings, runs: Sequence[str], tolerance: Tolerance, *, against: str | None = None
) -> list[Row]:
    """Return a row for each run, each held against the reference, whose row is the first.

    That is `against`, else the first of the runs. Raises ReferenceNotFound, StorageFailed.
    """
    records = [show_run(settings, run) for run in runs]
    if against is not None:
        reference = show_run(settings, against)
        records = [reference, *(r for r in records if r["run_id"] != reference["run_id"])]
    outputs = [_outputs(settings.runs_dir / record["run_id"]) for record in records]
    return [
        _row(records[0], record, compare_outputs(outputs[0], found, tolerance), is_reference=number == 0)
        for number, (record, found) in enumerate(zip(records, outputs, strict=True))
    ]


def _row(
    reference: Mapping[str, Any], record: Mapping[str, Any], agreement: Agreement, *, is_reference: bool
) -> Row:
    different = _measured_differently(reference, record)
    models = reference["bundle"]["name"], record["bundle"]["name"]
    other_model = models[1] if models[0] != models[1] else None
    if different is not None:
        return Row(record, agreement, None, None, is_reference, different, other_model)
    headlines = headline_of(reference), headline_of(record)
    means_ns = _trimmed_mean(reference), _trimmed_mean(record)
    ratio = latency_ratio = None
    if headlines[0] is not None and headlines[1] is not None and headlines[0].unit == headlines[1].unit:
        ratio = headlines[1].value / headlines[0].value
    if means_ns[0] is not None and means_ns[1] is not None:
        latency_ratio = means_ns[1] / means_ns[0]
    return Row(record, agreement, ratio, latency_ratio, is_reference, None, other_model)


def _measured_differently(reference: Mapping[str, Any], record: Mapping[str, Any]) -> str | None:
    """Return what differs in how the load was put on; how long or how often was measured is no difference."""
    ours, theirs = record["scenario"], reference["scenario"]
    if ours["name"] != theirs["name"]:
        return f"its scenario is {ours['name']}, that of the reference {theirs['name']}"
    spec = BY_NAME.get(ours["name"])
    names = {} if spec is None else {option.key: option.name for option in spec.options}
    options = ours.get("options") or {}, theirs.get("options") or {}
    for key in sorted({*options[0], *options[1]} - _EXTENT):
        if options[0].get(key) != options[1].get(key):
            values = " and ".join("none" if one.get(key) is None else str(one[key]) for one in options)
            return f"{names.get(key, key)} differs: {values} of the reference"
    return None


def latest_of_each(settings: Settings, model: str) -> list[str]:
    """Return the ids of a model's latest completed runs: one for each form, framework version, runtime and isolation.

    They come in the order of the forms in the manifest, whose top level is the first; of one form the pinned ones
    first. Where the manifest is gone forms come by name. Raises ReferenceNotFound when there is none.
    """
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in list_runs(settings, limit=_MOST_RUNS, model=model):
        if row["status"] == "completed":
            places = ("framework_version", "runtime", "isolation", "model")
            found.setdefault((_form(row), *(row[name] for name in places)), row)
    if not found:
        raise ReferenceNotFound(
            f"no completed run of {model!r}", hint="`mlbundle runs list` shows the runs made so far"
        )
    forms = {row["model"]: forms_of_run(settings, row) for row in found.values()}

    def order(row: dict[str, Any]) -> tuple[Any, ...]:
        names, form = forms[row["model"]], _form(row)
        place = names.index(form) if form in names else len(names)
        level = _ISOLATION.index(row["isolation"]) if row["isolation"] in _ISOLATION else len(_ISOLATION)
        return row["model"], place, form, level, row["run_id"]

    return [row["run_id"] for row in sorted(found.values(), key=order)]


def require_same(rows: Sequence[Row]) -> None:
    """Raise OutputsDiffer, which names every pair, unless all runs say the same as the reference.

    That is: the same predictions, and outputs within the tolerance.
    """
    different = [(row, _difference(row.agreement)) for row in rows[1:] if not row.agreement.same]
    if not different:
        return
    reference = rows[0].record["run_id"]
    pairs = [f"{row.record['run_id']} and {reference} {what}" for row, what in different]
    if len(pairs) == 1:
        raise OutputsDiffer(f"the outputs of {pairs[0]}")
    raise OutputsDiffer(
        f"the outputs of {len(pairs)} of {len(rows) - 1} runs are not those of {reference}", context=pairs
    )


def _difference(agreement: Agreement) -> str:
    if agreement.same is None:
        return "can't be compared: one of them kept no outputs, or they are of other shapes"
    if agreement.differing_predictions:
        return f"differ in {agreement.differing_predictions} predictions"
    return f"differ by up to {agreement.max_difference:.3g}, beyond the tolerance"


def _form(row: Mapping[str, Any]) -> str:
    return str(row["variant"] or row["framework"])


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
