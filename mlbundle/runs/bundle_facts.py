"""What is known of a bundle before anything of it is run: its task, its forms, and which image each would take."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from mlbundle.bundle import oci
from mlbundle.bundle.checked import read_document
from mlbundle.bundle.document import ImagePin, parse_bundle
from mlbundle.bundle.layout import BUNDLE_LAYER, FRAMEWORK_PATH, MODEL_PATH, further_framework_path
from mlbundle.bundle.strictjson import MAX_BYTES, loads
from mlbundle.manifest.framework import FrameworkManifest, ImageChoice
from mlbundle.manifest.load import load_model, parse_framework, parse_model
from mlbundle.manifest.select import select_variant, variant_names
from mlbundle.runs.packing import choose_frameworks, locate
from mlbundle.runs.placement import runs_code

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from mlbundle.bundle.blobs import BlobReader
    from mlbundle.bundle.reader import BundleReader
    from mlbundle.manifest.model import ModelManifest

_TASKS = {
    "classification": "classification",
    "probability": "classification",
    "classes": "detection",
    "boundingbox": "detection",
    "semanticsegment": "segmentation",
    "instancesegment": "segmentation",
    "masks": "segmentation",
    "feature": "features",
}
"""What an output's modality says about the task; a first output of another kind is named as it is."""


@dataclass(frozen=True)
class Form:
    """One form of a model: `framework` is the name in lower case, `version` the range that will do.

    `code` says whether it runs code of its author: in a process that wants trust.
    """

    name: str
    framework: str
    version: str
    code: bool


@dataclass(frozen=True)
class BundleFacts:
    """What the manifests of a bundle say. `frameworks` are theirs by name in lower case, `top` the top level's."""

    task: str
    description: str
    forms: tuple[Form, ...]
    frameworks: Mapping[str, FrameworkManifest]
    top: str
    pins: tuple[ImagePin, ...] = ()

    @property
    def architectures(self) -> tuple[str, ...]:
        """The architectures that there is an image or an environment for."""
        return _keys_of((f.containers, f.python) for f in self.frameworks.values())

    @property
    def accelerators(self) -> tuple[str, ...]:
        """The accelerators that there is an image or an environment for."""
        return _keys_of(
            table.values() for f in self.frameworks.values() for table in (f.containers, f.python)
        )

    def pins_of(self, framework: str) -> tuple[ImagePin, ...]:
        """Return the images that the bundle pins for a framework."""
        further = None if framework == self.top else framework
        return tuple(pin for pin in self.pins if pin.framework == further)

    def to_document(self) -> dict[str, Any]:
        """Return the facts as JSON-ready values."""
        return {
            "task": self.task,
            "description": self.description,
            "forms": [asdict(form) for form in self.forms],
            "frameworks": {key: asdict(framework) for key, framework in self.frameworks.items()},
            "top": self.top,
            "pins": [asdict(pin) for pin in self.pins],
        }


def facts_from_document(document: Mapping[str, Any]) -> BundleFacts:
    """Return the facts that `to_document` wrote. Raises KeyError, TypeError, AttributeError for anything else."""
    return BundleFacts(
        task=str(document["task"]),
        description=str(document["description"]),
        forms=tuple(Form(**form) for form in document["forms"]),
        frameworks={key: framework_from_document(value) for key, value in document["frameworks"].items()},
        top=str(document["top"]),
        pins=tuple(ImagePin(**pin) for pin in document["pins"]),
    )


def facts_of_manifest(path: Path) -> BundleFacts:
    """Return the facts of a manifest on disk: a folder, or the file. Raises as packing it would."""
    place = locate(path)
    model = load_model(place.model).require()
    chosen = choose_frameworks(model, place)
    return _facts(model, {found.key: found.manifest for found in chosen}, ())


def facts_of_reader(reader: BundleReader) -> BundleFacts:
    """Return the facts of an open bundle. Raises ManifestInvalid."""
    texts = {reader.document.framework_name.lower(): reader.framework_yaml, **reader.further_frameworks}
    return _facts_of_texts(reader.model_yaml, texts, reader.document.images)


def facts_of_blobs(source: BlobReader, index: bytes, where: str) -> BundleFacts:
    """Return the facts of a bundle of the store: five small documents of it are read, the file table is not.

    Raises IntegrityError, ManifestInvalid.
    """
    model = oci.parse_index(loads(index, where=where), where).model
    text = read_document(source, model, MAX_BYTES, "the model manifest")
    layers = {layer.path: layer for layer in oci.parse_manifest(loads(text, where=where), where).layers}

    def content(path: str) -> bytes:
        return read_document(source, layers[path], MAX_BYTES, path)

    bundle = parse_bundle(loads(content(BUNDLE_LAYER), where=where), where)
    paths = {bundle.framework_name.lower(): FRAMEWORK_PATH}
    paths |= {name.lower(): further_framework_path(name) for name, _ in bundle.frameworks}
    texts = {key: content(path) for key, path in paths.items()}
    return _facts_of_texts(content(MODEL_PATH), texts, bundle.images)


def task_of(model: ModelManifest) -> str:
    """Return what a model does, by the modalities of its first input and output: `image classification`."""
    given, made = model.inputs[0].type, model.outputs[0].type
    what = _TASKS.get(made, made)
    return f"{given} {what}" if made in _TASKS else f"{given} to {what}"


def _facts_of_texts(model: bytes, frameworks: Mapping[str, bytes], pins: Iterable[ImagePin]) -> BundleFacts:
    parsed = {key: _parsed_framework(text, key) for key, text in frameworks.items()}
    return _facts(parse_model(model, MODEL_PATH).require(), parsed, tuple(pins))


_PARSED: dict[bytes, FrameworkManifest] = {}
_MAX_PARSED = 256


def _parsed_framework(text: bytes, key: str) -> FrameworkManifest:
    """Return a framework manifest; thousands of bundles have the same few."""
    found = _PARSED.get(text)
    if found is None:
        found = parse_framework(text, f"{key}.yml").require()
        if len(_PARSED) < _MAX_PARSED:
            _PARSED[text] = found
    return found


def _facts(
    model: ModelManifest, frameworks: Mapping[str, FrameworkManifest], pins: tuple[ImagePin, ...]
) -> BundleFacts:
    forms = []
    for name in variant_names(model):
        form = select_variant(model, name)
        wanted = form.framework
        forms.append(Form(name, wanted.name.lower(), wanted.version, runs_code(form)))
    return BundleFacts(
        task=task_of(model),
        description=" ".join((model.description or "").split()),
        forms=tuple(forms),
        frameworks=frameworks,
        top=model.framework.name.lower(),
        pins=pins,
    )


def framework_from_document(value: Mapping[str, Any]) -> FrameworkManifest:
    """Return the framework manifest whose fields these are, as `dataclasses.asdict` gives them."""
    containers = {
        architecture: {accelerator: ImageChoice(**choice) for accelerator, choice in row.items()}
        for architecture, row in value["containers"].items()
    }
    return replace(FrameworkManifest(**value), containers=containers)


def _keys_of(tables: Iterable[Iterable[Iterable[str]]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(key for row in tables for table in row for key in table))
