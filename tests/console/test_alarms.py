"""What is told first: no false remedy, no alarm about what is normal, nothing that is not known."""

from __future__ import annotations

import msgspec
import pytest

from swift_tiers.console.model.alarms import RECENT_SECONDS, SILENT_SECONDS, Alarms, falls_to, how_many
from swift_tiers.console.model.departures import KNOWN, RETURN
from swift_tiers.console.model.history import LOOKS, History
from swift_tiers.radix_tiering.bus.contract.views import RankState, Snapshot, TierView
from swift_tiers.radix_tiering.bus.hear.trouble import Mark

from support.console_world import GIB, World

SERVERS = tuple(f"server-{number}" for number in range(54))


def rank(*tiers: str, full: bool = False, evictions: int = 0) -> RankState:
    return RankState(
        name="dp0-tp0",
        tiers=tuple(
            TierView(
                server="alpha",
                rank="dp0-tp0",
                tier=name,
                capacity_bytes=GIB,
                used_bytes=GIB if full else 0,
                limit_bytes=GIB,
                evictions=evictions,
                time=0.0,
            )
            for name in tiers
        ),
    )


@pytest.mark.parametrize(
    ("tiers", "tier", "where"),
    [
        (("device", "host", "ssd"), "host", "ssd"),
        (("device", "peer", "host"), "host", "peer"),
        (("device", "peer", "host", "ssd"), "host", "peer or ssd"),
        (("device", "host"), "device", "host"),
        (("device", "host"), "host", "recomputed"),
        (("device", "host", "ssd"), "ssd", "recomputed"),
        (("device", "peer", "host"), "peer", "recomputed"),
    ],
)
def test_pages_are_recomputed_only_where_nothing_lies_beneath(tiers: tuple[str, ...], tier: str, where: str) -> None:
    assert falls_to(rank(*tiers), tier) == where


def watched(tiers: tuple[str, ...], *, collapses: bool) -> list[str]:
    """Alarms with their remedies of a server whose tiers are full and evict, and whose hit rate may fall."""
    world, alarms, history = World(("alpha",), gone=()), Alarms(), History()
    world.sick = False
    seconds, prompt, reused, found = 3 * RECENT_SECONDS, 0, 0, ()
    while world.time - World().time < seconds:
        world.tick()
        snapshot = world.snapshot()
        state = snapshot.servers[0]
        one = state.ranks[0]
        assert one.tree is not None
        late = world.time - World().time > seconds - RECENT_SECONDS
        prompt, reused = prompt + 1000, reused + (0 if late and collapses else 900)
        changed = [
            msgspec.structs.replace(
                tier, used_bytes=tier.capacity_bytes, limit_bytes=tier.capacity_bytes, evictions=100 * world.ticks,
                hits=0, refused={}, checksum_failures=0,
            )
            for tier in one.tiers
            if tier.tier in tiers
        ]  # fmt: skip
        tree = msgspec.structs.replace(one.tree, prompt_tokens=prompt, reused_tokens=reused)
        one = msgspec.structs.replace(one, tiers=tuple(changed), tree=tree)
        state = msgspec.structs.replace(state, ranks=(one,))
        snapshot = msgspec.structs.replace(snapshot, servers=(state,))
        history.observe(snapshot)
        found = alarms.of(snapshot, history)
    return [f"{alarm.what}; {alarm.remedy}" for alarm in found]


@pytest.mark.parametrize("tiers", [("device", "host"), ("device", "host", "ssd")])
def test_a_full_cache_is_no_alarm(tiers: tuple[str, ...]) -> None:
    assert not [said for said in watched(tiers, collapses=False) if "full" in said or "evict" in said]


def test_a_hit_rate_that_falls_names_the_tier_that_loses_pages_for_good() -> None:
    (said,) = (said for said in watched(("device", "host", "ssd"), collapses=True) if "hit rate fell" in said)
    assert "ssd is too small" in said
    assert "which are recomputed" in said
    (said,) = (said for said in watched(("device", "host"), collapses=True) if "hit rate fell" in said)
    assert "host is too small" in said


