"""What is said before more is asked of a model than it can do."""

from __future__ import annotations

from mlbundle.wire.events import Warned


def overload(rate_per_s: float, most_per_s: float, planned_s: float) -> Warned:
    """Return the warning that a rate is above what one sample after the other allows, and what comes of it."""
    return Warned(
        reference="overload",
        message="{:,.0f} samples a second are to come, the model answers about {:,.0f}: measuring takes at least "
        "{:,.0f} s instead of {:,.3g} s".format(
            rate_per_s, most_per_s, planned_s * rate_per_s / most_per_s, planned_s
        ),
        hint="a lower --rate, or --find-peak with --target-latency for the highest that can be held",
    )
