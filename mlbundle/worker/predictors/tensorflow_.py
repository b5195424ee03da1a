"""TensorFlow: SavedModels and frozen graphs, both through a session's callable.

A callable of a session costs half of what calling a signature does for small models; run in the calling thread, a
quarter.
"""

from __future__ import annotations

import os
from typing import Any, Mapping, Sequence

from mlbundle.worker.errors import WorkerError, bundle_error
from mlbundle.worker.predictors.common import (
    accelerator_missing,
    check_array,
    check_names,
    framework_missing,
    gpu_memory_full,
    layer_names,
    wants_gpu,
)

_DEFAULT_SIGNATURE = "serving_default"


class _Handle:
    """A session with a graph, and what goes in and out: a tensor by the name that the manifest uses."""

    def __init__(self, session: Any, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
        self.session = session
        self.inputs = dict(inputs)
        self.input_names = list(inputs)
        self.output_names = list(outputs)
        self.call = session.make_callable(list(outputs.values()), feed_list=list(inputs.values()))
        self.expects = {name: _expectation(tensor) for name, tensor in inputs.items()}
        self.memory_full: Any = ()
        self.facts: dict[str, Any] = {}


class TensorFlowPredictor:
    """Runs SavedModels (a folder; by the names of the signature) and frozen graphs (`.pb`; by names of tensors)."""

    framework = "tensorflow"

    def open(self, model: Mapping[str, str], options: Mapping[str, Any]) -> _Handle:
        """Load the graph; raises WorkerError when TensorFlow refuses it or has no GPU to give."""
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
        try:
            import tensorflow as tf
        except ImportError as error:
            raise framework_missing("tensorflow", error) from error
        gpu = wants_gpu("tensorflow", options)
        if gpu:
            _require_gpu(tf)
        session = _session(tf, int(options.get("threads", 1)), gpu=gpu)
        try:
            inputs, outputs = _load(tf, session, model, options)
            handle = _Handle(session, inputs, outputs)
        except (WorkerError, MemoryError):
            raise
        except Exception as error:
            raise bundle_error(
                "model-not-loadable",
                "TensorFlow can't load {}: {}".format(os.path.basename(model["graph"]), error),
                "graph_path is the folder of a SavedModel, or a frozen graph (.pb)",
            ) from error
        handle.memory_full = tf.errors.ResourceExhaustedError
        handle.facts = _facts(tf, int(options.get("threads", 1)), gpu=gpu)
        return handle

    def prepare(self, handle: _Handle, feeds: Mapping[str, Any]) -> list[Any]:
        """Put the arrays in order; their types are checked, since TensorFlow would convert them each time."""
        check_names(feeds, handle.input_names)
        for name in handle.input_names:
            check_array(name, feeds[name], *handle.expects[name])
        return [feeds[name] for name in handle.input_names]

    def predict(self, handle: _Handle, batch: Sequence[Any]) -> list[Any]:
        """Run one batch; the arrays are new ones each time."""
        try:
            outputs: list[Any] = handle.call(*batch)
        except handle.memory_full as error:
            if handle.facts["device"] == "cpu":
                raise MemoryError(str(error)) from error
            raise gpu_memory_full(error) from error
        return outputs

    def close(self, handle: _Handle) -> None:
        """Close the session."""
        handle.session.close()


def _require_gpu(tf: Any) -> None:
    if tf.config.list_physical_devices("GPU"):
        return
    built = tf.test.is_built_with_cuda() or tf.test.is_built_with_rocm()
    why = (
        "it finds no device; worker.log may say why"
        if built
        else "tensorflow {} was built without it".format(tf.__version__)
    )
    raise accelerator_missing("tensorflow", "gpu", why)


def _session(tf: Any, threads: int, *, gpu: bool) -> Any:
    # Below zero between operators: all run in the calling thread, which is one thread and spares two changes of
    # threads for each query.
    config = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=threads, inter_op_parallelism_threads=-1, allow_soft_placement=True
    )
    if gpu:
        config.gpu_options.allow_growth = True
        # float32 is float32, in every framework alike.
        tf.config.experimental.enable_tensor_float_32_execution(False)
    else:
        config.device_count["GPU"] = 0
    return tf.compat.v1.Session(graph=tf.Graph(), config=config)


