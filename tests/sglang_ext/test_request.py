"""One object for all that is known of a request: it has one end, and gives back what it holds once."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_tiers.radix_tiering.restore.flight import Step
from swift_tiers.radix_tiering.table.held_page import Places
from swift_tiers.sglang_ext.tell.request_facts import RequestFacts
from swift_tiers.sglang_ext.way import request as request_module
from swift_tiers.sglang_ext.way.request import TieredRequest, TieringStage, images_of

HASHES = [f"{page:02x}" for page in range(4)]


class Restores:
    """A stack whose restorer tells which restores are held, and breaks where it is told to."""

    def __init__(self) -> None:
        self.held: list[Any] = []
        self.split: list[Any] = []
        self.namespace = SimpleNamespace(geometry=SimpleNamespace(tokens=16))
        self.broken = ""
        self.told: list[str] = []
        self.events = SimpleNamespace(emit=lambda what, **_: self.told.append(what))
        self.restorer: Any = SimpleNamespace(
            release=self._release,
            split=self._split,
            step=lambda restore, front: self._may_break("step", Step(front, front + 1)),
            take=lambda restore, step: self._may_break("take", None),
            poll=lambda restore: self._may_break("poll", 0),
            present=lambda restore, front: 3,
            copies=lambda restore, first, pages: self._may_break("copies", None),
            places=lambda restore, first, end: Places.none(),
        )

    def restore(self, keys: Any, prefix: Any, **_: Any) -> Any:
        one = SimpleNamespace(
            story=SimpleNamespace(whole="", loaded=lambda first, runs: None, covered=0),
            flight=keys,
            ended=None,
            outcome="",
            found=lambda first, end: ["ssd"] * (end - first),
        )
        self.held.append(one)
        return one

    def _may_break(self, what: str, answer: Any) -> Any:
        if self.broken == what:
            raise RuntimeError("an error of ours")
        return answer

    def _release(self, restore: Any) -> None:
        self.held.remove(restore)

    def _split(self, restore: Any) -> None:
        self._may_break("split", None)
        self.split.append(restore)


def waiting(stack: Any, among: dict[str, TieredRequest], rid: str = "r") -> TieredRequest:
    request = TieredRequest(rid, stack, among, RequestFacts())
    request.begin(HASHES)
    request.pages = len(HASHES)
    return request


def test_what_is_being_copied_stays_pinned_although_another_one_of_its_id_has_come() -> None:
    """The first is gone while its pages are copied; when they are, they are given back, and nothing of the second."""
    stack: Any = Restores()
    among: dict[str, TieredRequest] = {}
    first = waiting(stack, among)
    first.copies(0, 2)
    second = waiting(stack, among)
    assert first.stage is TieringStage.ENDED
    assert among == {"r": second}
    assert stack.held == [first.restore, second.restore]
    first.copied()
    assert stack.held == [second.restore]
    first.end()
    assert among == {"r": second}


def test_a_course_keeps_its_pages_until_the_last_is_taken_and_copied() -> None:
    stack: Any = Restores()
    request = waiting(stack, {})
    request.admit()
    request.take(Step(0, 2))
    request.copies(2, 1)
    request.copied()
    assert stack.held == [request.restore]
    request.copies(2, 2)
    request.take(Step(4, 4))
    assert (request.stage, stack.split) == (TieringStage.TAKEN, [request.restore])
    assert stack.held, "a copy is under way"
    request.copied()
    assert not stack.held


def test_one_that_is_given_up_on_its_course_computes_the_rest() -> None:
    """And keeps its pages as long as some of them are copied."""
    stack: Any = Restores()
    request = waiting(stack, {})
    request.admit()
    request.take(Step(0, 2))
    request.copies(2, 1)
    request.give_up()
    assert stack.held == [request.restore], "a copy is under way"
    assert request.next_step(3) == Step(3, 4)
    assert request.promised(request.tail) == 0
    request.copied()
    assert not stack.held
    request.take(Step(3, 4))
    assert request.stage is TieringStage.TAKEN


@given(
    st.lists(st.integers(1, 40), max_size=12).filter(lambda lengths: len(lengths) % 2 == 0),
    st.integers(0, 3),
    st.integers(0, 16),
    st.sampled_from([1, 4, 16]),
)
def test_what_is_promised_ends_inside_no_image(gaps: list[int], device_pages: int, held: int, page: int) -> None:
    """But between two of them, or before the first: as far as it can."""
    bounds = list(itertools.accumulate(gaps))
    images = list(zip(bounds[::2], bounds[1::2], strict=True))
    stack: Any = Restores()
    stack.namespace = SimpleNamespace(geometry=SimpleNamespace(tokens=page))
    stack.restorer.present = lambda restore, front: held
    hashes = [f"{number:02x}" for number in range(16)]
    request = TieredRequest("r", stack, {}, RequestFacts(), device_pages=device_pages)
    request.begin(hashes)
    request.images = images

    def cuts(pages: int) -> bool:
        return any(begin < (device_pages + pages) * page < end for begin, end in images)

    best = max((pages for pages in range(held + 1) if not cuts(pages)), default=0)
    for first in (0, 3):
        assert request.promised(hashes[first:]) == max(0, best - first)


@pytest.mark.parametrize(("asked", "promised"), [(HASHES, 4), (HASHES[1:], 3), (HASHES[:3], 0), (HASHES[1:3], 0)])
def test_a_prefix_is_promised_with_its_state_or_not_at_all(asked: list[str], promised: int) -> None:
    """That is of all pages: behind fewer of them it would be another's."""
    stack: Any = Restores()
    stack.restorer.present = lambda restore, front: len(HASHES) + 2
    request = waiting(stack, {})
    request.state_pages = 2
    assert request.promised(asked) == promised


