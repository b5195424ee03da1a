"""What the palette (ctrl+p) offers: everything that has keys here and now, with the command line that does the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import SystemCommand

from mlbundle_tui.themes import THEMES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from textual.binding import Binding
    from textual.dom import DOMNode
    from textual.screen import Screen

    from mlbundle_tui.app import MlbundleApp

# Id of a binding -> the command that does the same, whatever is chosen. What is not here only moves within the UI, or
# does what the command line at the foot of the screen says.
COMMANDS = {
    "app.quit": "",
    "section.bundles": "mlbundle list",
    "section.run": "mlbundle run BUNDLE",
    "section.runs": "mlbundle runs list",
    "section.compare": "mlbundle compare RUN RUN",
    "section.machine": "mlbundle doctor",
    "bundles.run": "mlbundle run BUNDLE",
    "bundles.mend": "mlbundle images pull FRAMEWORK, images build FRAMEWORK, pull BUNDLE",
    "bundles.verify": "mlbundle verify BUNDLE",
    "bundles.open": "mlbundle inspect BUNDLE",
    "bundles.remove": "mlbundle rm BUNDLE",
    "bundles.raw": "mlbundle inspect BUNDLE",
    "runs.compare": "mlbundle compare RUN RUN",
    "runs.trace": "mlbundle trace open RUN",
    "runs.stop": "mlbundle runs stop RUN",
    "runs.remove": "mlbundle runs rm RUN",
    "runs.raw": "mlbundle runs show RUN --json",
    "run.trace": "mlbundle trace open RUN",
    "run.raw": "mlbundle runs show RUN --json",
}
_MOST_TITLE = 60


def palette_commands(app: MlbundleApp, screen: Screen[object]) -> Iterator[SystemCommand]:
    """Yield everything that can be done on a screen, then themes and a picture of the screen."""
    seen = set()
    for active in screen.active_bindings.values():
        name = active.binding.id
        if name is None or name in seen or not active.binding.description:
            continue
        seen.add(name)
        if active.enabled:
            yield _command(app, active.node, active.binding, _line(screen, active.binding))
    for word, theme in THEMES.items():
        help_ = f"mlbundle tui --theme {word}"
        yield SystemCommand(f"Theme: {word}", help_, lambda theme=theme: setattr(app, "theme", theme))
    yield SystemCommand("Save a picture of the screen", "an SVG file", app.deliver_screenshot)


def _command(app: MlbundleApp, node: DOMNode, binding: Binding, line: str) -> SystemCommand:
    async def run() -> None:
        await app.run_action(binding.action, node)

    words = [f"key {app.get_key_display(binding)}", line, binding.id or ""]
    return SystemCommand(binding.description[:_MOST_TITLE], " · ".join(filter(None, words)), run)


def _line(screen: Screen[object], binding: Binding) -> str:
    """Return the command of an action; of one whose command is at the foot of the screen, with what is chosen.

    Enter on a table is the table's first, and does what the screen does with it.
    """
    if binding.id in {"section.copy", "table.select"}:
        return str(getattr(screen, "command_line", str)())
    names = [binding.id, *(other.id for other in screen._bindings.key_to_bindings.get(binding.key, ()))]
    return next(filter(None, (COMMANDS.get(name or "") for name in names)), "")
