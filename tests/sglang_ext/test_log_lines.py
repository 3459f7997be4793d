"""What the server's log says of events."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import swift_tiers.radix_tiering as engine
from swift_tiers.radix_tiering.base.events import EventLog
from swift_tiers.radix_tiering.base.repeats import AGAIN_SECONDS, MOST_NEWS
from swift_tiers.sglang_ext.tell.guard import never_raises
from swift_tiers.sglang_ext.tell.log_lines import LINES, LogLines


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
    assert "replace it if need be" in line
    said.log.emit("device.back", device="/ssd1/x")
    assert said.lines() == ["swift-tiers: /ssd1/x is in service again, with nothing on it"]
    said.log.emit("restore.expired", pages=3, seconds=2.0)
    assert said.lines() == [], "a figure says that"


def test_what_is_wrong_with_the_remote_engine_is_said_with_its_reason(caplog) -> None:
    said = Said(caplog)
    said.log.emit("remote.cannot_be_opened", reason="no library of it is installed")
    said.log.emit("remote.fails", reason="put: OSError('refused')")
    opened, fails = said.lines()
    assert "cannot be opened: no library of it is installed; " in opened
    assert "`swift-tiers doctor`" in opened
    assert "fails: put: OSError('refused'); that is not asked of it for a while" in fails


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
    assert len(lines._repeats._said) <= MOST_NEWS
    assert len(said.lines()) == 3 * MOST_NEWS


def test_every_line_is_of_an_event_that_there_is() -> None:
    source = "".join(file.read_text() for file in Path(engine.__file__).parent.rglob("*.py"))
    for kind in LINES:
        what = kind.partition(".")[2]
        assert f'"{kind}"' in source or f'}}.{what}"' in source, kind


def test_an_error_that_comes_in_every_step_is_logged_once_a_minute(caplog) -> None:
    class Part:
        __slots__ = ("stack",)

        def __init__(self) -> None:
            self.stack = SimpleNamespace(events=EventLog(lambda: 0.0))

        @never_raises(lambda: 7)
        def step(self, what: str) -> int:
            raise RuntimeError(what)

    part = Part()
    assert [part.step("one") for _ in range(100)] == [7] * 100
    assert part.step("two") == 7
    told = [record.getMessage() for record in caplog.records]
    assert told == ["swift-tiers: step failed; going on without the tiers"] * 2
    assert len(part.stack.events.since()) == 101, "the stream has each"
    assert Part().step("one") == 7
    assert len(caplog.records) == 3, "that of another"
