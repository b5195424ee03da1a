"""Compares what was measured with what the manifest claims, and says whether a result counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlbundle.wire.words import counted

if TYPE_CHECKING:
    from mlbundle.manifest.model import ExpectedAccuracy

# A fraction printed with six digits and the same fraction computed differ by less than this.
_ROUNDING = 1e-6
# Fewest queries for which a 90th percentile can be stated with confidence 0.99 (binomial bound of MLPerf
# LoadGen's early stopping).
LEAST_QUERIES = 64


@dataclass(frozen=True)
class AccuracyCheck:
    """A measured accuracy beside the claim; `passed` is None when nothing was claimed."""

    metric: str
    value: float
    samples: int
    expected: float | None = None
    tolerance: float | None = None
    passed: bool | None = None

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form of the run record."""
        return {
            "metric": self.metric,
            "value": self.value,
            "expected": self.expected,
            "tolerance": self.tolerance,
            "passed": self.passed,
            "samples": self.samples,
        }


def check_accuracy(metric: str, value: float, samples: int, claim: ExpectedAccuracy | None) -> AccuracyCheck:
    """Compare an accuracy (a fraction) with the claim; better than claimed beyond the tolerance fails as well."""
    if claim is None or claim.metric != metric:
        return AccuracyCheck(metric=metric, value=value, samples=samples)
    passed = abs(value - claim.value) <= claim.tolerance + _ROUNDING
    return AccuracyCheck(metric, value, samples, claim.value, claim.tolerance, passed)


def validity_reasons(
    *, queries: int | None, settled: bool, concurrent: bool, emulated: str | None = None
) -> list[str]:
    """Return why a measurement does not count; empty when it does."""
    reasons = []
    if queries is not None and queries < LEAST_QUERIES:
        said = counted(queries, "query", "queries")
        reasons.append(f"{said}, at least {LEAST_QUERIES} are needed for a 90th percentile")
    if not settled:
        reasons.append("the warm-up did not settle: latencies still moved by more than 5 %")
    if concurrent:
        reasons.append("another measurement may have run beside this one (--concurrent)")
    if emulated is not None:
        reasons.append(f"{emulated} was emulated: the times say nothing about it")
    return reasons
