"""Makes models that are too big to ship, from recipes that we do ship.

A recipe is a folder in manifests/generated with `recipe.yml`, a README and scripts. Each script is called with the
folder to write to and the settings as JSON: `prepare` first, then one for each framework, `describe` last, which writes
`model.yml`. A script runs with our own Python, or in the hash-locked environment of a framework.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlbundle import __version__
from mlbundle.bundle.output import require_room
from mlbundle.errors import PythonEnvironmentFailed, ReferenceNotFound, RunFailed, UsageError
from mlbundle.files import storage_failed, write_atomically
from mlbundle.platforms import this_architecture
from mlbundle.resources import generated_models, resource_folder
from mlbundle.runs.generated_folder import (
    RECORD_FILE,
    RECORD_SCHEMA,
    GeneratedFile,
    check_destination,
    clear_leftovers,
    files_of,
    publish,
    staging_folder,
)
from mlbundle.runtime.commands import call

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mlbundle.config import Settings
    from mlbundle.runtime.environments import PythonEnvironment

    Report = Callable[[str], None]

_MODEL_FILE = "model.yml"
_README = "README.md"


@dataclass(frozen=True)
class Step:
    """One script of a recipe; `environment` is the framework it needs, None for our own Python."""

    name: str
    script: str
    environment: str | None
    size_bytes: int


@dataclass(frozen=True)
class Setting:
    """A whole number that can be changed."""

    default: int
    least: int
    most: int


@dataclass(frozen=True)
class ModelRecipe:
    """How a model is made."""

    name: str
    description: str
    folder: Path
    settings: Mapping[str, Setting]
    prepare: Step
    frameworks: tuple[Step, ...]
    describe: Step

    @property
    def defaults(self) -> dict[str, int]:
        """The settings that nobody changed."""
        return {name: setting.default for name, setting in self.settings.items()}


@dataclass(frozen=True)
class Order:
    """What is wanted of a recipe; `pythons` are given by the user, by the framework whose environment they replace."""

    recipe: ModelRecipe
    settings: Mapping[str, int]
    frameworks: tuple[Step, ...]
    pythons: Mapping[str, Path]
    folder: Path
    replace: bool = False

    @property
    def steps(self) -> tuple[Step, ...]:
        """All scripts in the order they run in."""
        return (self.recipe.prepare, *self.frameworks, self.recipe.describe)

    @property
    def size_bytes(self) -> int | None:
        """About how large it gets; None when the settings are not the recipe's."""
        if self.settings != self.recipe.defaults:
            return None
        return sum(step.size_bytes for step in self.steps)


def recipes() -> list[ModelRecipe]:
    """Return all recipes that ship, in order of name."""
    return [_read(folder) for folder in generated_models().values()]


def find_model_recipe(name: str) -> ModelRecipe:
    """Return a recipe by its name; raises ReferenceNotFound, which lists them."""
    known = generated_models()
    if name not in known:
        raise ReferenceNotFound(
            f"there is no recipe for {name!r}",
            hint=f"one of: {', '.join(known) or 'none'}; see `mlbundle generate`",
        )
    return _read(known[name])


def order(
    recipe: ModelRecipe,
    *,
    folder: Path,
    frameworks: Sequence[str] = (),
    settings: Mapping[str, int] | None = None,
    pythons: Mapping[str, Path] | None = None,
    replace: bool = False,
) -> Order:
    """Return what is wanted after checking that it makes sense; no framework means all. Raises UsageError."""
    chosen = _chosen_settings(recipe, settings or {})
    names = [step.name for step in recipe.frameworks]
    unknown = [name for name in frameworks if name not in names]
    if unknown:
        raise UsageError(f"{recipe.name} is not made for {unknown[0]!r}", hint=f"one of: {', '.join(names)}")
    steps = tuple(step for step in recipe.frameworks if not frameworks or step.name in frameworks)
    environments = [step.environment for step in recipe.frameworks if step.environment is not None]
    for name, python in (pythons or {}).items():
        if name not in environments:
            raise UsageError(
                f"nothing of {recipe.name} runs in a Python of {name!r}",
                hint=f"it can be given for: {', '.join(environments)}",
            )
        if not (python.is_file() and os.access(python, os.X_OK)):
            raise UsageError(f"there is no Python at {python}", where=f"--python {name}={python}")
    if folder.name in {"", ".."}:
        folder = folder.resolve()
    check_destination(folder, replace=replace)
    return Order(recipe, chosen, steps, dict(pythons or {}), folder, replace)


def _chosen_settings(recipe: ModelRecipe, changed: Mapping[str, int]) -> dict[str, int]:
    chosen = recipe.defaults
    for name, value in changed.items():
        if name not in chosen:
            raise UsageError(
                f"{recipe.name} has no setting {name!r}", hint=f"one of: {', '.join(recipe.settings)}"
            )
        setting = recipe.settings[name]
        if not setting.least <= value <= setting.most:
            raise UsageError(
                f"{name} can't be {value}",
                hint=f"from {setting.least} to {setting.most}",
                where=f"--set {name}",
            )
        chosen[name] = value
    return chosen


