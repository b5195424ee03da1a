"""Train the digits CNN, export it to ONNX, write the held-out images as the evaluation dataset.

    python train.py [FOLDER]        writes FOLDER/model.onnx and FOLDER/dataset/digits.npz, prints the accuracy

Of scikit-learn's 1,797 digits, 1,437 train and 360 (20 %) are held out: drawn at random with a fixed seed, so that
every class has its share, and kept in the order of the source. The forms for other frameworks are made from what
this writes: export_torch.py, then export_tensorflow.py.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

HERE = Path(__file__).resolve().parent
HELD_OUT = 360
EPOCHS = 40
BATCH = 64
SEED = 0
OPSET = 17


def load() -> tuple[np.ndarray, np.ndarray]:
    """Return all images, float32 [1797,1,8,8] in 0..1, and their labels, int64 [1797], in the order of the source."""
    digits = load_digits()
    return (digits.images[:, np.newaxis] / 16.0).astype(np.float32), digits.target.astype(np.int64)


def split(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of the training images and of the held-out ones, each in rising order."""
    everything = np.arange(len(labels))
    kept, held_out = train_test_split(everything, test_size=HELD_OUT, random_state=SEED, stratify=labels)
    return np.sort(kept), np.sort(held_out)


def train(images: np.ndarray, labels: np.ndarray) -> nn.Module:
    """Train on all given images, the same way every time."""
    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(mode=True)
    torch.set_num_threads(1)
    model = runpy.run_path(str(HERE / "torch" / "model.py"))["model"]()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)
    loss_of = nn.CrossEntropyLoss()
    samples, classes = torch.from_numpy(images), torch.from_numpy(labels)
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(samples)).split(BATCH):
            optimizer.zero_grad()
            loss_of(model(samples[chosen]), classes[chosen]).backward()
            optimizer.step()
    return model.eval()


def export(model: nn.Module, path: Path) -> None:
    """Write the model as one ONNX file with a free batch axis."""
    torch.onnx.export(
        model,
        (torch.zeros(1, 1, 8, 8),),
        str(path),
        dynamo=False,
        opset_version=OPSET,
        input_names=["input"],
        output_names=["logits"],
        dynamic_axes={"input": {0: "N"}, "logits": {0: "N"}},
    )


def main() -> None:
    """Train, export, write the dataset, print the held-out accuracy."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    images, labels = load()
    kept, held_out = split(labels)
    model = train(images[kept], labels[kept])
    (folder / "dataset").mkdir(parents=True, exist_ok=True)
    export(model, folder / "model.onnx")
    # NumPy gives every member of the archive the date 1980-01-01: the same arrays make the same bytes.
    np.savez(folder / "dataset" / "digits.npz", images=images[held_out], labels=labels[held_out])
    with torch.inference_mode():
        answers = model(torch.from_numpy(images[held_out])).argmax(1).numpy()
    right = int((answers == labels[held_out]).sum())
    print(f"parameters {sum(p.numel() for p in model.parameters())}")
    print(f"held-out accuracy {right}/{HELD_OUT} = {right / HELD_OUT:.6f}")


if __name__ == "__main__":
    main()
