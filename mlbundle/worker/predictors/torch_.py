"""PyTorch: TorchScript, `torch.export` programs, and model code with weights apart."""

from __future__ import annotations

import inspect
import os
import threading
from typing import Any, Callable, Mapping, Sequence

import numpy as np

from mlbundle.worker.errors import WorkerError, bundle_error
from mlbundle.worker.loading import load_class
from mlbundle.worker.predictors.common import (
    ONLY_INPUT,
    accelerator_missing,
    check_names,
    framework_missing,
    gpu_memory_full,
    layer_names,
    wants_gpu,
)

_CPU_MEMORY_FULL = "DefaultCPUAllocator"


class _Handle:
    """A module that is ready to run, and how its arguments and results stand to the manifest's inputs and outputs."""

    def __init__(self, torch: Any, module: Any, device: str, options: Mapping[str, Any]) -> None:
        self.torch = torch
        # What is called; the network itself stays what it is when that becomes a function around it.
        self.module = self.network = module
        self.device = device
        parameters = _parameters(module)
        self.input_names = [name for name, required in parameters or [] if required]
        self.output_names: list[str] = []
        self.wanted_outputs = layer_names(options.get("outputs", ()))
        named = layer_names(options.get("inputs", ()))
        if named == [None]:
            named = [*self.input_names[:1]] or [ONLY_INPUT]
        self.positional, self.by_name = _arrangement(parameters, [name for name in named if name])
        # What makes arrays of the module's result; learnt from the first run, which gives the result as it is.
        self.fetch: Callable[[Any], Any] = lambda result: result
        self.learnt = False
        self.facts: dict[str, Any] = {}
        self._modes: dict[int, Any] = {}

    def enter_inference_mode(self) -> None:
        """Switch the calling thread to inference mode for good: entering it for each query would cost 2 us."""
        mode = self.torch.inference_mode()
        mode.__enter__()
        self._modes[threading.get_ident()] = mode

    def leave_inference_mode(self) -> None:
        """Give the calling thread back as it was."""
        mode = self._modes.pop(threading.get_ident(), None)
        if mode is not None:
            mode.__exit__(None, None, None)


class _Batch:
    """Tensors on the device, in the order of the module's arguments."""

    __slots__ = ("by_name", "positional")

    def __init__(self, positional: list[Any], by_name: dict[str, Any]) -> None:
        self.positional = positional
        self.by_name = by_name

    def copy(self, torch: Any) -> _Batch:
        """Return the same values in other memory; PyTorch counts what is written to it."""
        # Tensors that are made in inference mode have no such count.
        with torch.inference_mode(False):
            return _Batch(
                [tensor.clone() for tensor in self.positional],
                {name: tensor.clone() for name, tensor in self.by_name.items()},
            )

    def differs(self, other: _Batch) -> bool:
        """Return whether anything was written to this copy of another batch, also if it was what was there."""
        pairs = [
            *zip(self.positional, other.positional),
            *((tensor, other.by_name[name]) for name, tensor in self.by_name.items()),
        ]
        return any(mine._version or _bytes(mine) != _bytes(theirs) for mine, theirs in pairs)


class TorchPredictor:
    """Runs `.pt2` programs, Python model code (`.py`) with a state dict, and TorchScript (any other file)."""

    framework = "torch"

    def open(self, model: Mapping[str, str], options: Mapping[str, Any]) -> _Handle:
        """Load the model onto the device; raises WorkerError when PyTorch refuses it or has no GPU to give."""
        try:
            import torch
        except ImportError as error:
            raise framework_missing("torch", error) from error
        device = "cuda:0" if wants_gpu("torch", options) else "cpu"
        if device != "cpu":
            _require_cuda(torch)
        _set_up(torch, int(options.get("threads", 1)), gpu=device != "cpu")
        try:
            module = _load(torch, model, device)
        except (WorkerError, MemoryError):
            raise
        except Exception as error:
            raise bundle_error(
                "model-not-loadable",
                "PyTorch can't load {}: {}".format(os.path.basename(model["graph"]), error),
                "graph_path is TorchScript, a .pt2 program, or a Python file with the model's code and the state "
                "dict as weights_path",
            ) from error
        handle = _Handle(torch, module, device, options)
        handle.facts = _facts(torch, device)
        return handle

    def prepare(self, handle: _Handle, feeds: Mapping[str, Any]) -> _Batch:
        """Bring a batch to the device; the first one is run once, on a copy, to learn what the model does with it."""
        check_names(feeds, [*handle.positional, *handle.by_name])
        tensors = {name: _tensor(handle, name, array) for name, array in feeds.items()}
        batch = _Batch(
            [tensors[name] for name in handle.positional], {name: tensors[name] for name in handle.by_name}
        )
        if not handle.learnt:
            self._learn(handle, batch)
        return batch

    def _learn(self, handle: _Handle, batch: _Batch) -> None:
        """Find out what the model returns, and whether it writes to its inputs: then it gets new ones each time."""
        copy = batch.copy(handle.torch)
        handle.fetch = _fetcher(handle, self.predict(handle, copy))
        if copy.differs(batch):
            handle.module = _on_copies(handle.module)
            handle.facts["timed"] += "; a copy of the inputs for each query, as the model writes to them"
        handle.learnt = True

    def predict(self, handle: _Handle, batch: _Batch) -> Any:
        """Return the outputs of one batch as a list of arrays; on a GPU they are on the host when this returns."""
        if not handle.torch.is_inference_mode_enabled():
            handle.enter_inference_mode()
        try:
            return handle.fetch(handle.module(*batch.positional, **batch.by_name))
        except MemoryError:
            raise
        except Exception as error:
            raise _failed(handle.torch, error) from error

    def close(self, handle: _Handle) -> None:
        """Let the model go."""
        handle.leave_inference_mode()
        del handle.module, handle.network


