"""What colours mean. Views name meanings; the theme says which colour that is; nothing is told by colour alone."""

from __future__ import annotations

from collections.abc import Mapping

from rich.style import Style

from swift_tiers.radix_tiering.bus.hear.trouble import Mark

#: The style of a mark's word, and of what it is about.
MARKS = {Mark.OK: "good", Mark.NOTE: "note", Mark.WARNING: "warning", Mark.WRONG: "wrong"}

_DARK = {
    "text": "#d5dae6",
    "title": "bold #e6eaf5",
    "muted": "#7d8799",
    "stale": "#5c6475",
    "accent": "bold #7aa2f7",
    "good": "#9ece6a",
    "note": "#7dcfff",
    "warning": "bold #e0af68",
    "wrong": "bold #ff6b81",
    # tiers, from the fastest
    "device": "#7aa2f7",
    "peer": "#bb9af7",
    "host": "#7dcfff",
    "ssd": "#e0af68",
    "remote": "#c39a7a",
    "compute": "#9ece6a",
    "waiting": "#e0af68",
    # states of a page's slot
    "free": "#3b4252",
    "private": "#7aa2f7",
    "cached": "#5a9e6f",
    "pinned": "#e0af68",
    "lent": "#bb9af7",
    "borrowed": "#8a6fc7",
    "loading": "#7dcfff",
    "recomputing": "#9ece6a",
    "out": "#ff6b81",
    "cursor": "bold on #2a3a5e",
}
_LIGHT = {
    "text": "#2a2f3a",
    "title": "bold #14171d",
    "muted": "#687080",
    "stale": "#9aa1ad",
    "accent": "bold #1f5fbf",
    "good": "#2f7d32",
    "note": "#0b6e8f",
    "warning": "bold #9a5b00",
    "wrong": "bold #c01530",
    "device": "#1f5fbf",
    "peer": "#7a3fc0",
    "host": "#0b6e8f",
    "ssd": "#9a5b00",
    "remote": "#7a5230",
    "compute": "#2f7d32",
    "waiting": "#9a5b00",
    "free": "#c9ced8",
    "private": "#1f5fbf",
    "cached": "#2f7d32",
    "pinned": "#9a5b00",
    "lent": "#7a3fc0",
    "borrowed": "#a07ad0",
    "loading": "#0b8fb8",
    "recomputing": "#62a52f",
    "out": "#c01530",
    "cursor": "bold on #cfdcf5",
}

#: Where there are no colours, red and amber are two greys among others: what is wrong must not be the paler one.
_PLAIN = {"wrong": "bold reverse", "warning": "bold underline"}


class Palette:
    """Styles by meaning, for a dark or a light ground; `plain`: where there are no colours."""

    def __init__(self, dark: bool = True, plain: bool = False) -> None:
        self.dark = dark
        styles = _DARK if dark else _LIGHT
        if plain:
            styles = styles | {name: f"{style} {styles['title'].split()[-1]}" for name, style in _PLAIN.items()}
        self._styles: Mapping[str, Style] = {name: Style.parse(style) for name, style in styles.items()}

    def __getitem__(self, name: str) -> Style:
        """An unknown meaning is plain text: a server of another release may know states that we do not."""
        return self._styles.get(name, self._styles["text"])

    def mark(self, mark: Mark) -> Style:
        return self[MARKS[mark]]
