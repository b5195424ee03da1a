"""Finds the data that ships with the package: schemas, built-in manifests, container recipes."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from mlbundle.errors import EnvironmentLacks

_PACKAGE = Path(__file__).resolve().parent


def resource_folder(name: str) -> Path:
    """Return the folder `schemas`, `manifests` or `containers`, from a wheel or a checkout.

    Raises EnvironmentLacks when the installation is incomplete.
    """
    for candidate in (_PACKAGE / "_data" / name, _PACKAGE.parent / name):
        if candidate.is_dir() and (
            candidate.parent != _PACKAGE.parent or (_PACKAGE.parent / "pyproject.toml").is_file()
        ):
            return candidate
    raise EnvironmentLacks(
        f"the installed package has no {name!r} data",
        hint="reinstall mlbundle: pip install --force-reinstall mlbundle",
    )


@cache
def load_schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema `schemas/<name>.schema.json` as a mapping."""
    document: dict[str, Any] = json.loads(
        (resource_folder("schemas") / f"{name}.schema.json").read_text("utf-8")
    )
    return document


def built_in_models() -> dict[str, Path]:
    """Return the built-in model manifests: name -> folder that holds `model.yml`, in order of name."""
    root = resource_folder("manifests") / "models"
    return {p.name: p for p in sorted(root.iterdir()) if (p / "model.yml").is_file()}


def generated_models() -> dict[str, Path]:
    """Return the models that are made on demand: name -> folder that holds `recipe.yml`, in order of name."""
    root = resource_folder("manifests") / "generated"
    return {p.name: p for p in sorted(root.iterdir()) if (p / "recipe.yml").is_file()}


def built_in_frameworks() -> dict[str, Path]:
    """Return the built-in framework manifests: name -> file, in order of name."""
    root = resource_folder("manifests") / "frameworks"
    return {p.stem: p for p in sorted(root.glob("*.yml"))}
