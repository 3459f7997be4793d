"""StripePlaces of pages on the devices, compared with a dictionary."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from swift_tiers.radix_tiering.base.config import SsdConfig
from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.base.page import ROOT_KEY, PageRecord
from swift_tiers.radix_tiering.base.runner import THREADS
from swift_tiers.radix_tiering.tiers.ssd import Placement, StoredPage, ssd_tier
from swift_tiers.radix_tiering.tiers.ssd.layout import MOST_SLOTS, RECORD_DTYPE
from swift_tiers.radix_tiering.tiers.ssd.places import MOST_DEVICES, MOST_UNITS, StripePlaces
from swift_tiers.radix_tiering.tiers.ssd.ssd_tier import SsdTier
from swift_tiers.radix_tiering.tiers.ssd.stored_pages import StoredPages
from swift_tiers.radix_tiering.tiers.testing.memory_array import MemoryArray

from support.examples import examples

DOCUMENT = Path(__file__).parents[4] / "docs" / "operations.md"
RECORD = PageRecord(b"k" * 32, ROOT_KEY, b"n" * 32, 1, 4096)
slots = st.tuples(st.integers(0, MOST_DEVICES - 1), st.integers(0, MOST_SLOTS))
placements = st.lists(slots, min_size=1, max_size=9).map(tuple)
generations, digests = st.integers(1, 2**64 - 1), st.binary(min_size=16, max_size=16)


class Model(RuleBasedStateMachine):
    """`held`: what each place is of; no page there yet where there is no digest. `room`: units that it was made for."""

    def __init__(self) -> None:
        super().__init__()
        self.places = StripePlaces(THREADS)
        self.places.keep_landing_digests()
        self.held: dict[int, tuple[Placement, int, bytes]] = {}
        self.landing: dict[int, bytes | None] = {}
        self.room: dict[int, int] = {}

    def enter(self, place: int, placement: Placement, generation: int, digest: bytes, room: int) -> None:
        assert place not in self.held, "two pages in one place"
        self.held[place] = placement, generation, digest
        self.landing[place] = None
        self.room[place] = room

    @rule(placement=placements)
    def reserve(self, placement: Placement) -> None:
        self.enter(self.places.reserve(placement), placement, 0, b"", len(placement))

    @rule(pages=st.lists(st.tuples(placements, generations, digests, st.integers(0, 4)), max_size=4))
    def found(self, pages: list[tuple[Placement, int, bytes, int]]) -> None:
        """Some of them lie coded, in fewer units than they have."""
        stored = [
            StoredPage(RECORD._replace(length=4096 * (len(placement) + fewer) - 7), generation, digest, placement)
            for placement, generation, digest, fewer in pages
        ]
        for place, page in zip(self.places.found(StoredPages.of(stored), 4096).tolist(), pages, strict=True):
            self.enter(place, *page[:3], room=len(page[0]) + page[3])

    @precondition(lambda self: self.held)
    @rule(data=st.data(), digest=digests | st.none())
    def learn(self, data, digest: bytes | None) -> None:
        place = data.draw(st.sampled_from(sorted(self.held)))
        self.places.learn(place, digest)
        self.landing[place] = digest if digest is not None and any(digest) else None

    @precondition(lambda self: self.held)
    @rule(data=st.data(), generation=generations, digest=digests)
    def hold(self, data, generation: int, digest: bytes) -> None:
        place = data.draw(st.sampled_from(sorted(self.held)))
        placement = self.held[place][0]
        units = data.draw(st.integers(1, len(placement)))
        self.places.hold(place, generation, digest, units)
        self.held[place] = placement[:units], generation, digest

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def free(self, data) -> None:
        place = data.draw(st.sampled_from(sorted(self.held)))
        assert self.places.free(place) == self.held.pop(place)[0]
        for call in (self.places.free, self.places.placement, self.places.generation):
            with pytest.raises(ValueError, match="released before"):
                call(place)
        assert not any(self.places.uses(place, device) for device in range(MOST_DEVICES))

    @invariant()
    def all_is_told(self) -> None:
        assert self.places.taken == len(self.held)
        assert self.places.spared == sum(self.room[place] - len(one[0]) for place, one in self.held.items())
        everywhere = np.array(sorted({*self.held, *self.landing}), np.int64)
        many = self.places.stored_many(np.zeros(len(everywhere), RECORD_DTYPE), everywhere, b"n" * 16)
        assert [(one.placement, one.generation) for one in many] == [
            self.held[place][:2] for place in sorted(self.held)
        ]
        for place, (placement, generation, digest) in self.held.items():
            assert self.places.landing_digest(place) == self.landing[place]
            assert self.places.digest(place) == (digest if any(digest) else None)
            assert self.places.placement(place) == placement
            assert self.places.generation(place) == generation
            if digest:
                assert self.places.stored(place, RECORD) == StoredPage(RECORD, generation, digest, placement)
            devices = {device for device, _ in placement}
            assert all(self.places.uses(place, device) == (device in devices) for device in range(0, MOST_DEVICES, 7))


class TestModel(Model.TestCase):  # type: ignore[name-defined]
    settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None, derandomize=True)


def test_a_place_of_fewer_units_is_one_of_all_when_it_is_free() -> None:
    places = StripePlaces(THREADS)
    whole = tuple((device, device) for device in range(5))
    place = places.reserve(whole)
    places.hold(place, 7, b"d" * 16, 2)
    assert places.free(place) == whole[:2]
    assert places.reserve(whole) == place
    assert places.placement(place) == whole
    assert places.spared == 0


def test_places_that_are_free_are_taken_again() -> None:
    places = StripePlaces(THREADS)
    for _ in range(100):
        taken = [places.reserve(((0, 1), (1, 2), (2, 3))[:units]) for units in (1, 2, 3, 1)]
        for place in taken:
            places.free(place)
    assert len(places._words) == sum(7 + units + (units > 1) for units in (1, 2, 3, 1))


@pytest.mark.parametrize("place", [-1, 3, 10**9])
def test_a_number_that_is_no_place(place: int) -> None:
    places = StripePlaces(THREADS)
    places.reserve(((0, 1),))
    with pytest.raises(ValueError, match="is not reserved"):
        places.free(place)


class Sized:
    """Devices of which nothing is known but their sizes."""

    description, in_flight = "a model", 0

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = sizes
        self.closed = False

    def close(self) -> None:
        self.closed = True


def test_more_units_than_places_can_be_numbered_for_are_refused_at_the_start() -> None:
    unit = 32 << 10
    array: Any = Sized([(MOST_UNITS // 2 + 1) * unit] * 2)
    with pytest.raises(ConfigError, match=r"larger ssd\.stripe_unit"):
        SsdTier(array, ["a", "b"], unit)
    assert array.closed


def test_the_document_says_how_many_a_rank_takes() -> None:
    most = MOST_UNITS * SsdConfig().stripe_unit
    said = f"{MOST_UNITS / 1e6:.0f} million stripe units at most: {most / 1e12:.0f} TB of the default 256 KiB"
    assert said in " ".join(DOCUMENT.read_text().split())


def test_a_set_that_was_there_counts_by_its_own_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which may be smaller than the one that is asked for now."""
    array = MemoryArray([2**20] * 2, seed=1)
    SsdTier(array, ["a", "b"], 4096).close([])
    images = array.images
    monkeypatch.setattr(ssd_tier, "MOST_UNITS", 2 * 2**20 // 4096 - 1)
    again = MemoryArray.from_images(images)
    with pytest.raises(ConfigError, match="more than a rank can number"):
        SsdTier(again, ["a", "b"], 16384, behind=True)
    assert all(np.array_equal(*both) for both in zip(again.images, images, strict=True)), "it has been written to"
