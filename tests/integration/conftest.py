"""Fixtures that several tests of commands share."""

from __future__ import annotations

from traced_run import traced  # noqa: F401 - a fixture
