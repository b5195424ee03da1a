"""Image operators. OpenCV unless the manifest names Pillow: accuracy depends on the library, so none is a
silent substitute for the other.
"""

from __future__ import annotations

import io
from typing import Any, Mapping

import numpy as np

from mlbundle.worker.errors import WorkerError, bundle_error
from mlbundle.worker.pipeline.base import Context, Image, check_params, choice

_LIBRARIES = ("opencv", "pillow")
_METHODS = ("bilinear", "nearest", "bicubic", "area")


def _import(module: str, library: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise WorkerError(
            "library-missing",
            "the image library {} is not in this environment".format(library),
            fault="environment",
            hint="use an image built from this framework's lock, or name another library in the manifest",
        ) from error


class Decode:
    """JPEG or PNG bytes to pixels. Parameters: data_layout, color_mode, decoder, element_type (of the tensor)."""

    def __init__(self, params: Mapping[str, Any], context: Context) -> None:
        check_params("decode", params, ("data_layout", "color_mode", "decoder", "element_type"))
        self._layout = choice(
            "decode", "data_layout", params.get("data_layout", "NHWC"), ("NHWC", "NCHW", "HWC", "CHW")
        )
        self._color = choice("decode", "color_mode", params.get("color_mode", "RGB"), ("RGB", "BGR", "GRAY"))
        self._type = np.dtype(params["element_type"]) if params.get("element_type") else None
        library = choice("decode", "decoder", params.get("decoder", "opencv"), _LIBRARIES)
        if library == "opencv":
            self._cv2 = _import("cv2", library)
            self._cv2.setNumThreads(1)
            self._decode = self._with_opencv
        else:
            self._pillow = _import("PIL.Image", library)
            self._decode = self._with_pillow

    def __call__(self, value: Any) -> Image:
        """Decode bytes; an array (height, width or height, width, channel) is taken as it is."""
        if isinstance(value, np.ndarray):
            pixels = value if value.ndim == 3 else value[:, :, np.newaxis]
        else:
            pixels = self._decode(value)
        if self._type is not None:
            pixels = pixels.astype(self._type)
        return Image(pixels=pixels, layout=self._layout, color_mode=self._color)

    def _with_opencv(self, value: bytes) -> Any:
        cv2 = self._cv2
        flag = cv2.IMREAD_GRAYSCALE if self._color == "GRAY" else cv2.IMREAD_COLOR
        pixels = cv2.imdecode(np.frombuffer(value, np.uint8), flag | cv2.IMREAD_IGNORE_ORIENTATION)
        if pixels is None:
            raise bundle_error("image-undecodable", "a sample is no image that OpenCV can decode")
        if self._color == "GRAY":
            return pixels[:, :, np.newaxis] if pixels.ndim == 2 else pixels
        return cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB) if self._color == "RGB" else pixels

    def _with_pillow(self, value: bytes) -> Any:
        try:
            with self._pillow.open(io.BytesIO(value)) as picture:
                pixels = np.asarray(picture.convert("L" if self._color == "GRAY" else "RGB"))
        except (OSError, ValueError, SyntaxError) as error:
            raise bundle_error(
                "image-undecodable", "a sample is no image that Pillow can decode: {}".format(error)
            ) from None
        if self._color == "GRAY":
            return pixels[:, :, np.newaxis]
        return pixels[:, :, ::-1] if self._color == "BGR" else pixels