# ---- nobody knows ----


def test_what_is_not_of_now_is_not_called_well() -> None:
    assert how_many([], 3) == [("all well", "good")]
    assert how_many([], 3, current=False) == [("not known now", "wrong")]
    assert how_many([], 0) == [("no server", "warning")]


# ---- servers that are lost together with Redis ----


def bus(names: tuple[str, ...], time: float) -> Snapshot:
    return msgspec.structs.replace(World(names, gone=()).snapshot(), time=time)


def missed(alarms: Alarms, names: tuple[str, ...], time: float) -> dict[str, Mark]:
    found = alarms.of(bus(names, time), History())
    return {alarm.place: alarm.mark for alarm in found if "has not come back to this bus" in alarm.what}


def test_servers_that_a_new_empty_redis_does_not_know_are_missed_by_name() -> None:
    alarms = Alarms()
    assert missed(alarms, SERVERS, 1000.0) == {}
    back, lost = SERVERS[:10], SERVERS[10:]
    assert missed(alarms, back, 1030.0) == dict.fromkeys(lost, Mark.WARNING), "those that run come back in a moment"
    assert missed(alarms, back, 1030.0 + RETURN) == dict.fromkeys(lost, Mark.WRONG)
    assert missed(alarms, (*back, "server-20"), 1040.0) == dict.fromkeys(
        [name for name in lost if name != "server-20"], Mark.WRONG
    )
    assert "server-20" not in missed(alarms, (*back, "server-20"), 1050.0)
    assert len(missed(alarms, (), 1060.0)) == 54, "also if nobody is left"
    assert missed(alarms, (), 1060.0 + KNOWN) == {}, "as long as a bus remembers a server that is gone"


def test_one_that_vanished_before_its_redis_stays_missed() -> None:
    alarms = Alarms()
    world = World(("alpha", "beta"), gone=())
    for time in (1000.0, 1000.5, 1001.0, 1004.0):
        alarms.of(msgspec.structs.replace(world.snapshot(), time=time), History())
    world.gone = ("beta",)
    snapshot = msgspec.structs.replace(world.snapshot(), time=1010.0)
    alpha, beta = snapshot.servers
    beta = msgspec.structs.replace(beta, server=msgspec.structs.replace(beta.server, age_seconds=9.2))
    found = alarms.of(msgspec.structs.replace(snapshot, servers=(alpha, beta)), History())
    assert any(alarm.place == "beta" and "is GONE" in alarm.what for alarm in found)
    for time in (1020.0, 1030.0, 1040.0):
        assert missed(alarms, ("alpha",), time) == {"beta": Mark.WRONG}


def test_servers_that_were_there_all_the_time_are_not_missed() -> None:
    alarms = Alarms()
    for time in range(1000, 1060):
        assert missed(alarms, SERVERS, float(time)) == {}


# ---- what is said is what is so ----


def with_rank(change) -> Snapshot:
    """One server, whose first rank is changed."""
    snapshot = bus(("alpha",), 1000.0)
    (state,) = snapshot.servers
    ranks = (change(state.ranks[0]), *state.ranks[1:])
    return msgspec.structs.replace(snapshot, servers=(msgspec.structs.replace(state, ranks=ranks),))


def told(snapshot: Snapshot) -> list[str]:
    return [alarm.what for alarm in Alarms().of(snapshot, History())]


def test_a_clock_that_was_set_forward_is_no_silence() -> None:
    """Redis' clock says that five minutes have passed, of which nobody has seen one."""

    def failed(time: float, loads: int) -> tuple[Mark, str]:
        snapshot = with_rank(
            lambda one: msgspec.structs.replace(one, rank=msgspec.structs.replace(one.rank, failed_loads=loads))
        )
        found = alarms.of(msgspec.structs.replace(snapshot, time=time), History())
        return next((alarm.mark, alarm.what) for alarm in found if "503" in alarm.what)

    alarms = Alarms()
    for second in range(5):
        failed(1000.0 + second, second + 1)
    set_at = 1005.0 + SILENT_SECONDS + 100.0
    mark, what = failed(set_at, 5)
    assert mark is Mark.WRONG
    assert "none in the last" not in what
    for second in range(int(SILENT_SECONDS) - 120):
        assert failed(set_at + second, 5)[0] is Mark.WRONG
    for second in range(int(SILENT_SECONDS)):
        mark, what = failed(set_at + SILENT_SECONDS + second, 5)
    assert mark is Mark.NOTE
    assert "none in the last" in what


