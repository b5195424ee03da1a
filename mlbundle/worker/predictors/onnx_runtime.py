"""ONNX Runtime, with inputs and outputs bound once for each prepared batch."""

from __future__ import annotations

import mmap
import os
from typing import AbstractSet, Any, Mapping, Sequence

import numpy as np

from mlbundle.worker.errors import WorkerError, bundle_error
from mlbundle.worker.predictors.common import (
    accelerator_missing,
    check_array,
    check_names,
    framework_missing,
    wants_gpu,
)

_SYMBOLIC = (str, type(None))
_CUDA = "CUDAExecutionProvider"
_CPU = "CPUExecutionProvider"
# What NumPy calls otherwise than ONNX does.
_ELEMENT_TYPES = {"float": "float32", "double": "float64"}


class _Handle:
    """An open session and what it says about its inputs and outputs."""

    def __init__(self, session: Any, device: str) -> None:
        self.session = session
        self.device = device
        self.inputs = session.get_inputs()
        self.outputs = session.get_outputs()
        self.input_names = [i.name for i in self.inputs]
        self.output_names = [o.name for o in self.outputs]
        self.expects = {i.name: _expectation(i) for i in self.inputs}
        # By the shapes of the inputs: shape and type of each output, learnt from the first run.
        self.known: dict[Any, list[tuple[Any, Any]]] = {}
        # No size of an output may depend on the data, or outputs can't be allocated beforehand.
        batch_axes = {i.shape[0] for i in self.inputs if i.shape and isinstance(i.shape[0], str)}
        self.bindable = all(_is_bindable(output, batch_axes) for output in self.outputs)
        self.facts: dict[str, Any] = {}
        self.graph = ""


class _Bound:
    """A batch whose arrays the session reads and writes in place; for a GPU the inputs are copied there now."""

    def __init__(self, handle: _Handle, feeds: Mapping[str, Any], outputs: list[Any]) -> None:
        import onnxruntime

        self.arrays = outputs
        self.size_bytes = sum(array.nbytes for array in outputs)
        self._feeds = dict(feeds)  # keeps the memory alive that the binding points to
        self.binding = handle.session.io_binding()
        self._values: list[Any] = []
        for name, array in self._feeds.items():
            self.binding.bind_ortvalue_input(
                name, self._keep(onnxruntime.OrtValue.ortvalue_from_numpy(array, handle.device, 0))
            )
        for name, array in zip(handle.output_names, outputs):
            self.binding.bind_ortvalue_output(
                name, self._keep(onnxruntime.OrtValue.ortvalue_from_numpy(array))
            )

    def _keep(self, value: Any) -> Any:
        self._values.append(value)
        return value


class _Fed:
    """A batch of a model whose output shapes are known only afterwards."""

    def __init__(self, feeds: Mapping[str, Any]) -> None:
        self.feeds = dict(feeds)


class OnnxRuntimePredictor:
    """Runs ONNX graphs. External data is read only from beside the graph (ONNX Runtime enforces it)."""

    framework = "onnxruntime"

    def open(self, model: Mapping[str, str], options: Mapping[str, Any]) -> _Handle:
        """Load the graph; raises WorkerError when ONNX Runtime refuses it."""
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
        try:
            import onnxruntime
        except ImportError as error:
            raise framework_missing("onnxruntime", error) from error
        gpu = wants_gpu("onnxruntime", options)
        if gpu:
            _require_cuda(onnxruntime.get_available_providers())
            # CUDA's libraries come as wheels; newer versions find them only so.
            getattr(onnxruntime, "preload_dlls", lambda: None)()
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = int(options.get("threads", 1))
        settings.inter_op_num_threads = 1
        settings.log_severity_level = 3
        _check_weights(model)
        # With TF32 float32 would not be float32.
        providers: list[Any] = [(_CUDA, {"use_tf32": "0"}), _CPU] if gpu else [_CPU]
        _profile(settings, options.get("profile"))
        session = _load(onnxruntime, model["graph"], settings, providers)
        if gpu:
            # It falls back to the CPU without an error when CUDA's libraries or the driver are not there.
            _require_cuda(session.get_providers())
        handle = _Handle(session, "cuda" if gpu else "cpu")
        handle.graph = model["graph"]
        handle.facts = _facts(onnxruntime, handle)
        return handle

    def prepare(self, handle: _Handle, feeds: Mapping[str, Any]) -> _Bound | _Fed:
        """Bind the arrays of a batch; the first of its shape runs the model once to learn the outputs' shapes."""
        check_names(feeds, handle.input_names)
        for name, array in feeds.items():
            check_array(name, array, *handle.expects[name])
        if not handle.bindable:
            return _Fed(feeds)
        key = tuple(feeds[name].shape for name in handle.input_names)
        if key not in handle.known:
            handle.known[key] = [(array.shape, array.dtype) for array in self._run(handle, feeds)]
        return _Bound(handle, feeds, [np.empty(shape, dtype) for shape, dtype in handle.known[key]])

    def predict(self, handle: _Handle, batch: _Bound | _Fed) -> list[Any]:
        """Run one batch; the arrays are valid until the batch is run again."""
        if isinstance(batch, _Bound):
            try:
                handle.session.run_with_iobinding(batch.binding)
                if handle.device != "cpu":
                    batch.binding.synchronize_outputs()
            except Exception as error:
                raise _failed(error) from error
            return batch.arrays
        return self._run(handle, batch.feeds)

    def close(self, handle: _Handle) -> None:
        """Let the session go."""
        del handle.session

    @staticmethod
    def _run(handle: _Handle, feeds: Mapping[str, Any]) -> list[Any]:
        try:
            outputs: list[Any] = handle.session.run(None, dict(feeds))
        except Exception as error:
            raise _failed(error) from error
        return outputs


