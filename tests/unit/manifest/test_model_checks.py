"""What a schema can't say: checksums, URLs, datasets, variants, code beside steps."""

from __future__ import annotations

import pytest
from manifest_samples import HEX, MODEL, model_problems, with_text

from mlbundle.manifest.load import parse_model
from mlbundle.manifest.model import Checksum, DatasetSpec, Expected, ExpectedAccuracy, FrameworkConstraint

NEED = "plain http: needs a sha256 checksum"


def source_problems(lines: str) -> list[str]:
    """Problems of `model:` with these lines (the first is line 13), without severity and hints."""
    indented = "".join(f"  {line}\n" for line in lines.splitlines())
    return [p.split(" ", 1)[1] for p in model_problems(MODEL.split("model:\n")[0] + "model:\n" + indented)]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (f"graph_path: m.onnx\nchecksum: {HEX}", []),
        ("graph_path: m.onnx", ["warning /model/graph_path: it has no checksum"]),
        (f"graph_path: m.onnx\nchecksum: {HEX[:32]}", ["warning /model/checksum: md5 is a weak checksum"]),
        (f"graph_path: m.onnx\nchecksum: {HEX[:40]}", ["warning /model/checksum: sha1 is a weak checksum"]),
        (f"graph_path: m.onnx\nchecksum: sha1:{HEX}", [f"error /model/checksum: 'sha1:{HEX[:55]}…' is no checksum"]),
        ("graph_path: m.onnx\nchecksum: abc…def", ["warning /model/checksum: the checksum 'abc…def' is shortened and counts as missing"]),
        ("graph_path: m.onnx\nchecksum: todo", ["error /model/checksum: 'todo' is no checksum"]),
        (f"graph_path: m.onnx\nchecksum: {HEX}\nweights_path: w.bin", ["warning /model/weights_path: it has no checksum"]),
        (f"graph_path: m.onnx\nchecksum: {HEX}\nweights_checksum: {HEX}", ["error /model/weights_checksum: there is a checksum of weights but no weights_path"]),
        (f"graph_path: m.onnx\nchecksum: {HEX}\nbase_url: https://host/", []),
        (f"graph_path: m.onnx\nchecksum: {HEX}\nbase_url: http://host/", []),
        ("graph_path: m.onnx\nbase_url: http://host/", ["warning /model/graph_path: it has no checksum", f"error /model/base_url: {NEED}"]),
        (f"graph_path: m.onnx\nchecksum: {HEX[:32]}\nbase_url: http://host/", ["warning /model/checksum: md5 is a weak checksum", f"error /model/base_url: {NEED}"]),
        (f"graph_path: m.onnx\nchecksum: {HEX}\nbase_url: ftp://host/", ["error /model/base_url: the scheme 'ftp' is not supported"]),
        (f"graph_path: m.onnx\nchecksum: {HEX}\nbase_url: host/folder", ["error /model/base_url: 'host/folder' is no URL"]),
        (f"graph_path: m.onnx\nchecksum: {HEX}\nbase_url: https://host/a b", ["error /model/base_url: the URL 'https://host/a b' holds a space or a control character"]),
        (f"graph_path: ../m.onnx\nchecksum: {HEX}\nbase_url: https://host/", ["error /model/graph_path: '../m.onnx' is not allowed as a path: it leaves its folder with '..'"]),
        (f"graph_path: https://host/m.onnx\nchecksum: {HEX}", []),
        ("graph_path: http://host/m.onnx", ["warning /model/graph_path: it has no checksum", f"error /model/graph_path: {NEED}"]),
        (f"graph_path: m.onnx\nweights_path: w.bin\nchecksum: {HEX}\nbase_url: http://host/", ["warning /model/weights_path: it has no checksum", "error /model/weights_path: weights over plain http: need a sha256 checksum"]),
        (f"graph_path: m.onnx\nweights_path: w.bin\nchecksum: {HEX}\nbase_url: http://host/x.zip\nis_archive: true", []),
    ],
)  # fmt: skip
def test_model_source(lines: str, expected: list[str]) -> None:
    assert sorted(source_problems(lines)) == sorted(expected)


def test_checksums_become_values() -> None:
    model = parse_model(with_text(f"sha256:{HEX}", HEX[:32].upper()).encode(), "m").require()
    assert model.model.checksum == Checksum("md5", HEX[:32])
    shortened = parse_model(with_text(f"sha256:{HEX}", "7b94a...8886").encode(), "m").require()
    assert shortened.model.checksum is None


