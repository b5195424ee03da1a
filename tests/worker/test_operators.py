"""Operators against hand-computed values."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image as Picture

from mlbundle.worker.errors import WorkerError
from mlbundle.worker.pipeline.base import Context, Image
from mlbundle.worker.pipeline.classify import ArgSort
from mlbundle.worker.pipeline.code import CustomCode
from mlbundle.worker.pipeline.image import Decode, Normalize, Resize
from mlbundle.worker.pipeline.tensor import Cast, Layout, Softmax, as_tensor


def context(tmp_path=None) -> Context:
    return Context(spec={}, assets=str(tmp_path or "."))


def png(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Picture.fromarray(array).save(buffer, "PNG")
    return buffer.getvalue()


COLOURS = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)


@pytest.mark.parametrize("decoder", ["opencv", "pillow"])
@pytest.mark.parametrize("mode", ["RGB", "BGR"])
def test_decode_keeps_every_pixel_in_the_colour_order_asked_for(decoder: str, mode: str) -> None:
    decoded = Decode({"color_mode": mode, "decoder": decoder}, context())(png(COLOURS))
    expected = COLOURS if mode == "RGB" else COLOURS[:, :, ::-1]
    np.testing.assert_array_equal(decoded.pixels, expected)


@pytest.mark.parametrize("decoder", ["opencv", "pillow"])
def test_decode_grey_has_one_channel(decoder: str) -> None:
    grey = np.array([[0, 15], [240, 255]], np.uint8)
    decoded = Decode({"color_mode": "GRAY", "decoder": decoder, "data_layout": "NCHW"}, context())(png(grey))
    assert decoded.pixels.shape == (2, 2, 1)
    np.testing.assert_array_equal(as_tensor(decoded, {"shape": ["N", 1, 2, 2]}), grey[np.newaxis])


@pytest.mark.parametrize("decoder", ["opencv", "pillow"])
def test_what_is_no_image_is_the_bundles_fault(decoder: str) -> None:
    with pytest.raises(WorkerError) as caught:
        Decode({"decoder": decoder}, context())(b"no image")
    assert caught.value.fault == "bundle"
    assert caught.value.reference == "image-undecodable"


@pytest.mark.parametrize("library", ["opencv", "pillow"])
@pytest.mark.parametrize("method", ["nearest", "area"])
def test_shrinking_blocks_gives_the_blocks_values_back(library: str, method: str) -> None:
    small = np.array([[0, 100], [200, 50]], np.uint8)
    large = Image(np.kron(small, np.ones((4, 4), np.uint8))[:, :, np.newaxis])
    resized = Resize({"dimensions": [1, 2, 2], "method": method, "library": library}, context())(large)
    np.testing.assert_array_equal(resized.pixels[:, :, 0], small)


def test_keep_aspect_ratio_covers_the_target_and_cuts_out_the_centre() -> None:
    # 2 x 6, target 2 x 2: no scaling, columns 2 and 3 remain.
    wide = Image(np.tile(np.arange(6, dtype=np.uint8), (2, 1))[:, :, np.newaxis])
    resized = Resize({"dimensions": [1, 2, 2], "method": "nearest", "keep_aspect_ratio": True}, context())(
        wide
    )
    np.testing.assert_array_equal(resized.pixels[:, :, 0], [[2, 3], [2, 3]])


def test_resize_refuses_another_number_of_channels() -> None:
    with pytest.raises(WorkerError, match="3 channels"):
        Resize({"dimensions": [3, 2, 2]}, context())(Image(np.zeros((4, 4, 1), np.uint8)))


def test_normalize_subtracts_per_channel_then_divides() -> None:
    pixels = np.array([[[10, 20, 30]]], np.uint8)
    normalized = Normalize({"mean": [1.0, 2.0, 3.0], "rescale": 2.0}, context())(Image(pixels))
    np.testing.assert_array_equal(normalized.pixels, np.array([[[4.5, 9.0, 13.5]]], np.float32))
    assert normalized.pixels.dtype == np.float32
    np.testing.assert_array_equal(Normalize({"scale": 4.0}, context())(np.array([8.0])), [2.0])


def test_normalize_by_zero_is_refused() -> None:
    with pytest.raises(WorkerError, match="divide by zero"):
        Normalize({"rescale": [1.0, 0.0]}, context())


def test_layout_of_the_manifest_is_the_layout_of_the_tensor() -> None:
    image = Image(COLOURS, layout="NCHW")
    np.testing.assert_array_equal(as_tensor(image, {}), COLOURS.transpose(2, 0, 1))
    np.testing.assert_array_equal(as_tensor(Image(COLOURS, layout="NHWC"), {}), COLOURS)
    np.testing.assert_array_equal(
        as_tensor(Layout({"to": "CHW"}, context())(Image(COLOURS)), {}), COLOURS.transpose(2, 0, 1)
    )
    np.testing.assert_array_equal(
        Layout({"from": "HWC", "to": "CHW"}, context())(COLOURS), COLOURS.transpose(2, 0, 1)
    )


def test_a_tensor_of_another_shape_is_refused() -> None:
    with pytest.raises(WorkerError) as caught:
        as_tensor(np.zeros((3, 8, 8)), {"shape": ["N", 1, 8, 8], "element_type": "float32"})
    assert caught.value.reference == "shape-mismatch"


def test_cast_changes_the_type() -> None:
    assert Cast({"element_type": "int8"}, context())(np.array([1.9])).dtype == np.int8


def test_softmax_sums_to_one_and_does_not_overflow() -> None:
    np.testing.assert_allclose(Softmax({}, context())(np.array([0.0, np.log(3.0)])), [0.25, 0.75])
    np.testing.assert_allclose(Softmax({}, context())(np.array([1e4, 1e4])), [0.5, 0.5])


def test_argsort_ranks_with_labels_and_keeps_the_order_of_ties(tmp_path) -> None:
    (tmp_path / "labels.txt").write_text("zero\none\ntwo\n")
    ranked = ArgSort({"labels_url": "labels.txt", "k": 2}, context(tmp_path))(np.array([0.1, 0.7, 0.7]))
    assert list(ranked.indices) == [1, 2]
    assert ranked.labels == ("one", "two")


def test_argsort_with_too_few_labels_is_the_bundles_fault(tmp_path) -> None:
    (tmp_path / "labels.txt").write_text("zero\n")
    with pytest.raises(WorkerError, match="only 1 labels"):
        ArgSort({"labels_url": "labels.txt"}, context(tmp_path))(np.array([0.1, 0.7]))


def test_labels_outside_the_assets_are_refused(tmp_path) -> None:
    with pytest.raises(WorkerError) as caught:
        ArgSort({"labels_url": "../../etc/passwd"}, context(tmp_path))
    assert caught.value.reference == "path-outside-assets"


def test_an_unknown_parameter_is_refused_by_name() -> None:
    with pytest.raises(WorkerError, match="'colour'"):
        Decode({"colour": "RGB"}, context())


def test_custom_code_gets_environment_and_data() -> None:
    code = CustomCode("def preprocess(env, data):\n    return data + env['index']\n", "preprocess")
    assert code({"index": 2}, 40) == 42


def test_custom_code_may_have_any_name_if_it_is_the_only_function() -> None:
    assert CustomCode("def fun(env, data):\n    return data\n", "postprocess")({}, 1) == 1


def test_failing_custom_code_names_its_line() -> None:
    code = CustomCode("def preprocess(env, data):\n    x = 1\n    return x / 0\n", "preprocess")
    with pytest.raises(WorkerError, match="ZeroDivisionError in line 3"):
        code({}, None)


@pytest.mark.parametrize(
    "scores",
    [np.array([0, 200, 100], np.uint8), np.array([-128, 5, 3], np.int8), np.array([False, True, False])],
)
def test_argsort_ranks_quantised_scores(scores) -> None:
    assert ArgSort({}, context())(scores).indices[0] == 1


def test_softmax_of_quantised_scores_is_a_number() -> None:
    np.testing.assert_allclose(Softmax({}, context())(np.array([255, 255], np.uint8)), [0.5, 0.5])


def test_argsort_refuses_a_k_that_is_none() -> None:
    with pytest.raises(WorkerError, match="k must be"):
        ArgSort({"k": -1}, context())


def test_custom_code_that_leaves_is_the_bundles_fault() -> None:
    with pytest.raises(WorkerError, match="SystemExit"):
        CustomCode("import sys\ndef preprocess(env, data):\n    sys.exit(0)\n", "preprocess")({}, None)


def test_decode_gives_the_element_type_asked_for() -> None:
    decoded = Decode({"element_type": "float32"}, context())(png(COLOURS))
    assert decoded.pixels.dtype == np.float32
