"""What the server's log says of events."""

from __future__ import annotations

from pathlib import Path

import swift_tiers.radix_tiering as engine
from swift_tiers.radix_tiering.base.events import EventLog
from swift_tiers.sglang_ext.tell.log_lines import AGAIN_SECONDS, LINES, MOST_NEWS, LogLines


class Said:
    def __init__(self, caplog) -> None:
        caplog.set_level("DEBUG")
        self.now, self._caplog = 100.0, caplog
        self.log = EventLog(lambda: self.now, hear=LogLines(lambda: self.now).hear)

    def lines(self) -> list[str]:
        lines = [record.getMessage() for record in self._caplog.records]
        self._caplog.clear()
        return lines


def test_what_makes_a_server_serve_less_is_said_with_what_to_do(caplog) -> None:
    said = Said(caplog)
    said.log.emit("device.out", device="/ssd1/x", reason="3 reads in a row failed: EIO")
    (line,) = said.lines()
    assert line.startswith("swift-tiers: /ssd1/x is out of service: 3 reads in a row failed: EIO; ")
    assert "replace it and restart" in line
    said.log.emit("restore.expired", pages=3, seconds=2.0)
    assert said.lines() == [], "a figure says that"


def test_the_same_news_is_said_once_a_minute_and_how_often_it_came(caplog) -> None:
    said = Said(caplog)
    for _ in range(50):
        said.log.emit("page.corrupt", tier="ssd", key="00", reason="checksum")
    said.log.emit("page.corrupt", tier="host", key="00", slot=1)
    assert [("ssd" in line, "more" in line) for line in said.lines()] == [(True, False), (False, False)]
    said.now += AGAIN_SECONDS
    said.log.emit("page.corrupt", tier="ssd", key="00", reason="checksum")
    (line,) = said.lines()
    assert line.endswith("(49 more since the last line)")


def test_what_was_said_takes_no_memory_for_ever(caplog) -> None:
    said, lines = Said(caplog), LogLines(lambda: 0.0)
    log = EventLog(lambda: 0.0, hear=lines.hear)
    for number in range(3 * MOST_NEWS):
        log.emit("remote.engine_gone", reason=f"{number}")
    assert len(lines._said) <= MOST_NEWS
    assert len(said.lines()) == 3 * MOST_NEWS


def test_every_line_is_of_an_event_that_there_is() -> None:
    source = "".join(file.read_text() for file in Path(engine.__file__).parent.rglob("*.py"))
    for kind in LINES:
        what = kind.partition(".")[2]
        assert f'"{kind}"' in source or f'}}.{what}"' in source, kind
