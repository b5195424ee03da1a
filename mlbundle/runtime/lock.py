"""The images lock: which images this machine uses for what, by digest.

`<data>/images.lock`, JSON with sorted keys, one entry a block: `{"schema": "mlbundle/images-lock/v1", "images":
{"<framework>/<version>/<architecture>/<accelerator>": {...}}}`. A tag can move; what was built, pulled or loaded stays
named by the digest of its config, which travels with it, and by what registries call it.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, astuple, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from mlbundle.errors import StorageFailed, UsageError
from mlbundle.files import locked, storage_failed, write_atomically

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = "mlbundle/images-lock/v1"
SOURCES = ("built", "pulled", "loaded")
Source = Literal["built", "pulled", "loaded"]

KEY_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+-]{0,63}", re.ASCII)
_MAX_NAMES = 1000
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_HINT = "move the file away and make it again: `mlbundle images build FRAMEWORK`, or `mlbundle images lock`"
_TEXTS = ("base_image", "lock_sha256", "built_at")


@dataclass(frozen=True)
class ImageKey:
    """What an image is for. Raises UsageError for a part that could not be read back."""

    framework: str
    version: str
    architecture: str
    accelerator: str

    def __post_init__(self) -> None:
        """Refuse what would make the file unreadable for everybody."""
        for part in astuple(self):
            if not KEY_PART.fullmatch(part):
                raise UsageError(
                    f"{part[:80]!a} can't be part of the name of an image",
                    hint="up to 64 letters, digits, spaces and . _ + -, such as onnxruntime or 1.31.1",
                )

    def __str__(self) -> str:
        """Return the key as the file writes it."""
        return f"{self.framework}/{self.version}/{self.architecture}/{self.accelerator}"


@dataclass(frozen=True)
class RegistryName:
    """What a registry calls an image: `ref` as the engine writes it, and the digest of its manifest or its index."""

    ref: str
    manifest_digest: str | None = None
    index_digest: str | None = None

    @property
    def digest(self) -> str:
        """The digest by which the registry gives the image out."""
        return self.index_digest or self.manifest_digest or ""


@dataclass(frozen=True)
class LockedImage:
    """One image that was built, pulled or loaded here.

    `config_digest` is the digest of the config, and with it the image's id in engines with the classic store;
    `image_id` is the engine's id where it is another. `lock_sha256` is of the requirements it was built from,
    hexadecimal; `built_at` is UTC, ISO 8601. What nobody stated is None.
    """

    ref: str
    config_digest: str
    base_image: str | None = None
    lock_sha256: str | None = None
    built_at: str | None = None
    source: Source = "built"
    size_bytes: int | None = None
    image_id: str | None = None
    registry: tuple[RegistryName, ...] = ()

    def named(self, name: RegistryName) -> LockedImage:
        """Return the entry with one more name in a registry, the newest last; one of the same ref is replaced.

        A bare digest says nothing new beside a tag of the same repository that has it.
        """
        repository, at, digest = name.ref.partition("@")
        if at and any(
            known.digest == digest and known.ref.startswith(f"{repository}:") for known in self.registry
        ):
            return self
        others = [known for known in self.registry if known.ref != name.ref]
        return replace(self, registry=(*others, name)[-_MAX_NAMES:])

    def to_document(self) -> dict[str, Any]:
        """Return the entry as the file writes it: what is not known is left out."""
        document = {name: value for name, value in asdict(self).items() if value is not None and value != ()}
        if self.registry:
            document["registry"] = [
                {name: value for name, value in asdict(known).items() if value is not None}
                for known in self.registry
            ]
        return document


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
    """Add or replace one entry; entries that others add at the same time are kept. Raises StorageFailed.

    An entry of the same image keeps the names that registries have for it.
    """
    with _for_writing(path):
        entries = read_images_lock(path)
        before = entries.get(key)
        if before is not None and before.config_digest == image.config_digest:
            for name in image.registry:
                before = before.named(name)
            image = replace(image, registry=before.registry)
        write_atomically(path, _render({**entries, key: image}))


def forget_image(path: Path, key: ImageKey) -> bool:
    """Take one entry out; returns whether there was one. Raises StorageFailed."""
    with _for_writing(path):
        entries = read_images_lock(path)
        known = entries.pop(key, None) is not None
        if known:
            write_atomically(path, _render(entries))
        return known


def _for_writing(path: Path) -> Any:
    return locked(path.with_name(f".{path.name}.lock"))


def _render(entries: dict[ImageKey, LockedImage]) -> bytes:
    images = {str(key): entries[key].to_document() for key in sorted(entries, key=str)}
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
    if len(parts) != len(fields(ImageKey)) or not all(map(KEY_PART.fullmatch, parts)):
        raise StorageFailed(f"the images lock has an entry {name!r}", where=where, hint=_HINT)
    return ImageKey(*parts)


def _entry(name: str, value: Any, where: str) -> LockedImage:
    """Return an entry; fields that a later version adds are passed over."""
    what = f"the entry {name!r} of the images lock"
    if not isinstance(value, dict) or not _is_complete(value):
        raise StorageFailed(f"{what} is incomplete", where=where, hint=_HINT)
    if not _DIGEST.fullmatch(value["config_digest"]) or not _is_digest(value.get("image_id")):
        raise StorageFailed(f"{what} has no digest", where=where, hint=_HINT)
    names = value.get("registry", [])
    if not isinstance(names, list) or len(names) > _MAX_NAMES or not all(map(_is_name, names)):
        raise StorageFailed(f"{what} has a name in a registry without its digest", where=where, hint=_HINT)
    return LockedImage(
        ref=value["ref"],
        config_digest=value["config_digest"],
        **{text: value.get(text) for text in _TEXTS},
        source=value.get("source", "built"),
        size_bytes=value.get("size_bytes"),
        image_id=value.get("image_id"),
        registry=tuple(
            RegistryName(known["ref"], known.get("manifest_digest"), known.get("index_digest"))
            for known in names
        ),
    )


def _is_complete(value: dict[str, Any]) -> bool:
    size_bytes = value.get("size_bytes")
    return (
        all(isinstance(value.get(text), str) for text in ("ref", "config_digest"))
        and all(isinstance(value.get(text), str | None) for text in _TEXTS)
        and value.get("source", "built") in SOURCES
        and (size_bytes is None or (type(size_bytes) is int and size_bytes >= 0))
    )


def _is_name(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("ref"), str):
        return False
    digests = [value.get("manifest_digest"), value.get("index_digest")]
    return any(digests) and all(map(_is_digest, digests))


def _is_digest(value: Any) -> bool:
    return value is None or (isinstance(value, str) and _DIGEST.fullmatch(value) is not None)
