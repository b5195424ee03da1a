"""The section Runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from mlbundle_tui.screens.base import Section, empty

if TYPE_CHECKING:
    from textual.app import ComposeResult


class RunsSection(Section):
    """The section Runs."""

    name_of_section: ClassVar[str] = "runs"

    def body(self) -> ComposeResult:
        """Yield the widgets of the section."""
        yield empty("nothing here yet")
