"""Says what this image has to offer; with a version as argument, fails where torch is of another."""
# ruff: noqa: INP001, T201

import json
import sys

import cv2
import numpy as np
import PIL.Image
import safetensors.torch
import torch

found = torch.__version__.partition("+")[0]
devices = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
facts = {
    "framework": "torch",
    "version": torch.__version__,
    "cuda": torch.version.cuda,
    "devices": ["cpu", *devices],
    "numpy": np.__version__,
    "opencv": cv2.__version__,
    "pillow": PIL.__version__,
    "safetensors": safetensors.__version__,
}
print(json.dumps(facts))
if sys.argv[1:] and sys.argv[1] != found:
    sys.exit("this is torch " + found + ", not " + sys.argv[1])
