"""What the pane beside the form says: what a run would do, why there is none, and which runs go on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from mlbundle.manifest.problems import printable
from mlbundle.runs.running import waiting_order
from mlbundle.wording import units
from mlbundle_tui import run_form
from mlbundle_tui.screens.dialogs import error_text
from mlbundle_tui.widgets.plot import bar
from mlbundle_tui.widgets.texts import pairs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from mlbundle.config import Settings
    from mlbundle.errors import MlbundleError, UsageError
    from mlbundle.runs.request import RunRequest
    from mlbundle.runs.running import RunningRun
    from mlbundle.runs.starting import Starting
    from mlbundle_tui.widgets.row_table import Cell

_KEY_WIDTH = 12
_BAR = 16
# Of the 64 digits of a bundle's digest; the whole is in the path of its files.
_LEFT_OUT = 52


def waiting(request: RunRequest, problems: Mapping[str, UsageError]) -> RenderableType:
    """Return what is said before there is a plan: what is missing, or what is wrong."""
    if not request.reference.strip():
        return Text.assemble(
            ("no bundle is chosen\n\n", "bold"),
            "enter  writes a name, a file, a folder or oci://…\n",
            "1      shows the bundles that are here",
        )
    if not problems:
        return Text("what it would do …", style="dim")
    rows: list[tuple[str, str | Text]] = []
    for key, problem in problems.items():
        said = Text(printable(problem.message))
        said.append(f"\n{printable(problem.hint)}" if problem.hint else "", style="dim")
        rows.append((run_form.name_of(key), said))
    return Group(Text("not yet\n", style="bold red"), pairs(rows, key_width=_KEY_WIDTH))


def refused(error: MlbundleError, request: RunRequest) -> Text:
    """Return why a run would not begin; a bundle that is far away is no error."""
    from mlbundle.runs.references import WEB_SCHEMES

    if request.reference.startswith(("oci://", *WEB_SCHEMES)) and "not here yet" in error.message:
        return Text.assemble(("ready: r runs it\n\n", "bold green"), f"{error.message}: {error.hint}")
    return Text.assemble(("it would not run\n\n", "bold red"), error_text(error))


def starting(found: Starting, seconds: float) -> Text:
    """Return what is done for a run that is being started, since when, and what the command says that starts it."""
    text = Text.assemble(("starting …", "bold"), f"  {seconds:.0f} s", ("   x stops it\n\n", "dim"))
    text.append(f"▶ {found.stage}", style="bold")
    if found.share is not None:
        text.append(f"  {bar(found.share, _BAR):<{_BAR}}", style="green")
        text.append(f" {found.share:4.0%}".replace("%", " %"))
    text.append(f"  {printable(found.now)}\n" if found.now else "\n")
    return text.append("".join(f"\n{printable(line)}" for line in found.lines), style="dim")


def explained(document: Mapping[str, Any], settings: Settings) -> RenderableType:
    """Return what a run would do, in lines; then the container and the job as they are handed over."""
    job, container = document["job"], document["container"]
    limits = job["limits"]
    cpus = ",".join(map(str, limits["cpus"])) or "all"
    threads = "1 thread" if limits["threads"] == 1 else f"{limits['threads']} threads"
    rows: list[tuple[str, str | Text]] = [
        ("bundle", str(document["bundle"])[:-_LEFT_OUT]),
        ("framework", f"{document['variant']}: {document['framework']}"),
        ("runtime", " ".join(filter(None, (
            document["runtime"], document["accelerator"], document["architecture"],
            "emulated" if document["emulated"] else "",
        )))),
        ("isolation", str(document["isolation"])),
        *([("image", str(document["image"]))] if document["image"] else []),
        ("scenario", _scenario(job["scenario"])),
        ("accuracy", str(job["accuracy"]["metric"]) if job["accuracy"] else "not checked"),
        ("trace", str(job["trace_level"])),
        ("limits", f"{threads}, CPUs {cpus}, memory {units.size(limits['memory_bytes'])}"),
        ("kept in", str(settings.runs_dir)),
    ]  # fmt: skip
    # Broken lines of JSON are hard to read, and `mlbundle run --dry-run` prints it whole.
    text = Text(no_wrap=True, overflow="ellipsis")
    for name, part in (("container", container), ("job", job)):
        if part is not None:
            text.append(f"\n{name} ", style="bold not dim")
            text.append(printable_json(part) + "\n", style="dim")
    return Group(_ready(document), pairs(rows, key_width=_KEY_WIDTH), text)


def _ready(document: Mapping[str, Any]) -> Text:
    if "recording" not in document:
        return Text("ready: r runs it\n", style="bold green")
    return Text.assemble(
        ("recorded: r lets it happen again\n\n", "bold green"),
        (f"run {document['recording']}, as it was: what the form says beyond this changes nothing\n", "dim"),
    )


def going_rows(runs: Sequence[RunningRun]) -> list[list[Cell]]:
    """Return the rows of the runs that go on; those that wait say their place."""
    order = waiting_order(runs)
    rows: list[list[Cell]] = []
    for run in runs:
        if run.waiting:
            state: Cell = (f"waits, {place_text(order.index(run.run_id))}", "warn")
        else:
            share = "" if run.progress is None else f" {run.progress:.0%}"
            state = (f"{run.phase or 'begins'}{share}", "good")
        rows.append([run.run_id[9:], run.model, run.scenario, state])
    return rows


def place_text(place: int) -> str:
    """Return a place in the queue in words; 0 is the next."""
    return "next" if place == 0 else f"{place} before it"


def printable_json(document: object) -> str:
    """Return a document as lines that may go to a terminal."""
    return "\n".join(map(printable, json.dumps(document, indent=2, ensure_ascii=False).splitlines()))


def _scenario(scenario: Mapping[str, Any]) -> str:
    from mlbundle.runs.told import named, told

    said = [f"{named(key)} {told(key, value)}" for key, value in scenario["options"].items()]
    return ", ".join([str(scenario["name"]), *said])
