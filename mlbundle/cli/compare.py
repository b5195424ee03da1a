"""`mlbundle compare`: runs side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mlbundle.cli import output, units
from mlbundle.cli.params import complete_run
from mlbundle.errors import EXIT_YES, CheckFailed

if TYPE_CHECKING:
    from mlbundle.runs.comparison import Row

SCHEMA = "mlbundle/comparison/v1"
_COLUMNS = (
    "run", "model", "framework", "runtime", "trimmed mean", "ratio", "p99", "throughput", "accuracy",
    "predictions", "outputs",
)  # fmt: skip


@click.command("compare")
@click.argument("runs", nargs=-1, metavar="[RUN]...", shell_complete=complete_run)
@click.option(
    "--model", help="Instead of RUNs: the latest run of each form, framework and runtime of this model."
)
@click.option("--rtol", type=click.FloatRange(min=0), default=1e-5, show_default=True, help="Relative.")
@click.option("--atol", type=click.FloatRange(min=0), default=1e-5, show_default=True, help="Absolute.")
@click.option("--check", is_flag=True, help="Exit 1 unless all runs say the same, within the tolerance.")
@output.format_options()
def command(
    *,
    runs: tuple[str, ...],
    model: str | None,
    rtol: float,
    atol: float,
    check: bool,
    output_format: str,
) -> int:
    """Show RUNs side by side; each is held against the first.

    A RUN is an id, the beginning of one, or `latest`. Outputs agree where |a - b| <= atol + rtol * |b|, b being the
    first run's.
    """
    from mlbundle.analysis.agreement import Tolerance
    from mlbundle.config import load_settings
    from mlbundle.runs.comparison import compare_runs, latest_of_each, require_same

    if bool(runs) == (model is not None):
        raise click.UsageError("name the runs to compare, or a --model, and not both")
    settings = load_settings()
    chosen = list(runs) if model is None else latest_of_each(settings, model)
    rows = compare_runs(settings, chosen, Tolerance(rtol, atol))
    if output_format == "json":
        document = {
            "schema": SCHEMA,
            "tolerance": {"relative": rtol, "absolute": atol},
            "runs": [row.to_document() for row in rows],
        }
        output.document(document)
    else:
        output.table(_COLUMNS, [_cells(row) for row in rows], output_format=output_format)
    if check:
        try:
            require_same(rows)
        except CheckFailed as error:
            # stdout holds the comparison already; what the check says of it is narration.
            output.error(error)
            return error.exit_code
    return EXIT_YES


def _cells(row: Row) -> tuple[Any, ...]:
    found = row.to_document()
    variant = found["variant"] or found["framework"]
    named = found["framework"] if variant == found["framework"] else f"{variant} ({found['framework']})"
    invalid = "" if found["valid"] else " INVALID"
    return (
        found["run_id"],
        found["model"],
        f"{named} {found['framework_version']}",
        f"{found['runtime']}{invalid}",
        _shown(found["trimmed_mean_ns"], units.duration),
        _shown(row.latency_ratio, "x{:.2f}".format),
        _shown(found["p99_ns"], units.duration),
        _shown(found["throughput_per_s"], units.rate),
        _shown(found["accuracy"], "{:.4f}".format),
        _predictions(row, found["samples"]),
        _outputs(row),
    )


def _predictions(row: Row, samples: int | None) -> str:
    differing = row.agreement.differing_predictions
    if differing is None:
        return ""
    return f"same {samples}" if differing == 0 else f"{differing} of {samples} differ"


def _outputs(row: Row) -> str:
    used, difference = row.agreement.tolerance_used, row.agreement.max_difference
    if used is None or difference is None:
        return ""
    return f"{'within' if used <= 1 else 'BEYOND'} tolerance (max {difference:.2g})"


def _shown(value: Any, how: Any) -> str:
    return "" if value is None else str(how(value))
