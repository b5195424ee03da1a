"""The section Machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from mlbundle_tui.screens.base import Section, empty

if TYPE_CHECKING:
    from textual.app import ComposeResult


class MachineSection(Section):
    """The section Machine."""

    name_of_section: ClassVar[str] = "machine"

    def body(self) -> ComposeResult:
        """Yield the widgets of the section."""
        yield empty("nothing here yet")