def test_requests_that_had_to_recompute_have_not_waited() -> None:
    """And those that wait long are counted, however their pages came back."""

    def requests(state: str, restore: str, age: float, queued: float | None):
        def change(rank: RankState) -> RankState:
            some = [
                msgspec.structs.replace(
                    rank.requests[0], rid=f"r{number}", state=state, restore=restore, arrived=1000.0 - age,
                    time=1000.0, queue_seconds=queued, ended=None,
                )
                for number in range(5)
            ]  # fmt: skip
            return msgspec.structs.replace(rank, requests=tuple(some))

        return with_rank(change)

    assert not [what for what in told(requests("running", "cut short", 2.0, 0.3)) if "waited" in what]
    assert [what for what in told(requests("waiting", "none", 20.0, None)) if what.startswith("5 requests")]


@pytest.mark.parametrize(("age", "interval", "still"), [(2.0, "1s", False), (60.0, "1s", True), (60.0, "30s", False)])
def test_a_scheduler_that_stands_still_is_told(age: float, interval: str, still: bool) -> None:
    """Its rank goes on speaking, of what was so when it turned last."""
    snapshot = with_rank(
        lambda rank: msgspec.structs.replace(rank, tree=msgspec.structs.replace(rank.tree, age_seconds=age))
    )
    (state,) = snapshot.servers
    server = msgspec.structs.replace(state.server, configuration={"bus": {"requests_interval": interval}})
    snapshot = msgspec.structs.replace(snapshot, servers=(msgspec.structs.replace(state, server=server),))
    assert any("has not turned" in what for what in told(snapshot)) == still


# ---- what only one of several counters says ----


def with_tier(**changes: object) -> Snapshot:
    """One server, with nothing wrong but what its host tier says."""
    sound = {"refused": {}, "checksum_failures": 0, "pinned_pages": 0, **changes}

    def change(one: RankState) -> RankState:
        tiers = [msgspec.structs.replace(tier, **sound) for tier in one.tiers if tier.tier == "host"]
        return msgspec.structs.replace(one, tiers=tuple(tiers))

    return with_rank(change)


def test_a_sick_refusal_that_is_over_fades_while_usual_ones_go_on() -> None:
    """And it is not back when another reason is told for the first time."""
    alarms = Alarms()
    for second in range(int(SILENT_SECONDS) + 10):
        refused = {"full": 1, "prefix not held": second, **({"prefix not on ssd": 1} if second > 100 else {})}
        snapshot = msgspec.structs.replace(with_tier(refused=refused), time=1000.0 + second)
        found = {alarm.what: alarm for alarm in alarms.of(snapshot, History()) if "pages not taken in" in alarm.what}
        if second == 0:
            assert found["pages not taken in: full 1"].mark is Mark.WARNING
    assert {alarm.mark for alarm in found.values()} == {Mark.NOTE}
    assert any(what.startswith("pages not taken in: full 1; none in the last") for what in found)


def test_each_sick_refusal_has_its_own_remedy() -> None:
    found = Alarms().of(with_tier(refused={"full": 1, "write failed": 7}), History())
    remedies = {alarm.what: alarm.remedy for alarm in found if "pages not taken in" in alarm.what}
    assert "make the tier larger" in remedies["pages not taken in: full 1"]
    assert "dmesg" in remedies["pages not taken in: write failed 7"]


