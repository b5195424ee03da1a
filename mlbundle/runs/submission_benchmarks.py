"""MLPerf's models: by which names MLCommons' checker knows them, and what its rules ask of a few.

Rules: MLCommons' inference submission rules, v6.0 and v6.1. The checker finds the model of a result by the name of its
folder: one of its own names, one of a few aliases, an entry of `model_mapping.json`, or a part of the name, in this
order. A result whose model it does not find is refused in the open division too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mlbundle.runs.submission_logs import DetailLog

# Round -> seeds of the samples' set, their order and the schedule: LoadGen has those of its round built in.
SEEDS = {
    "v5.1": (1780908523862526354, 14771362308971278857, 18209322760996052031),
    "v6.0": (2465351861681999779, 14276810075590677512, 3936089224930324775),
    "v6.1": (2085463073848966840, 2747215439041700203, 16159082839903944936),
}
SEED_NAMES = ("qsl_rng_seed", "sample_index_rng_seed", "schedule_rng_seed")
_MODELS = frozenset({
    "3d-unet-99", "3d-unet-99.9", "bert-99", "bert-99.9", "deepseek-r1", "dlrm-v3", "e2e-rag-db", "e2e-rag-qna",
    "gpt-oss-120b", "llama2-70b-99", "llama2-70b-99.9", "llama3.1-405b", "llama3.1-8b", "llama3.1-8b-edge",
    "mixtral-8x7b", "pointpainting", "qwen3-vl-235b-a22b", "resnet", "retinanet", "rgat", "stable-diffusion-xl",
    "wan-2.2-t2v-a14b", "whisper", "yolo-95", "yolo-99",
})  # fmt: skip
_ALIASES = {
    "resnet50": "resnet", "mobilenet": "resnet", "ssd-resnet34": "retinanet", "llama3_1-405b": "llama3.1-405b",
    "llama3_1-8b": "llama3.1-8b", "llama3_1-8b-edge": "llama3.1-8b-edge",
}  # fmt: skip
# The first of these parts that the name of a folder has says the model where nothing else does.
_PARTS = (
    ("mobilenet", "resnet"),
    ("efficientnet", "resnet"),
    ("resnet50", "resnet"),
    ("bert-99.9", "bert-99.9"),
    ("bert-99", "bert-99"),
    ("llama3_1-405b", "llama3.1-405b"),
)


@dataclass(frozen=True)
class Needs:
    """What a model's results must have: samples of its data set, samples loaded at once, the latency of a server."""

    samples: int
    loaded: int
    server_latency_ns: int | None = None


# Those that have been the same for several rounds.
_NEEDS = {
    "resnet": Needs(50_000, 1024, 15_000_000),
    "retinanet": Needs(24_781, 64, 100_000_000),
    "bert-99": Needs(10_833, 10_833),
    "bert-99.9": Needs(10_833, 10_833),
    "3d-unet-99": Needs(43, 43),
    "3d-unet-99.9": Needs(43, 43),
}


def official_name(name: str) -> str:
    """Return MLPerf's own name of a model for one of its aliases (`resnet50`: `resnet`); other names as they are."""
    return _ALIASES.get(name, name)


def is_known(name: str) -> bool:
    """Return whether that is MLPerf's own name of a model of a round that is known here."""
    return name in _MODELS


def model_of(folder: str, mapping: Mapping[str, Any]) -> str | None:
    """Return the model of MLPerf that the checker takes the results in a folder for, None where it finds none."""
    if (name := official_name(folder)) in _MODELS:
        return name
    if mapped := mapping.get(folder):
        return str(mapped)
    return next((model for part, model in _PARTS if part in folder), None)


def mapping_problems(mapping: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (severity, what is wrong) of the entries of a `model_mapping.json`."""
    for folder, model in mapping.items():
        own = official_name(folder)
        if own in _MODELS:
            if own != model:
                yield (
                    "error",
                    f"{folder} is MLPerf's own name of {own}: that it stands for {model} is not heeded",
                )
        elif model in _ALIASES:
            yield "error", f"{model} has to be called {_ALIASES[model]} here"
        elif model not in _MODELS:
            yield "warning", f"{model} is no model of MLPerf that is known here"


def unmet_performance(model: str | None, log: DetailLog) -> Iterator[str]:
    """Yield what the performance test of a detail log lacks of what its model's rules ask for."""
    needs = _NEEDS.get(model or "")
    if needs is None:
        return
    loaded = log.number("effective_performance_sample_count")
    if loaded is not None and loaded < needs.loaded:
        yield f"{loaded:.0f} samples are loaded at once, for {model} it is at least {needs.loaded}"
    latency_ns, most_ns = log.number("effective_target_latency_ns"), needs.server_latency_ns
    if log.text("effective_scenario") == "Server" and latency_ns and most_ns and latency_ns > most_ns:
        yield f"the target latency is {latency_ns / 1e6:g} ms, for {model} it is at most {most_ns / 1e6:g} ms"


def unmet_accuracy(model: str | None, answered: float | None) -> Iterator[str]:
    """Yield what is wrong with the number of samples of an accuracy test by its model's rules."""
    needs = _NEEDS.get(model or "")
    if needs is not None and answered is not None and answered != needs.samples:
        yield f"the data set has {answered:.0f} samples, that of {model} has {needs.samples}"
