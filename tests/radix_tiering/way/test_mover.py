"""The way down, to a durable tier that answers when the test says so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_tiers.radix_tiering.base.events import EventLog
from swift_tiers.radix_tiering.base.page import ROOT_KEY, PageRecord
from swift_tiers.radix_tiering.base.runner import THREADS, ThreadRunner
from swift_tiers.radix_tiering.table.held_page import Page
from swift_tiers.radix_tiering.table.page_table import PageTable
from swift_tiers.radix_tiering.table.policy import LEAST_RECENTLY_USED, AdmitAlways
from swift_tiers.radix_tiering.table.rules import check_rules
from swift_tiers.radix_tiering.table.tier_copies import HOST
from swift_tiers.radix_tiering.tiers.host.host_tier import HostTier
from swift_tiers.radix_tiering.tiers.tier import DAMAGED, NOT_NOW, Read, Tier, Write, Written
from swift_tiers.radix_tiering.way import down
from swift_tiers.radix_tiering.way.down import Mover
from swift_tiers.radix_tiering.way.parts import AnswerBatch

from support.engine import GEOMETRY, chain

SPACE = b"n" * 32
#: The number of the only tier beneath host memory.
SSD = 1
#: What a place is more than it was to be where the tier has chosen another.
ELSEWHERE = 1000


class HeldTier(Tier):
    """Takes every page, and answers none by itself."""

    name = "ssd"
    durable = True
    tries_again = True

    def __init__(self) -> None:
        self.asked: dict[bytes, Write] = {}
        self.unanswered: list[bytes] = []
        self.reserved = 0
        self.is_full = False
        self.released: list[Any] = []

    @property
    def capacity_bytes(self) -> int:
        return 1 << 30

    def takes(self, length: int) -> bool:
        return True

    def reserve(self, lengths: Sequence[int]) -> list[int]:
        if self.is_full:
            return []
        self.reserved += len(lengths)
        return list(range(self.reserved - len(lengths), self.reserved))

    def release(self, places: Sequence[Any]) -> None:
        self.released += places

    def write(self, writes: Sequence[Write]) -> None:
        self.asked |= {one.record.key: one for one in writes}
        self.unanswered += [one.record.key for one in writes]

    def read(self, reads: Sequence[Read]) -> None:
        raise AssertionError("nobody reads here")

    def answer_together(self, answers: Sequence[tuple[bytes, str]]) -> None:
        """In one batch: "written" where it was to be, "elsewhere", "failed", "not now", or "damaged"."""
        with self.answers:
            for key, how in answers:
                write = self.asked[key]
                if how in ("written", "elsewhere"):
                    place = write.place if how == "written" else write.place + ELSEWHERE
                    write.done(Written(place, b"d" * 16), "")
                else:
                    why = {"damaged": DAMAGED, "not now": NOT_NOW}
                    write.done(None, why.get(how, "a device went out of service"))

    def answer_all(self, how: str) -> list[bytes]:
        """All that are asked for now, in one batch; which."""
        keys, self.unanswered = self.unanswered, []
        self.answer_together([(key, how) for key in keys])
        return keys

    def answer(self, key: bytes, *, written: bool) -> object:
        """The place that was written, or was to be."""
        write = self.asked[key]
        made = Written(("written", write.place), b"d" * 16)
        with self.answers:
            write.done(made if written else None, "" if written else "a device went out of service")
        return made.place


def rig(host_pages: int = 8) -> tuple[PageTable, Mover, HeldTier]:
    tier = HeldTier()
    host = HostTier(GEOMETRY, host_pages * GEOMETRY.stride_bytes)
    table = PageTable(host, LEAST_RECENTLY_USED, [tier], runner=THREADS)
    mover = Mover(
        table,
        host,
        tier,
        runner=ThreadRunner(lambda: 0.0),
        events=EventLog(lambda: 0.0),
        admission=AdmitAlways(),
        verify=False,
    )
    tier.answer_within(AnswerBatch(table.lock, (mover.pump,)))
    return table, mover, tier


def entered(table: PageTable, keys: list[bytes]) -> list[Page]:
    """Pages of a sequence, in host memory."""
    pages: list[Page] = []
    for key in keys:
        pages.append(entered_behind(table, pages[-1] if pages else None, key))
    return pages


def entered_behind(table: PageTable, before: Page | None, key: bytes) -> Page:
    """One more page in host memory, which follows this one, or nothing."""
    with table.lock:
        slot = table.take_slot(None)
        assert slot is not None
        parent, depth = (before.key, before.depth) if before else (ROOT_KEY, 0)
        page = table.enter(PageRecord(key, parent, SPACE, depth + 1, 4096), 1)
        assert page is not None
        table.begin(page, HOST, slot)
        table.end(page, HOST, whole=True)
    return page


def test_a_page_whose_prefix_was_not_written_is_not_kept_on_ssd() -> None:
    """Both are under way when the first one fails and cannot be written again: a restart would not find the other."""
    table, mover, tier = rig()
    first, second = entered(table, chain("a", "b"))
    with table.lock:
        mover.enqueue([second])
        assert first.begun_in(SSD)
        assert second.begun_in(SSD)
        mover.enabled = False
    tier.answer(first.key, written=False)
    place = tier.answer(second.key, written=True)
    assert not second.begun_in(SSD)
    assert tier.released == [place]
    with table.lock:
        check_rules(table)


def test_pages_are_kept_in_whatever_order_they_are_written() -> None:
    table, mover, tier = rig()
    first, second = entered(table, chain("a", "b"))
    with table.lock:
        mover.enqueue([second])
    tier.answer(second.key, written=True)
    tier.answer(first.key, written=True)
    assert first.whole_in(SSD)
    assert second.whole_in(SSD)
    assert tier.released == []
    with table.lock:
        check_rules(table)


def told(lengths: Sequence[int], dropped: set[int], batches: Sequence[Sequence[tuple[int, str]]]) -> list[Any]:
    """What is left when writes of sequences of these lengths have been answered so, each batch together; some pages
    have left before."""
    table, mover, tier = rig(host_pages=16)
    pages = [page for name, length in enumerate(lengths) for page in entered(table, chain(name, *range(1, length)))]
    with table.lock:
        mover.enqueue(pages)
        mover.enabled = False
    keys = [page.key for page in pages]
    with table.lock:
        for at in dropped & set(range(len(pages))):
            table.drop(pages[at])
    for batch in batches:
        tier.answer_together([(keys[at], how) for at, how in batch])
        with table.lock:
            check_rules(table)
    assert not mover.backlog
    assert table.pinned_pages == 0
    held = {page.place_in(SSD) for page in pages if page.whole_in(SSD)}
    lost = {tier.asked[keys[at]].place for batch in batches for at, how in batch if how in ("failed", "damaged")}
    places = [place % ELSEWHERE for place in (*held, *lost, *tier.released)]
    assert sorted(places) == list(range(tier.reserved)), "every place is had once"
    return [[page.whole_in(SSD) for page in pages], sorted(tier.released), table.of[HOST].counters.checksum_failures]


@given(
    data=st.data(),
    lengths=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    dropped=st.sets(st.integers(0, 7), max_size=2),
)
def test_answers_that_come_together_are_as_if_they_had_come_alone(
    data: st.DataObject, lengths: list[int], dropped: set[int]
) -> None:
    """Written, failed and damaged ones, of several sequences, in any order and any batches."""
    order = data.draw(st.permutations(range(sum(lengths))))
    hows = st.sampled_from(["written", "written", "elsewhere", "failed", "damaged"])
    left = [(at, data.draw(hows)) for at in order]
    alone = told(lengths, dropped, [[one] for one in left])
    batches = []
    while left:
        count = data.draw(st.integers(1, len(left)))
        batches.append(left[:count])
        left = left[count:]
    assert told(lengths, dropped, batches) == alone


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> int:
    """A prefix is made out in parts of so many pages: more than are written at a time, or fewer."""
    monkeypatch.setattr(down, "PREFIX_STEP", 20)
    return down.PREFIX_STEP


@pytest.mark.usefixtures("small_parts")
def test_of_a_long_prefix_that_is_not_there_a_part_is_queued_at_a_time() -> None:
    """Its front first, and all of it in the end: a hold of the lock queues no more because it is long."""
    table, mover, tier = rig(host_pages=200)
    pages = entered(table, chain(*range(150)))
    branch = entered_behind(table, pages[99], chain(*range(100), "branch")[-1])
    with table.lock:
        mover.enqueue([pages[-1], pages[-2], branch])
    written: list[bytes] = []
    while mover.backlog:
        assert mover.backlog <= down.PREFIX_STEP + 3 + tier.writes_in_flight
        some = tier.answer_all("written")
        assert some, "it does not go on"
        written += some
    assert written == [page.key for page in (*pages, branch)], "each once, from the beginning on"
    assert all(page.whole_in(SSD) for page in (*pages, branch))
    assert not table.of[SSD].counters.refusals
    with table.lock:
        check_rules(table)


def test_a_page_that_waits_and_is_of_another_one_s_prefix_is_written_once() -> None:
    table, mover, tier = rig()
    pages = entered(table, chain(*"abcd"))
    with table.lock:
        mover.enqueue([pages[3], pages[1], pages[2], pages[0]])
    assert tier.answer_all("written") == [page.key for page in pages]
    assert not mover.backlog
    assert all(page.whole_in(SSD) for page in pages)
    with table.lock:
        check_rules(table)


@pytest.mark.usefixtures("small_parts")
def test_a_page_that_leaves_before_its_turn_leaves_its_prefix_to_the_next_one() -> None:
    table, mover, tier = rig(host_pages=200)
    pages = entered(table, chain(*range(60)))
    with table.lock:
        mover.enqueue(pages[:-6:-1])  # ends first, as they would leave
        for page in pages[:-4:-1]:
            table.drop(page)
    while mover.backlog:
        assert tier.answer_all("written")
    assert [page.whole_in(SSD) for page in pages] == [True] * 57 + [False] * 3


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("why", ["no room", "not now"])
def test_a_prefix_that_cannot_be_written_is_not_tried_for_ever(why: str) -> None:
    """But when one of its pages is offered once more."""
    table, mover, tier = rig(host_pages=200)
    pages = entered(table, chain(*range(90)))
    tier.is_full = why == "no room"
    with table.lock:
        mover.enqueue(pages[:-20:-1])
    if why == "not now":
        keys, tier.unanswered = tier.unanswered, []
        tier.answer_together([(key, "written" if at < 5 else why) for at, key in enumerate(keys)])
        assert len(tier.answer_all(why)) <= down.PREFIX_STEP, "what follows those that were written"
    assert not mover.backlog
    assert sum(page.begun_in(SSD) for page in pages) == (5 if why == "not now" else 0)
    assert table.pinned_pages == 0
    tier.is_full = False
    with table.lock:
        mover.enqueue(pages[-1:])
    while mover.backlog:
        assert tier.answer_all("written")
    assert all(page.whole_in(SSD) for page in pages)
    with table.lock:
        check_rules(table)


def test_what_follows_answers_is_all_done_whatever_one_part_of_it_raises() -> None:
    """Pages that have been read would wait for another answer else."""
    table, done = rig()[0], list[str]()

    def fails() -> None:
        done.append("the first")
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"), AnswerBatch(table.lock, (fails, lambda: done.append("next"))):
        done.append("told")
    assert done == ["told", "the first", "next"]
    with table.lock:
        pass  # it was given back
