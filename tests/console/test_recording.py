"""Recordings: what is written is what is read, wherever it is cut or damaged."""

from __future__ import annotations

import errno
import math
import os
import stat
import struct
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swift_tiers.console.feeds import record_file
from swift_tiers.console.feeds.entries import Entries, State, changes, entries_of
from swift_tiers.console.feeds.feed import Look, Nature, ViewAnswers, ViewQuestion
from swift_tiers.console.feeds.record_file import FrameKind, Reader, RecordingError
from swift_tiers.console.feeds.recorded import RecordedFeed
from swift_tiers.console.feeds.recording import WHOLE_SECONDS, RecordingFeed
from swift_tiers.console.feeds.tape import Tape
from swift_tiers.radix_tiering.base.errors import BusError
from swift_tiers.radix_tiering.bus.contract.commands import Flush
from swift_tiers.radix_tiering.bus.contract.views import MapView, RequestView, ServerState, Snapshot
from swift_tiers.radix_tiering.bus.hear.event_reading import Gap, StreamEvent

from support.console_world import World, WorldFeed
from support.examples import examples


class Clock:
    """Stands still until it is told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class ChangingFeed(WorldFeed):
    """Each look brings an event; requests come and go, and so does a server."""

    too_large = False  # a figure of the next one

    def look(self) -> Look:
        look = super().look()
        number = self.looks
        event = StreamEvent(
            server="alpha",
            rank="dp0-tp0",
            entry=f"{number}-0",
            sequence=number,
            time=look.snapshot.time,
            happened=look.snapshot.time,
            age_seconds=0.0,
            kind="bus.returned",
            fields={"failures": number},
        )
        gap = (Gap(server="beta", rank="dp0-tp0", first=None, last=number),) if number % 7 == 3 else ()
        servers = [_with_requests(state, number) for state in look.snapshot.servers]
        if number % 10 >= 5:
            del servers[1]
        if self.too_large:
            servers[0] = msgspec.structs.replace(
                servers[0], server=msgspec.structs.replace(servers[0].server, pid=1 << 70)
            )
        return Look(snapshot=msgspec.structs.replace(look.snapshot, servers=tuple(servers)), items=(event, *gap))


def _with_requests(state: ServerState, number: int) -> ServerState:
    def made(rid: str, time: float) -> RequestView:
        return RequestView(server=state.server.server, rank="dp0-tp0", rid=rid, state="waiting", time=time)

    ranks = tuple(
        msgspec.structs.replace(
            rank, requests=tuple(made(f"r{one}", 5.0 + one) for one in range(number // 2, number // 2 + 4))
        )
        for rank in state.ranks
    )
    return msgspec.structs.replace(state, ranks=ranks)


def record(path: Path, looks: int, feed: WorldFeed | None = None, each: float = 0.5) -> list[Look]:
    """What was recorded, one look after the other from 0 s on."""
    clock = Clock()
    recording = RecordingFeed(feed or ChangingFeed(), path, "0.1.0", monotonic=clock, wall=lambda: 1.7e9)
    seen = []
    for _ in range(looks):
        seen.append(recording.look())
        clock.now += each
    recording.close()
    return seen


def items(looks: list[Look]) -> tuple[Any, ...]:
    return tuple(item for look in looks for item in look.items)


# ---- the round trip ----


def test_what_is_played_is_what_was_seen(tmp_path: Path) -> None:
    seen = record(tmp_path / "a.rec", 90)
    clock = Clock()
    feed = RecordedFeed(tmp_path / "a.rec", clock)
    assert (feed.nature, feed.steers) == (Nature.RECORDING, False)
    feed.player.play(True)
    for number, wanted in enumerate(seen):
        look = feed.look()
        assert look.snapshot == wanted.snapshot
        assert look.items == wanted.items
        assert look.anew == (number == 0)
        assert look.passed == ()
        clock.now += 0.5
    assert feed.look().items == ()


@pytest.mark.parametrize("way", [[44.0, 12.0], [12.0], [0.0, 44.0, 11.0, 12.0], [12.0, 12.0]])
def test_whichever_way_one_jumps_what_is_shown_is_what_had_been_seen_by_then(tmp_path: Path, way: list[float]) -> None:
    seen = record(tmp_path / "a.rec", 90)
    feed = RecordedFeed(tmp_path / "a.rec", Clock())
    look = feed.look()
    told, watched = [*look.items], [look.snapshot]
    for seconds in way:
        feed.player.seek(seconds)
        look = feed.look()
        if look.anew:
            told, watched = [], []
        told += look.items
        watched += [*look.passed, look.snapshot]
    assert look.snapshot == seen[24].snapshot
    assert tuple(told) == items(seen[:25])
    assert list(dict.fromkeys(one.time for one in watched)) == [one.snapshot.time for one in seen[:25]]


def test_stepping_back_begins_anew_and_stepping_on_does_not(tmp_path: Path) -> None:
    seen = record(tmp_path / "a.rec", 60)
    feed = RecordedFeed(tmp_path / "a.rec", Clock())
    feed.player.seek(20.0)
    feed.look()
    feed.player.step(1)
    on = feed.look()
    assert (on.anew, on.snapshot, on.items) == (False, seen[41].snapshot, seen[41].items)
    feed.player.step(-1)
    back = feed.look()
    assert (back.anew, back.snapshot, back.items) == (True, seen[40].snapshot, items(seen[:41]))
    assert [one.time for one in back.passed] == [look.snapshot.time for look in seen[:40]]


def test_what_is_passed_over_by_speed_is_told_too(tmp_path: Path) -> None:
    seen = record(tmp_path / "a.rec", 60)
    clock = Clock()
    feed = RecordedFeed(tmp_path / "a.rec", clock)
    feed.look()
    feed.player.set_speed(8)
    feed.player.play(True)
    clock.now += 1.0
    look = feed.look()
    assert look.snapshot == seen[16].snapshot
    assert look.items == items(seen[1:17])
    assert [one.time for one in look.passed] == [one.snapshot.time for one in seen[1:16]]


def test_what_stays_as_it_is_costs_little(tmp_path: Path) -> None:
    """Only the first look, and each whole one, is written in full."""
    feed = WorldFeed(ticks=0)
    record(tmp_path / "a.rec", 200, feed, each=0.1)
    with Reader(tmp_path / "a.rec") as reader:
        sizes = {kind: [one.length for one in reader.frames if one.kind == kind] for kind in FrameKind}
    assert len(sizes[FrameKind.WHOLE]) == 1 + int(199 * 0.1 / WHOLE_SECONDS)
    assert max(sizes[FrameKind.CHANGES]) < 50


Said = list[tuple[str, list[tuple[str, int, float | None]]]]  # servers, their requests: id, pages, age

ages = st.none() | st.integers(0, 9999).map(lambda halves: halves / 2)
requests = st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 3), ages), max_size=5, unique_by=lambda a: a[0])
servers = st.lists(st.tuples(st.sampled_from("xyz"), requests), max_size=3, unique_by=lambda one: one[0])


@given(st.lists(servers, min_size=1, max_size=6))
def test_changes_make_any_look_of_any_other(history: list[Said]) -> None:
    """In whatever order its parts are."""
    state, before = State(), {}
    state.begin(changes({}, {}, 0.0))
    for number, said in enumerate(history):
        snapshot = _snapshot(1.7e9 + number, said)
        found = entries_of(snapshot)
        written = msgspec.msgpack.encode(changes(before, found, snapshot.time))
        state.change(msgspec.msgpack.decode(written, type=Entries))
        assert state.snapshot() == snapshot
        before = found


def _snapshot(time: float, said: Said) -> Snapshot:
    world = World(servers=("x", "y", "z"), gone=()).snapshot()
    states = {state.server.server: state for state in world.servers}
    return Snapshot(time=time, servers=tuple(_server(states[name], time, those) for name, those in said))


def _server(state: ServerState, time: float, those: list[tuple[str, int, float | None]]) -> ServerState:
    name = state.server.server
    made = tuple(
        RequestView(server=name, rank="dp0-tp0", rid=rid, pages=pages, age_seconds=age) for rid, pages, age in those
    )
    return ServerState(
        server=msgspec.structs.replace(state.server, age_seconds=0.5),
        ranks=(msgspec.structs.replace(state.ranks[0], requests=made),),
    )


# ---- answers, and a Redis that is lost ----


def test_answers_are_written_when_they_change_and_age_while_they_are_played(tmp_path: Path) -> None:
    question, other = ViewQuestion("map", "host"), ViewQuestion("map", "ssd", "alpha")
    world, clock = WorldFeed(), Clock()
    recording = RecordingFeed(world, tmp_path / "a.rec", "0.1.0", monotonic=clock)

    def say(used: int, time: float) -> None:
        view = MapView(
            server="alpha", rank="dp0-tp0", tier="host", slots=9, cells=(("free", used),), time=time, age_seconds=0.5
        )
        world.replies[question] = ViewAnswers(views=(view,), silent=(("beta", "dp0-tp0"),))

    for second, used in enumerate((1, 1, 2, 2, 2)):
        recording.look()
        say(used, 10.0 + second)
        recording.ask(question)
        clock.now += 1.0
    recording.look()
    recording.close()
    with Reader(tmp_path / "a.rec") as reader:
        assert [frame.at for frame in reader.frames if frame.kind == FrameKind.ANSWERS] == [0.0, 2.0]
    feed = RecordedFeed(tmp_path / "a.rec", Clock())
    for seconds, used, age in ((0.0, 1, 0.5), (1.5, 1, 2.0), (4.0, 2, 2.5), (0.5, 1, 1.0)):
        feed.player.seek(seconds)
        answers = feed.ask(question)
        assert answers.views[0].cells == (("free", used),)
        assert answers.views[0].age_seconds == age
        assert answers.silent == (("beta", "dp0-tp0"),)
    with pytest.raises(BusError, match="nobody had asked"):
        feed.ask(other)
    with pytest.raises(BusError, match="cannot be steered"):
        feed.command("alpha", Flush())


def test_a_redis_that_was_lost_is_lost_when_it_is_played(tmp_path: Path) -> None:
    world, clock = WorldFeed(), Clock()
    recording = RecordingFeed(world, tmp_path / "a.rec", "0.1.0", monotonic=clock)
    for second in range(8):
        world.lost = "no route to Redis" if second in (3, 4) else ""
        if world.lost:
            with pytest.raises(BusError):
                recording.look()
        else:
            recording.look()
        clock.now += 1.0
    recording.close()
    feed = RecordedFeed(tmp_path / "a.rec", Clock())
    for seconds in (3.0, 4.5):
        feed.player.seek(seconds)
        with pytest.raises(BusError, match="at that time: no route to Redis"):
            feed.look()
    for seconds in (5.0, 2.9):
        feed.player.seek(seconds)
        feed.look()


# ---- files that are not as they should be ----


def test_the_file_is_its_users_alone_and_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    record(path, 2)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(RecordingError, match=r"a\.rec: is there already"):
        record(path, 2)
    with pytest.raises(RecordingError, match="No such file"):
        record(tmp_path / "none" / "a.rec", 2)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04 a zip", "is no recording"),
        (b"SWIFT-TIERS RECORDING 2\n....", "is of version '2'; this swift-tiers reads version 1"),
        (b"SWIFT-TIERS RECORDING 1\n", "cut at its beginning"),
    ],
)
def test_other_files_are_refused_with_a_line(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "a.rec"
    path.write_bytes(content)
    with pytest.raises(RecordingError, match=said):
        RecordedFeed(path)


def test_a_file_that_is_not_there_or_a_directory_is_refused_with_a_line(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(RecordingError, match=str(path)):
            RecordedFeed(path)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, list[Look]]:
    path = tmp_path_factory.mktemp("recorded") / "a.rec"
    seen = record(path, 12, each=5.0)
    return path.read_bytes(), seen


def read_back(path: Path, seen: list[Look]) -> int:
    """How many looks it still has; each is as it was. 0: it is refused, with one line."""
    try:
        feed = RecordedFeed(path, Clock())
    except RecordingError as error:
        return 0 if _is_a_line(str(error), path) else -1
    try:
        times = feed.player._times
        for seconds in times:
            feed.player.seek(seconds)
            assert feed.look().snapshot == seen[round(seconds / 5.0)].snapshot
        return len(times)
    finally:
        feed.close()


@given(st.floats(0, 1), st.booleans())
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_that_is_cut_anywhere_is_read_up_to_there(
    recorded: tuple[bytes, list[Look]], tmp_path: Path, share: float, zeros: bool
) -> None:
    content, seen = recorded
    kept = int(share * len(content))
    path = tmp_path / "a.rec"
    path.write_bytes(content[:kept] + bytes(5000 if zeros else 0))
    left = read_back(path, seen)
    whole = sum(end <= kept for end in _ends(content))
    # Zeros behind a cut may look like the rest of a frame: then its checksum tells.
    assert left == whole or (zeros and left == 0)


def _is_a_line(said: str, path: Path) -> bool:
    return str(path) in said and "\n" not in said


def _ends(content: bytes) -> list[int]:
    """Where each look ends, by the document alone."""
    offset, ends = content.index(b"\n") + 1, []
    while offset < len(content):
        kind, length, _ = struct.unpack_from(">BId", content, offset)
        offset += 17 + length
        if kind in (2, 3):
            ends.append(offset)
    return ends


@given(st.data())
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_byte_never_changes_what_is_seen(
    recorded: tuple[bytes, list[Look]], tmp_path: Path, data: st.DataObject
) -> None:
    content, seen = recorded
    at = data.draw(st.integers(0, len(content) - 1))
    broken = bytearray(content)
    broken[at] ^= data.draw(st.integers(1, 255))
    path = tmp_path / "a.rec"
    path.write_bytes(broken)
    assert 0 <= read_back(path, seen) <= len(seen)


def forged(path: Path, *frames: tuple[int, float, bytes]) -> Path:
    """A file with checksums that fit."""
    content = b"SWIFT-TIERS RECORDING 1\n"
    head = msgspec.msgpack.encode({"name": "x", "nature": "live", "began": 0.0, "version": "0"})
    for kind, at, raw in ((1, 0.0, head), *frames):
        packed = zlib.compress(raw)
        header = struct.pack(">BId", kind, len(packed), at)
        content += header + struct.pack(">I", zlib.crc32(packed, zlib.crc32(header))) + packed
    path.write_bytes(content)
    return path


def whole(*entries: tuple[list[str], dict[str, Any]], **more: Any) -> bytes:
    return msgspec.msgpack.encode({"time": 1.0, "entries": list(entries), **more})


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        ([(2, 0.0, b"\xc1")], "cannot be read"),
        ([(2, 0.0, whole((["a"], {"alive": "perhaps"})))], "is no recording of the bus"),
        ([(2, 0.0, whole((["a", "r", "tiers", "host"], {})))], "is no recording of the bus"),
        ([(2, 0.0, whole(([], {})))], "is no recording of the bus"),
        ([(2, 0.0, whole((["a"], {"alive": True, "up_seconds": math.inf})))], "inf is no figure"),
        ([(2, 0.0, whole((["a"], {"alive": True, "configuration": {"x": [math.nan]}})))], "nan is no figure"),
        ([(2, 0.0, whole(order=[["a"]]))], "is no recording of the bus"),
        ([(2, 0.0, bytes(record_file.MOST_BYTES + 1))], "more than"),
        ([(3, 0.0, whole())], "holds no look"),
        ([(6, 0.0, msgspec.msgpack.encode("gone"))], "holds no look"),
        ([(2, 9.0, whole()), (3, 1.0, whole())], "time goes back"),
    ],
)
def test_what_was_made_up_is_refused_with_a_line(
    tmp_path: Path, frames: list[tuple[int, float, bytes]], said: str
) -> None:
    path = forged(tmp_path / "a.rec", *frames)
    with pytest.raises(RecordingError, match=said) as caught:
        RecordedFeed(path)
    assert "\n" not in str(caught.value)


def test_events_at_no_time_are_refused_when_they_are_played(tmp_path: Path) -> None:
    made_up = msgspec.msgpack.encode(
        [
            StreamEvent(
                server="a",
                rank="r",
                entry="1-0",
                sequence=1,
                time=None,
                happened=math.nan,
                age_seconds=0.0,
                kind="x",
                fields={},
            )
        ]
    )
    feed = RecordedFeed(forged(tmp_path / "a.rec", (2, 0.0, whole()), (4, 0.0, made_up)), Clock())
    with pytest.raises(RecordingError, match="nan is no figure"):
        feed.look()


def test_a_kind_of_another_release_is_passed_over(tmp_path: Path) -> None:
    feed = RecordedFeed(forged(tmp_path / "a.rec", (2, 0.0, whole()), (99, 1.0, b"?"), (3, 2.0, whole())), Clock())
    feed.player.seek(2.0)
    assert feed.look().snapshot == Snapshot(time=1.0)


# ---- a disk that is full ----


def test_a_full_disk_ends_the_recording_and_not_the_console(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.rec"
    clock, room = Clock(), 20_000
    recording = RecordingFeed(WorldFeed(), path, "0.1.0", monotonic=clock)
    write = os.write

    def scarce(file: int, data: bytes) -> int:
        free = room - os.fstat(file).st_size
        if free <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data[:free])

    monkeypatch.setattr(os, "write", scarce)
    for _ in range(200):
        recording.look()
        clock.now += 0.5
    assert "NOT RECORDED any more" in recording.name
    assert "No space left on device" in recording.name
    recording.close()
    feed = RecordedFeed(path, Clock())
    assert "cut" not in feed.name  # the frame that had no room was taken back
    assert feed.player.length > 1


def test_what_no_file_can_hold_is_a_look_that_is_missing_and_no_more(tmp_path: Path) -> None:
    """Those behind it are played as they were seen."""
    path, clock, feed = tmp_path / "one", Clock(), ChangingFeed()
    recording = RecordingFeed(feed, path, "1", monotonic=clock)
    looks = []
    for number in range(6):
        clock.now += 1.0
        feed.too_large = number == 2
        looks.append(recording.look())
    assert "NOT RECORDED" not in recording.name
    recording.close()
    with closing(Tape(path)) as tape:
        del looks[2]
        assert [tape.snapshot(number) for number in range(len(tape.times))] == [look.snapshot for look in looks]
        assert "cannot be recorded" in tape.lost(3.5)
        assert not tape.lost(4.5)


def test_that_nothing_can_be_recorded_is_said_while_it_is_and_when_it_is_played(tmp_path: Path) -> None:
    path, feed = tmp_path / "one", ChangingFeed()
    feed.too_large = True
    recording = RecordingFeed(feed, path, "1", monotonic=Clock())
    recording.look()
    assert "NOT RECORDED: it cannot be recorded" in recording.name
    recording.close()
    with pytest.raises(RecordingError, match="holds no look: it cannot be recorded"):
        RecordedFeed(path)


def test_a_recording_without_a_look_is_taken_away_and_nobody_elses_file(tmp_path: Path) -> None:
    path = tmp_path / "one"
    RecordingFeed(ChangingFeed(), path, "1").close()
    assert not path.exists()
    recording = RecordingFeed(ChangingFeed(), path, "1")
    path.unlink()
    path.write_text("mine")
    recording.close()
    assert path.read_text() == "mine"


def test_a_forgotten_recording_ends(tmp_path: Path) -> None:
    clock = Clock()
    recording = RecordingFeed(WorldFeed(), tmp_path / "a.rec", "0.1.0", monotonic=clock, most_bytes=30_000)
    for _ in range(200):
        recording.look()
        clock.now += 0.5
    assert "has grown to" in recording.name
    assert (tmp_path / "a.rec").stat().st_size < 60_000
    assert RecordedFeed(tmp_path / "a.rec").player.length > 1


def test_an_event_that_no_file_can_hold_is_a_gap_among_the_others(tmp_path: Path) -> None:
    class Feed(ChangingFeed):
        def look(self) -> Look:
            look = super().look()
            (event,) = look.items
            too_large = msgspec.structs.replace(event, sequence=100, fields={"pages": 1 << 70})
            items = (event, too_large, msgspec.structs.replace(event, sequence=101))
            return msgspec.structs.replace(look, items=items)

    (look,) = record(tmp_path / "one", 1, Feed())
    with closing(Tape(tmp_path / "one")) as tape:
        before, too_large, behind = look.items
        gap = Gap(server=too_large.server, rank=too_large.rank, first=100, last=100)
        assert tape.items(None, 0, 10) == (before, gap, behind)
