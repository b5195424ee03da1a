"""Write the held-out digits of `digits-cnn` as their source has them, with the same model beside them.

python make_dataset.py [FOLDER]     writes FOLDER/dataset/raw.npz and FOLDER/model.onnx
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent / "digits-cnn"


def main() -> None:
    """Write `digits` (uint8 [360,8,8], values 0..16), `labels` (int64 [360]) and the model."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    with np.load(SOURCE / "dataset" / "digits.npz", allow_pickle=False) as arrays:
        digits = np.rint(arrays["images"][:, 0] * 16).astype(np.uint8)
        labels = arrays["labels"]
    (folder / "dataset").mkdir(parents=True, exist_ok=True)
    np.savez(folder / "dataset" / "raw.npz", digits=digits, labels=labels)
    shutil.copyfile(SOURCE / "model.onnx", folder / "model.onnx")


if __name__ == "__main__":
    main()
