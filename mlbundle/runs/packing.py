"""From a manifest on disk to the content of a bundle: finds every file it names, and packs them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mlbundle.bundle.content import BundleContent, Role, SourceFile
from mlbundle.bundle.document import Asset, ImagePin
from mlbundle.bundle.layout import FRAMEWORK_PATH, FRAMEWORKS_FOLDER, MODEL_PATH, further_framework_path
from mlbundle.bundle.paths import check_path
from mlbundle.errors import AssetUnavailable, ReferenceNotFound, UnsafePath, UsageError
from mlbundle.manifest.load import parse_framework, parse_model
from mlbundle.manifest.select import framework_matches, frameworks_of
from mlbundle.manifest.source import read_bytes
from mlbundle.manifest.values import parse_checksum
from mlbundle.manifest.versions import parse_version
from mlbundle.resources import built_in_frameworks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
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
FRAMEWORKS_NAME = "frameworks"
DOCUMENTATION = ("README.md", "LICENSE", "LICENSE.md", "LICENSE.txt", "NOTICE")
"""Files beside the manifest that travel with it without being named."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def pack_manifest(
    reference: Path,
    destination: Path,
    frameworks: Sequence[Path] = (),
    progress: Progress | None = None,
    *,
    overwrite: bool = False,
) -> Packed:
    """Collect what a manifest names and write it as a bundle. Raises what `collect` and `pack` raise."""
    from mlbundle.bundle.pack import pack

    return pack(collect(reference, frameworks), destination, progress, overwrite=overwrite)


def collect(reference: Path, frameworks: Sequence[Path] = ()) -> BundleContent:
    """Return the content of the bundle that a manifest describes.

    `reference` is a folder with `model.yml` (or with an unpacked bundle), or the manifest itself; `frameworks` are
    framework manifests that go before others of their name. The others come from beside the model manifest
    (`framework.yml` for the top level, `frameworks/<name>.yml` for variants), else from the built-in ones: the newest
    that fits. Raises ManifestInvalid, ReferenceNotFound, AssetUnavailable for an asset that is missing or remote,
    UnsafePath for one outside the folder. Checksums are checked while packing.
    """
    place = locate(reference)
    model_bytes = read_bytes(place.model)
    model = parse_model(model_bytes, str(place.model)).require()
    top, *further = choose_frameworks(model, place, frameworks)
    found = _Assets(place.root, str(place.model))
    found.add_model(model)
    files = (
        SourceFile(MODEL_PATH, Role.MODEL, model_bytes),
        SourceFile(FRAMEWORK_PATH, Role.FRAMEWORK, top.content),
        *(
            SourceFile(further_framework_path(chosen.key), Role.FRAMEWORK, chosen.content)
            for chosen in further
        ),
        *found.files.values(),
    )
    return BundleContent(
        model_name=model.name,
        model_version=model.version,
        framework_name=top.manifest.name,
        framework_version=top.manifest.version,
        frameworks=tuple((chosen.manifest.name, chosen.manifest.version) for chosen in further),
        files=files,
        assets=tuple(found.assets),
        images=tuple(
            pin
            for chosen in (top, *further)
            for pin in _pins(chosen.manifest, None if chosen is top else chosen.key)
        ),
        description=model.description,
        license=model.license,
    )


def left_out(reference: Path, content: BundleContent) -> tuple[str, ...]:
    """Return the names beside the manifest that the bundle does not hold because nothing names them."""
    place = locate(reference)
    held = {file.path.split("/")[0] for file in content.files}
    documents = {
        path.name
        for path in (place.model, place.framework, place.further)
        if path and path.parent == place.root
    }
    return tuple(sorted({path.name for path in place.root.iterdir()} - held - documents))


@dataclass(frozen=True)
class Place:
    """Where a manifest lies: its assets are found from `root`, framework manifests at the other two, if at all."""

    root: Path
    model: Path
    framework: Path | None
    further: Path


def locate(reference: Path) -> Place:
    """Return where the manifest of a folder, an unpacked bundle or a file lies; raises ReferenceNotFound."""
    if not reference.is_dir():
        beside = reference.with_name(FRAMEWORK_FILE)
        folder = reference.with_name(FRAMEWORKS_NAME)
        return Place(reference.parent, reference, beside if beside.is_file() else None, folder)
    for model, framework, further in (
        (MODEL_FILE, FRAMEWORK_FILE, FRAMEWORKS_NAME),
        (MODEL_PATH, FRAMEWORK_PATH, FRAMEWORKS_FOLDER),
    ):
        if (reference / model).is_file():
            beside = reference / framework
            return Place(
                reference, reference / model, beside if beside.is_file() else None, reference / further
            )
    raise ReferenceNotFound(
        f"the folder {reference} holds no {MODEL_FILE}",
        where=str(reference),
        hint="name the manifest itself if it is called otherwise",
    )


@dataclass(frozen=True)
class ChosenFramework:
    """A framework manifest, its bytes as the author wrote them, and its name in lower case."""

    key: str
    manifest: FrameworkManifest
    content: bytes


def choose_frameworks(
    model: ModelManifest, place: Place, stated: Sequence[Path] = ()
) -> list[ChosenFramework]:
    """Return the framework manifest for each framework of a model, the top level's first, the others by name.

    Raises ReferenceNotFound where there is none, UsageError for one that does not fit or that no form of the model
    needs.
    """
    given = {chosen.key: (path, chosen) for path in stated for chosen in [_read_framework(path)]}
    wanted = frameworks_of(model)
    for key, (path, chosen) in given.items():
        if key not in wanted:
            raise _misfit(model.framework, chosen, path)
    top, *others = wanted
    found = []
    for key in (top, *sorted(others)):
        beside = place.framework if key == top else place.further / f"{key}.yml"
        if key in given:
            path, chosen = given[key]
        elif beside is not None and beside.is_file():
            path, chosen = beside, _read_framework(beside)
        else:
            path, chosen = _built_in_framework(wanted[key])
        for constraint in wanted[key]:
            if not framework_matches(constraint, chosen.manifest):
                raise _misfit(constraint, chosen, path)
        found.append(chosen)
    return found


