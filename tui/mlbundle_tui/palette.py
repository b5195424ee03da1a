"""What the palette (ctrl+p) offers: everything that has keys here and now, with the command line that does the same."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from textual.app import SystemCommand

from mlbundle_tui.screens.base import Section
from mlbundle_tui.themes import THEMES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from textual.binding import Binding
    from textual.dom import DOMNode
    from textual.screen import Screen

    from mlbundle_tui.app import MlbundleApp

# Id of a binding -> the command that does the same. RUN and BUNDLE are written out where one is chosen.
COMMANDS = {
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
    "bundles.edit": "$EDITOR model.yml",
    "run.start": "mlbundle run BUNDLE --detach",
    "run.plan": "mlbundle run BUNDLE --dry-run",
    "run.attach": "mlbundle runs attach RUN",
    "run.stop": "mlbundle runs stop RUN",
    "live.stop": "mlbundle runs stop RUN",
    "live.open": "mlbundle runs show RUN",
    "runs.compare": "mlbundle compare RUN RUN",
    "runs.filter": "mlbundle runs list --filter TEXT",
    "runs.sort": "mlbundle runs list --sort COLUMN",
    "runs.sort_back": "mlbundle runs list --sort COLUMN",
    "runs.turn": "mlbundle runs list --sort COLUMN --reverse",
    "runs.trace": "mlbundle trace open RUN",
    "runs.stop": "mlbundle runs stop RUN",
    "runs.remove": "mlbundle runs rm RUN",
    "runs.raw": "mlbundle runs show RUN --json",
    "run.trace": "mlbundle trace open RUN",
    "run.raw": "mlbundle runs show RUN --json",
    "run.edit": "$EDITOR record.json",
    "layers.sort": "mlbundle trace summary RUN --by name",
    "layers.group": "mlbundle trace summary RUN --by type",
    "kernels.sort": "mlbundle trace export RUN --format csv",
    "compare.all": "mlbundle runs diff RUN RUN --all",
    "compare.reference": "mlbundle compare RUN RUN",
    "machine.mend": "mlbundle images pull FRAMEWORK, images build FRAMEWORK",
}
# What is found by these words although it can be done only there.
_PURPOSES = {
    "section.bundles": "choose, pull, build, verify, remove",
    "section.run": "fill in and start a run, watch, stop",
    "section.runs": "open, search, mark, remove, trace",
    "section.compare": "marked runs side by side",
    "section.machine": "what works, images, disk",
}
_VIEW = "it changes what is shown here, and nothing else"
_MOVES = "it moves within the UI"
_FIELD = "it fills in the form, whose command stands at the foot of the screen"
_DIALOG = "it answers a question of the UI"
# Id of a binding -> why no command does the same. What is named by its first part alone goes for all of it.
WITHIN = {
    "app": "it is about the UI itself",
    "section.copy": "it copies the command that stands at the foot of the screen",
    "section.refresh": "it does again what the screen did",
    "section.help": "it is about the UI itself",
    "bundles.filter": _VIEW,
    "bundles.sort": _VIEW,
    "bundles.stop": "what it stops was begun here: on the command line it is Ctrl-C",
    "bundles.tab_before": _MOVES,
    "bundles.tab_after": _MOVES,
    "bundles.back": _MOVES,
    "run.more": _FIELD,
    "run.back_to_form": _MOVES,
    "run.back": _MOVES,
    "run.tab_before": _MOVES,
    "run.tab_next": _MOVES,
    "run.logs": _MOVES,
    "latency.scale": _VIEW,
    "live.freeze": _VIEW,
    "live.log": _VIEW,
    "live.back": _MOVES,
    "runs.mark": "what is marked is compared or removed by commands of their own",
    "runs.unmark": "what is marked is compared or removed by commands of their own",
    "runs.logs": _MOVES,
    "runs.clear": _MOVES,
    "compare.unmark": "what is marked is what is compared",
    "compare.back": _MOVES,
    "machine.stop": "what it stops was begun here: on the command line it is Ctrl-C",
    "machine.enlarge": _VIEW,
    "machine.panel_after": _MOVES,
    "machine.panel_before": _MOVES,
    "machine.back": _MOVES,
    "logs": "it searches what is shown",
    "log": _MOVES,
    "table": _MOVES,
    "field": _FIELD,
    "dialog": _DIALOG,
    "help": _MOVES,
}
_CHOSEN = re.compile(r"\bRUN RUN\b|\bRUN\b|\bBUNDLE\b")
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
    where = app.context.settings.user_file
    for word in THEMES:
        help_ = f"mlbundle tui --theme {word} · kept by tui_theme in {where}"
        yield SystemCommand(f"Theme: {word}", help_, lambda word=word: _take_theme(app, word))
    yield SystemCommand("Keys: how to change them", f"[keys] in {where}", lambda: _show_keys(app))
    yield SystemCommand("Save a picture of the screen", "an SVG file", app.deliver_screenshot)


def _take_theme(app: MlbundleApp, word: str) -> None:
    app.theme = THEMES[word]
    where = app.context.settings.user_file
    app.notify(f'to keep it: tui_theme = "{word}" in {where}', title=f"theme {word}", markup=False)


def _show_keys(app: MlbundleApp) -> None:
    from mlbundle_tui.keys import key_lines
    from mlbundle_tui.screens.dialogs import show_text

    settings = app.context.settings
    head = (
        f'They are given in {settings.user_file}:\n\n[keys]\n"runs.sort" = "o"\n"section.runs" = ["f6", "z"]'
    )
    show_text(app, "keys", "\n".join([head, "\nWhat can have keys:\n", *key_lines(settings)]), large=True)


def _command(app: MlbundleApp, node: DOMNode, binding: Binding, line: str) -> SystemCommand:
    async def run() -> None:
        await app.run_action(binding.action, node)

    words = [f"key {app.get_key_display(binding)}", line, binding.id or ""]
    # Sections are called as what is done in them: `Run` is one, and the key that runs is called so as well.
    purpose = _PURPOSES.get(binding.id or "")
    title = f"Go to {binding.description}: {purpose}" if purpose else binding.description
    return SystemCommand(title[:_MOST_TITLE], " · ".join(filter(None, words)), run)


def _line(screen: Screen[object], binding: Binding) -> str:
    """Return the command of an action; of one whose command is at the foot of the screen, with what is chosen.

    Enter on a table is the table's first, and does what the screen does with it.
    """
    if binding.id in {"section.copy", "table.select"}:
        return str(getattr(screen, "command_line", str)())
    chosen = screen.chosen() if isinstance(screen, Section) else {}
    names = [binding.id, *(other.id for other in screen._bindings.key_to_bindings.get(binding.key, ()))]
    line = next(filter(None, (COMMANDS.get(name or "") for name in names)), "")
    return _CHOSEN.sub(lambda word: chosen.get(word[0], word[0]), line)
