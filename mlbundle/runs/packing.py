"""From a manifest on disk to the content of a bundle: finds every file it names, and packs them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mlbundle.bundle.content import BundleContent, Role, SourceFile
from mlbundle.bundle.document import Asset, ImagePin
from mlbundle.bundle.layout import FRAMEWORK_PATH, MODEL_PATH
from mlbundle.bundle.pack import pack
from mlbundle.bundle.paths import check_path
from mlbundle.errors import AssetUnavailable, ReferenceNotFound, UnsafePath, UsageError
from mlbundle.manifest.load import parse_framework, parse_model
from mlbundle.manifest.select import framework_matches
from mlbundle.manifest.source import read_bytes
from mlbundle.manifest.values import parse_checksum
from mlbundle.resources import built_in_frameworks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from mlbundle.bundle.pack import Packed
    from mlbundle.manifest.framework import FrameworkManifest
    from mlbundle.manifest.model import (
        Checksum,
        DatasetSpec,
        Expected,
        FrameworkConstraint,
        ModelManifest,
        ModelSource,
        TensorSpec,
    )

    Progress = Callable[[int, int], None]

MODEL_FILE = "model.yml"
FRAMEWORK_FILE = "framework.yml"
DOCUMENTATION = ("README.md", "LICENSE", "LICENSE.md", "LICENSE.txt", "NOTICE")
"""Files beside the manifest that travel with it without being named."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def pack_manifest(
    reference: Path,
    destination: Path,
    framework: Path | None = None,
    progress: Progress | None = None,
    *,
    overwrite: bool = False,
) -> Packed:
    """Collect what a manifest names and write it as a bundle. Raises what `collect` and `pack` raise."""
    return pack(collect(reference, framework), destination, progress, overwrite=overwrite)


def collect(reference: Path, framework: Path | None = None) -> BundleContent:
    """Return the content of the bundle that a manifest describes.

    `reference` is a folder with `model.yml` (or with an unpacked bundle), or the manifest itself;
    `framework` a framework manifest, by default `framework.yml` beside it, else the built-in one of that name
    whose version fits. Raises ManifestInvalid, ReferenceNotFound, AssetUnavailable for an asset that is
    missing or remote, UnsafePath for one outside the folder. Checksums are checked while packing.
    """
    place = locate(reference)
    model_bytes = read_bytes(place.model)
    model = parse_model(model_bytes, str(place.model)).require()
    framework_path = framework or place.framework or _built_in_framework(model.framework)
    framework_bytes = read_bytes(framework_path)
    chosen = parse_framework(framework_bytes, str(framework_path)).require()
    if not framework_matches(model.framework, chosen):
        raise UsageError(
            f"the model needs {model.framework.name} {model.framework.version}; "
            f"the framework manifest is {chosen.name} {chosen.version}",
            where=str(framework_path),
            hint="name another with --framework, or mend the constraint in the model manifest",
        )
    found = _Assets(place.root, str(place.model))
    found.add_model(model)
    files = (
        SourceFile(MODEL_PATH, Role.MODEL, model_bytes),
        SourceFile(FRAMEWORK_PATH, Role.FRAMEWORK, framework_bytes),
        *found.files.values(),
    )
    return BundleContent(
        model_name=model.name,
        model_version=model.version,
        framework_name=chosen.name,
        framework_version=chosen.version,
        files=files,
        assets=tuple(found.assets),
        images=tuple(_pins(chosen)),
        description=model.description,
        license=model.license,
    )


def left_out(reference: Path, content: BundleContent) -> tuple[str, ...]:
    """Return the names beside the manifest that the bundle does not hold because nothing names them."""
    place = locate(reference)
    held = {file.path.split("/")[0] for file in content.files}
    documents = {path.name for path in (place.model, place.framework) if path and path.parent == place.root}
    return tuple(sorted({path.name for path in place.root.iterdir()} - held - documents))


