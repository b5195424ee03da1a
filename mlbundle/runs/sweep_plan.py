"""The plan of a sweep: one bundle by its digest, and the cells; as values and as a JSON document."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlbundle import __version__
from mlbundle.errors import IntegrityError
from mlbundle.runs.sweep_axes import Cell, Forms, Matrix, make_cells, varying
from mlbundle.runs.sweep_estimate import Estimate, experience_of_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mlbundle.bundle.reader import BundleReader
    from mlbundle.config import Settings
    from mlbundle.runs.network import Network

SCHEMA = "mlbundle/sweep-plan/v1"


@dataclass(frozen=True)
class SweepPlan:
    """What a sweep will run; `rounds` times the same cells, `estimate` of what it takes when it was planned."""

    name: str
    version: str
    manifest_digest: str
    cells: tuple[Cell, ...]
    rounds: int
    estimate: Estimate

    @property
    def axes(self) -> list[str]:
        """The axes that tell cells from each other."""
        return varying(self.cells)

    def to_document(self) -> dict[str, Any]:
        """Return the plan as JSON-ready values."""
        return {
            "schema": SCHEMA,
            "mlbundle_version": __version__,
            "bundle": {"name": self.name, "version": self.version, "manifest_digest": self.manifest_digest},
            "rounds": self.rounds,
            "axes": self.axes,
            "estimate_s": round(self.estimate.seconds, 1),
            "cells_without_estimate": self.estimate.unknown,
            "cells_guessed": self.estimate.guessed,
            "cells": [
                {
                    "number": cell.number,
                    "round": cell.round,
                    "scenario": cell.scenario,
                    "values": dict(cell.values),
                    "planned_s": cell.planned_s,
                    "arguments": list(cell.arguments),
                    "command": command_text(cell),
                }
                for cell in self.cells
            ],
        }


def command_text(cell: Cell) -> str:
    """Return a cell as a line for a shell."""
    return shlex.join(["mlbundle", *cell.arguments])


def plan_from_document(document: Mapping[str, Any], where: str) -> SweepPlan:
    """Return the plan that a sweep's folder holds. Raises IntegrityError when it is damaged."""
    try:
        if document["schema"] != SCHEMA:
            raise ValueError(document["schema"])
        bundle = document["bundle"]
        cells = tuple(
            Cell(
                number=int(cell["number"]),
                round=int(cell["round"]),
                scenario=str(cell["scenario"]),
                values={str(name): str(value) for name, value in cell["values"].items()},
                planned_s=None if cell["planned_s"] is None else float(cell["planned_s"]),
                arguments=tuple(map(str, cell["arguments"])),
            )
            for cell in document["cells"]
        )
        if [cell.number for cell in cells] != list(range(1, len(cells) + 1)) or not cells:
            raise ValueError("cells")
        return SweepPlan(
            name=str(bundle["name"]),
            version=str(bundle["version"]),
            manifest_digest=str(bundle["manifest_digest"]),
            cells=cells,
            rounds=int(document["rounds"]),
            estimate=Estimate(
                float(document["estimate_s"]),
                int(document["cells_without_estimate"]),
                int(document.get("cells_guessed", 0)),
            ),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise IntegrityError(
            f"the plan of the sweep is damaged: {type(error).__name__}: {error}",
            where=where,
            hint="`mlbundle sweep rm` removes the sweep; its runs are kept",
        ) from None


def plan_sweep(matrix: Matrix, settings: Settings, network: Network | None = None) -> SweepPlan:
    """Decide what a sweep runs, without keeping anything.

    Raises UsageError for values that make no sense, and what opening a bundle raises.
    """
    from mlbundle.runs.opening import open_reference

    with open_reference(matrix.reference, settings, network, whole=False) as reader:
        forms, digest = _forms(reader), reader.manifest_digest
        name, version = reader.document.model_name, reader.document.model_version
    cells = make_cells(_with_settings(matrix, settings), digest, forms)
    return SweepPlan(
        name=name,
        version=version,
        manifest_digest=digest,
        cells=tuple(cells),
        rounds=matrix.rounds,
        estimate=experience_of_runs(settings, digest).of_cells(cells),
    )


def keep_bundle(
    matrix: Matrix,
    plan: SweepPlan,
    settings: Settings,
    network: Network | None = None,
    report: Callable[[str], None] = lambda _line: None,
) -> None:
    """Bring the bundle of a plan to the library, where every cell finds it by its digest.

    Raises IntegrityError when it is no longer what was planned, and what bringing it raises.
    """
    from mlbundle.runs.opening import bring
    from mlbundle.runs.references import resolve

    entry = bring(resolve(matrix.reference, settings), settings, network, report=report)
    if entry.manifest_digest != plan.manifest_digest:
        raise IntegrityError(
            f"{matrix.reference} changed while the sweep was planned",
            hint="run the command again",
        )


def _forms(reader: BundleReader) -> Forms:
    from mlbundle.manifest.load import parse_model
    from mlbundle.manifest.select import variant_names

    model = parse_model(reader.model_yaml, f"{reader.name}!model.yml").require()
    frameworks = (model.framework.name, *(variant.framework.name for variant in model.variants))
    return Forms(tuple(variant_names(model)), frameworks)


def _with_settings(matrix: Matrix, settings: Settings) -> Matrix:
    """Write what a settings file or a variable says into the cells: they mean the same everywhere and later on."""
    from dataclasses import replace

    fixed = list(matrix.fixed)
    given = {argument.partition("=")[0] for argument in fixed}
    texts = {
        "trace_level": ("--trace", settings.trace_level),
        "memory_bytes": ("--memory", str(settings.memory_bytes)),
        "hang_timeout_s": ("--timeout", str(settings.hang_timeout_s)),
    }
    for name, (flag, text) in texts.items():
        if name in settings.origins and flag not in given:
            fixed.append(f"{flag}={text}")
    axes = dict(matrix.axes)
    if "runtime" in settings.origins and "runtime" not in axes:
        axes["runtime"] = (settings.runtime,)
    return replace(matrix, axes=axes, fixed=tuple(fixed))
