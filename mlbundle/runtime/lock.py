"""The images lock: which images were built on this machine, by digest.

`<data>/images.lock`, JSON: `{"schema": "mlbundle/images-lock/v1", "images": {"<framework>/<version>/<architecture>/
<accelerator>": {...}}}`. A tag can move; what was built stays named by its digest.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from mlbundle.errors import StorageFailed
from mlbundle.files import locked, storage_failed, write_atomically

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = "mlbundle/images-lock/v1"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_HINT = "move the file away and build the images again: `mlbundle images build FRAMEWORK`"


@dataclass(frozen=True)
class ImageKey:
    """What an image is for."""

    framework: str
    version: str
    architecture: str
    accelerator: str

    def __str__(self) -> str:
        """Return the key as the file writes it."""
        return f"{self.framework}/{self.version}/{self.architecture}/{self.accelerator}"


@dataclass(frozen=True)
class LockedImage:
    """One image that was built here.

    `config_digest` is the engine's image id; `lock_sha256` is of the requirements it was built from, hexadecimal;
    `built_at` is UTC, ISO 8601.
    """

    ref: str
    config_digest: str
    base_image: str
    lock_sha256: str
    built_at: str


def read_images_lock(path: Path) -> dict[ImageKey, LockedImage]:
    """Return the entries; none when there is no file. Raises StorageFailed for a file that can't be trusted."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise storage_failed(error, path) from error
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise StorageFailed(f"the images lock is damaged: {error}", where=str(path), hint=_HINT) from error
    return _parse(document, str(path))


def record_image(path: Path, key: ImageKey, image: LockedImage) -> None:
    """Add or replace one entry; entries that others add at the same time are kept. Raises StorageFailed."""
    with locked(path.with_name(f".{path.name}.lock")):
        entries = {**read_images_lock(path), key: image}
        write_atomically(path, _render(entries))


def _render(entries: dict[ImageKey, LockedImage]) -> bytes:
    images = {str(key): asdict(entries[key]) for key in sorted(entries, key=str)}
    return (json.dumps({"schema": SCHEMA, "images": images}, indent=2) + "\n").encode()


def _parse(document: Any, where: str) -> dict[ImageKey, LockedImage]:
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        newer = isinstance(schema, str) and schema.startswith("mlbundle/images-lock/")
        raise StorageFailed(
            f"the images lock is of another kind: {schema!r} instead of {SCHEMA!r}",
            where=where,
            hint="it was written by a newer mlbundle: upgrade" if newer else _HINT,
        )
    images = document.get("images")
    if not isinstance(images, dict):
        raise StorageFailed("the images lock lists no images", where=where, hint=_HINT)
    return {_key(name, where): _entry(name, value, where) for name, value in images.items()}


def _key(name: str, where: str) -> ImageKey:
    parts = name.split("/")
    if len(parts) != len(fields(ImageKey)) or not all(parts):
        raise StorageFailed(f"the images lock has an entry {name!r}", where=where, hint=_HINT)
    return ImageKey(*parts)


def _entry(name: str, value: Any, where: str) -> LockedImage:
    names = [field.name for field in fields(LockedImage)]
    if not isinstance(value, dict) or not all(isinstance(value.get(field), str) for field in names):
        raise StorageFailed(f"the entry {name!r} of the images lock is incomplete", where=where, hint=_HINT)
    if not _DIGEST.fullmatch(value["config_digest"]):
        raise StorageFailed(f"the entry {name!r} of the images lock has no digest", where=where, hint=_HINT)
    # Fields that a later version adds are passed over.
    return LockedImage(**{field: value[field] for field in names})
