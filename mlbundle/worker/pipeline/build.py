"""Makes the stages of a job: one for each operator of each input, then the model, then each output's operators."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence

import numpy as np

from mlbundle.wire.job import Job
from mlbundle.worker import registry
from mlbundle.worker.dataset import Dataset
from mlbundle.worker.errors import blamed_on_bundle
from mlbundle.worker.pipeline.base import Context
from mlbundle.worker.pipeline.code import CustomCode
from mlbundle.worker.pipeline.stream import Stage
from mlbundle.worker.pipeline.tensor import as_tensor


class Pipeline:
    """The stages before and after the model, built once for a job."""

    def __init__(self, job: Job, dataset: Dataset, layers: Sequence[str]) -> None:
        self._assets = job.paths["assets"]
        self._dataset = dataset
        self._inputs = dict(zip(layers, job.model.inputs))
        self._outputs = list(job.model.outputs)
        code = job.model.code or {}
        self._preprocess = CustomCode(code["preprocess"], "preprocess") if code.get("preprocess") else None
        self._postprocess = (
            CustomCode(code["postprocess"], "postprocess") if code.get("postprocess") else None
        )
        # From a sample number to layer name -> tensor, and from a list of outputs to the sample's answer;
        # tensors and outputs have no batch axis here.
        self.input_stages = self._build_input_stages()
        self.output_stages = self._build_output_stages()

    def _build_input_stages(self) -> list[Stage]:
        stages = [Stage("load", lambda number, _value: self._dataset.sample(number))]
        if self._preprocess is not None:
            stages.append(Stage("preprocess", self._run_preprocess))
        for layer, spec in self._inputs.items():
            context = Context(spec=spec, assets=self._assets)
            stages += [
                Stage(name, _on_key(layer, name, operator)) for name, operator in _operators(spec, context)
            ]
        stages.append(Stage("tensor", self._to_tensors))
        return stages

    def _build_output_stages(self) -> list[Stage]:
        if self._postprocess is not None:
            return [Stage("postprocess", self._run_postprocess)]
        stages = []
        for position, spec in enumerate(self._outputs):
            context = Context(spec=spec, assets=self._assets)
            stages += [
                Stage(name, _on_key(position, name, operator)) for name, operator in _operators(spec, context)
            ]
        stages.append(Stage("answer", lambda _number, outputs: outputs[0]))
        return stages

    def prepare(self, number: int) -> dict[str, Any]:
        """Run the input stages of one sample here and now; returns layer name -> tensor without batch axis."""
        value: Any = None
        for stage in self.input_stages:
            value = stage.function(number, value)
        result: dict[str, Any] = value
        return result

    def _env(self, number: int) -> dict[str, Any]:
        return {
            "index": number,
            "assets": self._assets,
            "input": next(iter(self._inputs.values()), None),
            "output": self._outputs[0] if self._outputs else None,
            "inputs": list(self._inputs.values()),
            "outputs": self._outputs,
        }

    def _run_preprocess(self, number: int, raw: Mapping[str, Any]) -> dict[str, Any]:
        assert self._preprocess is not None
        return {layer: self._preprocess(self._env(number), value) for layer, value in raw.items()}

    def _run_postprocess(self, number: int, outputs: list[Any]) -> Any:
        assert self._postprocess is not None
        return self._postprocess(self._env(number), outputs)

    def _to_tensors(self, _number: int, values: Mapping[str, Any]) -> dict[str, Any]:
        return {layer: as_tensor(value, self._inputs[layer]) for layer, value in values.items()}


def _operators(spec: Mapping[str, Any], context: Context) -> list[tuple[str, Callable[[Any], Any]]]:
    built = []
    for step in spec.get("steps") or ():
        ((name, params),) = step.items()
        operator = registry.load("mlbundle.operators", name)
        with blamed_on_bundle("the parameters of operator {!r}".format(name)):
            built.append((name, operator(params or {}, context)))
    return built


def _on_key(key: Any, name: str, operator: Callable[[Any], Any]) -> Callable[[int, Any], Any]:
    def apply(number: int, values: Any) -> Any:
        changed = dict(values) if isinstance(values, dict) else list(values)
        with blamed_on_bundle("operator {!r}, sample {}".format(name, number)):
            changed[key] = operator(changed[key])
        return changed

    return apply


def add_batch_axis(tensors: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Stack the tensors of several samples: layer name -> array with a batch axis in front."""
    return {layer: np.ascontiguousarray(np.stack([t[layer] for t in tensors])) for layer in tensors[0]}
