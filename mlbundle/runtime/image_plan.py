"""What an image will be built from, and the context that is handed to the engine for it."""

from __future__ import annotations

import hashlib
import io
import tarfile
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from mlbundle.errors import UsageError
from mlbundle.manifest.select import select_image
from mlbundle.platforms import normalise_architecture
from mlbundle.resources import resource_folder
from mlbundle.runtime.lock import ImageKey
from mlbundle.runtime.recipe import Recipe, find_recipe

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from mlbundle.manifest.framework import FrameworkManifest


@dataclass(frozen=True)
class BuildPlan:
    """What will be built, from what; `lock_sha256` is hexadecimal."""

    key: ImageKey
    ref: str
    recipe: Recipe
    lock_sha256: str
    base_image: str

    def arguments(self) -> dict[str, str]:
        """Return the build arguments of the recipe."""
        return {
            "BASE_IMAGE": self.base_image,
            "RECIPE": self.recipe.name,
            "FRAMEWORK": self.key.framework,
            "VERSION": self.key.version,
            "ARCHITECTURE": self.key.architecture,
            "ACCELERATOR": self.key.accelerator,
            "TITLE": self.recipe.title,
            "LICENSE": self.recipe.licence,
            "LOCK_SHA256": self.lock_sha256,
        }

    def to_document(self) -> dict[str, Any]:
        """Return the plan as JSON-ready values; files by their name in the installed data."""
        root = resource_folder("containers").resolve().parent
        return {
            **asdict(self.key),
            "ref": self.ref,
            "base_image": self.base_image,
            "recipe": self.recipe.lock.parent.relative_to(root).as_posix(),
            "lock": self.recipe.lock.relative_to(root).as_posix(),
            "lock_sha256": self.lock_sha256,
        }


def plan_build(
    framework: FrameworkManifest, accelerator: str, architecture: str, base_image: str | None = None
) -> BuildPlan:
    """Find recipe, lock and base image of a framework's image; touches neither engine nor network.

    Raises ImageMissing where the manifest has no image, UsageError where it has no recipe that we ship.
    """
    architecture = normalise_architecture(architecture)
    choice = select_image(framework, architecture, accelerator)
    key = ImageKey(framework.name, framework.version, architecture, accelerator)
    if choice.build is None:
        raise UsageError(
            f"the framework manifest names no recipe for {key}", hint=f"pull {choice.image} instead"
        )
    recipe = find_recipe(choice.build, architecture)
    return BuildPlan(
        key=key,
        ref=choice.image,
        recipe=recipe,
        lock_sha256=hashlib.sha256(recipe.lock.read_bytes()).hexdigest(),
        base_image=base_image or recipe.default_base(),
    )


def write_context(stream: Any, plan: BuildPlan, wheels: Sequence[Path], build_id: str = "") -> None:
    """Write the build context as a tar; the same content makes the same bytes.

    `build_id` lies beside the wheels in the stage that is left over and goes into no image: with one of its own a build
    shares that stage with no other, which might remove it.
    """
    with tarfile.open(fileobj=stream, mode="w") as archive:
        if build_id:
            member = tarfile.TarInfo("wheels/build-id")
            member.size = len(build_id.encode())
            archive.addfile(member, io.BytesIO(build_id.encode()))
        for name, path in _context_files(plan, wheels):
            member = tarfile.TarInfo(name)
            member.size, member.mode = path.stat().st_size, 0o644
            with path.open("rb") as content:
                archive.addfile(member, content)


def _context_files(plan: BuildPlan, wheels: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    recipe = plan.recipe
    yield "Dockerfile", recipe.dockerfile
    yield f"{recipe.name}/check.py", recipe.check
    yield f"{recipe.name}/{plan.key.accelerator}/{recipe.lock.name}", recipe.lock
    for path in wheels:
        yield f"wheels/{path.name}", path
