"""Loads manifests: from bytes to checked values, with every problem at once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from mlbundle.errors import ManifestInvalid
from mlbundle.manifest.problems import Problem, in_order, printable
from mlbundle.manifest.source import Source, parse_source, read_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from mlbundle.manifest.framework import FrameworkManifest
    from mlbundle.manifest.model import ModelManifest
    from mlbundle.manifest.nodes import Block
    from mlbundle.manifest.view import View

T = TypeVar("T")
Kind = Literal["model", "framework"]

MODEL_FILE = "model.yml"
FRAMEWORK_FILE = "framework.yml"
_FRAMEWORK_KEYS = frozenset({"containers", "python"})
_MODEL_KEYS = frozenset({"framework", "inputs", "outputs", "output", "model"})
_SHOWN_PROBLEMS = 20


@dataclass(frozen=True)
class Loaded(Generic[T]):
    """A manifest that was read: `value` is None when there are errors; `problems` are in the order of the file.

    `document` is the manifest in the form of its schema, JSON-ready; empty when the file is unusable.
    """

    file: str
    kind: Kind
    value: T | None
    problems: tuple[Problem, ...]
    document: Mapping[str, Any] = field(default_factory=dict)

    @property
    def errors(self) -> tuple[Problem, ...]:
        """The problems that make the manifest invalid."""
        return tuple(problem for problem in self.problems if problem.severity == "error")

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """The problems that do not."""
        return tuple(problem for problem in self.problems if problem.severity == "warning")

    def require(self) -> T:
        """Return the value; raises ManifestInvalid with all errors and warnings when there is none."""
        if self.value is not None:
            return self.value
        errors = self.errors
        count = "1 error" if len(errors) == 1 else f"{len(errors)} errors"
        lines = [str(problem) for problem in errors[:_SHOWN_PROBLEMS]]
        if len(errors) > _SHOWN_PROBLEMS:
            lines.append(f"and {len(errors) - _SHOWN_PROBLEMS} more: see `mlbundle validate`")
        raise ManifestInvalid(
            f"the {self.kind} manifest has {count}",
            problems=[problem.to_document() for problem in self.problems],
            where=printable(f"{self.file}:{errors[0].line}:{errors[0].column}"),
            context=lines,
            hint=errors[0].hint if len(errors) == 1 else None,
        )


def load_model(path: Path) -> Loaded[ModelManifest]:
    """Read and check a model manifest; a folder means its model.yml.

    Raises ReferenceNotFound, UsageError or StorageFailed when the file can't be read; what is wrong inside it is
    among the problems.
    """
    file = path / MODEL_FILE if path.is_dir() else path
    return parse_model(read_bytes(file), str(file))


def load_framework(path: Path) -> Loaded[FrameworkManifest]:
    """Read and check a framework manifest; a folder means its framework.yml. Raises as `load_model` does."""
    file = path / FRAMEWORK_FILE if path.is_dir() else path
    return parse_framework(read_bytes(file), str(file))


def load_manifest(path: Path) -> Loaded[ModelManifest] | Loaded[FrameworkManifest]:
    """Read and check a manifest of either kind; a folder means its model.yml, else its framework.yml.

    A folder with an unpacked bundle has them in its folder `mlbundle`. The predictors that a model manifest names are
    looked at where they are there. Raises as `load_model` does.
    """
    from mlbundle.manifest.code_files import predictor_problems

    file, root = path, path.parent
    if path.is_dir():
        unpacked = path / "mlbundle" / MODEL_FILE
        found = (path / MODEL_FILE, unpacked, path / FRAMEWORK_FILE)
        file, root = next((candidate for candidate in found if candidate.exists()), path / MODEL_FILE), path
    source = parse_source(read_bytes(file), str(file))
    keys = {entry.key: None for entry in source.root.entries} if source.root is not None else {}
    if detect_kind(keys, file.name) == "framework":
        return _framework(source)
    loaded = _model(source)
    in_code = tuple(predictor_problems(loaded.document, root))
    return replace(loaded, value=None, problems=(*loaded.problems, *in_code)) if in_code else loaded


def parse_model(data: bytes, filename: str) -> Loaded[ModelManifest]:
    """Check the bytes of a model manifest; `filename` is what problems call it. Never raises."""
    return _model(parse_source(data, filename))


def parse_framework(data: bytes, filename: str) -> Loaded[FrameworkManifest]:
    """Check the bytes of a framework manifest; `filename` is what problems call it. Never raises."""
    return _framework(parse_source(data, filename))


def detect_kind(document: Mapping[str, Any], filename: str = "") -> Kind:
    """Return what a manifest is by its keys: a framework names containers or Python environments, a model does not.

    Where the keys say neither, the name of the file does.
    """
    if _MODEL_KEYS & set(document):
        return "model"
    return "framework" if _FRAMEWORK_KEYS & set(document) or filename == FRAMEWORK_FILE else "model"


def _model(source: Source) -> Loaded[ModelManifest]:
    from mlbundle.manifest.build import build_model
    from mlbundle.manifest.model_checks import check_model
    from mlbundle.manifest.normalise import normalise_model

    if source.root is None:
        return Loaded(source.file, "model", None, in_order(source.problems))
    root, warnings = normalise_model(source.root, source.file)
    document, found = _check("model", source, root, check_model)
    problems = in_order([*source.problems, *warnings, *found])
    return Loaded(source.file, "model", _build(build_model, document, problems), problems, document)


def _framework(source: Source) -> Loaded[FrameworkManifest]:
    from mlbundle.manifest.build import build_framework
    from mlbundle.manifest.framework_checks import check_framework

    if source.root is None:
        return Loaded(source.file, "framework", None, in_order(source.problems))
    document, found = _check("framework", source, source.root, check_framework)
    problems = in_order([*source.problems, *found])
    return Loaded(source.file, "framework", _build(build_framework, document, problems), problems, document)


def _check(
    kind: Kind, source: Source, root: Block, check: Callable[[View], None]
) -> tuple[dict[str, Any], list[Problem]]:
    """Return the document of a tree and what schema and checks have found in it."""
    from mlbundle.manifest.scalars import resolve
    from mlbundle.manifest.schema_check import check_schema
    from mlbundle.manifest.view import View
    from mlbundle.resources import load_schema

    document = resolve(root, load_schema(kind))
    view = View(document, root, source.file, source.text)
    check(view)
    found = [*check_schema(document, root, kind, source.file), *view.problems]
    # What the file itself got wrong at a place (an alias, a tag) says all about that place.
    spoilt = {problem.pointer for problem in source.problems}
    return document, [problem for problem in found if problem.pointer not in spoilt]


def _build(
    build: Callable[[dict[str, Any]], T], document: dict[str, Any], problems: tuple[Problem, ...]
) -> T | None:
    return build(document) if all(problem.severity != "error" for problem in problems) else None
