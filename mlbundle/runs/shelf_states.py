"""What can run here of a bundle on the shelf, wherever it is: what is missing, and what would mend it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mlbundle.errors import AssetUnavailable, MlbundleError
from mlbundle.resources import built_in_frameworks, built_in_models
from mlbundle.runs.readiness import Mend, Readiness, broken, image_mend, readiness

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mlbundle.runs.bundle_facts import BundleFacts
    from mlbundle.runs.readiness import Here
    from mlbundle.runs.shelf import BundleRow, Shelf
    from mlbundle.runtime.image_list import ImageStatus

_SHOWN_BLOBS = 3
_REGISTRY = "oci://"


def judge(row: BundleRow, shelf: Shelf, here: Here) -> Readiness:
    """Return what can run here of a bundle, and note its state on the shelf. Never raises for a bad bundle."""
    try:
        found = _judge(row, shelf, here)
    except MlbundleError as error:
        found = broken(error.message, "unusable")
    shelf.note_state(row.key, found.state, found.rank)
    return found


def _judge(row: BundleRow, shelf: Shelf, here: Here) -> Readiness:
    if row.where == "to make":
        return broken("too big to ship: it is made here", "not here", _generate(row.name))
    facts = shelf.facts(row.key)
    if row.where == "registry":
        return broken("it is in a registry: pull it to run it", "not here", _pull(row.reference))
    missing = shelf.missing(row.key)
    if missing:
        mend = _pull(row.source) if row.source.startswith(_REGISTRY) else None
        shown = ", ".join(blob[:12] for blob in missing[:_SHOWN_BLOBS])
        text = f"{len(missing)} of its blobs are not here ({shown}); it came from {row.source}"
        return broken(text, "assets missing", mend)
    if facts is None:
        return broken((shelf.row(row.key) or row).problem or "its manifest can't be read", "unusable")
    if row.where == "folder" and row.digest is None:
        lacking = _lacking(Path(row.reference))
        if lacking:
            return broken(lacking, "assets missing")
    return readiness(facts, here, trusted=_is_ours(row, facts, here))


def image_mends(images: Iterable[ImageStatus], here: Here) -> list[Mend]:
    """Return what brings the images of built-in frameworks here that are not, or pins those that are."""
    from mlbundle.runtime.image_states import HERE
    from mlbundle.runtime.images import built_in_framework

    built_in = {(f.name, f.version): f for f in map(built_in_framework, built_in_frameworks())}
    found = []
    for image in images:
        framework = built_in.get((image.key.framework, image.key.version))
        if framework is not None and (image.state not in HERE or image.state in {"outdated", "new"}):
            found.append(image_mend(framework, here, image.key.accelerator))
    return [mend for mend in found if mend is not None]


def _generate(name: str) -> Mend:
    from mlbundle.runs.generate import find_model_recipe
    from mlbundle.runs.told import size

    recipe = find_model_recipe(name)
    size_bytes = sum(step.size_bytes for step in (recipe.prepare, *recipe.frameworks, recipe.describe))
    command = f"mlbundle generate {name} && mlbundle add ./{name}"
    return Mend("generate", f"make {name}: {size(size_bytes)}", command, source=name)


def _pull(source: str) -> Mend:
    return Mend("bundle", "pull the bundle", f"mlbundle pull {source}", source=source)


def _lacking(folder: Path) -> str:
    """Return which asset of a manifest is not there, empty when all are; nothing is read but the manifests."""
    from mlbundle.runs.packing import collect

    try:
        collect(folder)
    except AssetUnavailable as error:
        return error.message
    return ""


def _is_ours(row: BundleRow, facts: BundleFacts, here: Here) -> bool:
    """Whether the bundle is one that we ship, to the last byte: then its code may run without a container."""
    if row.where == "built in":
        return True
    if row.digest is None or row.name not in built_in_models() or not any(form.code for form in facts.forms):
        return False
    return here.built_in_digest(row.name) == row.digest
