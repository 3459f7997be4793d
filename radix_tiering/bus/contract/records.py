"""What is told of a server, as the bus writes it: typed snapshots become the fields of `schema.KEYS`. Pure functions.

A number is decimal text, a time has six digits after the point, and what is not known or does not apply is empty.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from ...base.events import Event
from ...figures.counters import (
    DeviceSnapshot,
    DirectorySnapshot,
    LatencySnapshot,
    LinkSnapshot,
    StackSnapshot,
    StripeSnapshot,
    TierSnapshot,
)
from ...figures.telemetry import DevicePoolSample, EngineSample, RequestSample, TreeSample
from .recent import quantiles

Record = dict[str, str]

#: Characters of one text in an event; errors of other programs may be of any length.
LONGEST_TEXT = 500


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What does not change while a server runs."""

    host: str
    address: str  # host:port of its HTTP endpoint
    started: float  # seconds since the epoch
    version: str
    sglang_version: str
    model: str
    ranks: tuple[str, ...]  # all of this server's on the bus: ("dp0-tp0", "dp0-tp1")
    configuration: Mapping[str, Any]  # the effective one, without secrets


class PublisherNumbers(msgspec.Struct, kw_only=True):
    """What a publisher counts about itself. Only grow, but for `publish_seconds`."""

    events: int = 0
    events_lost: int = 0
    publishes: int = 0
    publish_failures: int = 0
    publish_seconds: float = 0.0  # the last publishing, waiting for Redis included
    publish_cpu_seconds: float = 0.0  # of the publisher's thread, summed
    questions: int = 0  # answered
    questions_ignored: int = 0  # that were none