def _bytes(tensor: Any) -> bytes:
    content: bytes = tensor.cpu().numpy().tobytes()
    return content


def _on_copies(module: Any) -> Callable[..., Any]:
    """Return a module that is called with copies of its inputs."""

    def call(*positional: Any, **by_name: Any) -> Any:
        return module(
            *[tensor.clone() for tensor in positional],
            **{name: tensor.clone() for name, tensor in by_name.items()},
        )

    return call


def _failed(torch: Any, error: Exception) -> BaseException:
    """Return what to raise for what a model raised: unless memory lacks, its code or its inputs are to blame."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return gpu_memory_full(error)
    if isinstance(error, RuntimeError) and _CPU_MEMORY_FULL in str(error):
        return MemoryError(str(error))
    return bundle_error(
        "inference-failed",
        "the model failed: {}: {}".format(type(error).__name__, _cause(error)),
        "types and shapes of the inputs must be the model's; worker.log has the traceback",
    )


def _cause(error: Exception) -> str:
    """Return what a model raised; of the traceback that TorchScript puts into its messages, the last line."""
    lines = str(error).strip().splitlines() or [""]
    return lines[-1] if any("TorchScript" in line for line in lines[:4]) else str(error)


def _set_up(torch: Any, threads: int, *, gpu: bool) -> None:
    torch.set_num_threads(threads)
    if torch.get_num_interop_threads() != 1:
        torch.set_num_interop_threads(1)
    if gpu:
        # float32 is float32, in every framework alike, and kernels are not chosen by a race.
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = False


def _require_cuda(torch: Any) -> None:
    if torch.cuda.is_available():
        return
    if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
        why = "torch {} was built without it".format(torch.__version__)
    else:
        try:
            torch.cuda.init()
            why = "it finds no device"
        except Exception as error:  # noqa: BLE001 - whatever it is, it says why
            why = str(error)
    raise accelerator_missing("torch", "gpu", why)


def _facts(torch: Any, device: str) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "version": str(torch.__version__),
        "device": device,
        "threads": torch.get_num_threads(),
        "inter_op_threads": torch.get_num_interop_threads(),
        "timed": "the model; inputs are bound before, outputs stay where the model puts them",
    }
    if device != "cpu":
        facts.update(
            timed="the model and the way of its outputs to the host; inputs are on the device before",
            device_name=torch.cuda.get_device_name(device),
            compute_capability="{}.{}".format(*torch.cuda.get_device_capability(device)),
            cuda=torch.version.cuda,
            cudnn=torch.backends.cudnn.version(),
            tf32=False,
        )
    return facts


def _load(torch: Any, model: Mapping[str, str], device: str) -> Any:
    graph, weights = model["graph"], model.get("weights")
    if graph.endswith(".py"):
        module = _from_code(torch, graph, weights).to(device)
    elif weights is not None:
        raise bundle_error(
            "model-not-loadable",
            "{} holds its weights itself, and the manifest names others".format(os.path.basename(graph)),
            "leave out weights_path; it goes with a Python file as graph_path",
        )
    elif graph.endswith(".pt2"):
        program = torch.export.load(graph)
        if device != "cpu":
            from torch.export.passes import move_to_device_pass

            program = move_to_device_pass(program, device)
        module = program.module()
    else:
        module = torch.jit.load(graph, map_location=device).eval()
    for parameter in module.parameters():
        # One that is an output could not become an array otherwise.
        parameter.requires_grad_(False)
    return module


def _from_code(torch: Any, path: str, weights: str | None) -> Any:
    """Return the module that `model()` of a Python file makes, with the weights of the state dict if there is one."""
    make = load_class(path, "model")
    try:
        module = make()
    except SystemExit as error:
        raise bundle_error("model-not-loadable", "model() ends the process: {}".format(error)) from error
    if not isinstance(module, torch.nn.Module):
        raise bundle_error(
            "model-not-loadable",
            "model() of {} returns a {}".format(os.path.basename(path), type(module).__name__),
            "it must return a torch.nn.Module",
        )
    if weights is not None:
        module.load_state_dict(_state(torch, weights), strict=True)
    return module.eval()


def _state(torch: Any, path: str) -> Any:
    if not path.endswith(".safetensors"):
        return torch.load(path, map_location="cpu", weights_only=True)
    try:
        from safetensors.torch import load_file
    except ImportError as error:
        raise framework_missing("safetensors", error) from error
    return load_file(path)


def _parameters(module: Any) -> list[tuple[str, bool]] | None:
    """Return name and necessity of each argument of `forward`; None where it takes any number."""
    schema = getattr(module.forward, "schema", None)
    if schema is not None:
        return [(a.name, not a.has_default_value()) for a in schema.arguments[1:]]
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return None
    return [(p.name, p.default is p.empty) for p in parameters if p.kind is not p.VAR_KEYWORD]


def _arrangement(
    parameters: Sequence[tuple[str, bool]] | None, named: list[str]
) -> tuple[list[str], list[str]]:
    """Return which inputs of the manifest are passed by position, in order, and which by name.

    By name where the manifest calls them as `forward` does, else in the manifest's order. Raises WorkerError when it
    calls only some of them so, or when their number does not fit.
    """
    if parameters is None:
        return named, []
    known = [name for name, _ in parameters]
    required = [name for name, necessary in parameters if necessary]
    same = [name for name in named if name in known]
    if not same and len(required) <= len(named) <= len(known):
        return named, []
    if len(same) != len(named) or not set(required) <= set(named):
        raise bundle_error(
            "inputs-mismatch",
            "the model's forward takes {}, the manifest feeds {}".format(known, named),
            "name the inputs as forward does; with other names for all of them, they are passed in their order",
        )
    leading = next((i for i, name in enumerate(known) if name not in named), len(known))
    return known[:leading], [name for name in known[leading:] if name in named]


def _tensor(handle: _Handle, name: str, array: Any) -> Any:
    try:
        # PyTorch has no tensors that can only be read, and none with steps backwards: such arrays are copied.
        return handle.torch.from_numpy(np.require(array, requirements=["C", "W"])).to(handle.device)
    except (TypeError, ValueError) as error:
        raise bundle_error(
            "inputs-mismatch", "the input {!r} can't be a tensor: {}".format(name, error)
        ) from error


def _fetcher(handle: _Handle, result: Any) -> Callable[[Any], list[Any]]:
    """Return a function from what the model returns, a tensor, a tuple or a dictionary, to the manifest's outputs."""
    torch, wanted = handle.torch, handle.wanted_outputs
    keys: list[Any]
    if isinstance(result, torch.Tensor):
        keys, tensors = [], [result]
    elif isinstance(result, Mapping):
        keys = _keys(list(result), wanted)
        tensors = [result[key] for key in keys]
    elif isinstance(result, (tuple, list)):
        keys, tensors = list(range(len(result))), list(result)
    else:
        raise bundle_error("outputs-mismatch", "the model returns a {}".format(type(result).__name__))
    if len(tensors) < len(wanted):
        raise bundle_error(
            "outputs-mismatch",
            "the model returns {} tensors, the manifest has {} outputs".format(len(tensors), len(wanted)),
        )
    # Further ones are nobody's business, whatever they are.
    keys, tensors = keys[: max(1, len(wanted))], tensors[: max(1, len(wanted))]
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise bundle_error(
                "outputs-mismatch",
                "the model returns a {} where a tensor should be".format(type(tensor).__name__),
            )
    read = _reader(handle, tensors)
    if isinstance(result, torch.Tensor):
        return lambda output: [read(output)]
    return lambda output: [read(output[key]) for key in keys]


def _keys(own: list[Any], wanted: list[str | None]) -> list[Any]:
    if wanted in ([], [None]) and len(own) == 1:
        return own
    missing = [name for name in wanted if name not in own]
    if missing or not wanted:
        raise bundle_error(
            "outputs-mismatch",
            "the model has no output {!r}".format(missing[0] if missing else None),
            "the model's outputs: {}".format(", ".join(map(str, own))),
        )
    return wanted


def _reader(handle: _Handle, tensors: list[Any]) -> Callable[[Any], Any]:
    """Return a function from a tensor to an array: without a copy on the CPU, after all work is done on a GPU."""
    torch = handle.torch
    if any(tensor.dtype == torch.bfloat16 for tensor in tensors):
        # NumPy has no such type; float32 holds every value of it.
        return lambda tensor: (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).cpu().numpy()
    if handle.device == "cpu":
        return lambda tensor: tensor.numpy()
    return lambda tensor: tensor.cpu().numpy()
