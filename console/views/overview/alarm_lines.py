"""Alarms as lines: the worst in full, with what to do, and the others as far as there is room."""

from __future__ import annotations

from rich.text import Text

from swift_tiers.radix_tiering.bus.hear.figures import seconds, text

from ...model.alarms import Alarm
from ...model.palette import MARKS
from ...model.wrapping import wrapped
from ..parts.view import Scene

#: Cells before the place of an alarm.
MARK = 8


def alarm_lines(scene: Scene, alarms: list[Alarm], room: int) -> list[Text]:
    """At most `room` lines. Each alarm has one at least; then, from the worst on, those that need more get it."""
    if not alarms:
        if scene.moment.lost:
            return [scene.line(("nothing was wrong when it was seen last; what is now is not known", "text"))]
        return [scene.line((" ok ", "good"), ("nothing is wrong", "text"))]
    shown = alarms if len(alarms) <= room else alarms[: max(1, room - 1)]
    lines = [[_cut(scene, alarm)] for alarm in shown]
    left = room - len(shown) - (len(shown) < len(alarms))
    for number, alarm in enumerate(shown):
        full = _full(scene, alarm)
        if len(full) - 1 <= left:
            lines[number] = full
            left -= len(full) - 1
    found = [line for several in lines for line in several]
    if len(shown) < len(alarms):
        more = f"{len(alarms) - len(shown)} more; enter a server to see all of its own"
        found.append(scene.line(f"{'':{MARK}}and {more}"))
    return found


def _words(scene: Scene, alarm: Alarm) -> Text:
    return scene.line(
        (f"{alarm.mark!s:>7} ", MARKS[alarm.mark]), (f"{text(alarm.place)}: ", "title"), (alarm.what, "text")
    )


def _ago(scene: Scene, alarm: Alarm) -> str:
    now = scene.moment.snapshot.time if scene.moment.snapshot is not None else 0.0
    lasts = round(max(0.0, now - alarm.since))
    return f"  for {f'{lasts} s' if lasts < 60 else seconds(lasts)}"  # tenths of seconds would only flicker


def _remedy(scene: Scene, alarm: Alarm) -> str:
    return f"{scene.glyphs.right} {alarm.remedy}" if alarm.remedy else ""


def _full(scene: Scene, alarm: Alarm) -> list[Text]:
    """What is wrong, since when, and what to do: beside each other, or beneath."""
    line, ago, remedy = _words(scene, alarm), _ago(scene, alarm), _remedy(scene, alarm)
    if not scene.width - len(ago) < line.cell_len <= scene.width:
        line.append_text(scene.line(ago))  # it costs no line of its own
    if not remedy:
        return wrapped([line], scene.width, MARK)
    if line.cell_len + 2 + len(remedy) <= scene.width:
        line.append_text(scene.line(f"  {remedy}"))
        return [line]
    beneath = scene.line(f"{'':{MARK}}{remedy}")
    return [*wrapped([line], scene.width, MARK), *wrapped([beneath], scene.width, MARK + 2)]


def _cut(scene: Scene, alarm: Alarm) -> Text:
    """All of it that one line has room for: since when only if that costs nothing of what is wrong."""
    line, ago, remedy = _words(scene, alarm), _ago(scene, alarm), _remedy(scene, alarm)
    if line.cell_len + len(ago) <= scene.width:
        line.append_text(scene.line(ago))
        if remedy and line.cell_len + 2 + len(remedy) <= scene.width:
            line.append_text(scene.line(f"  {remedy}"))
    if line.cell_len > scene.width:
        line.truncate(scene.width - len(scene.glyphs.ellipsis))
        line.append(scene.glyphs.ellipsis)
    return line
