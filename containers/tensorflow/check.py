"""Says what this image has to offer; with a version as argument, fails where TensorFlow is of another."""
# ruff: noqa: INP001, T201

import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import cv2
import numpy as np
import PIL.Image
import tensorflow as tf

found = tf.__version__
facts = {
    "framework": "tensorflow",
    "version": found,
    "cuda": tf.sysconfig.get_build_info().get("cuda_version"),
    "devices": [device.name for device in tf.config.list_physical_devices()],
    "numpy": np.__version__,
    "opencv": cv2.__version__,
    "pillow": PIL.__version__,
}
print(json.dumps(facts))
if sys.argv[1:] and sys.argv[1] != found:
    sys.exit("this is tensorflow " + found + ", not " + sys.argv[1])
