"""Mistakes become problems: each once, all at once, with place, expectation and near miss."""

from __future__ import annotations

from pathlib import Path

import pytest
from manifest_samples import MODEL, model_problems, with_text

from mlbundle.errors import ManifestInvalid
from mlbundle.manifest.load import load_model, parse_model

TEN = Path(__file__).resolve().parents[2] / "hostile" / "manifests" / "ten-mistakes.yml"


def test_the_sound_manifest_has_no_problems() -> None:
    assert model_problems(MODEL) == []


def test_ten_mistakes_are_exactly_ten_problems() -> None:
    problems = load_model(TEN).problems
    assert [(p.severity, p.line, p.column, p.pointer, p.message, p.hint) for p in problems] == [
        ("error", 2, 10, "/version", "'one' is no version", None),
        ("error", 4, 3, "/framework/nmae", "unknown key 'nmae'", "did you mean 'name'?"),
        (
            "error",
            5,
            12,
            "/framework/version",
            "'>>1.2' is no version constraint: '>1.2' is no version",
            "written like 1.14.0, >=1.12.0 <2.0, ~1.2.x, ^0.1, 1.x, 1.2 - 2.0, 1.x || 2.x or *",
        ),
        (
            "error",
            9,
            19,
            "/inputs/0/element_type",
            "'float32s' is no element type",
            "did you mean 'float32'?",
        ),
        ("error", 11, 9, "/inputs/0/steps/0/resise", "unknown operator 'resise'", "did you mean 'resize'?"),
        ("error", 14, 21, "/inputs/0/steps/1/mean/1", "number can't be 'x'", None),
        ("error", 15, 18, "/inputs/0/steps/1/rescale", "rescale can't be zero", None),
        (
            "error",
            19,
            5,
            "/outputs/0/layer_name",
            "the key 'layer_name' is repeated; it stands on line 18 already",
            "remove one of the two",
        ),
        (
            "error",
            21,
            15,
            "/model/graph_path",
            "'../model.onnx' is not allowed as a path: it leaves its folder with '..'",
            None,
        ),
        ("error", 22, 13, "/model/checksum", "'sha256:1234' is no checksum", None),
    ]


def test_a_problem_is_one_line() -> None:
    loaded = parse_model(with_text("float32", "float32s").encode(), "model.yml")
    (problem,) = loaded.problems
    assert str(problem).startswith(
        "model.yml:7:19: error: /inputs/0/element_type: 'float32s' is no element type; "
        "expected one of float32, float16,"
    )
    assert str(problem).endswith("; did you mean 'float32'?")
    assert problem.to_document()["line"] == 7


def test_terminal_codes_in_a_manifest_are_shown_escaped() -> None:
    (problem,) = parse_model((MODEL + '"\\e[31m\\u202e": 1\n').encode(), "m\x1b.yml").problems
    assert str(problem).isprintable()
    assert "\\x1b[31m" in str(problem)


def test_require_raises_with_every_problem() -> None:
    with pytest.raises(ManifestInvalid) as caught:
        load_model(TEN).require()
    error = caught.value
    assert error.message == "the model manifest has 10 errors"
    assert error.exit_code == 1
    assert len(error.problems) == len(error.context) == 10
    assert error.to_document()["problems"][0]["pointer"] == "/version"
    assert error.where is not None
    assert error.where.endswith("ten-mistakes.yml:2:10")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("name: digits\n", "", ["1:1 error : the key 'name' is missing"]),
        ("name: digits\n", "name:\n", ["1:6 error /name: name can't be nothing"]),
        ("name: digits\n", "name: ''\n", ["1:7 error /name: name is empty"]),
        ("name: digits\n", "name: [digits]\n", ["1:7 error /name: name can't be a list of 1"]),
        ("name: digits\n", "nam: digits\n", ["1:1 error /nam: unknown key 'nam'"]),
        ("name: digits\n", "name: ' digits'\n", ["1:7 error /name: ' digits' is no name: it begins or ends with a space"]),
        ("  - type: image\n", "  - type: Image\n", ["5:11 error /inputs/0/type: 'Image' is no modality"]),
        ("[N, 1, 8, 8]", "[N, 1, 8, 0]", ["8:22 error /inputs/0/shape/3: size can't be zero"]),
        ("[N, 1, 8, 8]", "[N, 1.5]", ["8:16 error /inputs/0/shape/1: size can't be 1.5"]),
        ("[N, 1, 8, 8]", "8", ["8:12 error /inputs/0/shape: shape can't be '8'"]),
        ("[N, 1, 8, 8]", "[N, -2]", ["8:16 error /inputs/0/shape/1: -2 is too small for size"]),
        ("version: 1.0.0", "version: '1.0'", ["2:10 warning /version: '1.0' has fewer than three parts"]),
        ("version: 1.0.0", "version: 1.10", ["2:10 warning /version: '1.10' has fewer than three parts"]),
        ("version: 1.0.0", "version: 01.0.0", ["2:10 error /version: '01.0.0' is no version"]),
        ("graph_path: model.onnx", "graph_path: a/../../b", ["13:15 error /model/graph_path: 'a/../../b' is not allowed as a path: it leaves its folder with '..'"]),
        ("graph_path: model.onnx", "graph_path: /etc/passwd", ["13:15 error /model/graph_path: '/etc/passwd' is not allowed as a path: it is absolute"]),
        ("graph_path: model.onnx", "graph_path: C:/x", ["13:15 error /model/graph_path: 'C:/x' is not allowed as a path: it is absolute"]),
        ("graph_path: model.onnx", "graph_path: a\\b", ["13:15 error /model/graph_path: 'a\\\\b' is not allowed as a path: it holds a backslash"]),
        ("graph_path: model.onnx", "graph_path: ftp://host/x", ["13:15 error /model/graph_path: 'ftp://host/x' is not allowed as a path: it holds a colon"]),
        ("{name: onnxruntime, version: 1.x}", "onnxruntime", ["3:12 error /framework: framework can't be 'onnxruntime'"]),
        ("{name: onnxruntime, version: 1.x}", "{}", ["3:12 error /framework: the key 'name' is missing"]),
    ],
)  # fmt: skip
def test_single_mistakes(old: str, new: str, expected: list[str]) -> None:
    assert model_problems(with_text(old, new)) == expected


