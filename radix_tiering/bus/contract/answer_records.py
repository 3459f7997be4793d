"""What is answered to questions, as the bus writes it. Pure functions; see `records`."""

from __future__ import annotations

from ...base.slot_map import TierMap, write_cells
from ...figures.counters import PagePlaces
from ...figures.telemetry import PageAnswer, PrefixAnswer, TreeNode, TreeNodes
from .records import Record, make_record
from .schema import MOST_MAP_BYTES

#: Hex digits of a key where pages are listed.
KEY_DIGITS = 16


def page_record(answer: PageAnswer, *, time: float) -> Record:
    """`page`."""
    facts, slot, key = answer
    named = make_record(whole_key=key.hex()) if key is not None else {}
    if facts is None:
        return make_record(time=time, held=False) | named | ({} if slot is None else make_record(device_slot=slot))
    return named | make_record(
        time=time,
        held=True,
        namespace=facts.namespace,
        depth=facts.depth,
        parent=facts.parent,
        children=facts.children,
        bytes=facts.bytes,
        uses=facts.uses,
        pins=facts.pins,
        device_slot=slot,
        host_slot=facts.host_slot,
        peer=facts.peer,
        ssd_placement=" ".join(f"{device}:{slot}" for device, slot in facts.ssd_placement),
        generation=facts.generation,
        checksum=facts.checksum,
        last_used_seconds=facts.last_used_seconds,
        origin=facts.origin,
    )


def prefix_record(answer: PrefixAnswer, *, time: float) -> Record:
    """`prefix`."""
    return make_record(
        time=time,
        pages=answer.pages,
        listed=len(answer.listed),
        table=" ".join(map(_page_text, answer.listed)),
    )


def map_record(found: TierMap) -> Record:
    """`map`."""
    cells = write_cells(found, MOST_MAP_BYTES)
    return make_record(
        time=found.time,
        reason="",
        slots=len(found.states),
        first_slot=found.first_slot,
        slot_bytes=found.slot_bytes,
        slots_per_cell=cells.slots_per_cell,
        parts=" ".join(f"{name}:{slots}" for name, slots in found.pieces),
        cells=cells.text,
    )


def nodes_record(found: TreeNodes) -> Record:
    """`nodes`."""
    return make_record(
        time=found.time,
        reason="",
        nodes=found.nodes,
        complete=found.complete,
        listed=len(found.table),
        table=" ".join(map(_node_text, found.table)),
    )


def no_record(reason: str, *, time: float) -> Record:
    """`map` or `nodes` where there is no answer."""
    return make_record(time=time, reason=reason)


def _page_text(page: PagePlaces) -> str:
    """`12:0f3a...:host=3,ssd=0/5+1/9`."""
    places = []
    if page.device_slot is not None:
        places.append(f"device={page.device_slot}")
    if page.host_slot is not None:
        places.append(f"host={page.host_slot}")
    if page.peer is not None:
        donor, lease, slot = page.peer
        places.append(f"peer={donor}/{lease}/{slot}")
    if page.ssd_placement:
        places.append("ssd=" + "+".join(f"{device}/{slot}" for device, slot in page.ssd_placement))
    return f"{page.depth}:{page.key[:KEY_DIGITS]}:{','.join(places) or '-'}"


def _node_text(node: TreeNode) -> str:
    """`17:4:1024:8192:3:1:12.5:0f3a...`."""
    parent = "" if node.parent is None else node.parent
    idle = "" if node.idle_seconds is None else f"{node.idle_seconds:.1f}"
    key = node.key[:KEY_DIGITS]
    return f"{node.node}:{parent}:{node.tokens}:{node.subtree_tokens}:{node.hits}:{node.locks}:{idle}:{key}"
