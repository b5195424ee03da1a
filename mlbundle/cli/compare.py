"""`mlbundle compare`: runs side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mlbundle.cli import output
from mlbundle.cli.params import complete_run
from mlbundle.errors import EXIT_YES, CheckFailed
from mlbundle.wording import units
from mlbundle.wording.run_rows import form_text, headline_text, runtime_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

SCHEMA = "mlbundle/comparison/v1"
_COLUMNS = (
    "run", "model", "framework", "scenario", "runtime", "status", "headline", "ratio", "p99", "throughput", "accuracy",
    "predictions", "outputs",
)  # fmt: skip
_SPARE = ("p99", "throughput", "accuracy", "predictions", "runtime", "scenario")
_NAMED = 3


@click.command("compare")
@click.argument("runs", nargs=-1, metavar="[RUN]...", shell_complete=complete_run)
@click.option(
    "--model",
    help="Instead of RUNs: the latest run of each form, framework version, runtime and isolation of this model.",
)
@click.option(
    "--against",
    metavar="RUN",
    shell_complete=complete_run,
    help="Hold all against this run.  [default: the first RUN; of --model, the top level of its manifest]",
)
@click.option("--rtol", type=click.FloatRange(min=0), default=1e-5, show_default=True, help="Relative.")
@click.option("--atol", type=click.FloatRange(min=0), default=1e-5, show_default=True, help="Absolute.")
@click.option("--check", is_flag=True, help="Exit 1 unless all runs say the same, within the tolerance.")
@output.format_options()
def command(
    *,
    runs: tuple[str, ...],
    model: str | None,
    against: str | None,
    rtol: float,
    atol: float,
    check: bool,
    output_format: str,
) -> int:
    """Show RUNs side by side; each is held against the reference, which comes first.

    A RUN is an id, the beginning of one, or `latest`. The reference is the first RUN, or --against. Of a --model it is
    the run of the form at the top level of its manifest, in a pinned image where there is one. Outputs agree where
    |a - b| <= atol + rtol * |b|, b being the reference's. A ratio is of the headlines, and there is one only where both
    were measured under the same scenario with the same options (how long does not matter).
    """
    from mlbundle.analysis.agreement import Tolerance
    from mlbundle.config import load_settings
    from mlbundle.runs.comparison import compare_runs, latest_of_each, require_same

    if bool(runs) == (model is not None):
        raise click.UsageError("name the runs to compare, or a --model, and not both")
    settings = load_settings()
    chosen = list(runs) if model is None else latest_of_each(settings, model)
    rows = compare_runs(settings, chosen, Tolerance(rtol, atol), against=against)
    documents = [row.to_document() for row in rows]
    if output_format == "json":
        tolerance = {"relative": rtol, "absolute": atol}
        output.document({"schema": SCHEMA, "tolerance": tolerance, "runs": documents})
    else:
        output.records(documents, _COLUMNS, _cells, output_format=output_format, spare=_SPARE)
        notes = [*_notes(documents), f"tolerance: |a - b| <= {atol:g} + {rtol:g} * |b|, b of the reference"]
        output.notes(notes, output_format=output_format)
    if check:
        try:
            require_same(rows)
        except CheckFailed as error:
            # stdout holds the comparison already; what the check says of it is narration.
            output.error(error)
            return error.exit_code
    return EXIT_YES


def _cells(found: Mapping[str, Any]) -> tuple[Any, ...]:
    return (
        found["run_id"],
        found["model"],
        form_text(found["framework"], found["framework_version"], found["variant"]),
        found["scenario"],
        runtime_text(found["runtime"], found["isolation"]),
        _status(found) + (" !" if found["warnings"] else ""),
        headline_text(found),
        _shown(found["ratio"], units.ratio),
        "" if found["scenario"] == "cold-start" else _shown(found["p99_ns"], units.duration),
        _shown(found["throughput_per_s"], units.rate),
        _shown(found["accuracy"], "{:.4f}".format),
        _predictions(found),
        _outputs(found),
    )


def _status(found: Mapping[str, Any]) -> str:
    if found["status"] != "completed":
        return str(found["status"]).upper()
    return "INVALID" if not found["valid"] else "quick" if found["quick"] else "ok"


def _predictions(found: Mapping[str, Any]) -> str:
    differing, samples = found["differing_predictions"], found["samples"]
    if differing is None:
        return ""
    if found["reference"]:
        return f"{samples} samples"
    return f"same {samples}" if differing == 0 else f"{differing} of {samples} differ"


def _outputs(found: Mapping[str, Any]) -> str:
    if found["reference"]:
        return "reference"
    used, difference = found["tolerance_used"], found["max_difference"]
    if used is None or difference is None:
        return ""
    # Numbers that are not finite are texts in a document.
    within = float(used) <= 1
    return f"{'within' if within else 'BEYOND'} tolerance (max {float(difference):.2g})"


def _notes(documents: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what the marks of the rows mean: why a run counts for nothing, and what was warned of."""
    for found in documents:
        if not found["valid"]:
            error = f"[{found['error']}] " if found["error"] else ""
            yield f"{_status(found)} {found['run_id']}: {error}{'; '.join(found['reasons'])}"
    for found in documents:
        if found["not_comparable"]:
            yield f"no ratio for {found['run_id']}: {found['not_comparable']}"
        elif found["other_model"]:
            yield f"{found['run_id']} is of another model: {found['other_model']}"
    if any(found["ratio"] is not None and found["headline_unit"] == "per_s" for found in documents):
        yield "ratios are of rates: more is better"
    warned: dict[str, list[str]] = {}
    for found in documents:
        for warning in dict.fromkeys(found["warnings"]):
            warned.setdefault(warning, []).append(found["run_id"])
    for warning, runs in warned.items():
        which = ", ".join(runs) if len(runs) <= _NAMED else f"{len(runs)} of {len(documents)} runs"
        yield f"! {warning}: {which}"
    if warned:
        yield "  (`mlbundle runs show RUN` says more; such times may not be comparable)"


def _shown(value: Any, how: Any) -> str:
    return "" if value is None else str(how(value))