def framework_manifests(content: BundleContent) -> list[FrameworkManifest]:
    """Return the framework manifests that a content holds, the top level's first."""
    return [
        parse_framework(file.source, file.path).require()
        for file in content.files
        if file.role is Role.FRAMEWORK and isinstance(file.source, bytes)
    ]


def _read_framework(path: Path) -> ChosenFramework:
    content = read_bytes(path)
    manifest = parse_framework(content, str(path)).require()
    return ChosenFramework(manifest.name.lower(), manifest, content)


def _misfit(wanted: FrameworkConstraint, chosen: ChosenFramework, path: Path) -> UsageError:
    return UsageError(
        f"the model needs {wanted.name} {wanted.version}; "
        f"the framework manifest is {chosen.manifest.name} {chosen.manifest.version}",
        where=str(path),
        hint="mend the constraint in the model manifest, or name another framework manifest: "
        "`mlbundle pack --framework-manifest FILE`",
    )


def _built_in_framework(constraints: Sequence[FrameworkConstraint]) -> tuple[Path, ChosenFramework]:
    """Return the newest of the framework manifests that we ship which fits all constraints."""
    known = [(path, _read_framework(path)) for path in built_in_frameworks().values()]
    fitting = [
        (path, chosen)
        for path, chosen in known
        if all(framework_matches(constraint, chosen.manifest) for constraint in constraints)
    ]
    if fitting:
        return max(fitting, key=lambda found: parse_version(found[1].manifest.version))
    versions = " and ".join(dict.fromkeys(constraint.version for constraint in constraints))
    listed = ", ".join(f"{chosen.manifest.name} {chosen.manifest.version}" for _, chosen in known)
    raise ReferenceNotFound(
        f"no framework manifest fits {constraints[0].name} {versions}",
        hint=f"put {FRAMEWORK_FILE} beside the model manifest ({FRAMEWORKS_NAME}/<name>.yml for a variant), "
        f"or name one: `mlbundle pack --framework-manifest FILE`; built in: {listed or 'none'}",
    )


def _pins(framework: FrameworkManifest, key: str | None) -> Iterator[ImagePin]:
    for architecture, choices in framework.containers.items():
        for accelerator, choice in choices.items():
            if choice.digest is not None:
                yield ImagePin(architecture, accelerator, choice.image, choice.digest, framework=key)


@dataclass
class _Assets:
    """Gathers the files that a manifest names, each once, under the first role that asks for it."""

    root: Path
    manifest: str
    files: dict[str, SourceFile] = field(default_factory=dict)
    assets: list[Asset] = field(default_factory=list)

    def add_model(self, model: ModelManifest) -> None:
        self._source("/model", model.model)
        self._predictor("/predictor", model.predictor)
        self._labels("", (*model.inputs, *model.outputs), len(model.inputs))
        for number, variant in enumerate(model.variants):
            base = f"/variants/{number}"
            self._source(f"{base}/model", variant.model)
            self._predictor(f"{base}/predictor", variant.predictor)
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
        if source.graph_path.endswith("/"):
            self._folder(f"{pointer}/graph_path", source.graph_path, Role.WEIGHT)
        else:
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
        if dataset.index is not None:
            self._file("/dataset/index", f"{folder}/{dataset.index}", Role.DATASET)
        self._folder("/dataset/path", folder, Role.DATASET)

    def _predictor(self, pointer: str, path: str | None) -> None:
        if path is not None:
            self._file(pointer, path, Role.CODE)

    def _folder(self, pointer: str, path: str, role: Role) -> None:
        """Take in a folder with everything below it."""
        folder = path.rstrip("/")
        real = self._resolve(pointer, folder)
        if not real.is_dir():
            raise AssetUnavailable(f"{path} is no folder", where=self._where(pointer))
        self.assets.append(Asset(pointer, folder))
        for name in self._walk(real, folder, pointer):
            self._put(name, role, self._resolve(pointer, name), pointer)

    def _expected_outputs(self, expected: Expected | None) -> None:
        outputs = (expected.outputs if expected is not None else None) or {}
        path, checksum = outputs.get("path"), outputs.get("checksum")
        if isinstance(path, str):
            stated = parse_checksum(checksum) if isinstance(checksum, str) else None
            self._file("/expected/outputs/path", path, Role.DATASET, stated)

    def _walk(self, real: Path, folder: str, pointer: str) -> Iterator[str]:
        """Yield the paths of all files below a folder, in bundle form; nothing is passed over."""

        def fail(error: OSError) -> None:
            raise AssetUnavailable(
                f"can't read {error.filename}: {error.strerror}", where=self._where(pointer)
            ) from error

        for top, folders, names in os.walk(real, onerror=fail):
            inside = os.path.relpath(top, real)
            prefix = folder if inside == "." else f"{folder}/{inside}"
            for name in folders:
                if os.path.islink(os.path.join(top, name)):  # noqa: PTH114, PTH118 - os.walk gives strings
                    raise UnsafePath(
                        f"{prefix}/{name} is a symbolic link to a folder",
                        where=self._where(pointer),
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
