"""`mlbundle run`: a bundle under a scenario."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlbundle.cli import output
from mlbundle.cli.network import network, network_options
from mlbundle.cli.params import BYTES, CPUS, SECONDS, complete_reference, complete_variant
from mlbundle.cli.scenario import chosen_scenario, scenario_arguments
from mlbundle.errors import EXIT_YES, CheckFailed, MlbundleError
from mlbundle.platforms import ACCELERATORS, ARCHITECTURES

if TYPE_CHECKING:
    from mlbundle.config import Settings
    from mlbundle.runs.plan import RunOptions, RunPlan


@click.command("run")
@click.argument("reference", shell_complete=complete_reference)
@scenario_arguments
@click.option(
    "--framework",
    metavar="NAME",
    shell_complete=complete_variant,
    help="Run the variant of this name or for this framework.  [default: the top level of the manifest]",
)
@click.option(
    "--runtime",
    type=click.Choice(["auto", "docker", "process"]),
    help="Where the worker runs; auto: docker where an image is ready, else a process.  [default: auto]",
)
@click.option(
    "--accelerator", type=click.Choice(ACCELERATORS), default="cpu", show_default=True, help="What to run on."
)
@click.option(
    "--arch",
    "--architecture",
    "architecture",
    type=click.Choice(ARCHITECTURES),
    help="Run the image of this architecture, emulated where it is not the machine's.  [default: the machine's]",
)
@click.option(
    "--trace",
    "trace_level",
    type=click.Choice(["none", "model", "framework", "system", "full"]),
    help="How deep the trace looks. none: no trace. model: steps of the pipeline and counters; costs nothing. "
    "framework: and layers, seen in one pass more, of seconds. system: and operators, kernels and copies, in a second "
    "one. full: on a GPU also a third, in which each kernel is waited for. What is measured is never profiled.  "
    "[default: model]",
)
@click.option("--no-accuracy", is_flag=True, help="Leave out the accuracy pass.")
@click.option(
    "--threads", type=click.IntRange(1, 1024), default=1, show_default=True, help="Threads of the framework."
)
@click.option("--cpus", type=CPUS, default=None, help="Pin to these CPUs: 0 or 0,2 or 0-3.")
@click.option(
    "--memory",
    "memory_bytes",
    type=BYTES,
    help="Memory limit of the container, or of each process of the worker (Linux): 2GiB.  [default: 2GiB]",
)
@click.option(
    "--timeout", "hang_timeout_s", type=SECONDS, help="Longest silence of the worker.  [default: 2m]"
)
@click.option("--seed", type=int, default=0, show_default=True, help="Order of the samples.")
@click.option("--trust", is_flag=True, help="Let code of the bundle run outside a container.")
@click.option(
    "--python", type=click.Path(path_type=Path, dir_okay=False), help="Use this Python (process, unpinned)."
)
@click.option("--concurrent", is_flag=True, help="Do not wait for other measurements (the result is marked).")
@click.option(
    "--detach",
    is_flag=True,
    help="Go on in a process of its own, and say the run's id: see `runs attach`, `runs stop`.",
)
@click.option("--dry-run", is_flag=True, help="Show image digest, container arguments and job; run nothing.")
@network_options
@output.format_options("table", "json", "jsonl")
def command(reference: str, output_format: str, **chosen: Any) -> int:
    """Run the bundle REFERENCE: a file, a name in the library or a built-in one, a folder with model.yml, or what
    is pulled first: a repository (oci://HOST/NAME:VERSION), an https address.

    Measures, checks the accuracy against what the manifest claims, and writes a Perfetto trace. Exit status: 0 all
    well, 1 the claim is not met or the result is not valid, 3 this machine lacks something, 4 the run failed,
    5 the bundle is damaged.
    """
    from mlbundle.config import load_settings
    from mlbundle.errors import UsageError
    from mlbundle.runs.plan import make_plan
    from mlbundle.runs.recover import recover_left_runs
    from mlbundle.runs.verdict import require_good

    if chosen["detach"] and output_format == "jsonl":
        raise UsageError(
            "--detach prints the run's id and no events",
            hint="`mlbundle runs attach --format jsonl` prints them while it goes on",
        )
    settings = load_settings()
    for run_id in recover_left_runs(settings):
        output.narrate(f"closed run {run_id}, whose process had died")
    plan = make_plan(_options(reference, settings, chosen), settings, report=output.narrate)
    if chosen["dry_run"]:
        _show_plan(plan, settings, output_format)
        return EXIT_YES
    if chosen["detach"]:
        _detach(plan, settings, output_format)
        return EXIT_YES
    record = _execute(plan, settings, output_format)
    if output_format == "json":
        output.document(record)
    elif output_format == "table":
        from mlbundle.cli.record_table import show_record

        show_record(record, settings)
    try:
        require_good(record)
    except CheckFailed as error:
        # stdout holds the record already; what the check says of it is narration.
        output.error(error)
        return error.exit_code
    return EXIT_YES


def _options(reference: str, settings: Settings, chosen: dict[str, Any]) -> RunOptions:
    from mlbundle.runs.plan import RunOptions
    from mlbundle.runs.scenarios import check_compliance
    from mlbundle.runs.sweep_attempt import SweepAttempt

    scenario, scenario_options = chosen_scenario(chosen)
    check_compliance(scenario_options, accuracy=not chosen["no_accuracy"])
    return RunOptions(
        reference=reference,
        framework=chosen["framework"],
        architecture=chosen["architecture"],
        runtime=chosen["runtime"] or settings.runtime,
        accelerator=chosen["accelerator"],
        scenario=scenario,
        scenario_options=scenario_options,
        accuracy=not chosen["no_accuracy"],
        trace_level=chosen["trace_level"] or settings.trace_level,
        threads=chosen["threads"],
        cpus=chosen["cpus"] or (),
        memory_bytes=chosen["memory_bytes"] or settings.memory_bytes,
        hang_timeout_s=chosen["hang_timeout_s"] or settings.hang_timeout_s,
        seed=chosen["seed"],
        trust=chosen["trust"],
        python=chosen["python"],
        concurrent=chosen["concurrent"],
        network=network(plain_http=chosen["plain_http"], ca_file=chosen["ca_file"]),
        dry_run=chosen["dry_run"],
        command=("mlbundle", *sys.argv[1:]),
        sweep=SweepAttempt.of_environment(),
    )


def _detach(plan: RunPlan, settings: Settings, output_format: str) -> None:
    from mlbundle.runs.detach import start_detached

    run_id = start_detached(plan, settings)
    if output_format == "json":
        folder = str(settings.runs_dir / run_id)
        output.document({"schema": "mlbundle/detached-run/v1", "run_id": run_id, "folder": folder})
        return
    output.data(run_id)
    output.narrate(f"it goes on by itself: `mlbundle runs attach {run_id}`, `mlbundle runs stop {run_id}`")


def _execute(plan: RunPlan, settings: Settings, output_format: str) -> dict[str, Any]:
    from mlbundle.cli.live import LiveView
    from mlbundle.runs.execute import Execution

    execution = Execution(plan, settings)
    try:
        with LiveView() as view, closing(execution.events()) as events:
            for event in events:
                view.show(event)
                if output_format == "jsonl":
                    output.json_line(event.to_document())
    except (MlbundleError, KeyboardInterrupt):
        output.narrate(f"what was seen of the run is kept in {settings.runs_dir / plan.run_id}")
        output.narrate(f"`mlbundle runs show {plan.run_id}` shows it")
        raise
    assert execution.record is not None
    return execution.record


def _show_plan(plan: RunPlan, settings: Settings, output_format: str) -> None:
    from mlbundle.runs.explain import explain

    document = explain(plan, settings)
    if output_format == "json":
        output.document(document)
        return
    for name in ("bundle", "framework", "runtime", "architecture", "isolation", "image", "worker"):
        output.data(f"{name:<12} {document[name]}")
    output.data("container    " + json.dumps(document["container"], indent=2))
    output.data("job          " + json.dumps(document["job"], indent=2))