@dataclass(frozen=True)
class Place:
    """Where a manifest lies: its assets are found from `root`."""

    root: Path
    model: Path
    framework: Path | None


def locate(reference: Path) -> Place:
    """Return where the manifest of a folder, an unpacked bundle or a file lies; raises ReferenceNotFound."""
    if not reference.is_dir():
        beside = reference.with_name(FRAMEWORK_FILE)
        return Place(reference.parent, reference, beside if beside.is_file() else None)
    for model, framework in ((MODEL_FILE, FRAMEWORK_FILE), (MODEL_PATH, FRAMEWORK_PATH)):
        if (reference / model).is_file():
            beside = reference / framework
            return Place(reference, reference / model, beside if beside.is_file() else None)
    raise ReferenceNotFound(
        f"the folder {reference} holds no {MODEL_FILE}",
        where=str(reference),
        hint="name the manifest itself if it is called otherwise",
    )


def framework_of(content: BundleContent) -> FrameworkManifest:
    """Return the framework manifest that a content holds."""
    source = next(file.source for file in content.files if file.role is Role.FRAMEWORK)
    assert isinstance(source, bytes)
    return parse_framework(source, FRAMEWORK_PATH).require()


def _built_in_framework(constraint: FrameworkConstraint) -> Path:
    known = []
    for path in built_in_frameworks().values():
        manifest = parse_framework(read_bytes(path), str(path)).require()
        if framework_matches(constraint, manifest):
            return path
        known.append(f"{manifest.name} {manifest.version}")
    raise ReferenceNotFound(
        f"no framework manifest fits {constraint.name} {constraint.version}",
        hint=f"put {FRAMEWORK_FILE} beside the model manifest or name one with --framework; "
        f"built in: {', '.join(known) or 'none'}",
    )


def _pins(framework: FrameworkManifest) -> Iterator[ImagePin]:
    for architecture, choices in framework.containers.items():
        for accelerator, choice in choices.items():
            if choice.digest is not None:
                yield ImagePin(architecture, accelerator, choice.image, choice.digest)