def to_text(value: float | str | None) -> str:
    """A field's value."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6f}" if math.isfinite(value) else ""
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value)


def server_record(
    info: ServerInfo, *, time: float, pid: int, interval: float, clock_offset: float, control: bool
) -> Record:
    """`info`."""
    return make_record(
        time=time,
        host=info.host,
        address=info.address,
        pid=pid,
        started=info.started,
        version=info.version,
        sglang_version=info.sglang_version,
        model=info.model,
        ranks=",".join(info.ranks),
        interval_seconds=interval,
        clock_offset_seconds=clock_offset,
        control=control,
        configuration=json.dumps(info.configuration, default=str),
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
) -> Record:
    """`rank`. Without a snapshot or a sample, what they would say is empty. `leases`: see `lease_records.lease_sums`;
    `links`: names of those that are told of."""
    restores = stack.restores if stack is not None else None
    return make_record(
        time=time,
        pid=pid,
        namespace=_said(stack, "namespace"),
        page_tokens=_said(stack, "tokens_per_page"),
        page_bytes=_said(stack, "page_bytes"),
        io_engine=_said(stack, "io_engine"),
        write_queue_pages=_said(stack, "write_queue_pages"),
        landing_pages=_said(stack, "landing_pages"),
        landing_used_pages=_said(stack, "landing_used_pages"),
        running_requests=_said(engine, "running_requests"),
        waiting_requests=_said(engine, "waiting_requests"),
        restores_started=_said(restores, "started"),
        restores_completed=_said(restores, "completed"),
        restores_split=_said(restores, "split"),
        restores_cut_short=_said(restores, "cut_short"),
        restores_expired=_said(restores, "expired"),
        restores_cancelled=_said(restores, "cancelled"),
        restores_late=_said(restores, "late"),
        lost_pages=_said(restores, "lost_pages"),
        failed_loads=_said(restores, "failed_loads"),
        sample_seconds=_said(engine, "sample_seconds"),
        links=",".join(links),
        **leases,
        **msgspec.structs.asdict(numbers),
    )


def tier_record(tier: TierSnapshot, recent: LatencySnapshot, *, time: float) -> Record:
    """`tier` of host memory or ssd. `recent`: restores of the last minute."""
    latency = tier.read_latency
    return make_record(
        time=time,
        capacity_bytes=tier.capacity_bytes,
        used_bytes=tier.used_bytes,
        pages=tier.pages,
        pinned_pages=tier.pinned_pages,
        limit_bytes=tier.limit_bytes,
        hits=tier.hits,
        misses=tier.misses,
        bytes_read=tier.bytes_read,
        bytes_written=tier.bytes_written,
        evictions=tier.evictions,
        checksum_failures=tier.checksum_failures,
        restores=latency.count,
        restore_seconds=latency.sum_seconds,
        recent_restores=recent.count,
        **quantiles(recent),
    ) | {f"refused:{reason}": str(pages) for reason, pages in tier.refusals.items()}


def device_tier_record(pool: DevicePoolSample, *, time: float) -> Record:
    """`tier` of the device: nothing is restored from it, none of its pages is checked, and it refuses none."""
    return make_record(
        time=time,
        capacity_bytes=pool.capacity_bytes,
        used_bytes=pool.used_bytes,
        pages=pool.pages,
        pinned_pages=pool.pinned_pages,
        limit_bytes=pool.capacity_bytes,
        hits=pool.hits,
        misses=pool.misses,
        bytes_read=pool.bytes_read,
        bytes_written=pool.bytes_written,
        evictions=pool.evictions,
        checksum_failures=None,
        restores=None,
        restore_seconds=None,
        recent_restores=None,
        recent_p50_seconds=None,
        recent_p99_seconds=None,
    )


def stripe_record(stripe: StripeSnapshot, *, time: float) -> Record:
    """`stripe`."""
    return make_record(
        time=time,
        set=stripe.set_id,
        unit_bytes=stripe.unit_bytes,
        devices=stripe.devices,
        missing=stripe.missing,
        capacity_units=stripe.capacity_units,
        free_units=stripe.free_units,
        queued=stripe.queued,
    ) | {f"reads:{outcome}": str(count) for outcome, count in stripe.reads.items()}


def ssd_record(device: DeviceSnapshot, recent: LatencySnapshot, *, time: float) -> Record:
    """`ssd`: one device of the stripe set. `recent`: its requests of the last minute."""
    return make_record(
        time=time,
        path=device.path,
        service=device.service,
        reason=device.reason,
        capacity_bytes=device.capacity_bytes,
        used_bytes=device.used_bytes,
        bytes_read=device.bytes_read,
        bytes_written=device.bytes_written,
        reads=device.reads,
        writes=device.writes,
        read_errors=device.read_errors,
        write_errors=device.write_errors,
        corrupt_units=device.corrupt_units,
        in_flight=device.in_flight,
        recent_requests=recent.count,
        **quantiles(recent),
    )


def link_record(link: LinkSnapshot, rate: int | None, recent: LatencySnapshot, *, time: float) -> Record:
    """`link`. `rate`: bytes per second; `recent`: its copies of the last minute."""
    return make_record(
        time=time,
        transfers=link.transfers,
        pages=link.pages,
        bytes=link.bytes,
        seconds=link.seconds,
        recent_transfers=recent.count,
        **quantiles(recent),
        bytes_per_second=rate,
    )


def directory_record(directory: DirectorySnapshot, *, time: float) -> Record:
    """`directory`."""
    return make_record(time=time, **msgspec.structs.asdict(directory))


def tree_record(tree: TreeSample, *, time: float) -> Record:
    """`tree`."""
    return make_record(time=time, **msgspec.structs.asdict(tree))


def request_record(request: RequestSample, block_table: str, *, time: float) -> Record:
    """`request`. `block_table` as `block_table_text` makes it."""
    table = request.block_table
    return make_record(
        time=time,
        state=request.state.value,
        arrived=request.arrived,
        prompt_tokens=request.prompt_tokens,
        output_tokens=request.output_tokens,
        device_tokens=request.device_tokens,
        peer_tokens=request.peer_tokens,
        host_tokens=request.host_tokens,
        ssd_tokens=request.ssd_tokens,
        recomputed_tokens=request.recomputed_tokens,
        restore=request.restore,
        restore_seconds=request.restore_seconds,
        restore_story=msgspec.json.encode(request.restore_story).decode() if request.restore_story else "",
        queue_seconds=request.queue_seconds,
        first_token_seconds=request.first_token_seconds,
        ended=request.ended,
        pages=sum(table[1::2]) - sum(table[::2]) + len(table) // 2,
        tiers=", ".join(f"{tier} {pages}" for tier, pages in request.tiers),
        last_page=request.last_page,
        block_table=block_table,
    )


def block_table_text(table: tuple[int, ...], before: tuple[tuple[int, ...], str] = ((), "")) -> str:
    """`(17, 40, 3, 3)` as `17-40 3`. `before`, an earlier table and its text, saves the work that was done for it.

    A table mostly grows at its end, so that of a long one little is new from one sample to the next.
    """
    old, text = before
    if old == table:
        return text
    # The last run of the earlier one may have grown.
    same = max(0, len(old) - 2)
    if same and old[:same] == table[:same]:
        text = text.rpartition(" ")[0]
    else:
        same, text = 0, ""
    pairs = zip(table[same::2], table[same + 1 :: 2], strict=True)
    runs = [str(first) if first == last else f"{first}-{last}" for first, last in pairs]
    return " ".join([text, *runs] if text else runs)


def event_record(event: Event, rank: str) -> Record:
    """An entry of `events`."""
    return make_record(
        rank=rank,
        sequence=event.sequence,
        time=event.time,
        kind=event.kind,
        fields=json.dumps({name: _shortened(value) for name, value in event.fields.items()}, default=_described),
    )


def shorten(text: str, most: int = LONGEST_TEXT) -> str:
    """On one line, without what a terminal would obey, and not too long."""
    text = " ".join(text.split())
    if not text.isprintable():
        text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def make_record(**fields: float | str | None) -> Record:
    """The fields as text."""
    return {name: to_text(value) for name, value in fields.items()}


def _said(source: msgspec.Struct | None, field: str) -> Any:
    return None if source is None else getattr(source, field)


def _shortened(value: Any) -> Any:
    return shorten(value) if isinstance(value, str) else value


def _described(value: Any) -> str:
    """Of something that JSON has no word for."""
    return shorten(str(value))
