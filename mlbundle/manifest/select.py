"""Chooses from a framework manifest: the image or the lock for an architecture and an accelerator."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from mlbundle.errors import ImageMissing, PythonEnvironmentFailed, ReferenceNotFound
from mlbundle.manifest.versions import VersionConstraint
from mlbundle.platforms import check_accelerator, normalise_architecture

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mlbundle.manifest.framework import FrameworkManifest, ImageChoice
    from mlbundle.manifest.model import FrameworkConstraint, ModelManifest, Variant

T = TypeVar("T")


def variant_names(model: ModelManifest) -> list[str]:
    """Return the names of all forms of a model; the first is the top level's, which is called like its framework."""
    return [model.framework.name, *(variant.name for variant in model.variants)]


def variant_name(model: ModelManifest, wanted: str | None) -> str:
    """Return the name of the form that is wanted, by its own name, else by its framework's, whose first is taken.

    None is the top level. Case does not matter. Raises ReferenceNotFound, which lists them.
    """
    variant = _find_variant(model, wanted)
    return model.framework.name if variant is None else variant.name


def select_variant(model: ModelManifest, wanted: str | None) -> ModelManifest:
    """Return the model in one of its forms: without variants, its framework, files and tensors are the chosen ones.

    Chosen and raises as `variant_name`.
    """
    variant = _find_variant(model, wanted)
    if variant is None:
        return replace(model, variants=())
    return replace(
        model,
        framework=variant.framework,
        model=variant.model,
        inputs=model.inputs if variant.inputs is None else variant.inputs,
        outputs=model.outputs if variant.outputs is None else variant.outputs,
        predictor=variant.predictor,
        variants=(),
    )


def _find_variant(model: ModelManifest, wanted: str | None) -> Variant | None:
    if wanted is None or wanted.casefold() == model.framework.name.casefold():
        return None
    named = [variant for variant in model.variants if variant.name.casefold() == wanted.casefold()]
    of_framework = [v for v in model.variants if v.framework.name.casefold() == wanted.casefold()]
    for variant in (*named, *of_framework):
        return variant
    raise ReferenceNotFound(
        f"{model.name} has no variant for {wanted!r}", hint=f"one of: {', '.join(variant_names(model))}"
    )


def frameworks_of(model: ModelManifest) -> dict[str, list[FrameworkConstraint]]:
    """Return what the forms of a model ask of each framework, by its name in lower case; the top level's is first."""
    found: dict[str, list[FrameworkConstraint]] = {}
    for constraint in (model.framework, *(variant.framework for variant in model.variants)):
        found.setdefault(constraint.name.lower(), []).append(constraint)
    return found


def select_image(framework: FrameworkManifest, architecture: str, accelerator: str) -> ImageChoice:
    """Return the image for a machine; architectures may be named as the system names them (`x86_64`).

    Raises ImageMissing, which lists what exists, and UsageError for an unknown accelerator.
    """
    choice = _choose(framework.containers, architecture, accelerator)
    if choice is None:
        raise ImageMissing(
            f"{framework.name} {framework.version} has no image for {_place(architecture, accelerator)}",
            context=_listed(framework.containers),
            hint=_hint(framework.containers, "image"),
        )
    return choice


def select_lock(framework: FrameworkManifest, architecture: str, accelerator: str) -> str:
    """Return the path of the hash-locked requirements for a machine.

    Raises PythonEnvironmentFailed, which lists what exists, and UsageError for an unknown accelerator.
    """
    lock = _choose(framework.python, architecture, accelerator)
    if lock is None:
        raise PythonEnvironmentFailed(
            f"{framework.name} {framework.version} has no locked environment for {_place(architecture, accelerator)}",
            context=_listed(framework.python),
            hint=f"{_hint(framework.python, 'locked environment')}; "
            "`--python PATH` runs it in a Python that has it, `--runtime docker` in a container",
        )
    return lock


def framework_matches(constraint: FrameworkConstraint, framework: FrameworkManifest) -> bool:
    """Return whether a framework is the one a model needs, in a version that will do; case does not matter."""
    if constraint.name.casefold() != framework.name.casefold():
        return False
    return VersionConstraint.parse(constraint.version).allows(framework.version)


def _choose(table: Mapping[str, Mapping[str, T]], architecture: str, accelerator: str) -> T | None:
    return table.get(normalise_architecture(architecture), {}).get(check_accelerator(accelerator))


def _place(architecture: str, accelerator: str) -> str:
    return f"{normalise_architecture(architecture)}/{accelerator}"


def _listed(table: Mapping[str, Mapping[str, object]]) -> list[str]:
    return [
        f"{architecture}/{accelerator}"
        for architecture, row in sorted(table.items())
        for accelerator in sorted(row)
    ]


def _hint(table: Mapping[str, Mapping[str, object]], what: str) -> str:
    existing = _listed(table)
    return (
        f"there is one for: {', '.join(existing)}" if existing else f"the framework manifest names no {what}"
    )
