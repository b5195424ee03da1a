"""`mlbundle sweep`: many runs of one bundle, planned and shown first, resumable after a kill."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlbundle.cli import output
from mlbundle.cli.network import network, network_options
from mlbundle.cli.params import BYTES, SECONDS, complete_reference
from mlbundle.cli.scenario import scenario_arguments
from mlbundle.cli.sweep_views import about, cell_document, counted, outcome_text, show_plan, show_results
from mlbundle.errors import EXIT_ENVIRONMENT, EXIT_NO, EXIT_RUN_FAILED, EXIT_YES, UsageError
from mlbundle.wire.scenarios import COUNT, COUNTS, NUMBER, SCENARIOS, WARM_UP
from mlbundle.wire.scenarios import SECONDS as SECONDS_KIND

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from mlbundle.config import Settings
    from mlbundle.runs.sweep_axes import Matrix
    from mlbundle.runs.sweep_drive import Progress
    from mlbundle.runs.sweep_plan import SweepPlan
    from mlbundle.runs.sweep_state import SweepFolder

_LISTS = frozenset({SECONDS_KIND, WARM_UP, NUMBER, COUNT, COUNTS})
_LEFT = "left"


def _complete_sweep(
    _ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:  # pragma: no cover - asked by shells
    from click.shell_completion import CompletionItem

    from mlbundle.config import load_settings
    from mlbundle.runs.sweep_state import sweep_folders

    ids = ["latest", *(folder.sweep_id for folder in sweep_folders(load_settings()))]
    return [CompletionItem(name) for name in ids if name.startswith(incomplete)]


@click.group("sweep")
def command() -> None:
    """Run many cells of one bundle: frameworks, batch sizes, threads, scenarios."""


@command.command("run")
@click.argument("reference", metavar="REFERENCE|MATRIX", shell_complete=complete_reference)
@scenario_arguments
@click.option("--framework", metavar="NAMES", help="Forms of the model, or all.  [default: the top level]")
@click.option("--runtime", metavar="NAMES", help="auto, docker, process.")
@click.option("--accelerator", metavar="NAMES", help="What to run on.")
@click.option("--arch", metavar="NAMES", help="Architectures of the images.")
@click.option("--threads", metavar="COUNTS", help="Threads of the framework.")
@click.option("--seed", metavar="NUMBERS", help="Orders of the samples.")
@click.option("--cpus", help="Pin all cells to these CPUs: 0 or 0,2 or 0-3.")
@click.option("--rounds", type=int, help="Run all cells this often, one round after another.  [default: 1]")
@click.option("--trace", type=click.Choice(["none", "model"]), help="Trace level of all cells.")
@click.option("--no-accuracy", is_flag=True, help="Leave out the accuracy pass.")
@click.option("--memory", type=BYTES, help="Memory limit of each cell: 2GiB.")
@click.option("--timeout", type=SECONDS, help="Longest silence of a worker.")
@click.option("--trust", is_flag=True, help="Let code of the bundle run outside a container.")
@click.option("--python", type=click.Path(path_type=Path, dir_okay=False), help="Use this Python (process).")
@click.option("--concurrent", is_flag=True, help="Do not wait for other measurements (results are marked).")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("-n", "--dry-run", is_flag=True, help="Show the cells; run and keep nothing.")
@network_options
@output.format_options()
def run(reference: str, output_format: str, yes: bool, dry_run: bool, **chosen: Any) -> int:
    """Run every combination of the values given.

    REFERENCE is a bundle, as for `mlbundle run`; MATRIX is a YAML file of schema mlbundle/sweep/v1 that names one.

    --scenario, --framework, --runtime, --accelerator, --arch, --threads, --seed and the options of scenarios that take
    a number or a duration take lists: --framework onnxruntime,torch --batch-sizes 1,8. An option makes cells only of
    scenarios that have it.

    The cells are shown first. Each is one `mlbundle run` by the bundle's digest, in a process of its own; what lacks
    on this machine is tried once more, what fails by the bundle is not. After a kill, `mlbundle sweep resume latest`
    goes on. Exit status: 0 all good, 1 a result is not valid or not as claimed, 3 a cell lacked something, 4 a cell
    failed.
    """
    from mlbundle.config import load_settings
    from mlbundle.runs.sweep_matrix import is_matrix, load_matrix
    from mlbundle.runs.sweep_plan import keep_bundle, plan_sweep
    from mlbundle.runs.sweep_state import new_sweep

    settings = load_settings()
    reach = network(plain_http=chosen.pop("plain_http"), ca_file=chosen.pop("ca_file"))
    if is_matrix(reference):
        _refuse_options(chosen)
        matrix = load_matrix(Path(reference))
    else:
        matrix = _matrix(reference, chosen)
    plan = plan_sweep(matrix, settings, reach)
    if dry_run and output_format == "json":
        output.document(plan.to_document())
        return EXIT_YES
    show_plan(plan, output_format if dry_run else "table", dry_run=dry_run)
    if dry_run:
        return EXIT_YES
    if not _agreed(plan, yes=yes, interactive=output_format != "json" and sys.stdin.isatty()):
        output.narrate("nothing was run")
        return EXIT_YES
    keep_bundle(matrix, plan, settings, reach, report=output.narrate)
    folder = new_sweep(settings, plan, ["mlbundle", *sys.argv[1:]])
    return _drive(folder, plan, settings, output_format)


@command.command("resume")
@click.argument("sweep", shell_complete=_complete_sweep)
@output.format_options()
def resume(sweep: str, output_format: str) -> int:
    """Go on with a sweep that was stopped.

    The cells that have no result yet are run: a cell that failed by its own fault is not run again, one that lacked
    something is. SWEEP is an id, the beginning of one, or `latest`.
    """
    from mlbundle.config import load_settings
    from mlbundle.runs.sweep_state import find_sweep

    settings = load_settings()
    folder = find_sweep(settings, sweep)
    return _drive(folder, folder.plan(), settings, output_format)


@command.command("list")
@output.format_options()
def list_(output_format: str) -> None:
    """List the sweeps, newest first."""
    from mlbundle.config import load_settings
    from mlbundle.errors import IntegrityError, StorageFailed
    from mlbundle.runs.sweep_state import sweep_folders

    rows = []
    for folder in sweep_folders(load_settings()):
        try:
            rows.append(_summary(folder))
        except (IntegrityError, StorageFailed) as error:
            output.warn(f"sweep {folder.sweep_id}: {error.message}", hint=error.hint)
    if output_format == "json":
        output.document({"schema": "mlbundle/sweeps/v1", "sweeps": rows})
        return
    if not rows and output_format == "table":
        output.narrate("no sweeps yet: `mlbundle sweep run digits-cnn --framework all` makes one")
    columns = ("sweep", "model", "state", "cells", "good", "not good", "failed", "lacking", "left")
    output.records(rows, columns, lambda row: tuple(row.values()), output_format=output_format)


@command.command("show")
@click.argument("sweep", shell_complete=_complete_sweep)
@click.option("--plan", "only_plan", is_flag=True, help="Show the command of each cell instead of results.")
@output.format_options()
def show(sweep: str, only_plan: bool, output_format: str) -> None:
    """Show the results of a sweep so far.

    SWEEP is an id, the beginning of one, or `latest`.
    """
    from mlbundle.config import load_settings
    from mlbundle.runs.sweep_state import find_sweep

    folder = find_sweep(load_settings(), sweep)
    plan = folder.plan()
    if not only_plan:
        show_results(folder, plan, output_format)
    elif output_format == "json":
        output.document(plan.to_document())
    else:
        show_plan(plan, output_format, dry_run=True)


@command.command("rm")
@click.argument("sweep", shell_complete=_complete_sweep)
@output.format_options("table", "json")
def rm(sweep: str, output_format: str) -> None:
    """Remove a sweep; its runs are kept.

    SWEEP is an id, the beginning of one, or `latest`. `mlbundle runs rm` removes runs.
    """
    from mlbundle.config import load_settings
    from mlbundle.runs.sweep_state import find_sweep, remove_sweep

    folder = find_sweep(load_settings(), sweep)
    remove_sweep(folder)
    if output_format == "json":
        output.document({"schema": "mlbundle/removed-sweep/v1", "sweep_id": folder.sweep_id})
    else:
        output.data(f"removed {folder.sweep_id}")


def _matrix(reference: str, chosen: dict[str, Any]) -> Matrix:
    """Return what the command line asks for."""
    from mlbundle.runs.scenarios import read_scenario_file
    from mlbundle.runs.sweep_axes import AXES, Matrix

    axes: dict[str, tuple[str, ...]] = {}
    if chosen["scenario_file"] is not None:
        name, given = read_scenario_file(chosen["scenario_file"])
        if chosen["scenario"] not in {None, name}:
            raise UsageError(f"--scenario {chosen['scenario']} and the file's {name} are not the same")
        axes["scenario"] = (name,)
        axes |= {option.replace("_", "-"): _of_file(value) for option, value in given.items()}
    for name in AXES:
        if chosen.get(name) is not None:
            axes[name] = (chosen[name],) if name == "cpus" else _split(chosen[name])
    for option in dict.fromkeys(option for spec in SCENARIOS for option in spec.options):
        value = chosen.get(f"scenario_option_{option.name.replace('-', '_')}")
        if value not in {None, False}:
            text = "true" if value is True else str(value)
            axes[option.name] = _split(text) if option.kind in _LISTS else (text,)
    rounds = chosen["rounds"]
    return Matrix(
        reference=reference,
        axes=axes,
        fixed=tuple(_fixed(chosen)),
        sets=chosen["scenario_set"],
        rounds=1 if rounds is None else rounds,
    )


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _of_file(value: Any) -> tuple[str, ...]:
    if isinstance(value, bool):
        return ("true" if value else "false",)
    return (",".join(map(str, value)),) if isinstance(value, list) else (str(value),)


def _fixed(chosen: dict[str, Any]) -> list[str]:
    found = [f"--{name.replace('_', '-')}" for name in ("no_accuracy", "trust", "concurrent") if chosen[name]]
    for name, unit in (("memory", ""), ("timeout", "s"), ("trace", "")):
        if chosen[name] is not None:
            found.append(f"--{name}={chosen[name]}{unit}")
    if chosen["python"] is not None:
        # Not resolved: the link of a virtual environment is what makes it one.
        found.append(f"--python={chosen['python'].absolute()}")
    return found


def _refuse_options(chosen: dict[str, Any]) -> None:
    given = [name for name, value in chosen.items() if value not in (None, False, ())]
    if given:
        name = given[0].removeprefix("scenario_option_").replace("_", "-")
        raise UsageError(
            f"--{name} and a matrix exclude each other",
            hint="write it into the matrix, under axes or options",
        )


def _agreed(plan: SweepPlan, *, yes: bool, interactive: bool) -> bool:
    """Return whether the cells are to be run. Raises UsageError where nobody can be asked."""
    if yes:
        return True
    if not interactive:
        raise UsageError(
            f"{counted(plan)} would be run", hint="say --yes, or --dry-run to see the cells alone"
        )
    return click.confirm(f"Run {counted(plan)}?", err=True)


def _drive(folder: SweepFolder, plan: SweepPlan, settings: Settings, output_format: str) -> int:
    from mlbundle.runs.sweep_drive import drive, status_of

    output.narrate(f"sweep {folder.sweep_id}")
    before = status_of(plan, folder.states())
    if not before[_LEFT] and not before["lacking"]:
        output.narrate("nothing was left to run")
    try:
        with closing(drive(folder, plan, settings)) as events:
            for event in events:
                _tell(event, plan.axes)
                if output_format == "jsonl" and event.kind in {"ended", "settled"} and not event.will_retry:
                    output.json_line(cell_document(folder, plan, folder.states(), event.cell.number))
    except KeyboardInterrupt:
        output.narrate(f"stopped; `mlbundle sweep resume {folder.sweep_id}` goes on")
        raise
    if output_format != "jsonl":
        show_results(folder, plan, output_format)
    return _exit_status(folder, plan)


def _tell(event: Progress, axes: list[str]) -> None:
    what = f"cell {event.cell.number} of {event.total}"
    if event.kind == "begun":
        again = f" (attempt {event.attempt})" if event.attempt > 1 else ""
        output.narrate(f"{what}{again}: {_values_text(event, axes)}; {about(event.remaining)} left")
    elif event.kind == "said":
        output.narrate(f"  {event.text}", level=0 if event.text.startswith("warning: ") else 1)
    else:
        assert event.line is not None
        output.narrate(f"{what} {outcome_text(event.line)}" + ("; once more" if event.will_retry else ""))


def _values_text(event: Progress, axes: list[str]) -> str:
    return "  ".join(f"{name}={event.cell.values[name]}" for name in axes if name in event.cell.values)


def _summary(folder: SweepFolder) -> dict[str, Any]:
    from mlbundle.runs.sweep_drive import status_of

    plan = folder.plan()
    counts = status_of(plan, folder.states())
    over = "stopped" if counts[_LEFT] or counts["lacking"] else "complete"
    return {
        "sweep_id": folder.sweep_id,
        "model": f"{plan.name}:{plan.version}",
        "state": "running" if folder.is_driven() else over,
        "cells": len(plan.cells),
        **counts,
    }


def _exit_status(folder: SweepFolder, plan: SweepPlan) -> int:
    from mlbundle.runs.sweep_drive import status_of

    counts = status_of(plan, folder.states())
    if counts["failed"]:
        return EXIT_RUN_FAILED
    if counts["lacking"] or counts[_LEFT]:
        return EXIT_ENVIRONMENT
    return EXIT_NO if counts["not_good"] else EXIT_YES