def test_a_state_is_looked_for_where_another_page_follows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each place costs a hash on the scheduler's thread, and of a prefix of thousands few have a state."""
    keys, hashed = [number.to_bytes(32, "big") for number in range(5000)], list[bytes]()
    hashes = [key.hex() for key in keys]

    def named(page_key: bytes, number: int) -> bytes:
        hashed.append(page_key)
        return page_key + bytes([number])

    monkeypatch.setattr(request_module, "state_key", named)
    stack: Any = Restores()
    stack.probe = lambda keys: 4000
    stack.branches = lambda keys: [place for place in (7, 900, 3000, 4500) if place <= len(keys)]
    states: Any = SimpleNamespace(pages=3)
    request = TieredRequest("r", stack, {}, RequestFacts())
    stack.last_held = lambda names: names.index(keys[899] + b"\2") if keys[899] + b"\2" in names else None
    assert request.held_with_state(hashes, states) == 900
    stack.last_held = lambda names: None
    assert request.held_with_state(hashes, states) == 0
    assert set(hashed) == {keys[6], keys[899], keys[2999]}


def test_images_are_found_in_a_prompt_by_where_their_tokens_are() -> None:
    def item(is_image: bool, *offsets: tuple[int, int]) -> Any:
        return SimpleNamespace(is_image=lambda: is_image, offsets=list(offsets))

    items = [item(True, (30, 39)), item(False, (0, 3)), item(True, (5, 9), (12, 12))]
    assert images_of(SimpleNamespace(multimodal_inputs=SimpleNamespace(mm_items=items))) == [
        (5, 10),
        (12, 13),
        (30, 40),
    ]
    assert not images_of(SimpleNamespace(multimodal_inputs=None))


@pytest.mark.parametrize("broken", ["step", "take", "poll", "split"])
def test_an_error_of_ours_ends_nothing_but_the_restore(broken: str) -> None:
    stack: Any = Restores()
    request = waiting(stack, {})
    stack.broken = broken
    request.readiness()
    request.admit()
    assert request.next_step(0) == Step(0, 4 if broken == "step" else 1)
    request.take(Step(0, 4))
    assert request.stage is TieringStage.TAKEN
    assert stack.told == ["linker.error"]
    request.end()
    assert not stack.held


@pytest.mark.parametrize(
    ("hashes", "pages"),
    [(HASHES, 3), (HASHES[1:], 2), (HASHES[1:2], 1), (["ff"], 0), ([HASHES[0], "ff"], 0), ([*HASHES, "ff"], 3)],
)
def test_only_a_piece_of_its_own_tail_is_promised(hashes: list[str], pages: int) -> None:
    request = waiting(Restores(), {})
    assert request.promised(hashes) == pages


@given(words=st.lists(st.sampled_from(["admit", "part", "last", "copies", "copied", "give_up", "end", "again"])))
def test_whatever_happens_to_it_nothing_is_kept_in_the_end_and_nothing_is_given_back_twice(words: list[str]) -> None:
    """`Restores.held.remove` raises where a restore is given back twice."""
    stack: Any = Restores()
    among: dict[str, TieredRequest] = {}
    every = [waiting(stack, among)]
    copying: list[TieredRequest] = []
    for word in words:
        request = every[-1]
        if word == "admit" and request.stage is TieringStage.WAITING:
            request.admit()
        elif word in ("part", "last") and request.stage is TieringStage.ON_COURSE:
            request.take(Step(0, 1 if word == "part" else 4))
        elif word == "copies" and request.restore is not None and request.stage is not TieringStage.ENDED:
            request.copies(0, 1)
            copying.append(request)
        elif word == "copied" and copying:
            copying.pop(0).copied()
        elif word == "give_up":
            request.give_up()
        elif word == "end":
            request.end()
        elif word == "again":
            every.append(waiting(stack, among))
        assert all(one.restore in stack.held for one in copying), "what is copied is pinned"
    for one in copying:
        one.copied()
    every[-1].end()
    assert not stack.held
    assert not among
    assert not stack.told
