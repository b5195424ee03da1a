"""The lines of a result table that `batched` adds: the best size, and each size."""

from __future__ import annotations

from typing import Any

from mlbundle.wording import percentiles, units

_ENDS = {
    "no-gain": "the throughput no longer grew",
    "largest": "no larger size is tried",
    "memory": "batches of {batch_size} were left out: they don't fit in memory",
    "refused": "batches of {batch_size} were left out: the model does not take them",
}


def lines(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Return name and text of each line for the `result` of a record."""
    optimal, search = result["optimal"], result["search"]
    found = [
        ("best batch", f"{optimal['batch_size']:,} samples: {units.rate(optimal['throughput_per_s'])}"),
        *(
            ("batches" if number == 0 else "", _batch(batch))
            for number, batch in enumerate(result["batches"])
        ),
    ]
    end = _ENDS.get(search["ended"])
    return found if end is None else [*found, ("", end.format(**search))]


def _batch(batch: dict[str, Any]) -> str:
    latency = {name: batch["latency_ns"][name] for name in ("p50", "p99")}
    shown = (units.rate(batch["throughput_per_s"]), *percentiles.texts(latency, batch["queries"]))
    text = f"{batch['batch_size']:>6,}  {'  '.join(shown)}"
    return text if batch["settled"] else f"{text}  (warm-up did not settle)"
