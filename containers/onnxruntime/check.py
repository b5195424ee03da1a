"""Says what this image has to offer; with a version as argument, fails where ONNX Runtime is of another."""
# ruff: noqa: INP001, T201

import ctypes
import json
import sys

import cv2
import numpy as np
import onnxruntime
import PIL.Image


def has_driver():
    """Whether NVIDIA's driver is here, which comes from the machine and never with an image."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


found = onnxruntime.__version__
facts = {
    "framework": "onnxruntime",
    "version": found,
    # Those that were built in; the ones of GPUs work only where there is a driver.
    "providers": onnxruntime.get_available_providers(),
    "nvidia_driver": has_driver(),
    "numpy": np.__version__,
    "opencv": cv2.__version__,
    "pillow": PIL.__version__,
}
print(json.dumps(facts))
if sys.argv[1:] and sys.argv[1] != found:
    sys.exit("this is onnxruntime " + found + ", not " + sys.argv[1])
