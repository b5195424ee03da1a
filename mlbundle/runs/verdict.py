"""What a finished run means for an exit status."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlbundle.errors import CheckFailed, ClaimNotMet
from mlbundle.runs.advice import advice_for, reasons_of

if TYPE_CHECKING:
    from collections.abc import Mapping


def require_good(record: Mapping[str, Any]) -> None:
    """Raise ClaimNotMet when the accuracy is not as claimed, CheckFailed when the result is not valid."""
    accuracy = record.get("accuracy")
    if accuracy and accuracy["passed"] is False:
        raise ClaimNotMet(
            f"accuracy {accuracy['metric']} is {accuracy['value']:.6f}, claimed was {accuracy['expected']:.6f} "
            f"with a tolerance of {accuracy['tolerance']:.6f}",
            where="/expected/accuracy",
            hint="compare framework versions and the image digest with those of the author's run",
        )
    if not record["validity"]["valid"]:
        raise CheckFailed(
            "the result is not valid: " + "; ".join(reasons_of(record)),
            hint=advice_for(record),
        )
