"""The two manifests that the MLModelScope paper prints load as they are printed."""

from __future__ import annotations

from pathlib import Path

from mlbundle.manifest.framework import ImageChoice
from mlbundle.manifest.load import load_framework, load_manifest, load_model
from mlbundle.manifest.model import FrameworkConstraint, ModelSource, Step, TensorSpec

GOLDEN = Path(__file__).resolve().parents[2] / "golden"


def test_listing_1_becomes_the_values_it_prints() -> None:
    loaded = load_model(GOLDEN / "listing1.yml")
    model = loaded.require()
    assert (model.name, model.version, model.description) == ("MLPerf_ResNet50_v1.5", "1.0.0", "...")
    assert model.framework == FrameworkConstraint("TensorFlow", ">=1.12.0 <2.0")
    assert model.inputs == (
        TensorSpec(
            type="image",
            layer_name="input_tensor",
            element_type="float32",
            steps=(
                Step("decode", {"data_layout": "NHWC", "color_mode": "RGB"}),
                Step(
                    "resize", {"dimensions": [3, 224, 224], "method": "bilinear", "keep_aspect_ratio": True}
                ),
                Step("normalize", {"mean": [123.68, 116.78, 103.94], "rescale": 1.0}),
            ),
        ),
    )
    assert model.outputs == (
        TensorSpec(
            type="probability",
            layer_name="prob",
            element_type="float32",
            steps=(Step("argsort", {"labels_url": "https://.../synset.txt"}),),
        ),
    )
    assert model.model == ModelSource(
        graph_path="resnet50_v1.pb", base_url="https://zenodo.org/record/2535873/files/", checksum=None
    )
    assert model.preprocess is None
    assert model.postprocess is None
    assert not model.carries_code
    assert model.attributes == {"training_dataset": [{"name": "ImageNet"}, {"version": "1.0.0"}]}


def test_listing_1_warns_of_what_the_print_leaves_out() -> None:
    problems = load_model(GOLDEN / "listing1.yml").problems
    assert [(p.severity, p.line, p.column, p.pointer) for p in problems] == [
        ("warning", 28, 21, "/outputs/0/steps/0/labels_url"),
        ("warning", 29, 13, "/preprocess"),
        ("warning", 30, 14, "/postprocess"),
        ("warning", 34, 13, "/model/checksum"),
    ]


def test_listing_1_as_a_document_has_the_form_of_the_schema() -> None:
    document = load_model(GOLDEN / "listing1.yml").document
    assert document["inputs"][0]["steps"][0] == {"decode": {"data_layout": "NHWC", "color_mode": "RGB"}}
    assert "preprocess" not in document


def test_listing_2_becomes_the_values_it_prints() -> None:
    loaded = load_framework(GOLDEN / "listing2.yml")
    framework = loaded.require()
    assert (framework.name, framework.version) == ("TensorFlow", "1.15.0")
    assert framework.containers["ppc64le"]["gpu"] == ImageChoice("carml/tensorflow:1-15-0_ppc64le-gpu")
    assert {a: sorted(row) for a, row in framework.containers.items()} == {
        "amd64": ["cpu", "gpu"],
        "ppc64le": ["cpu", "gpu"],
    }
    assert [(p.severity, p.line, p.pointer) for p in loaded.problems] == [
        ("warning", 6, "/containers/amd64/cpu"),
        ("warning", 7, "/containers/amd64/gpu"),
        ("warning", 9, "/containers/ppc64le/cpu"),
        ("warning", 10, "/containers/ppc64le/gpu"),
    ]
    assert all("unpinned" in p.message for p in loaded.problems)


def test_the_kind_is_seen_from_the_keys() -> None:
    assert load_manifest(GOLDEN / "listing1.yml").kind == "model"
    assert load_manifest(GOLDEN / "listing2.yml").kind == "framework"
