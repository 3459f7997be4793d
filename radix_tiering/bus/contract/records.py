"""What is told of a server, as the bus writes it: the figures of views as text, out of typed snapshots. Pure functions.

Each figure is what the first of several sources has under its name. What is not known or does not apply is empty.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Never

from ...base.errors import shorten
from ...base.events import Event
from ...base.slot_map import TierMap, write_cells
from ...figures.counters import DeviceSnapshot, LatencySnapshot, LinkSnapshot, StackSnapshot, TierSnapshot
from ...figures.declare import figures_of
from ...figures.forms import to_text
from ...figures.telemetry import DevicePoolSample, EngineSample, PageAnswer, PrefixAnswer, RequestSample, TreeNodes
from ...gpus.snapshots import GpuSample, ReachSample
from .gpu_views import MOST_REACHES, GpuView, ReachView
from .recent import quantiles
from .schema import MOST_MAP_BYTES
from .view import View
from .views import (
    DeviceView,
    LinkView,
    MapView,
    NodesView,
    PageView,
    PrefixView,
    PublisherCounts,
    RankView,
    RequestView,
    ServerFigures,
    ServerView,
    TierView,
)

Record = dict[str, str]

_NOBODY = object()


class ServerInfo(ServerFigures[Never]):
    """One server. Its ranks are all that are on the bus."""

    configuration: Mapping[str, Any]  # the effective one, without secrets; commands change it


class PublisherNumbers(PublisherCounts[Never], counts=True):
    """What a publisher counts about itself. Only grow, but for `publish_seconds`."""


def record(kind: type[View], *sources: object, **own: Any) -> Record:
    """The hash of a view: each figure as `own` has it, or else as the first of the sources that has one of its name.

    Text is written as it is.
    """
    said: Record = {}
    for name, figure, family in figures_of(kind):
        value = own[name] if name in own else _first(sources, name)
        if family:
            said |= {f"{family}:{one}": to_text(content) for one, content in (value or {}).items()}
        elif figure.form is None or value is None or isinstance(value, str):
            said[name] = to_text(value)
        else:
            said[name] = figure.form.write(value)
    return said


def _first(sources: Iterable[object], name: str) -> Any:
    for source in sources:
        value = getattr(source, name, _NOBODY)
        if value is not _NOBODY:
            return value
    return None


def server_record(
    info: ServerInfo, *, time: float, pid: int, interval: float, clock_offset: float, control: bool
) -> Record:
    """`info`."""
    return record(
        ServerView,
        info,
        time=time,
        pid=pid,
        interval_seconds=interval,
        clock_offset_seconds=clock_offset,
        control=control,
    )


def rank_record(
    stack: StackSnapshot | None,
    engine: EngineSample | None,
    numbers: PublisherNumbers,
    leases: Mapping[str, float | str | None],
    links: Iterable[str],
    *,
    time: float,
    pid: int,
    life: str,
) -> Record:
    """`rank`. Without a snapshot or a sample, what they would say is empty. `leases`: see `lease_records.lease_sums`;
    `links`: names of those that are told of; `life`: which process of the rank it is."""
    tiers = (*(["device"] if engine is not None else []), *(stack.tiers if stack is not None else []))
    return record(
        RankView,
        numbers,
        stack,
        engine,
        stack.restores if stack is not None else None,
        time=time,
        pid=pid,
        life=life,
        page_tokens=stack.tokens_per_page if stack is not None else None,
        tiers=tiers,
        links=links,
        **leases,
    )


def tier_record(tier: TierSnapshot, recent: LatencySnapshot, *, time: float) -> Record:
    """`tier` of host memory or ssd. `recent`: restores of the last minute."""
    latency = tier.read_latency
    return record(
        TierView,
        tier,
        time=time,
        refused=tier.refusals,
        restores=latency.count,
        restore_seconds=latency.sum_seconds,
        recent_restores=recent.count,
        **quantiles(recent),
    )


def device_tier_record(pool: DevicePoolSample, *, time: float) -> Record:
    """`tier` of the device: nothing is restored from it, none of its pages is checked, and it refuses none."""
    return record(TierView, pool, time=time, limit_bytes=pool.capacity_bytes)


def ssd_record(device: DeviceSnapshot, recent: LatencySnapshot, *, time: float) -> Record:
    """`ssd`: one device of the stripe set. `recent`: its requests of the last minute."""
    return record(DeviceView, device, time=time, recent_requests=recent.count, **quantiles(recent))


def link_record(link: LinkSnapshot, rate: int | None, recent: LatencySnapshot, *, time: float) -> Record:
    """`link`. `rate`: bytes per second; `recent`: its copies of the last minute."""
    lately = quantiles(recent)
    return record(LinkView, link, time=time, bytes_per_second=rate, recent_transfers=recent.count, **lately)


def request_record(request: RequestSample, block_table: str, *, time: float) -> Record:
    """`request`. `block_table` as `forms.write_table` makes it."""
    table = request.block_table
    pages = sum(table[1::2]) - sum(table[::2]) + len(table) // 2
    state = request.state.value
    return record(RequestView, request, time=time, state=state, pages=pages, block_table=block_table)


# ---- GPUs ----


def gpu_record(sample: GpuSample) -> Record:
    """`gpu`."""
    return record(GpuView, sample, sample.gpu, reaches=reaches(sample))


def reaches(sample: GpuSample) -> dict[str, ReachSample]:
    """The GPUs that are told of, by uuid."""
    found = {one.reach.to(sample.gpu.uuid): one for one in sample.reaches}
    return dict(list(found.items())[:MOST_REACHES])


def reach_record(one: ReachSample, *, time: float) -> Record:
    """`reach`."""
    return record(ReachView, one, one.reach, time=time)


# ---- answers ----


def page_record(answer: PageAnswer, *, time: float) -> Record:
    """`page`. Of one that is not held, only what is known is said."""
    facts, slot, key = answer
    said = record(PageView, facts, time=time, held=facts is not None, whole_key=key and key.hex(), device_slot=slot)
    if facts is None:
        return {name: value for name, value in said.items() if value}
    return said if key is not None else {name: value for name, value in said.items() if name != "whole_key"}


def prefix_record(answer: PrefixAnswer, *, time: float) -> Record:
    """`prefix`."""
    return record(PrefixView, answer, time=time, listed=len(answer.listed), table=answer.listed)


def map_record(found: TierMap) -> Record:
    """`map`."""
    cells = write_cells(found, MOST_MAP_BYTES)
    return record(
        MapView,
        found,
        slots=len(found.states),
        slots_per_cell=cells.slots_per_cell,
        parts=found.pieces,
        cells=cells.text,
    )


def nodes_record(found: TreeNodes) -> Record:
    """`nodes`."""
    return record(NodesView, found, listed=len(found.table))


def no_record(reason: str, *, time: float) -> Record:
    """`map` or `nodes` where there is no answer."""
    return {"time": to_text(time), "reason": reason}


# ---- events ----


def event_record(event: Event, rank: str, life: str) -> Record:
    """An entry of `events`. `life`: which process of the rank it was."""
    fields = {name: _shortened(value) for name, value in event.fields.items()}
    return {
        "rank": rank,
        "life": life,
        "sequence": to_text(event.sequence),
        "time": to_text(event.time),
        "kind": event.kind,
        "fields": json.dumps(fields, default=_described),
    }


def _shortened(value: Any) -> Any:
    return shorten(value) if isinstance(value, str) else value


def _described(value: Any) -> str:
    """Of something that JSON has no word for."""
    return shorten(str(value))
