"""Write weights.npz and dataset.npz: a network 64-32-10 on scikit-learn's digits, and 120 images it has not seen.

python train.py      needs scikit-learn
"""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Train, write both files, say how accurate the network is before it is quantised."""
    digits = load_digits()
    images = digits.images.astype(np.uint8).reshape(-1, 1, 8, 8)
    train, test, known, labels = train_test_split(
        images, digits.target, test_size=120, stratify=digits.target, random_state=0
    )
    network = MLPClassifier((32,), max_iter=400, random_state=0).fit(train.reshape(len(train), -1), known)
    print("accuracy in float64:", network.score(test.reshape(len(test), -1), labels))
    arrays = {}
    for number, (weights, bias) in enumerate(zip(network.coefs_, network.intercepts_, strict=True)):
        arrays[f"weights_{number}"] = weights.astype(np.float32)
        arrays[f"bias_{number}"] = bias.astype(np.float32)
    np.savez(HERE / "weights.npz", **arrays)
    np.savez_compressed(HERE / "dataset.npz", images=test, labels=labels.astype(np.int64))


if __name__ == "__main__":
    main()
