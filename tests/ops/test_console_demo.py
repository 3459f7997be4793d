"""The demo: simulated servers that keep the product's own rules, say what is true of them, and obey commands."""

from __future__ import annotations

import asyncio
import html
import json
import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from swift_tiers.console import plain
from swift_tiers.console.feeds.entries import entries_of
from swift_tiers.console.feeds.feed import Look, Nature, ViewQuestion
from swift_tiers.console.feeds.recorded import RecordedFeed
from swift_tiers.console.feeds.recording import RecordingFeed
from swift_tiers.console.feeds.watching import Watcher
from swift_tiers.console.model.alarms import Alarm
from swift_tiers.console.model.event_words import KINDS
from swift_tiers.console.model.glyphs import ASCII, UNICODE
from swift_tiers.console.model.moment import Moment
from swift_tiers.console.model.place import Place
from swift_tiers.console.views import VIEWS
from swift_tiers.console.views.links.wires import wires
from swift_tiers.console.views.parts.view import Scene
from swift_tiers.ops.base.simulated.work import PlannedRequest, page_key
from swift_tiers.ops.commands import console_command
from swift_tiers.ops.commands.console_demo import DemoFeed
from swift_tiers.ops.commands.console_demo.feed import BEFORE
from swift_tiers.ops.commands.console_demo.pictures import PICTURES, Picture, draw
from swift_tiers.ops.commands.console_demo.script import ROUND, Script
from swift_tiers.ops.commands.console_demo.server import PAGE_TOKENS, DemoServer
from swift_tiers.ops.lab.torture.stacks import check as check_stack
from swift_tiers.radix_tiering.base.errors import BusError
from swift_tiers.radix_tiering.base.events import Event
from swift_tiers.radix_tiering.base.slot_map import SlotState
from swift_tiers.radix_tiering.bus.contract.commands import (
    AddDevice,
    AnyCommand,
    CapLending,
    CapTier,
    DrainDevice,
    Drop,
    Flush,
    Pin,
    PinLease,
    RecallLeases,
    SetPolicy,
    Unpin,
)
from swift_tiers.radix_tiering.bus.contract.views import RankState
from swift_tiers.radix_tiering.bus.hear.lease_pairs import differences, pairs_of, views_of
from swift_tiers.radix_tiering.stack import TierStack
from swift_tiers.radix_tiering.table.held_page import Page
from swift_tiers.radix_tiering.table.rules import check_rules
from swift_tiers.radix_tiering.tiers.ssd.ssd_tier import SsdTier

from support.command_line import run_command
from support.examples import exhaustive


class Demo:
    """A demo whose time the test has in hand."""

    def __init__(self, before: float = BEFORE) -> None:
        self.now = 0.0
        self.feed = DemoFeed(before=before, monotonic=lambda: self.now, wall=lambda: 1.7e9)
        self.watcher = Watcher()
        self.kinds: Counter[str] = Counter()
        self.alarms: tuple[Alarm, ...] = ()
        self.seen: set[str] = set()  # words of alarms
        self.look = self.go_on(0.0)

    def go_on(self, seconds: float, apart: float = 1.0) -> Look:
        """As a console that looks so often."""
        until = self.now + seconds
        while True:
            self.now = min(until, self.now + apart)
            self.look = self.feed.look()
            self.alarms = self.watcher.take(self.look)
            self.kinds.update(item.kind for item in self.look.items if not isinstance(item, tuple))
            self.seen |= {alarm.what for alarm in self.alarms}
            if self.now >= until:
                return self.look

    def rank(self, name: str) -> RankState:
        (state,) = (one for one in self.look.snapshot.servers if one.server.server == name)
        return state.ranks[0]

    @property
    def servers(self) -> dict[str, DemoServer]:
        return self.feed.within(lambda script: script.servers)

    def check(self) -> None:
        """Of every server that lives."""
        self.feed.within(lambda script: [check(one) for one in script.servers.values() if one.alive])

    def events(self, server: str) -> list[Event]:
        return self.feed.within(lambda script: script.servers[server].stack.events.since(0))

    def moment(self) -> Moment:
        return Moment(self.look.snapshot, 0.0, "", self.watcher.history, self.alarms, self.watcher.events)

    def do(self, server: str, command: AnyCommand) -> str:
        """What became of it: `done: ...` or `refused: ...`."""
        outcome = self.feed.command(server, command)
        assert outcome.final
        (said,) = outcome.ranks.values()
        assert said.startswith(outcome.state)
        return said