def test_several_inputs_need_names_each_its_own() -> None:
    more = "  - {type: raw}\n  - {type: raw, layer_name: input}\noutputs:\n"
    assert [p.split(" ", 1)[1] for p in model_problems(with_text("outputs:\n", more))] == [
        "error /inputs/1: one of 3 inputs has no layer_name",
        "error /inputs/2/layer_name: the layer 'input' is listed twice",
    ]


def test_a_single_input_may_leave_its_name_to_the_model() -> None:
    model = parse_model(with_text("    layer_name: input\n", "").encode(), "m").require()
    assert model.inputs[0].layer_name is None


def dataset_problems(yaml: str) -> list[str]:
    return [p.split(" ", 1)[1] for p in model_problems(MODEL + f"dataset: {yaml}\n")]


@pytest.mark.parametrize(
    ("yaml", "expected"),
    [
        (f"{{format: npz, path: d.npz, labels: y, checksum: {HEX}}}", []),
        ("{format: npz, path: d.npz, labels: y}", ["warning /dataset/path: it has no checksum"]),
        (f"{{format: npz, path: d.npz, checksum: {HEX}}}", ["error /dataset: the key 'labels' is missing"]),
        ("{format: directory, path: d}", ["error /dataset: the key 'index' is missing"]),
        ("{format: directory, path: d, index: val_map.txt}", []),
        ("{format: directory, path: d, index: ../val_map.txt}", ["error /dataset/index: '../val_map.txt' is not allowed as a path: it leaves its folder with '..'"]),
        ("{format: tfrecord, path: d}", ["error /dataset/format: 'tfrecord' is no dataset format"]),
        (f"{{format: npz, path: d.npz, labels: y, checksum: {HEX}, inputs: {{inptu: x}}}}", ["error /dataset/inputs/inptu: the model has no input 'inptu'"]),
        (f"{{format: npz, path: d.npz, labels: y, checksum: {HEX}, samples: 0}}", ["error /dataset/samples: 0 is too small for number of samples"]),
        ("{format: npz, path: 'http://host/d.npz', labels: y}", ["warning /dataset/path: it has no checksum", f"error /dataset/path: {NEED}"]),
    ],
)  # fmt: skip
def test_dataset(yaml: str, expected: list[str]) -> None:
    assert sorted(dataset_problems(yaml)) == sorted(expected)


def test_several_inputs_need_arrays() -> None:
    two = with_text("outputs:\n", "  - {type: raw, layer_name: mask}\noutputs:\n")
    dataset = f"dataset: {{format: npz, path: d.npz, labels: y, checksum: {HEX}"
    assert [p.split(" ", 1)[1] for p in model_problems(two + dataset + "}\n")] == [
        "error /dataset: the dataset does not say which array feeds which input"
    ]
    assert [p.split(" ", 1)[1] for p in model_problems(two + dataset + ", inputs: {input: x}}\n")] == [
        "error /dataset/inputs: no array feeds the input 'mask'"
    ]
    assert model_problems(two + dataset + ", inputs: {input: x, mask: m}}\n") == []


def test_dataset_and_claims_become_values() -> None:
    text = MODEL + (
        f"dataset: {{format: npz, path: d.npz, checksum: {HEX}, labels: 0, inputs: {{input: 1e3}}, samples: 360}}\n"
        "expected:\n  accuracy: {metric: top1, value: 1, tolerance: 1e-2}\n"
        "  performance: [{machine: m1, scenario: online, p50_ms: 1.5}]\n"
    )
    model = parse_model(text.encode(), "m").require()
    # Names of arrays are text, whatever YAML would make of them.
    assert model.dataset == DatasetSpec("npz", "d.npz", Checksum("sha256", HEX), 360, {"input": "1e3"}, "0")
    assert model.expected == Expected(
        ExpectedAccuracy("top1", 1.0, 0.01),
        performance=({"machine": "m1", "scenario": "online", "p50_ms": 1.5},),
    )


def test_claims_are_fractions() -> None:
    text = MODEL + "expected: {accuracy: {metric: top1, value: 97.2}}\n"
    assert model_problems(text) == ["15:44 error /expected/accuracy/value: 97.2 is too large for accuracy"]