@dataclass
class _Assets:
    """Gathers the files that a manifest names, each once, under the first role that asks for it."""

    root: Path
    manifest: str
    files: dict[str, SourceFile] = field(default_factory=dict)
    assets: list[Asset] = field(default_factory=list)

    def add_model(self, model: ModelManifest) -> None:
        self._source("/model", model.model)
        self._labels("", (*model.inputs, *model.outputs), len(model.inputs))
        for number, variant in enumerate(model.variants):
            base = f"/variants/{number}"
            self._source(f"{base}/model", variant.model)
            inputs, outputs = variant.inputs or (), variant.outputs or ()
            self._labels(base, (*inputs, *outputs), len(inputs))
        for name in DOCUMENTATION:
            if (self.root / name).is_file():
                self._put(name, Role.DOC, self._resolve(name, name), name)
        if model.dataset is not None:
            self._dataset(model.dataset)
        self._expected_outputs(model.expected)

    def _source(self, pointer: str, source: ModelSource) -> None:
        if source.base_url is not None:
            raise self._remote(f"{pointer}/base_url", source.base_url)
        self._file(f"{pointer}/graph_path", source.graph_path, Role.WEIGHT, source.checksum)
        if source.weights_path is not None:
            self._file(f"{pointer}/weights_path", source.weights_path, Role.WEIGHT, source.weights_checksum)

    def _labels(self, base: str, tensors: Iterable[TensorSpec], inputs: int) -> None:
        for number, tensor in enumerate(tensors):
            side = f"inputs/{number}" if number < inputs else f"outputs/{number - inputs}"
            for place, step in enumerate(tensor.steps):
                labels = step.params.get("labels_url")
                if isinstance(labels, str):
                    pointer = f"{base}/{side}/steps/{place}/{step.name}/labels_url"
                    self._file(pointer, labels, Role.CONFIG)

    def _dataset(self, dataset: DatasetSpec) -> None:
        path = self._resolve("/dataset/path", dataset.path)
        if not path.is_dir():
            self._file("/dataset/path", dataset.path, Role.DATASET, dataset.checksum)
            return
        if dataset.checksum is not None:
            raise UsageError(
                "a checksum is of one file, and the dataset is a folder",
                where=self._where("/dataset/checksum"),
                hint="leave it out: every file of a bundle has its sha256",
            )
        folder = dataset.path.rstrip("/")
        self.assets.append(Asset("/dataset/path", folder))
        if dataset.index is not None:
            self._file("/dataset/index", f"{folder}/{dataset.index}", Role.DATASET)
        for name in self._walk(path, folder):
            self._put(name, Role.DATASET, self._resolve("/dataset/path", name), "/dataset/path")

    def _expected_outputs(self, expected: Expected | None) -> None:
        outputs = (expected.outputs if expected is not None else None) or {}
        path, checksum = outputs.get("path"), outputs.get("checksum")
        if isinstance(path, str):
            stated = parse_checksum(checksum) if isinstance(checksum, str) else None
            self._file("/expected/outputs/path", path, Role.DATASET, stated)

    def _walk(self, real: Path, folder: str) -> Iterator[str]:
        """Yield the paths of all files below a folder, in bundle form; nothing is passed over."""

        def fail(error: OSError) -> None:
            raise AssetUnavailable(
                f"can't read {error.filename}: {error.strerror}", where=self._where("/dataset/path")
            ) from error

        for top, folders, names in os.walk(real, onerror=fail):
            inside = os.path.relpath(top, real)
            prefix = folder if inside == "." else f"{folder}/{inside}"
            for name in folders:
                if os.path.islink(os.path.join(top, name)):  # noqa: PTH114, PTH118 - os.walk gives strings
                    raise UnsafePath(
                        f"{prefix}/{name} is a symbolic link to a folder",
                        where=self._where("/dataset/path"),
                        hint="replace the link by the folder itself",
                    )
            yield from (f"{prefix}/{name}" for name in names)

    def _file(self, pointer: str, path: str, role: Role, checksum: Checksum | None = None) -> None:
        real = self._resolve(pointer, path)
        if not real.is_file():
            raise AssetUnavailable(f"{path} is no regular file", where=self._where(pointer))
        self._put(path, role, real, pointer, checksum)
        self.assets.append(Asset(pointer, path))

    def _put(self, path: str, role: Role, real: Path, pointer: str, checksum: Checksum | None = None) -> None:
        held = self.files.get(path)
        if held is None:
            self.files[path] = SourceFile(path, role, real, checksum=checksum, pointer=self._where(pointer))
        elif checksum is not None and held.checksum not in {None, checksum}:
            raise UsageError(f"two checksums are stated for {path}", where=self._where(pointer))

    def _resolve(self, pointer: str, path: str) -> Path:
        """Return the real file or folder behind a path; raises AssetUnavailable or UnsafePath."""
        if _SCHEME.match(path):
            raise self._remote(pointer, path)
        check_path(path.rstrip("/"), where=self._where(pointer))
        root = self.root.resolve()
        try:
            real = (root / path).resolve(strict=True)
        except (OSError, RuntimeError) as error:
            raise AssetUnavailable(
                f"the manifest names {path}, which is not there",
                where=self._where(pointer),
                hint=f"it is looked for in {self.root}",
            ) from error
        if not real.is_relative_to(root):
            raise UnsafePath(
                f"{path} is a link that leads out of the folder of the manifest",
                where=self._where(pointer),
                hint="copy the file into the folder",
            )
        return real

    def _remote(self, pointer: str, address: str) -> AssetUnavailable:
        return AssetUnavailable(
            f"{address} is a remote asset, and only local ones can be packed yet",
            where=self._where(pointer),
            hint="fetch it, put it beside the manifest and name it by its relative path",
        )

    def _where(self, pointer: str) -> str:
        return f"{self.manifest}#{pointer}" if pointer.startswith("/") else f"{self.manifest}: {pointer}"
