"""Write the held-out digits of `digits-cnn` as PNG files, with an index and the same model beside them.

    python make_png.py [FOLDER]     writes FOLDER/dataset/*.png, FOLDER/dataset/index.txt and FOLDER/model.onnx

A picture is 32x32 pixels of 8 bits: every value of the source (0..16) times 15, every pixel repeated 4x4, so that
scaling down to 8x8 by the nearest neighbour and dividing by 240 gives back exactly the numbers of `digits-cnn`.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
from PIL import Image

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent / "digits-cnn"
STEP = 15
ZOOM = 4


def main() -> None:
    """Write pictures, index and model."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    with np.load(SOURCE / "dataset" / "digits.npz", allow_pickle=False) as arrays:
        values = np.rint(arrays["images"][:, 0] * 16).astype(np.uint8)
        labels = arrays["labels"]
    target = folder / "dataset"
    target.mkdir(parents=True, exist_ok=True)
    lines = []
    for number, (digit, label) in enumerate(zip(values, labels, strict=True)):
        name = f"{number:03d}.png"
        pixels = np.kron(digit * STEP, np.ones((ZOOM, ZOOM), np.uint8))
        Image.fromarray(pixels).save(target / name, optimize=True)
        lines.append(f"{name} {label}\n")
    (target / "index.txt").write_text("".join(lines), "utf-8")
    shutil.copyfile(SOURCE / "model.onnx", folder / "model.onnx")


if __name__ == "__main__":
    main()
