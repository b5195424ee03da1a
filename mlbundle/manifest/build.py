"""Makes values of documents that have passed all checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlbundle.manifest.framework import FrameworkManifest, ImageChoice
from mlbundle.manifest.framework_checks import DIGEST
from mlbundle.manifest.model import (
    Checksum,
    DatasetSpec,
    Expected,
    ExpectedAccuracy,
    FrameworkConstraint,
    ModelManifest,
    ModelSource,
    Step,
    TensorSpec,
    Variant,
)
from mlbundle.manifest.values import parse_checksum
from mlbundle.platforms import normalise_architecture

if TYPE_CHECKING:
    from collections.abc import Mapping

Document = dict[str, Any]


def build_model(document: Document) -> ModelManifest:
    """Return a model manifest of a document without errors."""
    return ModelManifest(
        name=document["name"],
        version=document["version"],
        framework=_framework(document["framework"]),
        inputs=_tensors(document["inputs"]),
        outputs=_tensors(document["outputs"]),
        model=_source(document["model"]),
        description=document.get("description"),
        license=document.get("license"),
        references=tuple(document.get("references", ())),
        preprocess=document.get("preprocess"),
        postprocess=document.get("postprocess"),
        predictor=document.get("predictor"),
        variants=tuple(_variant(variant) for variant in document.get("variants", ())),
        dataset=_dataset(document["dataset"]) if "dataset" in document else None,
        expected=_expected(document["expected"]) if "expected" in document else None,
        attributes=document.get("attributes", {}),
    )


def build_framework(document: Document) -> FrameworkManifest:
    """Return a framework manifest of a document without errors; architectures get our names."""
    return FrameworkManifest(
        name=document["name"],
        version=document["version"],
        description=document.get("description"),
        containers={
            normalise_architecture(architecture): {name: _image(image) for name, image in images.items()}
            for architecture, images in document.get("containers", {}).items()
        },
        python={
            normalise_architecture(architecture): dict(locks)
            for architecture, locks in document.get("python", {}).items()
        },
    )


def _framework(document: Document) -> FrameworkConstraint:
    return FrameworkConstraint(document["name"], document.get("version", "*"))


def _tensors(documents: list[Document]) -> tuple[TensorSpec, ...]:
    return tuple(_tensor(document) for document in documents)


def _tensor(document: Document) -> TensorSpec:
    shape = document.get("shape")
    return TensorSpec(
        type=document["type"],
        layer_name=document.get("layer_name"),
        element_type=document.get("element_type"),
        shape=None if shape is None else tuple(shape),
        steps=tuple(_step(step) for step in document.get("steps", ())),
    )


def _step(document: Document) -> Step:
    ((name, params),) = document.items()
    return Step(name, params or {})


def _source(document: Document) -> ModelSource:
    return ModelSource(
        graph_path=document["graph_path"],
        weights_path=document.get("weights_path"),
        base_url=document.get("base_url"),
        checksum=_checksum(document, "checksum"),
        weights_checksum=_checksum(document, "weights_checksum"),
        is_archive=document.get("is_archive", False),
    )


def _checksum(document: Document, key: str) -> Checksum | None:
    """Return the checksum under a key; one that is shortened counts as missing."""
    return parse_checksum(document[key]) if key in document else None


def _variant(document: Document) -> Variant:
    framework = _framework(document["framework"])
    return Variant(
        name=document.get("name", framework.name),
        framework=framework,
        model=_source(document["model"]),
        inputs=_tensors(document["inputs"]) if "inputs" in document else None,
        outputs=_tensors(document["outputs"]) if "outputs" in document else None,
        predictor=document.get("predictor"),
    )


def _dataset(document: Document) -> DatasetSpec:
    return DatasetSpec(
        format=document["format"],
        path=document["path"],
        checksum=_checksum(document, "checksum"),
        samples=document.get("samples"),
        inputs=document.get("inputs", {}),
        labels=document.get("labels"),
        index=document.get("index"),
    )


def _expected(document: Document) -> Expected:
    accuracy = document.get("accuracy")
    return Expected(
        accuracy=None
        if accuracy is None
        else ExpectedAccuracy(
            accuracy["metric"], float(accuracy["value"]), float(accuracy.get("tolerance", 0))
        ),
        outputs=document.get("outputs"),
        performance=tuple(document.get("performance", ())),
    )


def _image(value: str | Mapping[str, str]) -> ImageChoice:
    """Return an image choice; a digest inside the reference is taken out of it."""
    stated: Mapping[str, str] = {"image": value} if isinstance(value, str) else value
    image, _, inner = stated["image"].partition("@")
    digest = stated.get("digest", inner)
    return ImageChoice(
        image,
        digest if DIGEST.match(digest) else None,
        build=stated.get("build"),
        driver=stated.get("driver"),
    )