@pytest.mark.parametrize(
    ("yaml", "expected"),
    [
        ("- softmax: {}", []),
        ("- softmax:", []),
        ("- softmax", ["10:9 error /inputs/0/steps/0: operator can't be 'softmax'"]),
        ("- my_package.blur: {anything: 1}", []),
        ("- my_package.blur:", []),
        ("- my_package.blur: 3", ["10:26 error /inputs/0/steps/0/my_package.blur: my_package.blur can't be '3'"]),
        ("- {}", ["10:9 error /inputs/0/steps/0: operator is empty"]),
        ("- {softmax: {}, cast: {element_type: int8}}", ["10:9 error /inputs/0/steps/0: operator has 2 entries"]),
        ("- cast: {}", ["10:15 error /inputs/0/steps/0/cast: the key 'element_type' is missing"]),
        ("- normalize: {rescale: [1, 0]}", ["10:34 error /inputs/0/steps/0/normalize/rescale/1: divisor can't be zero"]),
        ("- normalize: {scale: 0.0}", ["10:28 error /inputs/0/steps/0/normalize/scale: scale can't be zero"]),
        ("- normalize: {scale: 2, rescale: 2}", ["10:21 error /inputs/0/steps/0/normalize/scale: scale and rescale mean the same"]),
        ("- normalize: {mean: 1e3}", []),
        ("- resize: {dimensions: [3, 224]}", ["10:30 error /inputs/0/steps/0/resize/dimensions: dimensions has 2 entries"]),
        ("- resize: {dimensions: [3, 224, 224], method: bilinar}", ["10:53 error /inputs/0/steps/0/resize/method: 'bilinar' is no method"]),
        ("- resize: {dimensions: [3, 224, 224], keep_aspect_ratio: NO}", ["10:64 error /inputs/0/steps/0/resize/keep_aspect_ratio: keep_aspect_ratio can't be 'NO'"]),
        ("- argsort: {labels_url: ../labels.txt}", ["10:31 error /inputs/0/steps/0/argsort/labels_url: '../labels.txt' is not allowed as a path: it leaves its folder with '..'"]),
        ("- argsort: {labels_url: 'http://host/labels.txt'}", ["10:31 error /inputs/0/steps/0/argsort/labels_url: plain http: needs a sha256 checksum"]),
        ("- decode:\n        resize: {dimensions: [3, 2, 2]}", ["11:9 error /inputs/0/steps/0/resize: unknown key 'resize'"]),
    ],
)  # fmt: skip
def test_steps(yaml: str, expected: list[str]) -> None:
    assert (
        model_problems(with_text("[N, 1, 8, 8]\n", f"[N, 1, 8, 8]\n    steps:\n      {yaml}\n")) == expected
    )


def test_hints_say_what_to_write() -> None:
    def hint(old: str, new: str) -> str | None:
        (problem,) = parse_model(with_text(old, new).encode(), "m").errors
        return problem.hint

    size = "[N, 1, 8, 8]\n"
    steps = size + "    steps:\n      "
    assert hint(size, steps + "- decode:\n        resize: {}\n") == "begin a step of its own: '- resize:'"
    assert (
        hint(size, steps + "- resize: {dimensions: [1, 2, 2], keep_aspect_ratio: yes}\n")
        == "write true or false"
    )
    assert hint(size, steps + "- softmax: {axis: '1'}\n") == "remove the quotes"
    assert hint("name: digits\n", "name:\n") == "leave the key out if there is nothing to say"
    assert hint("version: 1.x", "Version: 1.x") == "did you mean 'version'?"


def test_an_alias_is_reported_once_and_not_as_a_missing_value() -> None:
    text = with_text("name: digits", "name: *x").replace("type: image", "type: &x image")
    assert model_problems(text) == [
        "1:7 error /name: an alias ('x') is not allowed",
        "5:11 error /inputs/0/type: an anchor ('x') is not allowed",
    ]


def test_a_flood_of_problems_is_cut_and_counted() -> None:
    text = MODEL + "".join(f"key{number}: 1\n" for number in range(500))
    problems = parse_model(text.encode(), "m").problems
    assert len(problems) == 201
    assert problems[-1].message == "and 300 more problems"


def test_errors_are_not_hidden_behind_a_flood_of_warnings() -> None:
    outputs = "".join(
        f"  - {{type: raw, layer_name: l{n}, steps: [argsort: {{labels_url: 'https://...'}}]}}\n"
        for n in range(300)
    )
    text = with_text("  - type: classification\n    layer_name: scores\n", outputs) + "foo: 1\n"
    loaded = parse_model(text.encode(), "m")
    assert [p.pointer for p in loaded.errors] == ["/foo"]
    assert loaded.value is None
