"""What operators are given and what they hand on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Mapping

from mlbundle.worker.dataset import inside
from mlbundle.worker.errors import bundle_error

Operator = Callable[[Any], Any]


@dataclass(frozen=True)
class Context:
    """What an operator may know: the tensor it serves (as the manifest describes it) and the assets' folder."""

    spec: Mapping[str, Any]
    assets: str

    def read_lines(self, path: str) -> list[str]:
        """Return the lines of a text file in the assets, without line ends."""
        try:
            with open(inside(self.assets, path), encoding="utf-8") as stream:
                return stream.read().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise bundle_error("asset-unreadable", "can't read {!r}: {}".format(path, error)) from error


@dataclass
class Image:
    """A picture on its way to a tensor: `pixels` is always height, width, channel; `layout` is what comes out."""

    pixels: Any
    layout: str = "NHWC"
    color_mode: str = "RGB"


@dataclass(frozen=True)
class Ranked:
    """Classes of one sample, best first: indices, scores and, where there are labels, their names."""

    indices: Any
    scores: Any
    labels: tuple[str, ...] = field(default=())


def check_params(operator: str, params: Mapping[str, Any], known: tuple[str, ...]) -> None:
    """Raise WorkerError when an operator is given a parameter it does not know."""
    unknown = sorted(set(params) - set(known))
    if unknown:
        raise bundle_error(
            "unknown-parameter",
            "operator {!r} knows no parameter {!r}".format(operator, unknown[0]),
            "known parameters: {}".format(", ".join(known)),
        )


def choice(operator: str, name: str, value: Any, choices: tuple[str, ...]) -> str:
    """Return `value` when it is one of `choices`; raises WorkerError otherwise."""
    if value not in choices:
        raise bundle_error(
            "bad-parameter",
            "operator {!r}: {} can't be {!r}".format(operator, name, value),
            "one of: {}".format(", ".join(choices)),
        )
    return str(value)
