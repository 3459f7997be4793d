"""The way from lent memory: what is simulated is what a tier stack does."""

from __future__ import annotations

import pytest
import torch

from swift_tiers.ops.base.devices.curve import Linear
from swift_tiers.ops.base.devices.models import MODELS
from swift_tiers.ops.lab.simulate.devices.clock import Clock
from swift_tiers.ops.lab.simulate.devices.lines import Line
from swift_tiers.ops.lab.simulate.devices.restoring import LOAD, Request, Server
from swift_tiers.ops.lab.simulate.peer_route import DEFAULT_LANDING, PEER, PeerRoute
from swift_tiers.ops.lab.simulate.runs import linear_setup
from swift_tiers.ops.lab.simulate.scenarios.conversations import AS_THE_PAPER, DEFAULT, HOST, LARGE, first_token
from swift_tiers.radix_tiering.base.config import TiersConfig
from swift_tiers.radix_tiering.restore.cost import ComputeCost
from swift_tiers.radix_tiering.restore.planner import HERE
from swift_tiers.radix_tiering.tiers.host.landing import Landing, landing_slots

from support.engine import chain, settle
from support.landing_stack import landing, leave_with_peers

COST = ComputeCost(fixed_seconds=0.0, token_seconds=1e-3, pair_seconds=0.0)
PAGES, TOKENS = 6, 16


def simulated(slots: int) -> tuple[PeerRoute, Server]:
    """A server whose pages of 16,000 bytes take a second to the device, and ten to host memory."""
    clock = Clock()
    setup = linear_setup(COST, 1e-3)
    route = PeerRoute(clock, setup.page_bytes, (slots + 1) * 16_384, setup.page_bytes, setup.page_bytes / 10)
    server = Server(clock, Linear(COST), {PEER: route}, setup, LOAD, copies=Line(clock, setup.page_bytes / 5))
    assert route.slots == slots
    return route, server


@pytest.mark.parametrize("slots", [0, 1, 4, 6, 8])
def test_as_many_pages_land_as_in_a_tier_stack_and_stay_as_long(slots: int) -> None:
    route, server = simulated(slots)
    one = server.submit(Request(arrival=0.0, prefix=PAGES * TOKENS, new=TOKENS), [PEER] * PAGES)
    server._clock.run()
    stack, peer, _ = landing(slots=slots, host_pages=PAGES)
    keys = leave_with_peers(stack, peer, chain(*"abcdef"))
    restore = settle(stack, stack.restore(keys))
    landed = {unit for unit, place in enumerate(restore.slots.tolist()) if place >= stack.host.slots}
    assert len(landed) == len(one.landed) == min(slots, PAGES)
    assert (peer.used_slots, stack.host.used_slots) == (route.used, route.passed) == (len(landed), PAGES - len(landed))
    stack.restorer.release(restore)
    stack.restorer.flush()
    route.give_back(len(one.landed))
    assert peer.used_slots == route.used == 0


def test_pages_come_one_after_the_other_and_only_those_in_host_memory_are_copied_to_the_device() -> None:
    """Two land in a second each, four take ten to host memory, then five to the device, all before its new tokens."""
    _, server = simulated(2)
    one = server.submit(Request(arrival=0.0, prefix=PAGES * TOKENS, new=TOKENS), [PEER] * PAGES)
    server._clock.run()
    computing = COST.seconds(0, TOKENS)
    assert one.seconds == pytest.approx(2 * 1 + 4 * 10 + 4 * 5 + computing / 32)


class Memory:
    """An accelerator, as far as making landing memory asks of it."""

    def device_memory(self, rows: int, row_bytes: int) -> torch.Tensor:
        return torch.empty((rows, row_bytes), dtype=torch.uint8)


def test_landing_memory_holds_what_the_servers_own_does() -> None:
    for page_bytes in (4096, 5000, 2_359_296):
        for size in (page_bytes * 4, 32 << 20):
            assert Landing(Memory(), page_bytes, size).slots == landing_slots(page_bytes, size)
    assert TiersConfig().device.landing == DEFAULT_LANDING
    # 112 pages of 16 tokens of Qwen3-8B: 1,792 tokens.
    assert landing_slots(16 * MODELS["Qwen3-8B"].token_bytes, DEFAULT_LANDING) == 112


def test_what_has_been_learnt_of_the_way_is_what_it_takes() -> None:
    route, _ = simulated(2)
    cost = route.cost(PAGES)
    assert PAGES * 16_000 / cost.bytes_per_second == pytest.approx(2 * 1 + 4 * 10)


def test_a_servers_way_is_slower_than_host_memory_and_the_papers_is_faster() -> None:
    seconds = {way.name: first_token(MODELS["LWM-7B"], way, 8192)[0] for way in (HOST, AS_THE_PAPER, DEFAULT, LARGE)}
    assert seconds[AS_THE_PAPER.name] < seconds[LARGE.name] < seconds[HOST.name] < seconds[DEFAULT.name]


def test_what_lies_in_host_memory_is_there_at_once() -> None:
    _, server = simulated(2)
    one = server.submit(Request(arrival=0.0, prefix=PAGES * TOKENS, new=TOKENS), [HERE] * PAGES)
    server._clock.run()
    assert not one.landed
    assert one.seconds == pytest.approx(PAGES * 5 + COST.seconds(0, TOKENS) / 32)
