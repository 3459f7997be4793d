"""What became of a question, in one line; and what can be told of keys of which only the beginning is known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.text import Text

from swift_tiers.radix_tiering.bus.contract.views import PageView, PrefixView
from swift_tiers.radix_tiering.bus.hear.figures import seconds, text

from ...feeds.feed import ViewQuestion
from .view import Scene

#: Hexadecimal digits of a whole key of a page, and of those that stand in lists.
KEY_DIGITS, LISTED_DIGITS = 64, 16
#: Answers that are older than this, seconds, are greyed: servers are asked about once a second, and may take three.
OLD_SECONDS = 10.0
#: Ranks that are named in one line.
NAMED = 4


def views_of(scene: Scene, question: ViewQuestion) -> tuple[Any, ...]:
    """The answers that there are."""
    said = scene.answers.get(question)
    return () if said is None else said.answers.views


def answer_of(scene: Scene, question: ViewQuestion, server: str, rank: str) -> Any | None:
    """That of one rank."""
    return next((view for view in views_of(scene, question) if (view.server, view.rank) == (server, rank)), None)


def is_stale(scene: Scene, question: ViewQuestion) -> bool:
    """Whether what was answered may no longer be so."""
    said = scene.answers.get(question)
    return bool(scene.moment.lost) or (said is not None and said.age > OLD_SECONDS)


def answer_line(scene: Scene, question: ViewQuestion, what: str) -> Text:
    """Whether there is an answer, how old it is, and who was silent. `what` is asked for: `where page 5e5e is`."""
    said = scene.answers.get(question)
    if said is None:
        dots = "..." if scene.glyphs.ascii else "…"
        return scene.line(("asking ", "note"), f"{what} {dots}")
    parts: list[tuple[str, str] | str] = []
    if said.failed:
        parts.append((f"no newer answer: {text(said.failed)}  ", "wrong"))
    if said.answers.views:
        ages = [view.age_seconds for view in said.answers.views if view.age_seconds is not None]
        parts.append(f"answered {seconds(round(max(ages, default=0.0) + said.age, 1))} ago  ")
    elif not said.failed and not said.answers.silent:
        parts.append((f"there is nobody to ask {what}", "warning"))
    silent = [f"{text(server)} {text(rank)}" for server, rank in said.answers.silent]
    if silent:
        more = f" and {len(silent) - NAMED} more" if len(silent) > NAMED else ""
        parts.append((f"no answer from {', '.join(silent[:NAMED])}{more}", "warning"))
    return scene.line(*parts)


def whole_keys(scene: Scene) -> Mapping[str, str]:
    """Whole keys of pages that are on the screen's moment, by their first digits: those of requests and answers."""
    return {key[:LISTED_DIGITS]: key for key in _keys(scene) if len(key) == KEY_DIGITS}


def _keys(scene: Scene) -> Iterable[str]:
    for state in scene.moment.servers:
        for rank in state.ranks:
            for request in rank.requests:
                yield request.last_page
    for said in scene.answers.values():
        for view in said.answers.views:
            if isinstance(view, (PageView, PrefixView)):
                yield view.key
            if isinstance(view, PageView):
                yield view.parent
    for step in scene.place.steps:
        if step.kind in ("page", "prefix"):
            yield step.name


def flowing(scene: Scene, words: Iterable[tuple[tuple[str, str] | str, ...]], gap: str = "  ") -> list[Text]:
    """Groups of parts, as many in a line as have room."""
    lines: list[Text] = []
    for group in words:
        part = scene.line(*group)
        if lines and lines[-1].cell_len + len(gap) + part.cell_len <= scene.width:
            lines[-1].append(gap)
            lines[-1].append_text(part)
        else:
            lines.append(part)
    return lines
