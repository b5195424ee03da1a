"""What the built-in predictors say in the same words: what is missing here, and what does not fit the model."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from mlbundle.worker.errors import WorkerError, bundle_error

ONLY_INPUT = "input"
"""What the only input is called where neither the manifest nor the framework has a name for it."""


def framework_missing(module: str, error: ImportError) -> WorkerError:
    """Return the error for a module that this environment does not have."""
    return WorkerError(
        "framework-missing",
        "{} is not in this environment: {}".format(module, error),
        fault="environment",
        hint="use an image or an environment made for this framework",
    )


def accelerator_missing(framework: str, accelerator: str, why: str) -> WorkerError:
    """Return the error for an accelerator that was asked for and can't be used."""
    return WorkerError(
        "accelerator-missing",
        "{} can't use the accelerator {!r}: {}".format(framework, accelerator, why),
        fault="environment",
        hint="use an image or an environment made for it, on a machine that has one, or --accelerator cpu",
    )


def wants_gpu(framework: str, options: Mapping[str, Any]) -> bool:
    """Return whether the job is for a GPU; raises WorkerError for an accelerator that is neither CPU nor GPU."""
    accelerator = str(options.get("accelerator", "cpu"))
    if accelerator not in ("cpu", "gpu"):
        raise accelerator_missing(framework, accelerator, "this predictor knows CPUs and GPUs")
    return accelerator == "gpu"


def gpu_memory_full(error: BaseException) -> WorkerError:
    """Return the error for a GPU whose memory does not suffice."""
    return WorkerError(
        "out-of-memory",
        "the memory of the GPU is full: {}".format(error),
        fault="environment",
        hint="use smaller batches, or end what else runs on the GPU",
    )


def layer_names(specs: Sequence[Mapping[str, Any]]) -> list[str | None]:
    """Return the `layer_name` of each tensor of the manifest, None where it has none."""
    return [None if spec.get("layer_name") is None else str(spec["layer_name"]) for spec in specs]


def check_names(feeds: Mapping[str, Any], wanted: Sequence[str]) -> None:
    """Raise WorkerError unless the feeds are for exactly the inputs that the model has."""
    if set(feeds) != set(wanted):
        raise bundle_error(
            "inputs-mismatch",
            "the graph wants inputs {}, the manifest feeds {}".format(list(wanted), sorted(feeds)),
            "layer_name of each input names an input of the graph",
        )


def check_array(name: str, array: Any, element_type: str | None, shape: Sequence[int | None] | None) -> None:
    """Raise WorkerError when an array does not fit an input; None means: anything, for the type or for a size.

    `element_type` is NumPy's name of the type, or `string`.
    """
    found = "string" if array.dtype.kind in "SUO" else array.dtype.name
    if element_type is not None and found != element_type:
        raise bundle_error(
            "inputs-mismatch",
            "the input {!r} takes elements of {}, it is fed {}".format(name, element_type, found),
            "element_type in the manifest is that of the model; a step `cast` changes the type of the data",
        )
    if shape is None:
        return
    fits = len(shape) == array.ndim and all(
        size is None or size == real for size, real in zip(shape, array.shape)
    )
    if not fits:
        raise bundle_error(
            "inputs-mismatch",
            "the input {!r} takes the shape {}, it is fed {}".format(
                name, ["any" if size is None else size for size in shape], list(array.shape)
            ),
            "the first axis is the batch, which the worker adds to every sample",
        )
