"""Sweep matrices in YAML (`mlbundle/sweep/v1`, schema `sweep.schema.json`).

Read by the loader of the manifests, so every problem has its line and column.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlbundle.errors import ReferenceNotFound, UsageError
from mlbundle.runs.sweep_axes import Matrix, axis_names
from mlbundle.wire.scenarios import FILE, SCENARIOS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlbundle.manifest.nodes import Node
    from mlbundle.manifest.problems import Problem

SCHEMA = "mlbundle/sweep/v1"
_SHOWN_PROBLEMS = 20
_FILES = {option.name for spec in SCENARIOS for option in spec.options if option.kind == FILE}


def load_matrix(path: Path) -> Matrix:
    """Read a matrix. Raises ReferenceNotFound, StorageFailed, UsageError with every problem as `file:line:column`."""
    from mlbundle.manifest.scalars import resolve
    from mlbundle.manifest.schema_check import check_schema
    from mlbundle.manifest.source import parse_source, read_bytes
    from mlbundle.resources import load_schema

    try:
        content = read_bytes(path)
    except ReferenceNotFound as error:
        raise ReferenceNotFound("there is no such sweep matrix", where=error.where) from None
    source = parse_source(content, str(path))
    problems = list(source.problems)
    if source.root is None:
        raise _broken(path, problems)
    document = resolve(source.root, load_schema("sweep"))
    problems += map(_as_axis, check_schema(document, source.root, "sweep", source.file))
    if problems:
        raise _broken(path, problems)
    return _matrix(document, source.root, path)


def _as_axis(problem: Problem) -> Problem:
    """Return a problem with better advice where an axis stands among the options of all cells."""
    from dataclasses import replace

    parent, _, name = problem.pointer.rpartition("/")
    if parent != "/options" or name.replace("_", "-") not in axis_names():
        return problem
    return replace(problem, hint=f"{name} is an axis: write it under axes, one value is enough")


def is_matrix(text: str) -> bool:
    """Whether an argument names a sweep matrix and no bundle: a YAML file that says so in its first key `schema`."""
    path = Path(text)
    if path.suffix not in {".yml", ".yaml"} or not path.is_file():
        return False
    from mlbundle.manifest.nodes import Scalar, locate
    from mlbundle.manifest.source import parse_source, read_bytes

    root = parse_source(read_bytes(path), text).root
    found = None if root is None else locate(root, ("schema",))
    return isinstance(found, Scalar) and found.text.startswith("mlbundle/sweep/")


def _matrix(document: dict[str, Any], root: Node, path: Path) -> Matrix:
    axes = {name.replace("_", "-"): _listed(value) for name, value in document.get("axes", {}).items()}
    for name in _FILES & axes.keys():
        axes[name] = tuple(str(path.parent / text) for text in axes[name])
    return Matrix(
        reference=_reference(document["reference"], path.parent),
        axes=axes,
        fixed=tuple(_fixed(document.get("options", {}))),
        sets=tuple(f"{name}={value}" for name, value in document.get("set", {}).items()),
        exclude=tuple(
            {name.replace("_", "-"): _listed(value) for name, value in rule.items()}
            for rule in document.get("exclude", [])
        ),
        rounds=document.get("rounds", 1),
        where=str(path),
        places=_places(document, root, path),
    )


def _reference(text: str, folder: Path) -> str:
    """Return the reference; a path is relative to the matrix, as in manifests."""
    beside = folder / text
    return str(beside) if "://" not in text and beside.exists() else text


def _listed(value: str | list[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _fixed(options: dict[str, Any]) -> list[str]:
    """Return the arguments of `mlbundle run` for the options that are the same in all cells."""
    found = []
    for name, value in options.items():
        if name == "accuracy":
            found += [] if value else ["--no-accuracy"]
        elif isinstance(value, bool):
            found += [f"--{name}"] if value else []
        else:
            found.append(f"--{name}={value}")
    return found


def _places(document: dict[str, Any], root: Node, path: Path) -> dict[str, str]:
    from mlbundle.manifest.nodes import key_mark

    keys = {name.replace("_", "-"): ("axes", name) for name in document.get("axes", {})}
    marks = {name: key_mark(root, key) for name, key in keys.items()}
    marks |= {name: key_mark(root, (name,)) for name in ("exclude", "rounds")}
    return {name: f"{path}:{mark.line}:{mark.column}" for name, mark in marks.items() if mark is not None}


def _broken(path: Path, problems: Sequence[Problem]) -> UsageError:
    from dataclasses import replace

    from mlbundle.manifest.problems import in_order, printable

    ordered = in_order(problems)
    count = "1 problem" if len(ordered) == 1 else f"{len(ordered)} problems"
    first = ordered[0]
    return UsageError(
        f"the sweep matrix has {count}",
        where=printable(f"{path}:{first.line}:{first.column}"),
        # The hint of the first problem is that of the error, and is not said twice.
        context=[str(replace(first, hint=None)), *map(str, ordered[1:_SHOWN_PROBLEMS])],
        hint=first.hint,
    )
