"""The lines of a result table that `pipeline` adds: how busy each operator was."""

from __future__ import annotations

from typing import Any

from mlbundle.wording import units


def lines(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Return name and text of each line for the `result` of a record."""
    pipeline = result["pipeline"]
    stages = pipeline["stages"]
    busiest = max(stages, key=lambda stage: float(stage["share"]))
    width = max(len(stage["name"]) for stage in stages)
    threads = f"batches of {pipeline['batch_size']}, {pipeline['threads']} threads"
    found = [("pipeline", f"{units.rate(pipeline['samples_per_s'])} from file to prediction, {threads}")]
    for stage in stages:
        text = f"{stage['name']:<{width}}  {100 * stage['share']:5.1f} % busy  {units.duration(stage['mean_ns'])} each"
        found.append(("", f"{text}  (holds up the others)" if stage is busiest else text))
    return found
