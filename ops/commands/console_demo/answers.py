"""What simulated servers answer when they are asked: where a page is, a sequence, the slots of a tier, the tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from swift_tiers.console.feeds.feed import ViewQuestion
from swift_tiers.radix_tiering.base.slot_map import TierMap
from swift_tiers.radix_tiering.bus.contract.records import map_record, page_record, prefix_record
from swift_tiers.radix_tiering.bus.contract.view_reading import read_view
from swift_tiers.radix_tiering.bus.contract.views import (
    MOST_LISTED_PAGES,
    MapView,
    NodesView,
    PageView,
    PrefixView,
)
from swift_tiers.radix_tiering.figures.telemetry import PageAnswer, PrefixAnswer
from swift_tiers.radix_tiering.way.observing import page_facts, prefix_places, tier_map, whole_key

from .server import PAGE_TOKENS, DemoServer
from .tree import table_of
from .views import AGE

if TYPE_CHECKING:
    from swift_tiers.radix_tiering.stack import TierStack


def answer(server: DemoServer, question: ViewQuestion) -> Any:
    """A view of the question's kind."""
    home: dict[str, Any] = {
        "server": server.plan.name,
        "rank": server.rank,
        "time": server.wall() - AGE,
        "age_seconds": AGE,
    }
    if question.kind == "map":
        return _map(server, question.what, home)
    if question.kind == "nodes":
        nodes, table = table_of(server.tiers.device.listed(), int(question.what), PAGE_TOKENS)
        return NodesView(**home, nodes=nodes, listed=len(table), complete=True, table=tuple(table))
    return (_page if question.kind == "page" else _prefix)(server, bytes.fromhex(question.what), home)


def _stack(server: DemoServer) -> TierStack:
    """What the product's own observers look at: tiers, the page table, the namespace, when pages were used."""
    return cast("TierStack", server.tiers)


def _device_slot(server: DemoServer, key: bytes) -> int | None:
    page = server.tiers.device.find(server.tiers.digest, key)
    return None if page is None else page.slot + 1


def _page(server: DemoServer, key: bytes, home: dict[str, Any]) -> PageView:
    whole = whole_key(_stack(server), key)
    found = (
        PageAnswer(None)
        if whole is None
        else PageAnswer(page_facts(_stack(server), whole), _device_slot(server, whole), whole)
    )
    return read_view(PageView, page_record(found, time=0.0), **home, key=key.hex())


def _prefix(server: DemoServer, key: bytes, home: dict[str, Any]) -> PrefixView:
    places = [
        one._replace(device_slot=_device_slot(server, bytes.fromhex(one.key)))
        for one in prefix_places(_stack(server), key, MOST_LISTED_PAGES)
    ]
    found = PrefixAnswer(places[-1].depth if places else 0, places)
    return read_view(PrefixView, prefix_record(found, time=0.0), **home, key=key.hex())


def _map(server: DemoServer, tier: str, home: dict[str, Any]) -> MapView:
    found = _states(server, tier)
    if found is None:
        reason = {"peer": "it borrows nothing", "ssd": "it has no ssd tier"}.get(tier, f"it has no tier {tier}")
        return MapView(**home, tier=tier, reason=reason)
    return read_view(MapView, map_record(found), **home, tier=tier)


def _states(server: DemoServer, tier: str) -> TierMap | None:
    tiers, page = server.tiers, server.tiers.geometry.page_bytes
    now = server.wall()
    if tier == "device":
        return TierMap(time=now, slot_bytes=page, states=tiers.device.host_states(), first_slot=1)
    return tier_map(tiers, tier, time=now)
