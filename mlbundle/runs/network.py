"""How registries and web servers are reached."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from mlbundle import __version__

if TYPE_CHECKING:
    from pathlib import Path

USER_AGENT = f"mlbundle/{__version__}"


class Network(NamedTuple):
    """How registries and web servers are reached: `plain_http` only where the user says so."""

    plain_http: bool = False
    ca_file: Path | None = None

    def settings(self) -> dict[str, Any]:
        """Return the values as the registry client takes them."""
        return {"plain_http": self.plain_http, "ca_file": self.ca_file, "user_agent": USER_AGENT}
