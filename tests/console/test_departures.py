"""Who is gone: whether it said so, and what is told of it."""

from __future__ import annotations

import msgspec
import pytest

from swift_tiers.console.model.alarms import LONGEST_STEP, SILENT_SECONDS, Alarm, Alarms
from swift_tiers.console.model.departures import Departures, Going
from swift_tiers.console.model.history import History
from swift_tiers.radix_tiering.bus.contract.views import ServerState, ServerView, Snapshot
from swift_tiers.radix_tiering.bus.hear.figures import count
from swift_tiers.radix_tiering.bus.hear.trouble import Mark

from support.console_world import GIB, World

TTL = 5.0
#: When somebody looks while nothing more happens, seconds.
SILENCE = tuple(LONGEST_STEP * look for look in range(1, int(SILENT_SECONDS / LONGEST_STEP)))


def told(world: World, time: float, heartbeat: float, *, there: bool) -> Snapshot:
    """What the bus says of alpha at a time, with its last heartbeat; of the others as always."""
    snapshot = world.snapshot()
    first, *others = snapshot.servers
    if there:
        server = msgspec.structs.replace(first.server, age_seconds=time - heartbeat)
        state = msgspec.structs.replace(first, server=server)
    else:
        state = ServerState(server=ServerView(server="alpha", alive=False, age_seconds=time - heartbeat))
    return Snapshot(time=time, servers=(state, *others))


def going(died: float, looks: list[float], *, in_order: bool) -> Going | None:
    """What is told after looks at these times of a server that ends at `died`."""
    world, departures = World(gone=()), Departures()
    found: dict = {}
    for time in looks:
        heartbeat = min(died, time) // 0.5 * 0.5
        there = time < died or (not in_order and time < heartbeat + TTL)
        found = departures.observe(told(world, time, heartbeat, there=there))
    return found["alpha"].going if "alpha" in found else None


@pytest.mark.parametrize("every", [0.1, 0.5, 1.0])
def test_one_that_is_killed_has_vanished(every: float) -> None:
    looks = [every * number for number in range(int(20 / every))]
    assert going(7.3, looks, in_order=False) is Going.VANISHED


@pytest.mark.parametrize("every", [0.1, 0.5, 1.0, 4.0])
def test_one_that_is_stopped_was_stopped(every: float) -> None:
    looks = [every * number for number in range(int(20 / every))]
    assert going(7.3, looks, in_order=True) is Going.STOPPED


@pytest.mark.parametrize("in_order", [True, False])
def test_what_nobody_saw_is_not_told(in_order: bool) -> None:
    """The bus was away meanwhile, or the console looks once a minute, or it was begun later."""
    assert going(7.3, [6.0, 7.0, 60.0, 60.5, 90.0], in_order=in_order) is Going.UNKNOWN
    assert going(7.3, [30.0, 31.0], in_order=in_order) is Going.UNKNOWN


def test_one_that_comes_back_is_there() -> None:
    world, departures = World(gone=()), Departures()
    for time, there in ((1.0, True), (2.0, False), (3.0, True)):
        found = departures.observe(told(world, time, time - 0.2, there=there))
        assert ("alpha" in found) is not there


def alarm(world: World, alarms: Alarms, time: float, heartbeat: float, *, there: bool) -> Alarm | None:
    snapshot = told(world, time, heartbeat, there=there)
    return next((one for one in alarms.of(snapshot, History()) if one.place == "alpha"), None)


def test_a_donor_that_died_is_wrong_and_what_it_lent_is_said() -> None:
    world, alarms = World(gone=()), Alarms()
    alarm(world, alarms, 1.0, 0.8, there=True)
    silent = alarm(world, alarms, 4.0, 0.8, there=True)
    assert silent is not None
    assert (silent.mark, silent.what) == (Mark.WARNING, "has said nothing for 3.2 s")
    said = alarm(world, alarms, 6.0, 0.8, there=False)
    assert said is not None
    assert said.mark is Mark.WRONG
    assert said.what.startswith("is GONE: it died, hangs, or is cut off from Redis; last heard of 5.2 s ago")
    assert said.what.endswith("it lent 2GiB to beta.dp0-tp0")
    assert said.remedy
    later = alarm(world, alarms, 100.0, 0.8, there=False)
    assert later is not None
    assert (later.mark, later.since) == (Mark.WRONG, 6.0), "its age is told in minutes now, and it is the same alarm"