@pytest.mark.parametrize(
    ("used", "limit", "pinned", "said"),
    [
        (30 * 2**20, GIB, 30, False),  # the first pages of a start, which the first requests hold
        (GIB, GIB, 30, True),
        (GIB, GIB, 20, False),
        (0.6 * GIB, 0.6 * GIB, 30, True),  # capped
        (0.6 * GIB, None, 30, False),
        (None, GIB, 30, False),
    ],
)
def test_pins_are_a_trouble_only_where_something_must_be_evicted(
    used: float | None, limit: float | None, pinned: int, said: bool
) -> None:
    snapshot = with_tier(used_bytes=used, limit_bytes=limit, capacity_bytes=GIB, pages=30, pinned_pages=pinned)
    assert any("pages are pinned" in what for what in told(snapshot)) == said


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ("", []),
        ("starting", []),
        ("asked", []),
        ("not asked", ["its remote store is not asked"]),
        ("cannot be opened", ["its remote store cannot be opened"]),
    ],
)
def test_a_remote_store_that_is_away_is_told(engine: str, said: list[str]) -> None:
    snapshot = with_rank(
        lambda one: msgspec.structs.replace(one, rank=msgspec.structs.replace(one.rank, remote_engine=engine))
    )
    alarms = [alarm for alarm in Alarms().of(snapshot, History()) if "remote store" in alarm.what]
    assert [alarm.what for alarm in alarms] == said
    assert all(alarm.mark is Mark.WARNING and alarm.place == "alpha dp0-tp0 remote" for alarm in alarms)


# ---- shares are of the last minutes, where those were watched ----

SOUND = {"restores_started": 200_000, "restores_cut_short": 0, "restores_expired": 0, "restores_late": 0}


def watched_rank(*looks: dict[str, int], every: float = 1.0) -> list[str]:
    """What is said of restores and of the store after the last of these looks, which are of a rank's counters."""
    alarms, history, said = Alarms(), History(), []
    for number, counters in enumerate(looks):
        at = 1000.0 + number * every
        snapshot = with_rank(
            lambda one, counters=counters, at=at: msgspec.structs.replace(
                one, rank=msgspec.structs.replace(one.rank, time=at, **{**SOUND, **counters})
            )
        )
        history.observe(snapshot)
        found = alarms.of(msgspec.structs.replace(snapshot, time=at), history)
        said = [alarm.what for alarm in found if "restores" in alarm.what or "too late" in alarm.what]
    return said


@pytest.mark.parametrize(
    ("counter", "said"),
    [
        ("restores_expired", "30 of 30 restores of the last 30.0 s gave less than was found (30 ran out of time)"),
        ("restores_cut_short", "30 of 30 restores of the last 30.0 s gave less than was found (0 ran out of time)"),
        ("restores_late", "30 of 30 restores of the last 30.0 s fell behind their estimates"),
    ],
)
def test_what_all_restores_do_now_is_not_hidden_by_those_of_a_good_week(counter: str, said: str) -> None:
    assert watched_rank(*({"restores_started": 200_000 + n, counter: n} for n in range(31))) == [said]


def test_a_store_that_is_late_now_is_not_hidden_either() -> None:
    looks = [{"remote_questions": 10**6 + n, "remote_late": n // 2} for n in range(31)]
    assert watched_rank(*looks) == ["its remote store answered 15 times too late, of 30 questions of the last 30.0 s"]


def test_what_was_bad_at_the_start_is_no_alarm_of_now() -> None:
    """But as long as too little was watched, all since the start is told."""
    looks = [{"restores_started": 20, "restores_expired": 3}] * 30
    assert watched_rank(*looks) == []
    assert watched_rank(*looks[:5]) == ["3 of 20 restores gave less than was found (3 ran out of time)"]


def test_a_server_that_was_started_anew_has_counted_nothing_before() -> None:
    before = [{"restores_started": 100 + n, "restores_late": 90} for n in range(20)]
    after = [{"restores_started": n, "restores_late": 0} for n in range(20)]
    assert watched_rank(*before, *after) == []


def test_an_alarm_of_the_last_minutes_ends_with_them() -> None:
    bad = [{"restores_started": 100 + n, "restores_expired": n} for n in range(10)]
    good = [{"restores_started": 110 + n, "restores_expired": 9} for n in range(LOOKS)]
    assert len(watched_rank(*bad, *good[:20])) == 1
    assert watched_rank(*bad, *good) == []
