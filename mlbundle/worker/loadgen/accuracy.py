"""From LoadGen's accuracy log to the metric of the job: what LoadGen wrote is what counts."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Mapping, Sequence

import numpy as np

from mlbundle.wire.job import Job
from mlbundle.worker import registry
from mlbundle.worker.errors import WorkerError, blamed_on_bundle
from mlbundle.worker.session import Session

Layout = Sequence["tuple[Any, Any]"]


def read_log(path: str, most_again: int = 0) -> dict[int, bytes]:
    """Return sample -> the bytes that LoadGen logged for it; the log is a JSON array with an entry a line.

    LoadGen fills the last query up with samples that it had before: `most_again` of them, whose first answer counts.
    Raises WorkerError where it is no such array, or where more samples come twice.
    """
    found: dict[int, bytes] = {}
    again = 0
    with open(path, encoding="utf-8") as stream:
        for line in stream:
            text = line.strip().rstrip(",")
            if text in ("[", "]", ""):
                continue
            try:
                entry = json.loads(text)
                index, data = int(entry["qsl_idx"]), bytes.fromhex(entry["data"])
            except (ValueError, KeyError, TypeError) as error:
                raise _unreadable("{}: {!r}".format(error, text[:80])) from error
            again += index in found
            if again > most_again:
                raise _unreadable("sample {} comes twice".format(index))
            found.setdefault(index, data)
    return found


def count(
    job: Job, session: Session, logged: Mapping[int, bytes], layouts: Mapping[int, Layout]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run what LoadGen logged through the output steps and the metric, in the order of the dataset.

    Returns what the result says, and the arrays of `outputs.npz`. Raises WorkerError where a sample is missing.
    """
    assert job.accuracy is not None
    labels = session.dataset.labels
    assert labels is not None
    total = len(session.dataset)
    if len(logged) != total:
        raise _unreadable("{} of {} samples are in it".format(len(logged), total))
    metric = registry.load("mlbundle.metrics", str(job.accuracy["metric"]))()
    digest = hashlib.sha256()
    for number in range(total):
        answer: Any = _outputs(logged[number], layouts[number])
        digest.update(logged[number])
        for stage in session.pipeline.output_stages:
            answer = stage.function(number, answer)
        with blamed_on_bundle("the metric, sample {}".format(number)):
            metric.update(answer, labels[number])
    predictions = np.asarray(metric.predictions, np.int64)
    values = {
        "metric": job.accuracy["metric"],
        "value": metric.value(),
        "samples": metric.samples,
        "predictions_sha256": hashlib.sha256(predictions.astype("<i8").tobytes()).hexdigest(),
        "outputs_sha256": digest.hexdigest(),
    }
    return values, {"predictions": predictions, **_columns(logged, layouts, total)}


def _outputs(data: bytes, layout: Layout) -> list[Any]:
    outputs, place = [], 0
    for dtype, shape in layout:
        elements = int(np.prod(shape, dtype=np.int64))
        outputs.append(np.frombuffer(data, dtype, elements, place).reshape(shape))
        place += elements * dtype.itemsize
    return outputs


def _columns(logged: Mapping[int, bytes], layouts: Mapping[int, Layout], total: int) -> dict[str, Any]:
    """Return `output_<position>` -> array with a first axis of samples; none where sizes vary."""
    if any(layouts[number] != layouts[0] for number in range(total)):
        return {}
    per_sample = [_outputs(logged[number], layouts[number]) for number in range(total)]
    return {"output_{}".format(place): np.stack(arrays) for place, arrays in enumerate(zip(*per_sample))}


def _unreadable(what: str) -> WorkerError:
    return WorkerError(
        "loadgen-log",
        "LoadGen's accuracy log is not what it should be: {}".format(what),
        fault="mlbundle",
        hint="see loadgen/accuracy in the run's folder",
    )
