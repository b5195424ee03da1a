"""The Python files that a model manifest names, looked at where they lie beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlbundle.manifest.custom_code import predictor_fault
from mlbundle.manifest.problems import Problem
from mlbundle.manifest.source import MAX_BYTES
from mlbundle.manifest.values import path_fault

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from typing import Any

_EXPECTED = (
    "a class Predictor with open(self, model, options), predict(self, handle, batch) and close(self, handle)"
)


def predictor_problems(document: Mapping[str, Any], root: Path) -> Iterator[Problem]:
    """Yield what is wrong in the predictors of a model manifest, each file once, at its place in that file.

    `document` is the manifest in the form of its schema, however wrong, `root` the folder that its paths begin at.
    Files that are not there, lie elsewhere or are very large are passed over: packing speaks of the former.
    """
    for name, pointer in _named(document).items():
        content = _read(root, name)
        fault = None if content is None else predictor_fault(content)
        if fault is not None:
            place = (max(1, fault.line), max(1, fault.column))
            yield Problem("error", str(root / name), *place, pointer, fault.message, _EXPECTED)


def _named(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the predictors that a manifest names: path -> JSON pointer of the first place that names it."""
    found: dict[str, str] = {}
    variants = document.get("variants")
    bodies = [("", document)]
    for number, variant in enumerate(variants if isinstance(variants, list) else ()):
        bodies.append((f"/variants/{number}", variant))
    for base, body in bodies:
        name = body.get("predictor") if isinstance(body, dict) else None
        if isinstance(name, str) and name.endswith(".py") and path_fault(name) is None:
            found.setdefault(name, f"{base}/predictor")
    return found


def _read(root: Path, name: str) -> bytes | None:
    try:
        path = (root / name).resolve()
        if not path.is_relative_to(root.resolve()) or not path.is_file() or path.stat().st_size > MAX_BYTES:
            return None
        return path.read_bytes()
    except (OSError, RuntimeError, ValueError):
        return None