def python_of(
    step: Step, wanted: Order, settings: Settings, report: Report, *, make: bool = True
) -> tuple[Path, PythonEnvironment | None]:
    """Return the Python that a step runs with, and the hash-locked environment it belongs to, if it does.

    The environment is made if it is not there, unless `make` is false. Raises what `ensure_environment` raises.
    """
    from mlbundle.manifest.select import select_lock
    from mlbundle.runtime.environments import ensure_environment
    from mlbundle.runtime.images import built_in_framework

    if step.environment is None:
        return Path(sys.executable), None
    if step.environment in wanted.pythons:
        # Not resolved: an environment's Python is a link, and what it is the Python of lies beside the link.
        return wanted.pythons[step.environment].absolute(), None
    lock = select_lock(built_in_framework(step.environment), this_architecture(), "cpu")
    path = resource_folder("containers").parent / lock
    environment = ensure_environment(settings.cache_dir, step.environment, path, make=make, report=report)
    return environment.python, environment


def generate(
    wanted: Order, settings: Settings, report: Report, detail: Report = lambda _line: None
) -> tuple[GeneratedFile, ...]:
    """Make the folder and return its files; it appears when all of it is there and on disk, or not at all.

    `report` hears each step, `detail` every line that a script prints. Raises UsageError, StorageFailed,
    PythonEnvironmentFailed, RunFailed when a script fails, ManifestInvalid.
    """
    from mlbundle.manifest.load import load_model

    if wanted.size_bytes is not None:
        require_room(
            wanted.folder.parent,
            wanted.size_bytes,
            "the model takes",
            "make room, or name another disk with -o",
        )
    try:
        clear_leftovers(wanted.folder)
        check_destination(wanted.folder, replace=wanted.replace)
        with staging_folder(wanted.folder) as staging:
            locks: dict[str, str | None] = {}
            for number, step in enumerate(wanted.steps, 1):
                python, environment = python_of(step, wanted, settings, report)
                report(f"{wanted.recipe.name}: {step.name} ({number} of {len(wanted.steps)})")
                _run(step, wanted, python, staging, detail)
                if step in wanted.frameworks and step.environment is not None:
                    locks[step.name] = None if environment is None else environment.lock_sha256
            readme = wanted.recipe.folder / _README
            shutil.copyfile(readme, staging / _README)
            load_model(staging / _MODEL_FILE).require()
            files = files_of(staging)
            write_atomically(staging / RECORD_FILE, _record(wanted, locks, files))
            publish(staging, wanted.folder, replace=wanted.replace)
    except OSError as error:
        raise storage_failed(error, wanted.folder) from error
    return files


def _read(folder: Path) -> ModelRecipe:
    import yaml

    document = yaml.safe_load((folder / "recipe.yml").read_text("utf-8"))

    def step(name: str, entry: Mapping[str, Any]) -> Step:
        return Step(name, entry["script"], entry.get("environment"), entry.get("size_bytes", 0))

    return ModelRecipe(
        name=document["name"],
        description=document["description"],
        folder=folder,
        settings={name: Setting(**limits) for name, limits in document["settings"].items()},
        prepare=step("weights and reference answers", document["prepare"]),
        frameworks=tuple(step(name, entry) for name, entry in document["frameworks"].items()),
        describe=step("manifest", document["describe"]),
    )


def _run(step: Step, wanted: Order, python: Path, staging: Path, detail: Report) -> None:
    script = str(wanted.recipe.folder / step.script)
    where = f"{wanted.recipe.name}: {step.name}"
    own = step.environment is None
    # The folders of scripts may be read-only, and nothing of ours is looked for in the user's own packages.
    variables = {n: v for n, v in os.environ.items() if own or not n.startswith("PYTHON")}
    variables |= {"PYTHONDONTWRITEBYTECODE": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    command = [str(python), *([] if own else ["-s"]), script, str(staging), json.dumps(dict(wanted.settings))]
    try:
        status, tail = call(command, detail, env=variables)
    except OSError as error:
        raise PythonEnvironmentFailed(f"{python} can't be started: {error.strerror}", where=where) from error
    if status == 0:
        return
    if any(line.startswith("ModuleNotFoundError") for line in tail):
        raise PythonEnvironmentFailed(
            f"{python} lacks what the script needs: {tail[-1]}",
            where=where,
            hint="name a Python that has the framework with --python NAME=PATH, or none: mlbundle makes one",
        )
    ended = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
    memory = "; memory may have run out" if status == -9 else ""
    raise RunFailed(
        f"the script {step.script} {ended}{memory}",
        where=where,
        context=tail,
        hint="its last lines are above",
    )


def _record(wanted: Order, locks: Mapping[str, str | None], files: Sequence[GeneratedFile]) -> bytes:
    document = {
        "schema": RECORD_SCHEMA,
        "recipe": wanted.recipe.name,
        "mlbundle": __version__,
        "settings": dict(wanted.settings),
        "locks": dict(locks),
        "files": [{"path": file.path, "size": file.size_bytes, "sha256": file.sha256} for file in files],
    }
    return json.dumps(document, indent=2).encode() + b"\n"