def check(server: DemoServer) -> None:
    """The product's rules, and books that agree with each other."""
    assert isinstance(server.stack, TierStack)
    table, device, pool = server.stack.table, server.device.table, server.device.pool
    with table.lock:
        check_rules(table)
    # The rules know host memory, where nothing is lent, loaded or computed by a request alone.
    states = pool.states()
    told = np.where(
        np.isin(states, [SlotState.LENT, SlotState.RECOMPUTING, SlotState.LOADING]), np.uint8(SlotState.PRIVATE), states
    )
    with device.lock, patch.object(pool, "states", lambda some: told[some].copy()):
        check_rules(device)
    lent = server.donor.sizer.lent if server.donor is not None else 0
    assert (states == SlotState.LENT).sum() == lent
    slots = [slot for asked in server.scheduler.running for slot in asked.seat.slots]
    assert pool.used_slots == len(list(device.all_pages())) + len(slots) + lent
    assert len(set(slots)) == len(slots)
    assert not [event for event in server.stack.events.since(0) if event.kind.endswith(".error")]
    assert not any(one.checksum_failures for one in server.stack.snapshot().tiers.values())
    ssd = server.stack.tiers.get("ssd")
    if isinstance(ssd, SsdTier):
        out = {number for number, one in enumerate(ssd.snapshot()[1]) if one.service == "out"}
        number = table.named("ssd").number
        with table.lock:
            copies = [page.copy_in(number) for page in table.all_pages() if page.whole_in(number)]
        assert not any(ssd.uses(copy.place, device) for copy in copies if copy is not None for device in out)


