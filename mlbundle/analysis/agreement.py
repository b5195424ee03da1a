"""Whether two runs of one model say the same: predictions, and outputs within a tolerance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_OUTPUT = "output_"


@dataclass(frozen=True)
class Tolerance:
    """|a - b| <= absolute + relative * |b| for every value, b being the reference (numpy.allclose's rule)."""

    relative: float = 1e-5
    absolute: float = 1e-5


@dataclass(frozen=True)
class Agreement:
    """How far two runs agree.

    `differing_predictions` is None where they can't be compared; so is `max_difference`, the largest |a - b|.
    `tolerance_used` is the largest |a - b| / (absolute + relative * |b|): up to 1 is within the tolerance.
    """

    differing_predictions: int | None
    max_difference: float | None
    tolerance_used: float | None

    @property
    def same(self) -> bool | None:
        """Whether predictions are equal and outputs within the tolerance; None where something is missing."""
        if self.differing_predictions is None or self.tolerance_used is None:
            return False if self.differing_predictions else None
        return self.differing_predictions == 0 and self.tolerance_used <= 1


def compare_outputs(
    reference: Mapping[str, Any], other: Mapping[str, Any], tolerance: Tolerance
) -> Agreement:
    """Compare two `outputs.npz` (predictions int64 [N], output_<i> [N, ...]) of runs over the same samples.

    Values that are not finite agree only with the same value. Arrays of other shapes can't be compared.
    """
    names = sorted(name for name in reference if name.startswith(_OUTPUT))
    differing = _differing(reference.get("predictions"), other.get("predictions"))
    found = [_distance(reference[name], other.get(name), tolerance) for name in names]
    comparable = [distance for distance in found if distance is not None]
    if not comparable or len(comparable) < len(found):
        return Agreement(differing, None, None)
    return Agreement(differing, max(d for d, _ in comparable), max(used for _, used in comparable))


def _differing(reference: Any, other: Any) -> int | None:
    if reference is None or other is None or reference.shape != other.shape:
        return None
    return int((reference != other).sum())


def _distance(reference: Any, other: Any, tolerance: Tolerance) -> tuple[float, float] | None:
    """Return the largest difference, and the largest share of the tolerance."""
    import numpy as np

    numeric = "biuf"
    if other is None or reference.shape != other.shape:
        return None
    if reference.dtype.kind not in numeric or other.dtype.kind not in numeric:
        return None
    wanted, found = reference.astype(np.float64), other.astype(np.float64)
    equal = (wanted == found) | (np.isnan(wanted) & np.isnan(found))
    finite = np.isfinite(wanted) & np.isfinite(found)
    difference = np.full(wanted.shape, np.inf)
    np.subtract(wanted, found, out=difference, where=finite)
    difference = np.where(equal, 0.0, np.abs(difference))
    allowed = tolerance.absolute + tolerance.relative * np.abs(np.where(finite, wanted, 0.0))
    used = np.zeros(wanted.shape)
    np.divide(difference, allowed, out=used, where=(allowed > 0) & ~equal)
    used[(allowed == 0) & ~equal] = np.inf
    return (float(difference.max(initial=0.0)), float(used.max(initial=0.0)))
