"""What only holds other widgets and draws nothing of its own.

Textual keeps each line of a widget, and each piece that the widgets above cut it into: most of them of containers that
nobody sees. Here all lines are one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from rich.style import Style
from textual.containers import Container, Grid, Horizontal, Vertical
from textual.strip import Strip

if TYPE_CHECKING:
    from textual.geometry import Region
    from textual.widget import Widget


class Bare:
    """Mixed into a widget without border, title and text of its own: it shows its background."""

    def render_lines(self, crop: Region) -> list[Strip]:
        """Return lines of the background."""
        widget = cast("Widget", self)
        _, background = widget.background_colors
        strip = Strip.blank(crop.width, Style(bgcolor=background.rich_color))
        for one in widget.get_line_filters():
            strip = strip.apply_filter(one, background)
        return [strip] * crop.height


class BareContainer(Bare, Container):
    """A container that is bare."""


class BareGrid(Bare, Grid):
    """A grid that is bare."""


class BareHorizontal(Bare, Horizontal):
    """A row of widgets that is bare."""


class BareVertical(Bare, Vertical):
    """A column of widgets that is bare."""