@pytest.fixture(scope="module")
def round_of_it() -> Demo:
    """One round of all that goes wrong; the rules are checked on the way."""
    demo = Demo()
    for _ in range(int(ROUND // 20) + 1):
        demo.go_on(20.0)
        demo.check()
    return demo


@pytest.fixture(scope="module")
def at_its_beginning() -> Demo:
    """For whoever changes nothing of it."""
    return Demo()


#: Seconds that have gone by where no history is looked at.
SOON = 2.0


@pytest.fixture(scope="module")
def steered() -> Demo:
    """For whoever looks at what changes by what it does itself."""
    return Demo(SOON)


def test_it_begins_with_a_history_and_says_what_it_is(at_its_beginning: Demo) -> None:
    demo = at_its_beginning
    assert demo.feed.nature is Nature.DEMO
    assert [state.server.server for state in demo.look.snapshot.servers] == ["alpha", "beta", "gamma"]
    tier = demo.rank("beta").tiers[-1]
    assert len(demo.watcher.history.rates(tier, "bytes_written")) > 30
    assert demo.rank("alpha").lent


def test_what_is_to_go_wrong_does_and_alarms_tell_of_it(round_of_it: Demo) -> None:
    told = " ".join(round_of_it.seen)
    for words in ("is out of service", "is GONE: it died", "is slow", "hit rate fell"):
        assert words in told, words
    for kind in ("device.out", "device.added", "borrowed.recalled", "borrowed.ended", "lending.taken_back"):
        assert round_of_it.kinds[kind], kind
    assert round_of_it.kinds.keys() <= KINDS.keys()


def test_all_tiers_are_found_in_and_restores_meet(round_of_it: Demo) -> None:
    found = {tier.tier: tier.hits or 0 for tier in round_of_it.rank("beta").tiers}
    assert all(found[tier] > 0 for tier in ("device", "peer", "host", "ssd")), found
    rank = round_of_it.rank("gamma")
    assert rank.rank is not None
    assert rank.rank.restores_split
    met = [
        request.restore_story
        for request in rank.requests
        if request.restore == "split" and request.restore_story is not None
    ]
    assert met
    for story in met:
        assert story.meeting_pages is not None
        assert story.covered == story.found
        assert 0 < story.meeting_pages <= story.found


def test_requests_that_hold_all_of_a_device_make_room_for_each_other() -> None:
    """Two wait for one page each, nobody runs who could give one back, and all else is in use."""
    demo = Demo()
    demo.feed.within(lambda script: script.servers["gamma"].work.rush(math.inf, 1e-9))
    demo.go_on(40.0)

    def crowd(script: Script) -> list[Page]:
        device, scheduler = script.servers["gamma"].device, script.servers["gamma"].scheduler
        assert not scheduler.running
        assert not scheduler.waiting
        first, second, *rest = [page for page in device.table.all_pages() if not page.children]
        for number, end in enumerate((first, second)):
            keys = [*(page.key for page in _until(end)), page_key(10**9 + number)]
            scheduler._arrive(0.0, PlannedRequest(tuple(keys), 1, 50, []))
        others = [page for end in rest for page in _until(end)]
        device.table.pin_all(others)
        device.pool.limit_slots = device.pool.used_slots
        return others

    others = demo.feed.within(crowd)
    demo.go_on(20.0)

    def left(script: Script) -> int:
        scheduler = script.servers["gamma"].scheduler
        return len(scheduler.running) + len(scheduler.waiting)

    assert demo.feed.within(left) == 1, "one has let go of what it held, and the other one is answered"

    def leave(script: Script) -> None:
        device = script.servers["gamma"].device
        device.table.unpin_all(others)
        device.pool.limit_slots = device.pool.slots

    demo.feed.within(leave)
    demo.go_on(20.0)
    assert demo.feed.within(left) == 0
    demo.check()


def test_requests_add_up(round_of_it: Demo) -> None:
    for name in ("alpha", "beta", "gamma"):
        for request in round_of_it.rank(name).requests:
            if request.first_token_seconds is None:
                continue
            parts = (request.device_tokens, request.peer_tokens, request.host_tokens, request.ssd_tokens)
            assert sum(part or 0 for part in parts) + (request.recomputed_tokens or 0) == request.prompt_tokens
            assert sum(pages for _, pages in request.tiers) == -(-request.prompt_tokens // PAGE_TOKENS)


def test_both_sides_of_a_lease_say_the_same(steered: Demo) -> None:
    demo = steered
    demo.go_on(5.0)
    ranks = [rank for state in demo.look.snapshot.servers for rank in state.ranks]
    (pair,) = pairs_of(views_of(ranks))
    assert differences(pair) == []
    assert pair.lent is not None
    assert pair.lent.bytes == ranks[0].rank.lent_bytes  # type: ignore[union-attr]


def test_the_hardware_counts_a_little_more_than_the_tiers_copy(round_of_it: Demo) -> None:
    """So that the view of links has what it has on real GPUs, but NVLink, which these have not."""
    alpha, beta, gamma = (round_of_it.rank(name) for name in ("alpha", "beta", "gamma"))
    assert [rank.gpu.index for rank in (alpha, beta, gamma) if rank.gpu is not None] == [0, 1, 0]
    assert [[reach.gpu for reach in rank.reaches] for rank in (alpha, beta)] == [[beta.gpu.uuid], [alpha.gpu.uuid]]
    assert gamma.reaches == ()
    assert {reach.nvlinks for rank in (alpha, beta) for reach in rank.reaches} == {0}
    round_of_it.go_on(10.0, apart=0.25)  # each time that they speak
    (pcie,) = wires(round_of_it.moment(), None)
    assert pcie.name == "PCIe"
    for both in (pcie.sent, pcie.received):
        assert both.engine is not None
        assert both.hardware == pytest.approx(1.03 * both.engine + 3 * 2e6, rel=0.05)


def test_a_restore_is_seen_under_way(steered: Demo) -> None:
    demo = steered
    for _ in range(400):
        demo.now += 0.2
        stories = [
            request.restore_story
            for state in demo.feed.look().snapshot.servers
            for rank in state.ranks
            for request in rank.requests
            if request.restore == "waiting" and request.restore_story is not None
        ]
        if any(story.computed_pages and story.loading_pages for story in stories):
            return
    raise AssertionError("no restore both computes and loads in 80 s")


def test_two_demos_go_the_same_way() -> None:
    one, other = Demo(SOON), Demo(SOON)
    for _ in range(5 if exhaustive() else 1):
        assert one.go_on(40.0).snapshot == other.go_on(40.0).snapshot


def test_questions_are_answered_from_the_same_books(round_of_it: Demo) -> None:
    feed = round_of_it.feed
    for tier, pages in (("device", 768), ("host", 2048)):
        (view,) = feed.ask(ViewQuestion("map", tier, "beta")).views
        assert view.slots == sum(count for _, count in view.cells) == pages
    (ssd,) = feed.ask(ViewQuestion("map", "ssd", "beta")).views
    assert sum(part.slots for part in ssd.parts) == ssd.slots
    assert ("out", ssd.parts[2].slots) in ssd.cells
    (none,) = feed.ask(ViewQuestion("map", "ssd", "alpha")).views
    assert none.slots is None
    assert "no ssd tier" in none.reason
    (nodes,) = feed.ask(ViewQuestion("nodes", "20", "alpha")).views
    assert nodes.nodes is not None
    assert len(nodes.table) == min(20, nodes.nodes)

    def held() -> tuple[int, int]:
        """How many changes there were of its pages, and tokens of those that there are."""
        table = feed.within(lambda script: script.servers["alpha"].device.table)
        return table.changes, len(list(table.all_pages())) * PAGE_TOKENS

    for _ in range(50):  # time goes on while a question is answered, and an answer is good for some seconds
        round_of_it.go_on(20.0)
        before, (nodes,) = held(), feed.ask(ViewQuestion("nodes", "1000", "alpha")).views
        if held() == before:
            break
    assert held() == before
    assert sum(node.subtree_tokens for node in nodes.table if node.parent is None) == before[1]
    key = feed.within(lambda script: _key_at(script.servers["beta"].stack, 20))
    (page,) = feed.ask(ViewQuestion("page", key, "beta")).views
    assert (page.held, page.depth) == (True, 20)
    (prefix,) = feed.ask(ViewQuestion("prefix", key, "beta")).views
    assert [one.depth for one in prefix.table] == list(range(1, 21))
    (other,) = feed.ask(ViewQuestion("page", key, "gamma")).views
    assert other.held is False


def _until(end: Page) -> list[Page]:
    """A sequence."""
    before = [] if end.parent is None else _until(end.parent)
    return [*before, end]


def _key_at(stack: TierStack, depth: int) -> str:
    return next(page for page in stack.table.all_pages() if page.depth == depth).key.hex()


@pytest.mark.parametrize("size", [(78, 20), (198, 56)])
def test_every_view_shows_it_at_every_size_with_signs_of_every_terminal(
    round_of_it: Demo, size: tuple[int, int]
) -> None:
    for kind in VIEWS:
        for glyphs in (UNICODE, ASCII):
            view = kind()
            scene = Scene(round_of_it.moment(), Place(view.NAME), width=size[0], height=size[1], glyphs=glyphs)
            scene = plain.asked(view, scene, round_of_it.feed)
            shown = plain.plain(view, scene).drawn(scene)
            assert len(shown) > 3, view.NAME
            assert glyphs is UNICODE or all(line.plain.isascii() for line in shown), view.NAME
            for row in list((scene.selected and [scene.selected]) or []):
                if row.place is not None and row.place.view == view.NAME:
                    inner = plain.asked(view, replace(scene, place=row.place, answers={}), round_of_it.feed)
                    assert plain.plain(view, inner).drawn(inner), view.NAME


def test_its_servers_are_the_engine_and_their_accounts_balance_once_all_is_quiet(round_of_it: Demo) -> None:
    """After a donor took its memory back, a device was slow, and another one went out. The last one that looks at this
    demo: nobody asks for anything any more."""
    demo = round_of_it
    assert {"borrowed.recalled", "device.out"} <= demo.kinds.keys()
    demo.feed.within(lambda script: [one.work.rush(math.inf, 1e-9) for one in script.servers.values()])
    demo.go_on(25.0)

    def balance(script: Script) -> list[int]:
        for server in script.servers.values():
            assert isinstance(server.stack, TierStack)
            assert not server.scheduler.running
            assert not server.scheduler.waiting
            check_stack(server.stack)
        return [len(server.stack.tiers) for server in script.servers.values()]

    assert demo.feed.within(balance) == [0, 2, 1]


def test_a_demo_is_recorded_like_any_other_bus_and_says_so_when_it_is_played(tmp_path: Path) -> None:
    now = 0.0
    demo = DemoFeed(before=SOON, monotonic=lambda: now, wall=lambda: 1.7e9)
    feed = RecordingFeed(demo, tmp_path / "demo.rec", "0.1.0", monotonic=lambda: now)
    seen = []
    for _ in range(30):
        seen.append(feed.look())
        feed.ask(ViewQuestion("map", "host", "beta"))
        now += 2.0
    feed.close()
    tape = RecordedFeed(tmp_path / "demo.rec", monotonic=lambda: 0.0)
    assert tape.nature is Nature.RECORDING
    assert "of the demo" in tape.name
    for number in (29, 3, 17):
        tape.player.seek(2.0 * number)
        look = tape.look()
        assert entries_of(look.snapshot) == entries_of(seen[number].snapshot), "ages are written with some digits"
        assert tape.ask(ViewQuestion("map", "host", "beta")).views[0].slots == 2048


# ---- commands ----


def test_leases_are_recalled_pinned_and_capped() -> None:
    demo = Demo(SOON)
    demo.go_on(3.0)
    before = demo.rank("alpha").lent[0]
    lease = before.table[0].lease
    assert "recalled last" in demo.do("alpha", PinLease(lease=lease))
    demo.go_on(1.0)
    assert demo.rank("alpha").lent[0].table[0].pinned
    other = before.table[1].lease
    assert demo.do("alpha", RecallLeases(leases=other)) == "done: 1 leases recalled"
    assert demo.do("alpha", RecallLeases(leases=10**9)).startswith("refused: leases: 1000000000 is not lent here")
    assert "2GiB are lent" in demo.do("alpha", CapLending(limit="2GiB"))
    demo.go_on(3.0)
    rank = demo.rank("alpha")
    assert rank.rank is not None
    assert 0 < (rank.rank.lent_bytes or 0) <= 2 << 30
    assert rank.rank.lend_limit_bytes == 2 << 30
    assert rank.lent[0].table[0].lease == lease  # pinned: taken last
    assert other not in [entry.lease for entry in rank.lent[0].table]
    for kind in ("lease.pinned", "lease.recalled", "lending.capped", "borrowed.recalled", "command.done"):
        assert demo.kinds[kind], kind
    demo.check()


def test_tiers_devices_and_pages_obey() -> None:
    demo = Demo()
    assert "pages evicted" in demo.do("gamma", CapTier(tier="host", limit="4GiB"))
    assert "gets no new pages" in demo.do("gamma", DrainDevice(device=1))
    assert demo.do("gamma", DrainDevice(device=1)).endswith("was draining already")
    assert "device 4:" in demo.do("gamma", AddDevice(directory="/ssd4"))
    key, depth = demo.feed.within(lambda script: _an_end(script.servers["gamma"].stack))
    assert demo.do("gamma", Pin(page=key)) == f"done: {depth} pages pinned"
    demo.check()
    assert demo.do("gamma", Unpin(page=key)) == "done: unpinned"
    assert demo.do("gamma", Unpin(page=key)).startswith("refused: ")
    assert demo.do("gamma", Drop(page=key)) == "done: 1 pages forgotten"
    assert "is not held" in demo.do("gamma", Drop(page=key))
    demo.go_on(10.0)
    demo.check()
    host = next(tier for tier in demo.rank("gamma").tiers if tier.tier == "host")
    assert (host.used_bytes or 0) <= 4 << 30
    assert [device.service for device in demo.rank("gamma").devices][1] == "draining"


def _an_end(stack: TierStack) -> tuple[str, int]:
    """Key and depth of the last page of a sequence that is no longer than what may be pinned."""
    page = next(page for page in stack.table.all_pages() if page.complete and not page.children and page.depth < 200)
    return page.key.hex(), page.depth


def test_a_flush_empties_the_tiers_and_they_fill_again() -> None:
    demo = Demo(SOON)
    before = demo.rank("gamma").directory
    assert before is not None
    assert before.pages

    def held() -> tuple[int, int]:
        demo.go_on(1.0)
        rank = demo.rank("gamma")
        assert rank.directory is not None
        (ssd,) = [tier for tier in rank.tiers if tier.tier == "ssd"]
        return rank.directory.pages or 0, ssd.only_pages or 0

    assert demo.do("gamma", Flush()).endswith("pages forgotten in host memory")
    demo.check()
    pages, on_ssd_only = held()
    assert 0 < pages < before.pages + 300
    assert on_ssd_only >= 0.9 * pages, "what is held is on ssd, but for what requests hold and what came since"
    assert demo.do("gamma", Flush(tiers="all")).endswith("pages forgotten in every tier below the device")
    demo.check()
    assert held()[0] < before.pages / 2
    flushed = [event for event in demo.events("gamma") if event.kind == "tiers.flushed"]
    assert [event.fields["ssd"] for event in flushed] == [False, True]


def test_a_policy_is_changed(steered: Demo) -> None:
    demo = steered
    assert demo.do("gamma", SetPolicy(field="eviction", value="lfu")) == "done: eviction: lru -> lfu"
    assert demo.do("gamma", SetPolicy(field="eviction", value="lfu")) == "done: eviction was lfu already"
    assert demo.do("gamma", SetPolicy(field="ssd_admission", value="reuse")).startswith("done: ssd_admission: ")
    assert demo.do("gamma", SetPolicy(field="restore_deadline", value="1s")) == "done: restore_deadline: 2s -> 1s"
    demo.check()
    demo.go_on(1.0)
    assert demo.rank("gamma").tiers
    (gamma,) = (state.server for state in demo.look.snapshot.servers if state.server.server == "gamma")
    assert (gamma.configuration["policy"]["eviction"], gamma.configuration["policy"]["write"]) == ("lfu", "through")


@pytest.mark.parametrize(
    ("server", "command", "said"),
    [
        ("gamma", SetPolicy(field="eviction", value="best"), "policy.eviction"),
        ("gamma", CapLending(limit=None), "does not lend"),
        ("alpha", DrainDevice(device=0), "no ssd tier"),
        ("alpha", CapTier(tier="ssd", limit="1MiB"), "no ssd tier"),
        ("gamma", CapTier(tier="host", limit=1), "write its unit"),
        ("gamma", CapTier(tier="host", limit="much"), "limit:"),
    ],
)
def test_what_makes_no_sense_is_refused(at_its_beginning: Demo, server: str, command: AnyCommand, said: str) -> None:
    demo = at_its_beginning
    before = [event for event in demo.events(server) if event.kind == "command.refused"]
    outcome = demo.do(server, command)
    assert outcome.startswith("refused: ")
    assert said in outcome
    *others, event = (event for event in demo.events(server) if event.kind == "command.refused")
    assert others == before
    assert outcome == f"refused: {event.fields['reason']}", "the audit says why, as a server's does"


def test_a_server_that_is_gone_hears_nothing() -> None:
    demo = Demo(SOON)
    demo.feed.within(lambda script: script.servers["alpha"].die())
    with pytest.raises(BusError, match="server alpha: nobody answered"):
        demo.feed.command("alpha", CapLending(limit=None))
    with pytest.raises(BusError, match="server alpha: is gone"):
        demo.feed.command("alpha", CapLending(limit=None))
    with pytest.raises(BusError, match="server nobody: is not known here"):
        demo.feed.command("nobody", CapLending(limit=None))


def test_a_demo_that_has_ended_says_why() -> None:
    demo = Demo(SOON)
    demo.feed.close()
    with pytest.raises(BusError, match="the demo has ended: it was closed"):
        demo.feed.look()
    other = Demo(SOON)

    def fails() -> None:
        raise RuntimeError("a fault of ours")

    other.feed.within(lambda script: script.servers["beta"].stack.runner.thread(fails, "careless").start())
    with pytest.raises(BusError, match="the demo has ended: careless: RuntimeError"):
        other.go_on(1.0)
    with pytest.raises(BusError, match="careless"):
        other.feed.look()


# ---- as a command ----


def test_one_look_of_it_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_command(capsys, "console", "--demo", "--once", "--json", "--view", "leases")
    assert (code, err) == (0, "")
    said = json.loads(out)
    assert said["nature"] == "demo"
    assert [row["donor"] for row in said["view"]["rows"]] == ["alpha.dp0-tp0"]
    code, out, _ = run_command(capsys, "console", "--demo", "--once")
    assert out.startswith("swift-tiers DEMO, all simulated: ")


def test_it_looks_at_no_bus(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_command, "has_screen", lambda: True)
    code, out, err = run_command(capsys, "console", "--demo", "--url", "redis://10.0.0.1:6379")
    assert (code, out) == (2, "")
    assert "--demo looks at no bus" in err


# ---- pictures ----


def test_every_view_is_drawn_for_the_documents() -> None:
    """The pictures of docs/console.md: `python -m swift_tiers.ops.commands.console_demo.pictures docs/pictures`."""
    folder = Path(__file__).parents[2] / "docs" / "pictures"
    assert {path.name for path in folder.iterdir()} == {f"{one.name}.svg" for one in PICTURES}
    assert {one.keys[0] for one in PICTURES} == {str(number) for number in range(1, len(VIEWS) + 1)}
    svg = asyncio.run(draw(Picture("overview", (80, 24), 1.0, ("1",))))
    words = html.unescape(re.sub(r"<[^>]+>", " ", svg)).replace("\xa0", " ")
    assert "swift-tiers" in words
    assert all(name in words for name in ("DEMO", "alpha", "beta", "gamma"))