def _facts(tf: Any, threads: int, *, gpu: bool) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "version": str(tf.__version__),
        "device": "gpu:0" if gpu else "cpu",
        "threads": threads,
        "inter_op_threads": 1,
        "timed": "the model, and copies of its inputs and outputs as TensorFlow makes them",
    }
    if threads > 1:
        # Each operator's work is cut for its own threads, and who waits for them helps: there is no setting against it.
        facts["calling_thread"] = "computes beside the {} threads".format(threads)
    if gpu:
        details = tf.config.experimental.get_device_details(tf.config.list_physical_devices("GPU")[0])
        build = tf.sysconfig.get_build_info()
        facts.update(
            timed="the model, the way of its inputs to the device and of its outputs to the host",
            device_name=str(details.get("device_name", "")),
            compute_capability=".".join(str(part) for part in details.get("compute_capability", ())),
            cuda=str(build.get("cuda_version", "")),
            cudnn=str(build.get("cudnn_version", "")),
            tf32=False,
        )
    return facts


def _load(
    tf: Any, session: Any, model: Mapping[str, str], options: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the tensors of the graph that go in and out, by the names that the manifest uses."""
    graph = model["graph"]
    if "weights" in model:
        raise bundle_error(
            "model-not-loadable",
            "{} holds its weights itself, and the manifest names others".format(os.path.basename(graph)),
            "leave out weights_path",
        )
    if os.path.isdir(graph):
        return _saved_model(tf, session, graph)
    if os.path.basename(graph) == "saved_model.pb":
        raise bundle_error(
            "model-not-loadable",
            "a SavedModel is a folder, and the manifest names a file of it",
            "write the folder as graph_path, with a slash at the end",
        )
    return _frozen_graph(tf, session, graph, options)


def _saved_model(tf: Any, session: Any, folder: str) -> tuple[dict[str, Any], dict[str, Any]]:
    with session.graph.as_default():
        meta_graph = tf.compat.v1.saved_model.load(session, ["serve"], folder)
    signatures = {
        name: signature
        for name, signature in meta_graph.signature_def.items()
        if not name.startswith("__saved_model")
    }
    if _DEFAULT_SIGNATURE in signatures:
        signature = signatures[_DEFAULT_SIGNATURE]
    elif len(signatures) == 1:
        signature = next(iter(signatures.values()))
    else:
        raise bundle_error(
            "model-not-loadable",
            "the SavedModel has no signature {} to be run by, but {}".format(
                _DEFAULT_SIGNATURE, sorted(signatures) or "none"
            ),
            "save it with signatures=",
        )

    def tensors(entries: Any) -> dict[str, Any]:
        return {name: session.graph.get_tensor_by_name(entries[name].name) for name in sorted(entries)}

    return tensors(signature.inputs), tensors(signature.outputs)


def _frozen_graph(
    tf: Any, session: Any, path: str, options: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    definition = tf.compat.v1.GraphDef()
    with open(path, "rb") as stream:
        definition.ParseFromString(stream.read())
    with session.graph.as_default():
        tf.import_graph_def(definition, name="")
    placeholders = [node.name for node in definition.node if node.op == "Placeholder"]
    named_inputs = layer_names(options.get("inputs", ()))
    named_outputs = layer_names(options.get("outputs", ()))
    if named_inputs == [None] and len(placeholders) == 1:
        named_inputs = list(placeholders)
    if None in named_inputs or None in named_outputs:
        raise bundle_error(
            "layer-name-missing",
            "an input or output has no layer_name, and a frozen graph has none marked",
            "its placeholders: {}; its last operator: {}".format(
                ", ".join(placeholders), definition.node[-1].name if definition.node else "none"
            ),
        )
    inputs = {str(name): _tensor(session.graph, str(name), "inputs", placeholders) for name in named_inputs}
    known = [node.name for node in definition.node]
    outputs = {str(name): _tensor(session.graph, str(name), "outputs", known[-8:]) for name in named_outputs}
    return inputs, outputs


def _tensor(graph: Any, name: str, side: str, known: Sequence[str]) -> Any:
    """Return the tensor `name`, or `name:0`; raises WorkerError where the graph has none."""
    try:
        return graph.get_tensor_by_name(name if ":" in name else name + ":0")
    except (KeyError, ValueError) as error:
        raise bundle_error(
            side + "-mismatch",
            "the graph has no tensor {!r}".format(name),
            "among those it has: {}".format(", ".join(known)),
        ) from error


def _expectation(tensor: Any) -> tuple[str, list[int | None] | None]:
    """Return NumPy's name of the elements' type and the shape of an input, as far as the graph fixes it."""
    return tensor.dtype.name, None if tensor.shape.rank is None else tensor.shape.as_list()
