"""What the tabs of a bundle show: renderables made of values, nothing asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from mlbundle.manifest.problems import printable
from mlbundle.wording import units
from mlbundle_tui.widgets.texts import STATES, fit, pairs, state_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from mlbundle.manifest.model import Expected, ModelManifest, TensorSpec
    from mlbundle.runs.bundle_detail import BundleDetail
    from mlbundle.runs.readiness import Readiness, Way
    from mlbundle.runs.shelf import BundleRow

_SHOWN_FILES = 500
_SHOWN_PROBLEMS = 10
_MOST_FORMS = 3
_MAX_SYNTAX = 200_000
_VALUE_WIDTH = 300


def overview(row: BundleRow, detail: BundleDetail | None, ready: Readiness | None) -> RenderableType:
    """Return what a bundle is: description, claims, inputs and outputs."""
    title = Text(fit(row.name, 500), style="bold")
    title.append(f" {fit(row.version, 128)}", style="not bold")
    parts: list[RenderableType] = [title]
    if row.description:
        parts += [Text(printable(row.description[:2000])), Text()]
    if row.problem:
        parts += [Text(printable(row.problem), style="red"), Text()]
    facts: list[tuple[str, str | Text]] = []
    if ready is not None:
        facts.append(("here", _here(ready, "" if ready.problem == row.problem else ready.problem)))
    facts += [("task", row.task), ("where", row.where), ("from", row.source)]
    if row.size is not None:
        facts.append(("size", units.size(row.size)))
    if row.digest:
        facts.append(("digest", row.digest))
    model = detail.model if detail is not None else None
    if model is not None:
        facts += _of_model(model)
    if detail is not None:
        facts += [("attached", ", ".join(detail.attached))] if detail.attached else []
    parts.append(pairs([(key, value) for key, value in facts if value]))
    if model is not None:
        parts += [_claims(model.expected), Text(), _tensors(model)]
    if detail is not None and detail.problems:
        parts.append(Text("\n".join(map(printable, detail.problems[:_SHOWN_PROBLEMS])), style="yellow"))
    return Group(*parts)


def manifest(detail: BundleDetail, *, dark: bool, colour: bool) -> RenderableType:
    """Return the manifest as it is written, with its syntax shown; plain where it is very long or without colours."""
    text = "\n".join(map(printable, detail.text.splitlines()))
    if not colour or len(text) > _MAX_SYNTAX:
        return Text(text)
    from rich.syntax import Syntax

    highlighted = Syntax("", "yaml", theme="ansi_dark" if dark else "ansi_light").highlight(text)
    return Text(highlighted.plain, spans=highlighted.spans)


def assets(detail: BundleDetail) -> RenderableType:
    """Return the files of a bundle with their sizes and digests."""
    table = _table(("file", "left"), ("size", "right"), ("what", "left"), ("sha256", "left"))
    for file in detail.files[:_SHOWN_FILES]:
        digest = file.sha256[:12] if file.sha256 else ""
        table.add_row(
            Text(fit(file.path, 200)), Text(units.size(file.size_bytes)), Text(file.what), Text(digest)
        )
    total = units.size(sum(file.size_bytes for file in detail.files))
    parts: list[RenderableType] = [Text(f"{len(detail.files)} files, {total}", style="bold"), table]
    if len(detail.files) > _SHOWN_FILES:
        parts.append(Text(f"… and {len(detail.files) - _SHOWN_FILES} more", style="dim"))
    if detail.set_digest:
        parts.append(pairs([("set", detail.set_digest)]))
    return Group(*parts)


def ways(ready: Readiness | None, detail: BundleDetail | None) -> RenderableType:
    """Return where each form can run here, and what would help where it can't."""
    if ready is None:
        return Text("looking …", style="dim")
    parts: list[RenderableType] = []
    if ready.problem:
        parts.append(Text(printable(ready.problem), style="bold"))
    # Forms of one framework that can do the same are told of together.
    alike: dict[tuple[Way, ...], list[str]] = {}
    for form in dict.fromkeys(way.form for way in ready.ways):
        same = tuple(replace(way, form="") for way in ready.ways if way.form == form)
        alike.setdefault(same, []).append(form)
    for group, forms in alike.items():
        title = Text(fit(", ".join(forms), 200), style="bold")
        title.append(f"  {fit(group[0].framework, 60)}", style="not bold dim")
        parts.append(title)
        for way in group:
            line = state_text(way.state)
            line.append(f"  {way.runtime} {way.accelerator}")
            parts += [
                _indented(line, 2),
                _indented(Text(printable(way.found)[:_VALUE_WIDTH], style="dim"), 4),
            ]
    if ready.mends:
        parts += [Text(), Text("p does", style="bold")]
        for mend in ready.mends:
            parts += [
                _indented(Text(printable(mend.title)), 2),
                _indented(Text(mend.about, style="dim"), 4),
                _indented(Text(printable(mend.command), style="dim"), 4),
            ]
    if detail is not None and (detail.pinned or detail.embedded):
        parts.append(
            pairs([("pinned", "\n".join(detail.pinned)), ("carried", "\n".join(detail.embedded) or "none")])
        )
    return Group(*parts)


