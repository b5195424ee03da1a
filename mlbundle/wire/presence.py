"""How a worker in a container knows that the host is still there.

A pipe ends when the process at its other end does. The stdin of a container does not: when the engine dies, or the way
to an engine on another machine is cut, it stays open and silent. So after the job the host sends a byte now and then:
the number of seconds within which the next one will come. A host that sends none promises nothing; then only the end of
the stream says that it is gone.
"""

from __future__ import annotations

EVERY_S = 10.0
WITHIN_S = 120
"""As long as the host waits for a silent worker: a host that is stopped for a minute is not gone."""


def promise() -> bytes:
    """Return what the host sends."""
    return bytes([WITHIN_S])


def promised_s(data: bytes) -> float | None:
    """Return within how many seconds the host will be heard again, None where it does not say."""
    return float(data[-1]) or None
