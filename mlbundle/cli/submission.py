"""`mlbundle submission`: results for MLPerf Inference, open division."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlbundle.cli import output
from mlbundle.cli.params import complete_run
from mlbundle.errors import EXIT_NO, EXIT_YES, UsageError
from mlbundle.wire.words import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlbundle.runs.submission_check import Finding

SCHEMA = "mlbundle/submission/v1"
_WRITE = "write"


class _RunsOrCommand(click.Group):
    """A group whose arguments are runs unless the first is one of its commands."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in {*self.commands, "-h", "--help"}:
            args = [_WRITE, *args]
        return super().parse_args(ctx, args)


@click.group(
    "submission",
    cls=_RunsOrCommand,
    subcommand_metavar="RUN... -o TREE [OPTIONS] | check TREE",
)
def command() -> None:
    """Make a tree of results for MLPerf Inference (open division) of runs under LoadGen's scenarios; check a tree.

    `mlbundle submission write --help` says what there is to choose; `write` may be left out.
    """


@command.command(_WRITE)
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", shell_complete=complete_run)
@click.option(
    "-o",
    "--output",
    "tree",
    required=True,
    type=click.Path(path_type=Path),
    help="The new folder for the tree.",
)
@click.option("--submitter", required=True, metavar="NAME", help="Who hands it in.")
@click.option("--system-name", required=True, metavar="NAME", help="What the system is called.")
@click.option("--division", type=click.Choice(["open"]), default="open", show_default=True)
@click.option(
    "--benchmark",
    "benchmarks",
    multiple=True,
    metavar="[MODEL=]BENCHMARK",
    help="The model of MLPerf that a bundle stands for, such as resnet; MODEL= where the runs are of several.",
)
@click.option(
    "--status",
    type=click.Choice(["available", "preview", "rdi"]),
    default="available",
    show_default=True,
    help="Whether the system can be bought.",
)
@click.option(
    "--system-type",
    type=click.Choice(["edge", "datacenter", "datacenter,edge"]),
    help="Which suite; the one that has the scenarios of the runs where nothing is said.",
)
@click.option(
    "--details",
    type=click.Path(path_type=Path, dir_okay=False),
    help="What a record can't know, as YAML or JSON: fields such as `cooling: air` or `retraining: no`.",
)
@click.option(
    "--allow-invalid", is_flag=True, help="Write a draft of runs that are no results; it is marked."
)
@output.format_options("table", "json")
def write(output_format: str, **chosen: Any) -> int:
    """Write the tree of RUN..., one system's runs of the scenarios of LoadGen, and check it.

    Quick runs, runs that LoadGen calls INVALID, runs that are not valid by their record, that fail a compliance test or
    the accuracy that their bundle claims, and runs that failed are refused. Exits with 1 when a run is none to
    hand in, or the check finds an error.
    """
    from mlbundle.config import load_settings
    from mlbundle.runs.catalog import show_run
    from mlbundle.runs.submission import Submission, read_entry, write_submission
    from mlbundle.runs.submission_system import read_details

    settings = load_settings()
    records = {record["run_id"]: record for record in (show_run(settings, run) for run in chosen["runs"])}
    entries = [read_entry(settings, record) for record in records.values()]
    details = chosen["details"]
    submission = Submission(
        submitter=chosen["submitter"],
        system_name=chosen["system_name"],
        status=chosen["status"],
        system_type=chosen["system_type"],
        benchmarks=_benchmarks(
            chosen["benchmarks"], [str(record["bundle"]["name"]) for record in records.values()]
        ),
        details=read_details(details) if details is not None else {},
    )
    draft = write_submission(entries, submission, chosen["tree"], allow_invalid=chosen["allow_invalid"])
    findings = _show(chosen["tree"], output_format, draft=draft)
    return EXIT_YES if draft or not _errors(findings) else EXIT_NO


@command.command("check")
@click.argument("tree", type=click.Path(path_type=Path))
@output.format_options("table", "json")
def check(tree: Path, output_format: str) -> int:
    """Check a TREE of results of the open division: every problem at once.

    Much of what depends on MLPerf's own models, such as accuracy targets, is for MLCommons' checker. Exits with 1 when
    there is an error; warnings are for people to judge.
    """
    return EXIT_NO if _errors(_show(tree, output_format)) else EXIT_YES


def _show(tree: Path, output_format: str, *, draft: bool | None = None) -> list[Finding]:
    from mlbundle.runs.submission_check import DRAFT, OPEN, check_submission, results_of, rounds_of

    findings = check_submission(tree)
    errors = _errors(findings)
    is_draft = bool(draft) or any(tree.glob(f"{OPEN}/*/{DRAFT}"))
    if output_format == "json":
        names = ("submitter", "system", "benchmark", "scenario")
        output.document({
            "schema": SCHEMA,
            "tree": str(tree),
            "draft": is_draft,
            "valid": not errors,
            "results": [dict(zip(names, found, strict=True)) for found in results_of(tree)],
            "problems": [finding.to_document() for finding in findings],
        })  # fmt: skip
        return findings
    for finding in findings:
        hint = f" ({finding.hint})" if finding.hint else ""
        output.data(f"{finding.severity}: {finding.place}: {finding.message}{hint}")
    verdict = "a draft" if is_draft else ("not valid" if errors else "valid")
    warnings = counted(len(findings) - len(errors), "warning", "warnings")
    counts = f"{counted(len(errors), 'error', 'errors')}, {warnings}"
    results = counted(len(results_of(tree)), "result", "results")
    rounds = "".join(f", for MLPerf Inference {name}" for name in rounds_of(tree))
    output.narrate(f"{tree}: {results}{rounds}, {verdict} ({counts})")
    return findings


def _errors(findings: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity == "error"]


def _benchmarks(given: Sequence[str], models: Sequence[str]) -> dict[str, str]:
    """Return bundle -> model of MLPerf of `MODEL=BENCHMARK`, or `BENCHMARK` alone where there is one model."""
    found = {}
    for text in given:
        model, separator, benchmark = text.rpartition("=")
        if not separator:
            if len(set(models)) > 1:
                raise UsageError(
                    f"--benchmark {text}: which of the models?", hint=f"--benchmark {models[0]}={text}"
                )
            model = models[0]
        if not benchmark or not model:
            raise UsageError(
                f"--benchmark: {text!r} names nothing", hint="MODEL=BENCHMARK, such as resnet50=resnet"
            )
        found[model] = benchmark
    return found
