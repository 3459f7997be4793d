"""Pages with a copy at a donor and one on ssd: a donor that lets them go slowly does not hold a restore back."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from swift_tiers.ops.lab.torture.model_peer import ModelPeer
from swift_tiers.radix_tiering.base.page import BLOCK_BYTES
from swift_tiers.radix_tiering.lending.leases import LeaseKey
from swift_tiers.radix_tiering.restore.cost import ComputeCost, CostModel, SourceCost
from swift_tiers.radix_tiering.restore.live import LiveCosts
from swift_tiers.radix_tiering.table.held_page import Page
from swift_tiers.radix_tiering.table.tier_copies import HOST, Copy
from swift_tiers.radix_tiering.tiers.peer.lent_memory import PeerPlace
from swift_tiers.radix_tiering.tiers.testing.memory_array import MemoryArray
from swift_tiers.radix_tiering.way.source_turns import NearestCopy

from support.engine import GEOMETRY, chain, check, copy_of, get, make_stack, memory_ssd, placement_of, put, settle

PAGE = GEOMETRY.page_bytes


class Paced:
    """As much of lent memory as is asked: seconds that each donor lets a page take."""

    name = "peer"

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds = seconds

    def lane(self, place: PeerPlace) -> str:
        return place.key.donor

    def paced_seconds(self, lane: str, pages: int) -> float:
        return pages * self.seconds[lane]


class Ssd:
    """It sets no pace."""

    name = "ssd"

    def lane(self, place: object) -> None:
        return None


class Choosing:
    """`NearestCopy` between donors and ssd, by name. `ssd`: seconds that it takes for a page; `before`: pages that it
    is to bring first."""

    def __init__(self, seconds: dict[str, float], ssd: float | None, before: int) -> None:
        self.tiers = [Paced(seconds), Ssd()]
        costs, under_way = {"peer": None, "ssd": ssd}, {"peer": 0, "ssd": before}
        self.nearest = NearestCopy(self.tiers, costs.__getitem__, under_way.__getitem__)  # type: ignore[arg-type]

    def choose(self, page: Page) -> str:
        return self.tiers[self.nearest.choose(page) - 1].name


class Held:
    """As much of a page as is asked for: its whole copies, by tier."""

    def __init__(self, copies: dict[int, Copy]) -> None:
        self.copies = copies

    def place_in(self, tier: int) -> object:
        return self.copies[tier].place

    def whole_in(self, tier: int) -> bool:
        return tier in self.copies


def page(donor: str | None, *, stored: bool = True) -> Page:
    copies = {2: Copy(None, b"", 0, whole=True)} if stored else {}
    if donor is not None:
        copies[1] = Copy(PeerPlace(LeaseKey(donor, 1, 1), 0), b"", 0, whole=True)
    return Held(copies)  # type: ignore[return-value]


@given(
    donors=st.lists(st.sampled_from([None, "d", "e"]), min_size=1, max_size=60),
    paces=st.tuples(st.floats(1e-4, 1.0), st.floats(1e-4, 1.0)),
    ssd=st.floats(1e-4, 1.0),
    before=st.integers(0, 20),
)
# What ssd alone has follows: it is busy with that, and brings none of the others.
@example(donors=["d"] * 4 + [None] * 4, paces=(1.0, 1.0), ssd=1.0, before=0)
def test_all_is_there_no_later_than_by_donors_alone_or_ssd_alone(
    donors: list[str | None], paces: tuple[float, float], ssd: float, before: int
) -> None:
    seconds = dict(zip("de", paces, strict=True))
    nearest, pages = Choosing(seconds, ssd, before), [page(donor) for donor in donors]
    nearest.nearest.expect(pages)
    chosen = [nearest.choose(one) for one in pages]
    assert all(source == "ssd" for donor, source in zip(donors, chosen, strict=True) if donor is None)

    def done(sources: list[str]) -> float:
        of = [donor for donor, source in zip(donors, sources, strict=True) if source == "peer"]
        on_ssd = sources.count("ssd")
        return max([(before + on_ssd) * ssd if on_ssd else 0.0, *(of.count(name) * seconds[name] for name in "de")])

    donors_alone = ["ssd" if donor is None else "peer" for donor in donors]
    most = max(ssd, *paces)  # pages are not divided
    assert done(chosen) <= min(done(donors_alone), done(["ssd"] * len(donors))) + most + 1e-9


def test_a_donor_without_a_pace_is_read_first() -> None:
    nearest = Choosing({"d": 0.0}, 1e-9, 0)
    assert [nearest.choose(page("d")) for _ in range(8)] == ["peer"] * 8


def test_what_ssd_takes_must_be_known() -> None:
    nearest = Choosing({"d": 100.0}, None, 0)
    assert nearest.choose(page("d")) == "peer"


def test_there_may_be_no_choice() -> None:
    nearest = Choosing({"d": 100.0}, 1e-9, 0)
    assert nearest.choose(page("d", stored=False)) == "peer"
    assert nearest.choose(page(None)) == "ssd"


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
    stack.restorer.wait_idle()
    while stack.movers["peer"].backlog:
        peer.settle()
    peer.settle()
    with stack.table.lock:
        for one in reversed(stack.table.listed()):
            stack.table.lose(one, HOST)
        assert all(copy_of(stack, one, "peer") and copy_of(stack, one, "ssd") for one in stack.table.all_pages())
    return stack, peer, keys


def restored(stack, keys) -> list[str]:
    restore = settle(stack, stack.restore(keys))
    assert restore.pages == len(keys)
    found = restore.found()
    stack.restorer.release(restore)
    stack.restorer.wait_idle()
    return found


@pytest.mark.parametrize(("pace", "at_peer"), [(0.0, 20), (1e-3, 10), (9e-3, 2), (1.0, 0)])
def test_a_paced_donor_and_ssd_share_the_pages(pace: float, at_peer: int) -> None:
    stack, peer, keys = both()
    peer.seconds_each = pace
    found = restored(stack, keys)
    assert found.count("peer") == pytest.approx(at_peer, abs=1)
    assert get(stack, keys) == 20
    check(stack)


def test_a_damaged_copy_on_ssd_leads_to_the_one_at_the_donor() -> None:
    array = MemoryArray([2**20] * 2, seed=1)
    stack, peer, keys = both(array)
    peer.seconds_each = 1.0
    ((device, slot),) = placement_of(stack, stack.table.find(stack.digest, keys[3]))
    geometry = stack.tiers["ssd"].stripes._devices[device].geometry
    array.images[device][geometry.slot_offset(slot) + BLOCK_BYTES + 5] ^= 1
    found = restored(stack, keys)
    assert [place for place, source in enumerate(found) if source == "peer"] == [0, 3]  # one page is not paced
    assert stack.snapshot().tiers["ssd"].checksum_failures == 1
    assert copy_of(stack, stack.table.find(stack.digest, keys[3]), "ssd") is None
    assert get(stack, keys) == 20
    check(stack)
