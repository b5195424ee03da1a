"""The model manifest as values (Listing 1 of the MLModelScope paper and our additions).

Paths are relative to the folder of the manifest, with forward slashes. `None` means: not stated.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Step:
    """One built-in operator with its parameters, as a side's `steps` names it."""

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TensorSpec:
    """One input or output: its modality, its place in the model, and the operators on its way.

    `shape` holds integers and symbols (`N` for the batch); `layer_name` is None when the model has only one.
    """

    type: str
    layer_name: str | None = None
    element_type: str | None = None
    shape: tuple[int | str, ...] | None = None
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True)
class FrameworkConstraint:
    """The framework a model needs and the versions that will do (npm-style range)."""

    name: str
    version: str = "*"


@dataclass(frozen=True)
class Checksum:
    """A digest as the manifest states it: `algorithm` is sha256, sha1 or md5, `hex` is lower case."""

    algorithm: str
    hex: str


@dataclass(frozen=True)
class ModelSource:
    """Where the graph and the weights come from; a `graph_path` that ends with a slash is a folder."""

    graph_path: str
    weights_path: str | None = None
    base_url: str | None = None
    checksum: Checksum | None = None
    weights_checksum: Checksum | None = None
    is_archive: bool = False


@dataclass(frozen=True)
class DatasetSpec:
    """The evaluation dataset: a folder with an index (`<path> <label>` a line), or an `.npz` with arrays.

    `inputs` maps a layer name to an array of the `.npz`; `labels` names the array of labels; `index` names the
    index file inside a folder.
    """

    format: str
    path: str
    checksum: Checksum | None = None
    samples: int | None = None
    inputs: Mapping[str, str] = field(default_factory=dict)
    labels: str | None = None
    index: str | None = None


@dataclass(frozen=True)
class ExpectedAccuracy:
    """The accuracy that the author claims: a fraction, and how far off a run may be (absolute)."""

    metric: str
    value: float
    tolerance: float = 0.0


@dataclass(frozen=True)
class Expected:
    """What the author claims; `performance` and `outputs` are kept as written."""

    accuracy: ExpectedAccuracy | None = None
    outputs: Mapping[str, Any] | None = None
    performance: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Variant:
    """The same model in a further form; what it leaves out it takes from the top level.

    `name` tells the forms of one framework apart; by default it is the framework's. `predictor` is a Python file.
    """

    name: str
    framework: FrameworkConstraint
    model: ModelSource
    inputs: tuple[TensorSpec, ...] | None = None
    outputs: tuple[TensorSpec, ...] | None = None
    predictor: str | None = None


@dataclass(frozen=True)
class ModelManifest:
    """A model manifest that has passed validation."""

    name: str
    version: str
    framework: FrameworkConstraint
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    model: ModelSource
    description: str | None = None
    license: str | None = None
    references: tuple[str, ...] = ()
    preprocess: str | None = None
    postprocess: str | None = None
    predictor: str | None = None
    variants: tuple[Variant, ...] = ()
    dataset: DatasetSpec | None = None
    expected: Expected | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def carries_code(self) -> bool:
        """Whether the manifest holds or names Python of its own."""
        return any(code is not None for code in (self.preprocess, self.postprocess, self.predictor))
