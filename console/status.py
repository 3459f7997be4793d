"""The lines around a view."""

from __future__ import annotations

from rich.text import Text

from swift_tiers.radix_tiering.bus.hear.figures import seconds, text

from .feeds.feed import Nature
from .model.alarms import how_many
from .session import Session
from .views import VIEWS

#: What is looked at where that is no bus.
SIGNS = {Nature.RECORDING: "RECORDING ", Nature.DEMO: "DEMO, all simulated: "}
#: A look that is older than so many intervals, and so many seconds, is said to be old.
OLD_LOOKS, OLD_SECONDS = 3, 2.0


def status_line(session: Session, width: int) -> Text:
    """What is looked at, whether it is fresh, how many alarms there are, the time."""
    line = _line(session, ("swift-tiers ", "title"), *_nature(session))
    right = _line(session, *_alarms(session), (f"{session.now():%H:%M:%S}", "muted"))
    room = width - right.cell_len
    line.truncate(max(0, room - 1), overflow="ellipsis" if not session.glyphs.ascii else "crop")
    line.append(" " * max(1, width - line.cell_len - right.cell_len))
    line.append_text(right)
    return line


def _nature(session: Session) -> list[tuple[str, str]]:
    moment, feed = session.moment, session.feed
    age = seconds(round(moment.age, 1))
    if feed.nature in SIGNS:
        words = [(SIGNS[feed.nature], "warning")]
        if session.paused:
            words.append((f"PAUSED, {age} old ", "warning"))
    elif session.lost:
        shown = f", shown is {age} old" if moment.snapshot is not None else ""
        return [(f"LOST{shown} ", "wrong"), (feed.name, "muted")]
    elif moment.snapshot is None:
        return [("connecting ", "note"), (f"to {feed.name}", "muted")]
    elif session.paused:
        words = [(f"PAUSED, {age} old ", "warning")]
    elif _is_stale(session):
        words = [(f"STALE, {age} old ", "wrong")]
    else:
        words = [(f"LIVE every {session.interval:g} s ", "good")]
    player = feed.player
    if player is not None:
        state = "playing" if player.playing else "paused"
        words.append((f"{_clock(player.position)}/{_clock(player.length)} {state} x{player.speed:g} ", "accent"))
    if session.readonly and feed.nature is Nature.LIVE:
        words.append(("readonly ", "note"))
    if session.navigation.only is not None:
        words.append((f"only {text(session.navigation.only)} ", "accent"))
    return [*words, (feed.name, "muted")]


def _alarms(session: Session) -> list[tuple[str, str]]:
    if session.moment.snapshot is None:
        return []
    # Of what is paused, that moment's is told.
    current = not session.lost and (session.paused or not _is_stale(session))
    said = how_many(session.moment.alarms, len(session.moment.servers), current=current)
    return [(f"{words} ", style) for words, style in said]


def _is_stale(session: Session) -> bool:
    return session.feed.nature not in SIGNS and session.moment.age > max(OLD_SECONDS, OLD_LOOKS * session.interval)


def _clock(value: float) -> str:
    return f"{int(value) // 60:02}:{int(value) % 60:02}"


def tabs_line(session: Session, width: int) -> Text:
    """The views with their digits; the one on the screen is marked, also without colour."""
    short = sum(len(view.TITLE) + 3 for view in VIEWS) + 1 > width
    line = Text(no_wrap=True, end="")
    for number, view in enumerate(VIEWS, 1):
        here = session.navigation.place.view == view.NAME
        title = view.TITLE[: 4 if short else None]
        style = session.style("title" if here else "muted", f"app.view('{view.NAME}')")
        if here:
            style += session.style("accent")
        line.append(f"[{number} {title}]" if here else f"{number} {title}", style)
        line.append(" ")
    return line


def crumbs_line(session: Session, width: int) -> Text:
    """Where the operator is, and what the table is sifted by; at a view's top, the question that it answers."""
    navigation, glyphs = session.navigation, session.glyphs
    line = Text(no_wrap=True, end="")
    line.append(session.view.TITLE, session.style("title", "app.go(0)"))
    for depth, (name, _) in enumerate(navigation.crumbs, 1):
        line.append(" ")
        line.append(f"{glyphs.right} ", session.style("muted"))
        line.append(glyphs.cut(text(name), 28), session.style("accent", f"app.go({depth})"))
    if not navigation.crumbs:
        line.append("  ")
        line.append(session.view.QUESTION, session.style("muted"))
    right = Text(no_wrap=True, end="")
    windows = session.view.windows(navigation.place)
    if windows:
        right.append(f"{windows}  ", session.style("muted"))
    if session.layout_words:
        right.append(f"{session.layout_words} ", session.style("note"))
    if navigation.sieve:
        right.append(f"/{navigation.sieve.text} ", session.style("note"))
    shown = session.shown
    table, rows = shown.table, shown.rows
    if table.columns and not shown.is_hidden:
        cursor = shown.cursor + 1 if rows else 0
        of = f" of {len(table.rows)}" if len(rows) != len(table.rows) else ""
        right.append(f"{cursor}/{len(rows)}{of}", session.style("muted"))
    line.truncate(max(0, width - right.cell_len - 1), overflow="crop" if glyphs.ascii else "ellipsis")
    line.append(" " * max(1, width - line.cell_len - right.cell_len))
    line.append_text(right)
    return line


def _line(session: Session, *parts: tuple[str, str]) -> Text:
    line = Text(no_wrap=True, end="")
    for words, style in parts:
        line.append(" " * (len(words) - len(words.lstrip(" "))))
        line.append(words.lstrip(" "), session.style(style))
    return line
