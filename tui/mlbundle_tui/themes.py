"""The two themes of our own; the third is the terminal's own colours."""

from __future__ import annotations

from textual.theme import Theme

DARK = Theme(
    name="mlbundle-dark",
    primary="#6ca4e8",
    secondary="#8f9bb3",
    accent="#dca561",
    success="#87b37a",
    warning="#dca561",
    error="#e06c75",
    foreground="#d6dae2",
    background="#14171c",
    surface="#191d24",
    panel="#232934",
    dark=True,
    variables={"block-cursor-text-style": "none", "footer-key-foreground": "#dca561"},
)
LIGHT = Theme(
    name="mlbundle-light",
    primary="#2f6db5",
    secondary="#5b6578",
    accent="#9a5b00",
    success="#2f7a35",
    warning="#9a5b00",
    error="#b3261e",
    foreground="#22262e",
    background="#fbfaf8",
    surface="#f3f1ed",
    panel="#e5e2dc",
    dark=False,
    variables={"block-cursor-text-style": "none", "footer-key-foreground": "#9a5b00"},
)
# What `--theme` takes -> the name of the theme.
THEMES = {"dark": DARK.name, "light": LIGHT.name, "ansi": "ansi-dark"}