def test_variants() -> None:
    text = MODEL + (
        "variants:\n"
        "  - framework: {name: torch, version: ^2.1}\n"
        f"    model: {{graph_path: model.pt2, checksum: {HEX}}}\n"
        "    inputs:\n"
        "      - type: image\n"
        "        steps:\n"
        "          - softmax:\n"
    )
    (variant,) = parse_model(text.encode(), "m").require().variants
    assert variant.framework == FrameworkConstraint("torch", "^2.1")
    assert variant.inputs is not None
    assert variant.inputs[0].steps[0].name == "softmax"
    assert variant.outputs is None
    twice = text.replace("name: torch", "name: ONNXRuntime")
    assert [p.split(" ", 1)[1] for p in model_problems(twice)] == [
        "error /variants/0/framework/name: the variant 'ONNXRuntime' is there already"
    ]


CODE = "preprocess: |\n  def preprocess(env, data):\n      return data\n"


def test_code_is_kept_as_written() -> None:
    model = parse_model((MODEL + CODE).encode(), "m").require()
    assert model.preprocess == "def preprocess(env, data):\n    return data\n"
    assert model.carries_code


@pytest.mark.parametrize(("side", "tensors"), [("preprocess", "inputs"), ("postprocess", "outputs")])
def test_code_and_steps_on_one_side_exclude_each_other(side: str, tensors: str) -> None:
    code = CODE.replace("preprocess", side)
    steps = "    steps: [softmax: {}]\n"
    layer = "    layer_name: input\n" if tensors == "inputs" else "    layer_name: scores\n"
    both = with_text(layer, layer + steps) + code
    assert [p.split(" ", 1)[1] for p in model_problems(both)] == [
        f"error /{side}: there are both {side} code and steps in {tensors}"
    ]
    other = "    layer_name: scores\n" if tensors == "inputs" else "    layer_name: input\n"
    assert model_problems(with_text(other, other + steps) + code) == []


def test_code_excludes_the_steps_of_a_variant_too() -> None:
    variant = (
        "variants:\n  - framework: {name: torch}\n"
        f"    model: {{graph_path: m.pt2, checksum: {HEX}}}\n"
        "    inputs: [{type: image, steps: [softmax: {}]}]\n"
    )
    assert len(model_problems(MODEL + CODE + variant)) == 1


def test_an_error_in_code_is_placed_inside_the_file() -> None:
    text = MODEL + "postprocess: |\n\n  import os\n  def postprocess(env data):\n    return 1\n"
    assert model_problems(text) == ["18:23 error /postprocess: the code is no Python: invalid syntax"]


def test_an_error_in_folded_or_quoted_code_names_the_line_of_the_code() -> None:
    text = MODEL + 'postprocess: "x = 1\\ny = ("\n'
    assert model_problems(text) == [
        "15:14 error /postprocess: the code is no Python: '(' was never closed (line 2 of the code)"
    ]


def test_placeholders_are_absent_with_a_warning() -> None:
    assert model_problems(MODEL + "preprocess: [[code]]\n") == [
        "15:13 warning /preprocess: preprocess is only a placeholder and counts as absent"
    ]
    assert model_problems(MODEL + "preprocess: [[a, b]]\n") == [
        "15:13 error /preprocess: preprocess can't be a list of 1"
    ]


@pytest.mark.parametrize(
    "yaml", ["{name: ImageNet, version: 1.10}", "[{name: ImageNet}, {version: 1.10}]", "ImageNet"]
)
def test_training_dataset_takes_the_forms_in_use(yaml: str) -> None:
    assert model_problems(MODEL + f"attributes: {{training_dataset: {yaml}}}\n") == []


def test_attributes_are_free_but_the_known_ones_are_typed() -> None:
    text = (
        MODEL + "attributes:\n  anything: {at: [all, 1, NO, 1.10, 2026-11-20]}\n  top1: 76.46\n  kind: 3D\n"
    )
    model = parse_model(text.encode(), "m").require()
    assert model.attributes == {
        "anything": {"at": ["all", 1, "NO", "1.10", "2026-11-20"]},
        "top1": 76.46,
        "kind": "3D",
    }
    assert model_problems(MODEL + "attributes: {top1: high}\n") == [
        "15:20 error /attributes/top1: top1 can't be 'high'"
    ]