class Resize:
    """Scale to `dimensions` (channel, height, width, whatever the layout).

    With keep_aspect_ratio the picture is scaled until it covers the target and its centre is cut out; without,
    both axes are scaled on their own. Parameters: dimensions, method, keep_aspect_ratio, library.
    """

    def __init__(self, params: Mapping[str, Any], context: Context) -> None:
        check_params("resize", params, ("dimensions", "method", "keep_aspect_ratio", "library"))
        dimensions = params.get("dimensions")
        if not isinstance(dimensions, (list, tuple)) or len(dimensions) != 3 or min(dimensions) < 1:
            raise bundle_error(
                "bad-parameter", "operator 'resize' needs dimensions: [channel, height, width]"
            )
        self._channels, self._height, self._width = (int(d) for d in dimensions)
        self._keep = bool(params.get("keep_aspect_ratio", False))
        method = choice("resize", "method", params.get("method", "bilinear"), _METHODS)
        library = choice("resize", "library", params.get("library", "opencv"), _LIBRARIES)
        if library == "opencv":
            cv2 = self._cv2 = _import("cv2", library)
            names = {"bilinear": "LINEAR", "nearest": "NEAREST", "bicubic": "CUBIC", "area": "AREA"}
            self._method = getattr(cv2, "INTER_" + names[method])
            self._scale = self._with_opencv
        else:
            pillow = self._pillow = _import("PIL.Image", library)
            names = {"bilinear": "BILINEAR", "nearest": "NEAREST", "bicubic": "BICUBIC", "area": "BOX"}
            self._method = getattr(pillow.Resampling, names[method])
            self._scale = self._with_pillow

    def __call__(self, value: Image) -> Image:
        """Scale one image; raises WorkerError when its channels are not the ones stated."""
        height, width, channels = value.pixels.shape
        if channels != self._channels:
            raise bundle_error(
                "channel-mismatch",
                "resize was told {} channels and the decoded image has {}".format(self._channels, channels),
                "check color_mode of decode and dimensions of resize",
            )
        if not self._keep:
            pixels = self._scale(value.pixels, self._height, self._width)
        else:
            factor = max(self._height / height, self._width / width)
            scaled_height = max(self._height, round(height * factor))
            scaled_width = max(self._width, round(width * factor))
            scaled = self._scale(value.pixels, scaled_height, scaled_width)
            top, left = (scaled_height - self._height) // 2, (scaled_width - self._width) // 2
            pixels = scaled[top : top + self._height, left : left + self._width]
        return Image(pixels=pixels, layout=value.layout, color_mode=value.color_mode)

    def _with_opencv(self, pixels: Any, height: int, width: int) -> Any:
        scaled = self._cv2.resize(np.ascontiguousarray(pixels), (width, height), interpolation=self._method)
        return scaled[:, :, np.newaxis] if scaled.ndim == 2 else scaled

    def _with_pillow(self, pixels: Any, height: int, width: int) -> Any:
        picture = self._pillow.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
        scaled = np.asarray(picture.resize((width, height), self._method))
        return scaled[:, :, np.newaxis] if scaled.ndim == 2 else scaled


class Normalize:
    """(value - mean) / rescale / stddev, in float32; each a number or one number a channel.

    `rescale` (alias `scale`) is a divisor. Parameters: mean, rescale, scale, stddev, element_type.
    """

    def __init__(self, params: Mapping[str, Any], context: Context) -> None:
        check_params("normalize", params, ("mean", "rescale", "scale", "stddev", "element_type"))
        self._mean = np.asarray(params.get("mean", 0.0), np.float32)
        divisor = np.asarray(params.get("rescale", params.get("scale", 1.0)), np.float32)
        deviation = np.asarray(params.get("stddev", 1.0), np.float32)
        if not np.all(divisor) or not np.all(deviation):
            raise bundle_error("bad-parameter", "operator 'normalize' would divide by zero")
        self._divisor = divisor * deviation
        self._type = np.dtype(params.get("element_type", "float32"))

    def __call__(self, value: Any) -> Any:
        """Normalise an image (per channel) or a plain array."""
        if isinstance(value, Image):
            pixels = ((value.pixels.astype(np.float32) - self._mean) / self._divisor).astype(self._type)
            return Image(pixels=pixels, layout=value.layout, color_mode=value.color_mode)
        return ((np.asarray(value, np.float32) - self._mean) / self._divisor).astype(self._type)
