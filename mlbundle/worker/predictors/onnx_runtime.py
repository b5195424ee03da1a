"""ONNX Runtime on the CPU, with inputs and outputs bound once for each prepared batch."""

from __future__ import annotations

import os
from typing import Any, Mapping

import numpy as np

from mlbundle.worker.errors import WorkerError, bundle_error

_SYMBOLIC = (str, type(None))


class _Handle:
    """An open session and what it says about its inputs and outputs."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.inputs = session.get_inputs()
        self.outputs = session.get_outputs()
        self.input_names = [i.name for i in self.inputs]
        self.output_names = [o.name for o in self.outputs]
        # By the shapes of the inputs: shape and type of each output, learnt from the first run.
        self.known: dict[Any, list[tuple[Any, Any]]] = {}
        # Beyond the batch axis nothing may depend on the data, or outputs can't be allocated beforehand.
        self.bindable = all(
            o.type.startswith("tensor(")
            and o.type != "tensor(string)"
            and not any(isinstance(d, _SYMBOLIC) for d in (o.shape or [None])[1:])
            for o in self.outputs
        )


class _Bound:
    """A batch whose arrays the session reads and writes in place."""

    def __init__(self, handle: _Handle, feeds: Mapping[str, Any], outputs: list[Any]) -> None:
        import onnxruntime

        self.arrays = outputs
        self.size_bytes = sum(array.nbytes for array in outputs)
        self._feeds = dict(feeds)  # keeps the memory alive that the binding points to
        self.binding = handle.session.io_binding()
        self._values: list[Any] = []
        for name, array in self._feeds.items():
            self.binding.bind_ortvalue_input(
                name, self._keep(onnxruntime.OrtValue.ortvalue_from_numpy(array))
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
            raise WorkerError(
                "framework-missing",
                "onnxruntime is not in this environment: {}".format(error),
                fault="environment",
                hint="use an image or an environment made for onnxruntime",
            ) from error
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = int(options.get("threads", 1))
        settings.inter_op_num_threads = 1
        settings.log_severity_level = 3
        try:
            session = onnxruntime.InferenceSession(
                model["graph"], settings, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise bundle_error(
                "model-not-loadable", "ONNX Runtime can't load the graph: {}".format(error)
            ) from error
        return _Handle(session)

    def prepare(self, handle: _Handle, feeds: Mapping[str, Any]) -> _Bound | _Fed:
        """Bind the arrays of a batch; the first of its shape runs the model once to learn the outputs' shapes."""
        if set(feeds) != set(handle.input_names):
            raise bundle_error(
                "inputs-mismatch",
                "the graph wants inputs {}, the manifest feeds {}".format(handle.input_names, sorted(feeds)),
                "layer_name of each input names an input of the graph",
            )
        if not handle.bindable:
            return _Fed(feeds)
        key = tuple(feeds[name].shape for name in handle.input_names)
        if key not in handle.known:
            handle.known[key] = [(array.shape, array.dtype) for array in self._run(handle, feeds)]
        return _Bound(handle, feeds, [np.empty(shape, dtype) for shape, dtype in handle.known[key]])

    def predict(self, handle: _Handle, batch: _Bound | _Fed) -> list[Any]:
        """Run one batch; the arrays are valid until the batch is run again."""
        if isinstance(batch, _Bound):
            handle.session.run_with_iobinding(batch.binding)
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
            raise WorkerError(
                "inference-failed", "ONNX Runtime: {}".format(error), fault="framework", hint="see worker.log"
            ) from error
        return outputs
