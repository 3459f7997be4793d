"""Pages with a copy at a donor and one on ssd: a donor that lets them go slowly does not hold a restore back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_tiers.radix_tiering.base.page import BLOCK_BYTES, PageRecord
from swift_tiers.radix_tiering.lending.leases import LeaseKey
from swift_tiers.radix_tiering.restore.cost import ComputeCost, CostModel, SourceCost
from swift_tiers.radix_tiering.restore.live import LiveCosts
from swift_tiers.radix_tiering.table.held_page import Page, PeerCopy
from swift_tiers.radix_tiering.tiers.peer_memory import PeerPlace
from swift_tiers.radix_tiering.tiers.testing.memory_array import MemoryArray
from swift_tiers.radix_tiering.way.nearest_copy import NearestCopy
from swift_tiers.radix_tiering.way.promotion import Source

from support.engine import GEOMETRY, chain, check, get, make_stack, memory_ssd, put, settle
from support.model_peer import ModelPeer

PAGE = GEOMETRY.page_bytes


class Paced:
    """As much of a `PeerMemory` as is asked: seconds that each donor lets a page take."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds = seconds

    def paced_seconds(self, donor: str, pages: int) -> float:
        return pages * self.seconds[donor]


def page(donor: str | None, *, stored: bool = True) -> Page:
    found = Page(PageRecord(namespace=b"n" * 16, key=b"k" * 32, parent=b"", length=PAGE, depth=1), None)
    found.stored = object() if stored else None  # type: ignore[assignment]
    found.peer = PeerCopy(PeerPlace(LeaseKey(donor, 1, 1), 0), b"") if donor is not None else None
    return found


@given(
    donors=st.lists(st.sampled_from([None, "d", "e"]), min_size=1, max_size=60),
    paces=st.tuples(st.floats(1e-4, 1.0), st.floats(1e-4, 1.0)),
    ssd=st.floats(1e-4, 1.0),
    before=st.integers(0, 20),
)
def test_all_is_there_no_later_than_by_donors_alone_or_ssd_alone(
    donors: list[str | None], paces: tuple[float, float], ssd: float, before: int
) -> None:
    seconds = dict(zip("de", paces, strict=True))
    nearest = NearestCopy(Paced(seconds), lambda: ssd, before)  # type: ignore[arg-type]
    chosen = [nearest.choose(page(donor)) for donor in donors]
    assert all(source is Source.SSD for donor, source in zip(donors, chosen, strict=True) if donor is None)

    def done(sources: list[Source]) -> float:
        of = [donor for donor, source in zip(donors, sources, strict=True) if source is Source.PEER]
        on_ssd = sources.count(Source.SSD)
        return max([(before + on_ssd) * ssd if on_ssd else 0.0, *(of.count(name) * seconds[name] for name in "de")])

    donors_alone = [Source.SSD if donor is None else Source.PEER for donor in donors]
    most = max(ssd, *paces)  # pages are not divided
    assert done(chosen) <= min(done(donors_alone), done([Source.SSD] * len(donors))) + most + 1e-9


def test_a_donor_without_a_pace_is_read_first() -> None:
    nearest = NearestCopy(Paced({"d": 0.0}), lambda: 1e-9, 0)  # type: ignore[arg-type]
    assert [nearest.choose(page("d")) for _ in range(8)] == [Source.PEER] * 8


def test_what_ssd_takes_must_be_known() -> None:
    nearest = NearestCopy(Paced({"d": 100.0}), lambda: None, 0)  # type: ignore[arg-type]
    assert nearest.choose(page("d")) is Source.PEER


def test_there_may_be_no_choice() -> None:
    nearest = NearestCopy(Paced({"d": 100.0}), lambda: 1e-9, 0)  # type: ignore[arg-type]
    assert nearest.choose(page("d", stored=False)) is Source.PEER
    assert nearest.choose(page(None)) is Source.SSD


# ---- in a stack ----


def both(array: MemoryArray | None = None):
    """A stack, what is lent to it, and a chain of which each page is at the donor and on ssd, and nowhere else. A page
    takes ssd 1 ms."""
    ssd = memory_ssd(array=array)
    peer = ModelPeer(PAGE, ssd.fingerprint)
    stack = make_stack(host_pages=24, lent=peer, ssd=ssd)
    compute = ComputeCost(fixed_seconds=0, token_seconds=1, pair_seconds=0)
    known = SourceCost(latency_seconds=0, bytes_per_second=PAGE / 1e-3)
    stack.planner.costs = LiveCosts(CostModel(compute=compute, sources={"ssd": known}))
    peer.lend(32)
    peer.settle()
    keys = chain(*range(20))
    put(stack, keys)
    assert stack.wait_written(10)
    stack.restorer.flush()
    while stack.sharer.backlog:
        peer.settle()
    peer.settle()
    with stack.table.lock:
        for one in reversed(stack.table.listed()):
            stack.table.evict_host(one)
        assert all(one.peer is not None and one.stored is not None for one in stack.table.all_pages())
    return stack, peer, keys


def restored(stack, keys) -> list[Source]:
    restore = settle(stack, stack.restore(keys))
    assert restore.pages == len(keys)
    found = list(restore.sources)
    stack.restorer.release(restore)
    stack.restorer.flush()
    return found


@pytest.mark.parametrize(("pace", "at_peer"), [(0.0, 20), (1e-3, 10), (9e-3, 2), (1.0, 0)])
def test_a_paced_donor_and_ssd_share_the_pages(pace: float, at_peer: int) -> None:
    stack, peer, keys = both()
    peer.seconds_each = pace
    found = restored(stack, keys)
    assert found.count(Source.PEER) == pytest.approx(at_peer, abs=1)
    assert get(stack, keys) == 20
    check(stack)


def test_a_damaged_copy_on_ssd_leads_to_the_one_at_the_donor() -> None:
    array = MemoryArray([2**20] * 2, seed=1)
    stack, peer, keys = both(array)
    peer.seconds_each = 1.0
    ((device, slot),) = stack.table.find(stack.digest, keys[3]).stored.placement
    geometry = stack.stripes._devices[device].geometry
    array.images[device][geometry.slot_offset(slot) + BLOCK_BYTES + 5] ^= 1
    found = restored(stack, keys)
    assert [place for place, source in enumerate(found) if source is Source.PEER] == [0, 3]  # one page is not paced
    assert stack.snapshot().tiers["ssd"].checksum_failures == 1
    assert stack.table.find(stack.digest, keys[3]).stored is None
    assert get(stack, keys) == 20
    check(stack)
