"""What every pass needs: the dataset, the pipeline and an open predictor."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from typing import Any, Mapping

from mlbundle.wire.job import Job
from mlbundle.worker import registry
from mlbundle.worker.dataset import Dataset, inside, open_dataset
from mlbundle.worker.errors import blamed_on_predictor, bundle_error
from mlbundle.worker.loading import load_class
from mlbundle.worker.pipeline.build import Pipeline
from mlbundle.worker.predictors.answer import AnswerCheck
from mlbundle.worker.predictors.common import ONLY_INPUT
from mlbundle.worker.said import facts_of


def _predictor(job: Job, assets: str) -> Any:
    """Return the predictor: the bundle's own file, else what is registered under the framework's name."""
    if job.model.predictor_file is None:
        return registry.load("mlbundle.predictors", job.model.predictor)()
    return load_class(inside(assets, job.model.predictor_file), "Predictor")()


def _options(job: Job, profile: Mapping[str, Any] | None) -> dict[str, Any]:
    return {
        **({} if profile is None else {"profile": profile}),
        "threads": job.limits.threads,
        "accelerator": job.accelerator,
        "trace_level": job.trace_level,
        "inputs": job.model.inputs,
        "outputs": job.model.outputs,
        "scratch": job.paths["scratch"],
    }


def _names(handle: Any, attribute: str) -> list[Any]:
    """Return the names that a handle has for inputs or outputs; none where it has no such attribute."""
    return list(getattr(handle, attribute, None) or ())


class Session:
    """An open model with its pipeline; close it when the pass is over.

    `profile` is what a profiler wants the predictor to open the model with.
    """

    def __init__(self, job: Job, profile: Mapping[str, Any] | None = None) -> None:
        assets = job.paths["assets"]
        self._own = job.model.predictor_file is not None
        with blamed_on_predictor("the constructor", own=self._own):
            self.predictor = _predictor(job, assets)
        files = {role: inside(assets, path) for role, path in job.model.files.items()}
        for role, path in files.items():
            if not os.path.exists(path):
                raise bundle_error("asset-missing", "the {} {!r} is not in the bundle".format(role, path))
        with blamed_on_predictor("open()", own=self._own):
            self.handle = self.predictor.open(files, _options(job, profile))
        layers = self._layers(job)
        self._output_order = self._order_of_outputs(job)
        # Until the first batch has been answered.
        self.answers = AnswerCheck(job.model.outputs, self._output_order, own=self._own)
        self._check: AnswerCheck | None = self.answers
        if job.dataset is None:
            raise bundle_error(
                "dataset-missing",
                "the bundle has no dataset to feed the model with",
                "add `dataset:` to the manifest",
            )
        self.dataset: Dataset = open_dataset(job.dataset, assets, layers)
        if job.accuracy is not None and self.dataset.labels is None:
            raise bundle_error(
                "labels-missing",
                "the dataset has no labels to compare with",
                "add them, or run with --no-accuracy",
            )
        self.pipeline = Pipeline(job, self.dataset, layers)

    def _layers(self, job: Job) -> list[str]:
        """Return the layer name of each input; a single input may leave its name to the model."""
        names = [spec.get("layer_name") for spec in job.model.inputs]
        own = _names(self.handle, "input_names")
        if names == [None] and len(own) <= 1:
            return own or [ONLY_INPUT]
        if any(name is None for name in names):
            raise bundle_error(
                "layer-name-missing",
                "an input has no layer_name",
                "the model's inputs: {}".format(", ".join(own)),
            )
        return [str(name) for name in names]

    def _order_of_outputs(self, job: Job) -> list[int]:
        """Return where in the model's outputs each output of the manifest is found."""
        own = _names(self.handle, "output_names")
        names = [spec.get("layer_name") for spec in job.model.outputs]
        if not own or names == [None]:
            return list(range(max(1, len(names))))
        missing = [name for name in names if name not in own]
        if missing:
            raise bundle_error(
                "outputs-mismatch",
                "the model has no output {!r}".format(missing[0]),
                "the model's outputs: {}".format(", ".join(own)),
            )
        return [own.index(name) for name in names]

    @property
    def facts(self) -> dict[str, Any]:
        """What the framework says of itself, for the record; whole after the first batch."""
        with blamed_on_predictor("the handle's facts", own=self._own):
            return facts_of(self.handle)

    def in_order(self, outputs: Any) -> list[Any]:
        """Return the outputs that the manifest names, in its order."""
        return [outputs[position] for position in self._output_order]

    def prepare(self, feeds: Mapping[str, Any]) -> Any:
        """Return a batch for `predict`, bound beforehand where the predictor can; call it where nothing is timed.

        The first batch is also run, once, and WorkerError raised unless its answer is what the manifest says.
        """
        prepare = getattr(self.predictor, "prepare", None)
        batch: Any = feeds
        if prepare is not None:
            with blamed_on_predictor("prepare()", own=self._own):
                batch = prepare(self.handle, feeds)
        if self._check is not None:
            check, self._check = self._check, None
            with self.blamed():
                answer = self.predict(batch)
            check.check(answer, len(next(iter(feeds.values()))))
        return batch

    def blamed(self, call: str = "predict()") -> AbstractContextManager[None]:
        """Return what to run queries in: what `predict` raises is then the predictor's fault."""
        return blamed_on_predictor(call, own=self._own)

    def predict(self, batch: Any) -> Any:
        """Run one batch."""
        return self.predictor.predict(self.handle, batch)

    def close(self) -> None:
        """Release the model."""
        with blamed_on_predictor("close()", own=self._own):
            self.predictor.close(self.handle)
