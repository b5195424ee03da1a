"""What the live screen says, as texts: phases, resources, warnings, lines of the log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.text import Text

from mlbundle.errors import CheckFailed
from mlbundle.manifest.problems import printable
from mlbundle.runs.words import counted
from mlbundle.wording import units
from mlbundle_tui.plan_text import place_text
from mlbundle_tui.widgets.plot import bar, columns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mlbundle.runs.latencies import LatencyView
    from mlbundle.runs.watching import LogLine, PhaseView, RunView
    from mlbundle_tui.live_source import Seen

_SIGNS = {
    "to come": ("·", "dim"),
    "under way": ("▶", "bold"),
    "done": ("✓", "green"),
    "broken off": ("✗", "red"),
}
_VALID = "valid"
_STATUS = {_VALID: "green", "failed": "red"}
_BAR, _SPARKS = 12, 10
_MOST_CHARACTERS = 2000
_SILENT_S = 5.0
_LEAST_LEFT_S = 0.1


@dataclass(frozen=True)
class Numbers:
    """What is shown large, with units; empty where nothing can be told."""

    throughput: str
    p50: str
    p99: str


def title(run_id: str, seen: Seen, *, frozen: bool) -> Text:
    """Return what runs, since when, and whether the display stands still."""
    view = seen.view
    text = _named(seen)
    if view.waiting:
        text.append("  waits", style="bold yellow")
        text.append(f" for {seen.holder or 'another measurement on this machine'}")
        if seen.place is not None:
            text.append(f": {place_text(seen.place)}", style="bold")
    elif view.phase:
        text.append(f"  {view.phase}", style="bold green")
    text.append(f"  {clock(view.elapsed_s + seen.since_s)}")
    if seen.since_s >= _SILENT_S and not view.waiting:
        text.append(f"  nothing heard for {seen.since_s:.0f} s", style="yellow")
    if frozen:
        text.append("  ")
        text.append(" FROZEN: space goes on ", style="reverse")
    text.append(f"  {run_id}", style="dim")
    return text


def ended_title(run_id: str, seen: Seen, record: Mapping[str, Any] | None) -> Text:
    """Return what came of a run, and which key shows it."""
    status, why = outcome(seen, record)
    text = _named(seen)
    text.append(f"  {status}", style=f"bold {_STATUS.get(status, 'yellow')}")
    text.append(f"  {clock(seen.view.elapsed_s)}")
    text.append("  enter opens the results", style="bold")
    if why:
        text.append(f"  {printable(why)}")
    text.append(f"  {run_id}", style="dim")
    return text


def outcome(seen: Seen, record: Mapping[str, Any] | None) -> tuple[str, str]:
    """Return the status of a run that has ended, in words, and why it is not what it should be."""
    from mlbundle.runs.verdict import require_good

    if record is None:
        status = "its process has died" if seen.view.ended is None else seen.view.ended.status
        return status, ""
    if record["status"] != "completed":
        reasons = (record.get("validity") or {}).get("reasons") or ()
        return str(record["status"]), str((record.get("error") or {}).get("message") or "; ".join(reasons))
    try:
        require_good(record)
    except CheckFailed as error:
        return "not good", error.message
    return _VALID, ""


def ended_brief(seen: Seen, record: Mapping[str, Any] | None) -> Text:
    """Return what came of a run in a line or two, where there is no room for more."""
    status, why = outcome(seen, record)
    return Text.assemble(
        (status, f"bold {_STATUS.get(status, 'yellow')}"), f" {printable(why)[:200]}" if why else ""
    )


def brief(seen: Seen) -> Text:
    """Return the phases in a line."""
    text = Text()
    for phase in seen.view.phases():
        sign, style = _SIGNS[phase.state]
        share = f" {phase.share:.0%}" if phase.share is not None and phase.state == "under way" else ""
        if phase.state != "to come":
            text.append(f"{sign}{phase.name}{share} ", style=style)
    return text


def live_numbers(view: RunView) -> Numbers | None:
    """Return the numbers of the last window; None before there is one."""
    window = view.window
    if window is None:
        return None
    return Numbers(
        units.rate(window.throughput), units.duration(window.p50_ns), units.duration(window.p99_ns)
    )


def ended_numbers(record: Mapping[str, Any] | None, found: LatencyView | None) -> Numbers | None:
    """Return the numbers of a whole run; None where it has none."""
    throughput = ((record or {}).get("result") or {}).get("throughput_per_s")
    if found is None or not isinstance(throughput, int | float):
        return None
    told = found.percentiles
    p50, p99 = (units.duration(told[percent]) if percent in told else "" for percent in (50.0, 99.0))
    return Numbers(units.rate(throughput), p50, p99)


def numbers(found: Numbers | None) -> Text:
    """Return the numbers in a line."""
    if found is None:
        return Text("nothing measured yet", style="dim")
    text = Text()
    text.append(found.throughput, style="bold")
    for name, value in (("p50", found.p50), ("p99", found.p99)):
        if value:
            text.append(f"   {name} ", style="dim")
            text.append(value, style="bold")
    return text


def phases(found: Sequence[PhaseView], *, back: str = "") -> Text:
    """Return a line for each phase: how long it took, or how far it is and what remains.

    `back` is the colour of what remains of a bar.
    """
    text = Text(no_wrap=True, overflow="ellipsis")
    for phase in found:
        sign, style = _SIGNS[phase.state]
        name = phase.name + (f" x{phase.times}" if phase.times > 1 else "")
        text.append(f"{sign} {name:<11}", style=style)
        if phase.state == "under way":
            _append_under_way(text, phase, back)
        elif phase.state != "to come":
            text.append(f"{units.duration(phase.seconds * 1e9):>9}", style="dim")
        text.append("\n")
    return text


def resources(counters: Mapping[str, Sequence[tuple[float, float]]]) -> Text:
    """Return the last value of each counter, and the values before it as a row of bars."""
    text = Text(no_wrap=True, overflow="ellipsis")
    for name, points in sorted(counters.items()):
        value = points[-1][1]
        shown = (
            units.size(int(value))
            if name == "memory"
            else f"{value:.2f} CPUs"
            if name == "cpu"
            else f"{value:g}"
        )
        text.append(f"  {printable(name):<11}", style="dim")
        text.append(f"{shown:>10} ")
        recent = [value for _, value in points[-_SPARKS:]]
        text.append(columns(recent, 1)[0] + "\n", style="cyan")
    return text


def warnings(view: RunView) -> Text:
    """Return what was warned of, the latest first."""
    text = Text()
    for warned in reversed(view.warnings):
        text.append("! ", style="bold yellow")
        text.append(printable(warned.message))
        text.append(f"\n  {printable(warned.hint)}" if warned.hint else "", style="dim")
        text.append("\n")
    if view.warnings_left_out:
        text.append(f"and {counted(view.warnings_left_out, 'warning', 'warnings')} more", style="dim")
    return text


def log_lines(lines: Sequence[LogLine]) -> list[str]:
    """Return lines of the log as they are shown; nothing in them moves the cursor."""
    found = []
    for line in lines:
        first, *more = line.text[:_MOST_CHARACTERS].splitlines() or [""]
        level = f"{line.level}: " if line.level in {"warning", "error"} else ""
        found.append(f"{line.t_s:8.2f}  {level}{printable(first)}")
        found += [f"{'':8}  {printable(rest)}" for rest in more]
    return found


def clock(duration_s: float) -> str:
    """Return a time as on a watch: `0:07`, `1:02:03`."""
    minutes, whole_s = divmod(int(max(0.0, duration_s)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{whole_s:02}" if hours else f"{minutes}:{whole_s:02}"


def _append_under_way(text: Text, phase: PhaseView, back: str) -> None:
    if phase.share is not None:
        style = f"green on {back}" if back else "green"
        text.append(f"{bar(phase.share, _BAR):<{_BAR}}", style=style)
        text.append(f" {phase.share:4.0%}", style="bold")
    else:
        text.append(f"{clock(phase.seconds):>9}", style="bold")
    # Nobody reads of times that are over when they are read.
    if phase.left_s is not None and phase.left_s >= _LEAST_LEFT_S:
        text.append(f" {clock(phase.left_s + 0.5)}")
    elif phase.text:
        text.append(f" {printable(phase.text)}")


def _named(seen: Seen) -> Text:
    job = seen.job
    framework = str((job.get("model") or {}).get("predictor") or "")
    scenario = str((job.get("scenario") or {}).get("name") or "")
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(printable(seen.view.model) or "a run", style="bold")
    text.append("".join(f"  {printable(part)}" for part in (framework, scenario) if part))
    return text
