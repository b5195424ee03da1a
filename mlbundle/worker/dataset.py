"""The evaluation dataset inside the assets: samples by number, with their labels."""

from __future__ import annotations

import os
import zipfile
from typing import Any, Mapping, Sequence

import numpy as np

from mlbundle.worker.errors import bundle_error


def inside(root: str, relative: str) -> str:
    """Return the path of an asset; raises WorkerError when it would lie outside the assets."""
    base = os.path.realpath(root)
    path = os.path.realpath(os.path.join(base, relative))
    if path != base and not path.startswith(base + os.sep):
        raise bundle_error("path-outside-assets", "{!r} lies outside the assets".format(relative))
    return path


class Dataset:
    """Samples and labels; `sample(i)` returns layer name -> raw value (an array, or the bytes of a file)."""

    labels: Sequence[Any] | None = None

    def __len__(self) -> int:
        raise TypeError("a dataset says how many samples it has")

    def sample(self, index: int) -> dict[str, Any]:
        """Return the raw inputs of one sample."""
        raise TypeError("a dataset returns its samples")


class ArrayDataset(Dataset):
    """An `.npz`: one array for each input, first axis the samples, and an array of labels."""

    def __init__(
        self, path: str, inputs: Mapping[str, str], labels: str | None, layers: Sequence[str]
    ) -> None:
        names = dict(inputs)
        try:
            with np.load(path, allow_pickle=False) as archive:
                if not names:
                    arrays = [name for name in archive.files if name != labels]
                    names = dict(zip(layers, arrays[:1]))
                self._arrays = {layer: archive[name] for layer, name in names.items()}
                self.labels = None if labels is None else archive[labels]
        except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile) as error:
            raise bundle_error("dataset-unreadable", "can't read the dataset: {}".format(error)) from error
        if any(array.ndim == 0 for array in self._arrays.values()) or (
            self.labels is not None and np.ndim(self.labels) != 1
        ):
            raise bundle_error("dataset-shape", "arrays need an axis of samples, labels exactly one axis")
        lengths = {len(array) for array in self._arrays.values()}
        if len(lengths) != 1 or (self.labels is not None and len(self.labels) not in lengths):
            raise bundle_error(
                "dataset-uneven", "the arrays of the dataset have different numbers of samples"
            )
        self._length = lengths.pop()

    def __len__(self) -> int:
        return self._length

    def sample(self, index: int) -> dict[str, Any]:
        """Return layer name -> array of one sample, without a batch axis."""
        return {layer: array[index] for layer, array in self._arrays.items()}


class FolderDataset(Dataset):
    """A folder with an index: `<path> <label>` a line, as ImageNet's and MLPerf's `val_map.txt`."""

    def __init__(self, root: str, index: str, layers: Sequence[str]) -> None:
        if len(layers) != 1:
            raise bundle_error(
                "dataset-inputs", "a folder of files feeds exactly one input, not {}".format(len(layers))
            )
        self._layer = layers[0]
        self._paths = []
        labels: list[Any] = []
        try:
            with open(inside(root, index), encoding="utf-8") as stream:
                lines = [line.strip() for line in stream]
        except (OSError, UnicodeDecodeError) as error:
            raise bundle_error(
                "dataset-unreadable", "can't read the index of the dataset: {}".format(error)
            ) from error
        for line in lines:
            if not line or line.startswith("#"):
                continue
            # The label is the last word: names of files may hold spaces.
            path, _, label = line.rpartition(" ") if " " in line else (line, "", "")
            self._paths.append(inside(root, path))
            labels.append(int(label) if label.lstrip("-").isdigit() else label)
        without = [path for path, label in zip(self._paths, labels) if label == ""]
        if without and len(without) < len(labels):
            raise bundle_error(
                "labels-missing",
                "{!r} has no label in the index, others have".format(os.path.basename(without[0])),
            )
        self.labels = labels if any(label != "" for label in labels) else None

    def __len__(self) -> int:
        return len(self._paths)

    def sample(self, index: int) -> dict[str, Any]:
        """Return layer name -> bytes of one file."""
        try:
            with open(self._paths[index], "rb") as stream:
                return {self._layer: stream.read()}
        except OSError as error:
            raise bundle_error(
                "sample-unreadable", "can't read sample {}: {}".format(index, error)
            ) from error


def open_dataset(spec: Mapping[str, Any], assets: str, layers: Sequence[str]) -> Dataset:
    """Return the dataset that a job names; raises WorkerError when it is missing, empty or of unknown format."""
    path = inside(assets, str(spec["path"]))
    dataset: Dataset
    if spec["format"] == "npz":
        dataset = ArrayDataset(path, spec.get("inputs") or {}, spec.get("labels"), layers)
    elif spec["format"] == "directory":
        dataset = FolderDataset(path, str(spec["index"]), layers)
    else:
        raise bundle_error("dataset-format", "no reader for a dataset of format {!r}".format(spec["format"]))
    stated = spec.get("samples")
    if len(dataset) == 0 or (stated is not None and stated != len(dataset)):
        raise bundle_error(
            "dataset-count", "the dataset has {} samples, the manifest says {}".format(len(dataset), stated)
        )
    return dataset