def test_one_that_was_stopped_is_a_note() -> None:
    world, alarms = World(gone=()), Alarms()
    alarm(world, alarms, 1.0, 0.8, there=True)
    said = alarm(world, alarms, 1.5, 1.2, there=False)
    assert said is not None
    assert (said.mark, said.what) == (Mark.NOTE, "was stopped; last heard of 300 ms ago")


def test_what_was_only_counted_is_over_when_it_has_not_grown_for_long() -> None:
    """A state stays what it is: a device that is out; so does what is counted and goes on."""
    world, alarms = World(gone=()), Alarms()

    def marks(seconds: float, damaged: int) -> dict[str, Mark]:
        snapshot = msgspec.structs.replace(world.snapshot(), time=seconds)
        servers = list(snapshot.servers)
        ranks = tuple(
            msgspec.structs.replace(
                rank,
                tiers=tuple(
                    msgspec.structs.replace(tier, checksum_failures=damaged if tier.tier == "ssd" else 0)
                    for tier in rank.tiers
                ),
            )
            for rank in servers[1].ranks
        )
        servers[1] = msgspec.structs.replace(servers[1], ranks=ranks)
        found = alarms.of(msgspec.structs.replace(snapshot, servers=tuple(servers)), History())
        return {one.what.partition(";")[0]: one.mark for one in found}

    damaged = "{} pages were damaged: dropped, never served"
    out = "is out of service: write failed: Input/output error"
    assert marks(0.0, 1)[damaged.format(1)] is Mark.WRONG
    assert marks(200.0, 2)[damaged.format(2)] is Mark.WRONG
    assert {marks(200.0 + seconds, 2)[damaged.format(2)] for seconds in SILENCE} == {Mark.WRONG}
    quiet = marks(200.0 + SILENT_SECONDS, 2)
    assert (quiet[damaged.format(2)], quiet[out]) == (Mark.NOTE, Mark.WRONG)
    assert marks(1000.0, 3)[damaged.format(3)] is Mark.WRONG, "it goes on"
    for seconds, counted in ((1100.0, 12_301), (1100.0 + SILENT_SECONDS, 12_302)):
        assert marks(seconds, counted)[damaged.format(count(counted))] is Mark.WRONG, "it goes on, if by one"


def test_what_is_over_is_so_however_much_else_was_done_well_meanwhile() -> None:
    world, alarms = World(gone=()), Alarms()

    def mark(seconds: float, started: int) -> Mark:
        snapshot = msgspec.structs.replace(world.snapshot(), time=seconds)
        (state, *others), late = snapshot.servers, 100
        one = state.ranks[0]
        assert one.rank is not None
        engine = msgspec.structs.replace(one.rank, restores_started=started, restores_late=late)
        state = msgspec.structs.replace(state, ranks=(msgspec.structs.replace(one, rank=engine),))
        found = alarms.of(msgspec.structs.replace(snapshot, servers=(state, *others)), History())
        return next(one.mark for one in found if "fell behind" in one.what)

    assert mark(0.0, 200) is Mark.WARNING
    assert {mark(seconds, 250) for seconds in SILENCE} == {Mark.WARNING}
    assert mark(SILENT_SECONDS, 300) is Mark.NOTE


def test_the_world_lends_what_the_tests_above_say() -> None:
    rank = World(gone=()).snapshot().servers[0].ranks[0].rank
    assert rank is not None
    assert (rank.lent_bytes, rank.lends_to) == (2 * GIB, ("beta.dp0-tp0",))