def _profile(settings: Any, profile: Mapping[str, Any] | None) -> None:
    """Let a session record its layers and save the graph that it really runs, as its profiler wants it.

    Whatever else decides how fast it is stays as it is in measured passes.
    """
    if profile is None:
        return
    settings.enable_profiling = True
    settings.profile_file_prefix = profile["prefix"]
    settings.optimized_model_filepath = profile["graph"]
    settings.add_session_config_entry(
        "session.optimized_model_external_initializers_file_name", profile["weights"]
    )


def _load(onnxruntime: Any, graph: str, settings: Any, providers: Sequence[Any]) -> Any:
    """Return a session; a graph that can't be saved is run all the same."""
    try:
        return onnxruntime.InferenceSession(graph, settings, providers=providers)
    except Exception as error:
        if not settings.optimized_model_filepath:
            raise bundle_error(
                "model-not-loadable", "ONNX Runtime can't load the graph: {}".format(error)
            ) from error
    settings.optimized_model_filepath = ""
    return _load(onnxruntime, graph, settings, providers)


def _failed(error: Exception) -> WorkerError:
    return WorkerError(
        "inference-failed", "ONNX Runtime: {}".format(error), fault="framework", hint="see worker.log"
    )


def _is_bindable(output: Any, batch_axes: AbstractSet[str]) -> bool:
    """Return whether the shape of an output follows from those of the inputs, for all that the graph says.

    A free first axis is the batch if it is called like the first axis of an input; else it may be, say, how many boxes
    were found.
    """
    if not output.type.startswith("tensor(") or output.type == "tensor(string)" or not output.shape:
        return False
    first, *others = output.shape
    fixed = not isinstance(first, _SYMBOLIC)
    return (fixed or first in batch_axes) and not any(isinstance(size, _SYMBOLIC) for size in others)


def _check_weights(model: Mapping[str, str]) -> None:
    """Raise WorkerError where the manifest names weights and the graph does not: they would not be what is run.

    A tensor in another file has an entry `location` (`external_data` of TensorProto in onnx.proto): the path of the
    file, from the graph's folder. Entries are searched for as they are written, without reading all of the graph.
    """
    graph, weights = model["graph"], model.get("weights")
    if weights is None:
        return
    location = os.path.relpath(weights, os.path.dirname(graph))
    with open(graph, "rb") as stream:
        if os.fstat(stream.fileno()).st_size:
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
                if any(content.find(_location_entry(path)) >= 0 for path in (location, "./" + location)):
                    return
    raise bundle_error(
        "model-not-loadable",
        "{} does not refer to {}, which the manifest names as its weights".format(
            os.path.basename(graph), location
        ),
        "leave out weights_path where the graph holds its weights; else it is the file of the graph's external data, "
        "in the graph's folder or below it",
    )


def _location_entry(path: str) -> bytes:
    """Return a StringStringEntryProto of `location` and a path: field 1 is the key, field 2 the value."""
    value = path.encode("utf-8", "surrogateescape")
    length, rest = b"", len(value)
    while rest > 0x7F:
        length += bytes([rest & 0x7F | 0x80])
        rest >>= 7
    return b"\n\x08location\x12" + length + bytes([rest]) + value


def _require_cuda(providers: Sequence[str]) -> None:
    if _CUDA not in providers:
        raise accelerator_missing(
            "onnxruntime", "gpu", "it has the providers {}, not {}".format(", ".join(providers), _CUDA)
        )


def _facts(onnxruntime: Any, handle: _Handle) -> dict[str, Any]:
    settings = handle.session.get_session_options()
    facts: dict[str, Any] = {
        "version": str(onnxruntime.__version__),
        "device": "cpu" if handle.device == "cpu" else "cuda:0",
        "providers": list(handle.session.get_providers()),
        "threads": settings.intra_op_num_threads,
        "inter_op_threads": settings.inter_op_num_threads,
    }
    if handle.device == "cpu":
        facts["timed"] = (
            "the model; inputs and outputs are bound before"
            if handle.bindable
            else "the model; nothing is bound before, as the shapes of its outputs may depend on the data"
        )
    else:
        facts["tf32"] = False
        facts["timed"] = (
            "the model and the way of its outputs to the host; inputs are on the device before"
            if handle.bindable
            else "the model, the way of its inputs to the device and of its outputs to the host"
        )
    return facts


def _expectation(node: Any) -> tuple[str | None, list[int | None] | None]:
    """Return NumPy's name of the elements' type and the shape of an input, as far as the graph fixes them."""
    if not node.type.startswith("tensor("):
        return None, None
    element_type = node.type[len("tensor(") : -1]
    # A graph that says nothing about the shape has an empty one.
    shape = [None if isinstance(size, _SYMBOLIC) else size for size in node.shape] or None
    return _ELEMENT_TYPES.get(element_type, element_type), shape
