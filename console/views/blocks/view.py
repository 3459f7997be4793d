"""Where is each page, and what is in each slot?"""

from __future__ import annotations

from rich.text import Text

from ...feeds.feed import ViewQuestion
from ...model.table import Table
from ..parts.view import ConsoleView, OfferedAction, Scene
from .blocks_page import PageLevel
from .blocks_sequence import SequenceLevel
from .blocks_tier import SHARE, TierLevel
from .blocks_top import TopLevel

#: What is shown, by the innermost step of the place.
LEVELS: dict[str, ConsoleView] = {
    "server": TopLevel(),
    "rank": TopLevel(),
    "tier": TierLevel(),
    "slot": TierLevel(),
    "request": SequenceLevel(),
    "prefix": SequenceLevel(),
    "page": PageLevel(),
}


class Blocks(ConsoleView):
    """Top: tiers and requests. In a tier: its slots. In a request: its pages. In a page: its life."""

    NAME = "blocks"
    TITLE = "Blocks"
    QUESTION = "where is each page, and what is in each slot?"
    SHOWS_REQUESTS = True
    FOLLOWS_CURSOR = True
    LINES_SHARE = SHARE

    def lines(self, scene: Scene) -> list[Text]:
        return _level(scene).lines(scene)

    def table(self, scene: Scene) -> Table:
        return _level(scene).table(scene)

    def offers(self, scene: Scene) -> tuple[OfferedAction, ...]:
        return _level(scene).offers(scene)

    def questions(self, scene: Scene) -> tuple[ViewQuestion, ...]:
        return _level(scene).questions(scene)


def _level(scene: Scene) -> ConsoleView:
    last = scene.place.last
    return LEVELS["server"] if last is None else LEVELS.get(last.kind, LEVELS["server"])