def _indented(text: Text, by: int) -> Padding:
    return Padding(text, (0, 0, 0, by))


def history(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Return the runs of a bundle, newest first."""
    if not rows:
        return Text("no runs yet: r makes one", style="dim")
    table = _table(
        ("run", "left"), ("framework", "left"), ("scenario", "left"), ("result", "right"), ("", "left")
    )
    for row in rows:
        status = "" if row["status"] == "completed" and row["valid"] else str(row["status"])
        if row["status"] == "completed" and not row["valid"]:
            status = "invalid"
        table.add_row(
            Text(fit(str(row["run_id"]), 24)),
            Text(fit(str(row["variant"] or row["framework"]), 24)),
            Text(fit(str(row["scenario"]), 20)),
            Text(_headline(row)),
            Text(status, style="yellow"),
        )
    return table


def _headline(row: Mapping[str, Any]) -> str:
    value = row["headline_value"]
    if value is None:
        return ""
    return (
        f"{row['headline']} {units.rate(value) if row['headline_unit'] == 'per_s' else units.duration(value)}"
    )


def _here(ready: Readiness, problem: str) -> Text:
    """Return the state of a bundle and what is wrong with it, or which of its forms have which state."""
    text = state_text(ready.state)
    text.no_wrap = False
    if problem:
        text.append(f"\n{printable(problem)}", style="dim")
    forms = dict.fromkeys(way.form for way in ready.ways)
    states = sorted({ready.of_form(form) for form in forms}, key=list(STATES).index)
    if len(states) < 2:
        return text
    lines = Text()
    for state in states:
        names = [fit(form, 40) for form in forms if ready.of_form(form) == state]
        if len(names) > _MOST_FORMS:
            names = [*names[: _MOST_FORMS - 1], f"{len(names) - _MOST_FORMS + 1} others"]
        lines.append("\n" if lines else "")
        lines.append(STATES[state][0], style=STATES[state][1])
        lines.append(f" {state}: {', '.join(names)}")
    return lines


def _of_model(model: ModelManifest) -> list[tuple[str, str | Text]]:
    rows: list[tuple[str, str | Text]] = [("licence", model.license or "-")]
    if model.references:
        rows.append(("see", "\n".join(model.references[:5])))
    if model.dataset is not None:
        samples = f", {model.dataset.samples} samples" if model.dataset.samples else ""
        rows.append(("dataset", f"{model.dataset.format} {model.dataset.path}{samples}"))
    if model.carries_code:
        rows.append(("code", "it carries Python of its author"))
    return rows


def _tensors(model: ModelManifest) -> RenderableType:
    table = _table(("", "left"), ("layer", "left"), ("means", "left"), ("type", "left"), ("shape", "left"))
    for side, specs in (("in", model.inputs), ("out", model.outputs)):
        for spec in specs[:20]:
            cells = (side, spec.layer_name or "-", spec.type, spec.element_type or "-", _shape(spec))
            table.add_row(*(Text(fit(cell, 60)) for cell in cells))
    return table


def _shape(spec: TensorSpec) -> str:
    return "-" if spec.shape is None else "x".join(map(str, spec.shape))


def _claims(expected: Expected | None) -> RenderableType:
    rows: list[tuple[str, str | Text]] = []
    if expected is not None and expected.accuracy is not None:
        claim = expected.accuracy
        rows.append(("claims", f"{claim.metric} {claim.value:g} ± {claim.tolerance:g}"))
    if expected is not None and expected.outputs is not None:
        rows.append(("claims", "the outputs themselves"))
    rows += [("claims", _performance(entry)) for entry in (expected.performance if expected else ())]
    return pairs(rows or [("claims", "nothing")])


def _performance(entry: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in entry.items())[:_VALUE_WIDTH]


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", expand=False)
    for name, side in columns:
        table.add_column(name, justify="right" if side == "right" else "left", overflow="fold")
    return table
