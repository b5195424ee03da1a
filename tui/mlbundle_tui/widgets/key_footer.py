"""The line of keys below every screen: what does not fit is left out and says so, help and quit are always there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.cells import cell_len
from textual.widgets import Footer, Label
from textual.widgets._footer import FooterKey

if TYPE_CHECKING:
    from collections.abc import Iterator

    from textual.app import ComposeResult
    from textual.binding import Binding

_ALWAYS = ("section.help", "app.quit")
# In the footer the screen's own keys come first.
_LAST = ("section.copy", *_ALWAYS)
_AROUND = 3
_MORE = " … "
_PALETTE_FROM = 100
_PALETTE = 11


class KeyFooter(Footer):
    """Keys with a word each, as many as there is room for."""

    DEFAULT_CSS = """
    KeyFooter { overflow: hidden; }
    KeyFooter Label { color: $text-muted; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._made_for = 0

    def compose(self) -> ComposeResult:
        """Yield the keys that fit."""
        if not self._bindings_ready:
            return
        width = self._made_for = self.app.size.width
        palette = width >= _PALETTE_FROM
        self.set_reactive(Footer.show_command_palette, palette)
        shown = list(self._shown())
        always = [key for key in shown if key[0].id in _ALWAYS]
        others = [key for key in shown if key[0].id not in _ALWAYS]
        room = width - _PALETTE * palette - sum(self._width(binding) for binding, _ in always)
        fitting = self._fitting(others, room)
        for binding, enabled in fitting:
            yield self._key(binding, enabled=enabled)
        if len(fitting) < len(others):
            yield Label(_MORE)
        for binding, enabled in always:
            yield self._key(binding, enabled=enabled)
        active = self.screen.active_bindings.get(self.app.COMMAND_PALETTE_BINDING)
        if palette and active is not None:
            yield self._key(active.binding, enabled=True, classes="-command-palette")

    def on_resize(self) -> None:
        """Show what fits now."""
        if self._bindings_ready and self._made_for != self.app.size.width:
            self.call_after_refresh(self.recompose)

    def _shown(self) -> Iterator[tuple[Binding, bool]]:
        """Yield each action once, with whether it can be done now."""
        found: dict[str, tuple[Binding, bool]] = {}
        for active in self.screen.active_bindings.values():
            if active.binding.show:
                found.setdefault(active.binding.action, (active.binding, active.enabled))
        yield from sorted(
            found.values(), key=lambda key: _LAST.index(key[0].id) + 1 if key[0].id in _LAST else 0
        )

    def _fitting(self, keys: list[tuple[Binding, bool]], room: int) -> list[tuple[Binding, bool]]:
        if sum(self._width(binding) for binding, _ in keys) <= room:
            return keys
        room -= len(_MORE)
        fitting = []
        for binding, enabled in keys:
            room -= self._width(binding)
            if room < 0:
                break
            fitting.append((binding, enabled))
        return fitting

    def _width(self, binding: Binding) -> int:
        return cell_len(self.app.get_key_display(binding)) + cell_len(binding.description) + _AROUND

    def _key(self, binding: Binding, *, enabled: bool, classes: str = "") -> FooterKey:
        display = self.app.get_key_display(binding)
        key = FooterKey(
            binding.key,
            display,
            binding.description,
            binding.action,
            disabled=not enabled,
            tooltip=binding.tooltip,
            classes=classes,
        )
        return key.data_bind(compact=Footer.compact)
