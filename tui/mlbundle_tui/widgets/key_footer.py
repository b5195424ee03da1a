"""The line of keys below every screen: what does not fit is left out and says so, help and quit are always there."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from textual import events
    from textual.binding import Binding
    from textual.screen import Screen

    Shown = tuple[Binding, bool]

_ALWAYS = ("section.help", "app.quit")
# In the footer the screen's own keys come first.
_LAST = ("section.copy", *_ALWAYS)
_AROUND = 3
_MORE = " … "
_EDGE = "▏"
_PALETTE_FROM = 100


class KeyFooter(Widget):
    """Keys with a word each, as many as there is room for; one that is pressed with the mouse is as good as pressed.

    It is one widget and draws its line itself: the keys change with every focus, and widgets of their own would have
    to be made, styled and laid out each time.
    """

    ALLOW_SELECT = False
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        f"key-footer--{part}" for part in ("key", "word", "more", "edge")
    }
    DEFAULT_CSS = """
    KeyFooter { dock: bottom; height: 1; color: $footer-foreground; background: $footer-background; }
    KeyFooter > .key-footer--key {
        color: $footer-key-foreground; background: $footer-key-background; text-style: bold;
    }
    KeyFooter > .key-footer--word {
        color: $footer-description-foreground; background: $footer-description-background;
    }
    KeyFooter > .key-footer--more { color: $text-muted; }
    KeyFooter > .key-footer--edge { color: $foreground 20%; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._keys: list[Shown] = []
        self._palette: Shown | None = None
        self._asked = False
        # Where each key stands: the first column and the one after the last.
        self._places: list[tuple[int, int, Shown]] = []

    def on_mount(self) -> None:
        """Hear when other keys work."""
        self.screen.bindings_updated_signal.subscribe(self, self._bindings_changed)

    def _bindings_changed(self, screen: Screen[object]) -> None:
        # Without the terminal's focus nothing on the screen has it, and no key of a widget would be told.
        if screen.app.app_focus and self.is_attached and not self._asked:
            self._asked = True
            self.call_later(self._look)

    def _look(self) -> None:
        """Ask which keys work now, and show them if they are others."""
        self._asked = False
        if not self.is_attached:
            return
        keys, active = list(self._shown()), self.screen.active_bindings.get(self.app.COMMAND_PALETTE_BINDING)
        palette = None if active is None else (active.binding, active.enabled)
        if (keys, palette) != (self._keys, self._palette):
            self._keys, self._palette = keys, palette
            self.refresh()

    def render_line(self, y: int) -> Strip:
        """Return the line."""
        del y
        width, base = self.size.width, Style(bgcolor=self.rich_style.bgcolor)
        palette = self._palette if width >= _PALETTE_FROM else None
        room = width - (0 if palette is None else _width(self, palette) + 2)
        self._places = []
        segments: list[Segment] = []
        for key in self._fitting(room):
            self._add(segments, key)
        strip = Strip(segments)
        if palette is not None:
            strip = strip.adjust_cell_length(room, base)
            segments = [Segment(_EDGE, self._style("edge"))]
            self._add(segments, palette, at=room + 1)
            strip = Strip.join([strip, Strip(segments)])
        return strip.adjust_cell_length(width, base)

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Do what the key does."""
        for first, after, (binding, enabled) in self._places:
            if first <= event.x < after:
                if enabled:
                    self.app.simulate_key(binding.key)
                else:
                    self.app.bell()

    def _add(self, segments: list[Segment], key: Shown | None, *, at: int | None = None) -> None:
        if key is None:
            segments.append(Segment(_MORE, self._style("more")))
            return
        binding, enabled = key
        faint = Style(dim=not enabled or None)
        display = self.app.get_key_display(binding)
        first = sum(segment.cell_length for segment in segments) if at is None else at
        self._places.append((first, first + _width(self, key), key))
        segments.append(Segment(f" {display} ", self._style("key") + faint))
        segments.append(Segment(f"{binding.description} ", self._style("word") + faint))

    def _style(self, part: str) -> Style:
        return self.get_component_rich_style(f"key-footer--{part}")

    def _shown(self) -> Iterator[Shown]:
        """Yield each action once, with whether it can be done now."""
        found: dict[str, Shown] = {}
        for active in self.screen.active_bindings.values():
            if active.binding.show:
                found.setdefault(active.binding.action, (active.binding, active.enabled))
        yield from sorted(
            found.values(), key=lambda key: _LAST.index(key[0].id) + 1 if key[0].id in _LAST else 0
        )

    def _fitting(self, room: int) -> Sequence[Shown | None]:
        """Return the keys that fit; None stands for those that do not."""
        always = [key for key in self._keys if key[0].id in _ALWAYS]
        others = [key for key in self._keys if key[0].id not in _ALWAYS]
        room -= sum(_width(self, key) for key in always)
        if sum(_width(self, key) for key in others) <= room:
            return [*others, *always]
        room -= len(_MORE)
        fitting = []
        for key in others:
            room -= _width(self, key)
            if room < 0:
                break
            fitting.append(key)
        return [*fitting, None, *always]


def _width(footer: KeyFooter, key: Shown) -> int:
    binding, _ = key
    return cell_len(footer.app.get_key_display(binding)) + cell_len(binding.description) + _AROUND
