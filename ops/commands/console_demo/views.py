"""What a simulated server says of itself: the views that a reader of the bus would have of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from swift_tiers.radix_tiering.base.config import TiersConfig, dump_config
from swift_tiers.radix_tiering.bus.contract.lease_records import leases_record
from swift_tiers.radix_tiering.bus.contract.recent import RecentLatencies, quantiles
from swift_tiers.radix_tiering.bus.contract.records import Record, link_record, record, tier_record
from swift_tiers.radix_tiering.bus.contract.view_reading import AnyView, read_view
from swift_tiers.radix_tiering.bus.contract.views import (
    DeviceView,
    DirectoryView,
    LeasesView,
    LinkView,
    RankState,
    RankView,
    RequestView,
    ServerState,
    ServerView,
    StripeSetView,
    TierView,
    TreeView,
)
from swift_tiers.radix_tiering.figures.story import COMPUTED
from swift_tiers.radix_tiering.lending.leases import LeaseView, RunState
from swift_tiers.radix_tiering.table.tier_copies import HOST
from swift_tiers.radix_tiering.way.observing import tier_snapshots

from .gpus import DemoGpu
from .server import PAGE_TOKENS, DemoRequest, DemoServer
from .stripes import OUT, Device
from .tree import DemoTreeShape, shape_of

#: How old everything is that they say, seconds: servers speak twice a second.
AGE = 0.2


class ServerViews:
    """Of one life of a server. The shape of its tree is looked at once a second: it walks over all pages."""

    def __init__(self, server: DemoServer) -> None:
        self.server = server
        self._shape = DemoTreeShape(0, 0, 0, 0)
        self._shaped = float("-inf")
        self._gpu = DemoGpu(server, AGE)
        self._recent = RecentLatencies(lambda: server.clock.now)

    def state(self) -> ServerState:
        server = self.server
        now = server.wall()
        view = ServerView(
            server=server.plan.name,
            alive=True,
            time=now - AGE,
            age_seconds=AGE,
            host=server.plan.host,
            address=f"{server.plan.host}:30000",
            pid=server.pid,
            started=server.started,
            up_seconds=now - server.started,
            version="0.1.0",
            sglang_version="0.5.23",
            model=server.plan.model,
            ranks=(server.rank,),
            interval_seconds=0.5,
            clock_offset_seconds=0.0,
            control=True,
            configuration={
                "demo": "simulated: nothing here runs anywhere",
                "policy": dump_config(TiersConfig(policy=server.tiers.policy))["policy"],
            },
        )
        return ServerState(server=view, ranks=(self._rank(),))

    def _rank(self) -> RankState:
        server, tiers = self.server, self.server.tiers
        with tiers.table.lock:
            tiers.use_times.note(tiers.table.time, server.clock.now)
        lent = _by_partner(server.donor.machine.leases(server.clock.now), "borrower") if server.donor else {}
        held = _by_partner(server.borrower.machine.leases(server.clock.now), "donor") if server.borrower else {}
        tiers_now = tuple(self._tiers())
        return RankState(
            name=server.rank,
            rank=self._rank_view(lent, held, [tier.tier for tier in tiers_now]),
            tiers=tiers_now,
            stripe_set=self._stripe_set(),
            devices=tuple(self._device(device) for device in server.stripes.devices) if server.stripes else (),
            links=tuple(self._links()),
            gpu=self._gpu.view(),
            reaches=self._gpu.reaches(),
            tree=self._tree(),
            directory=self._view(DirectoryView, record(DirectoryView, tiers.table.directory(tiers.digest))),
            requests=tuple(self._request(one) for one in (*server.ended, *server.requests.values())),
            lent=tuple(self._leases(server.lease_name, other, views) for other, views in sorted(lent.items())),
            borrowed=tuple(self._leases(other, server.lease_name, views) for other, views in sorted(held.items())),
        )

    def _home(self) -> dict[str, Any]:
        server = self.server
        return {
            "server": server.plan.name, "rank": server.rank, "time": server.wall() - AGE, "age_seconds": AGE,
        }  # fmt: skip

    def _rank_view(
        self, lent: dict[str, list[LeaseView]], held: dict[str, list[LeaseView]], named: Iterable[str]
    ) -> RankView:
        server, counts = self.server, self.server.counts
        tiers, donor = server.tiers, server.donor
        running = sum(one.first_token is not None for one in server.requests.values())
        part = donor is not None or server.borrower is not None
        limit = donor.machine.limit_bytes if donor is not None else None
        return RankView(
            **self._home(),
            pid=server.pid,
            namespace=tiers.digest.hex(),
            page_tokens=PAGE_TOKENS,
            page_bytes=tiers.geometry.page_bytes,
            io_engine="simulated" if server.stripes else "",
            write_queue_pages=tiers.backlog,
            running_requests=running,
            waiting_requests=len(server.requests) - running,
            restores_started=counts["started"],
            restores_completed=counts["completed"],
            restores_split=counts["split"],
            restores_cut_short=0,
            restores_expired=0,
            restores_cancelled=0,
            restores_late=counts["late"],
            lost_pages=0,
            failed_loads=0,
            events=server.events.emitted,
            events_lost=0,
            publishes=0,
            publish_failures=0,
            publish_seconds=0.0,
            publish_cpu_seconds=0.0,
            tiers=tuple(named),
            links=tuple(tiers.links),
            lease_address="simulated" if donor else "",
            lent_bytes=(donor.bytes_in(RunState.LENT, RunState.RECALLED) if donor else 0) if part else None,
            lendable_bytes=donor.bytes_in(RunState.FREE, RunState.FENCING) if donor else None,
            lend_limit_bytes=limit,
            lend_window_seconds=donor.lender.window_seconds if donor else None,
            lend_peak_bytes=donor.lender.peak_bytes if donor else None,
            lends_to=tuple(sorted(lent)),
            borrowed_bytes=server.borrower.machine.held_bytes if server.borrower else 0,
            borrows_from=tuple(sorted(held)),
        )

    def _tiers(self) -> Iterable[TierView]:
        tiers, server = self.server.tiers, self.server
        page, pool = tiers.geometry.page_bytes, tiers.pool
        own = pool.slots - (server.donor.sizer.lent if server.donor is not None else 0)
        device = tiers.device_counters.snapshot(
            capacity_bytes=own * page,
            used_bytes=(own - pool.slots + pool.used_slots) * page,
            pages=tiers.device.of[HOST].pages,
            only_pages=tiers.device.only_in(HOST),
            pinned_pages=tiers.device.pinned_pages,
            limit_bytes=own * page,
        )
        yield self._view(TierView, record(TierView, device, only_pages=None, checksum_failures=None), tier="device")
        for name, snapshot in tier_snapshots(tiers).items():
            recent = self._recent.of(f"tier {name}", snapshot.read_latency)
            yield self._view(TierView, tier_record(snapshot, recent, time=0.0), tier=name)

    def _stripe_set(self) -> StripeSetView | None:
        stripes = self.server.stripes
        if stripes is None:
            return None
        number, said = self.server.namespace.hex()[:16], {"ok": stripes.answered}
        found = record(StripeSetView, stripes, set=number, devices=len(stripes.devices), missing=0, reads=said)
        return self._view(StripeSetView, found)

    def _device(self, device: Device) -> DeviceView:
        stripes = self.server.stripes
        assert stripes is not None
        capacity, free = device.slots.count * stripes.unit_bytes, device.slots.free * stripes.unit_bytes
        recent = self._recent.of(f"ssd {device.number}", device.latency.snapshot())
        found = record(
            DeviceView,
            device,
            capacity_bytes=capacity,
            used_bytes=0 if device.service == OUT else capacity - free,
            read_errors=0,
            corrupt_units=0,
            recent_requests=recent.count,
            **quantiles(recent),
        )
        return self._view(DeviceView, found, number=device.number)

    def _links(self) -> Iterable[LinkView]:
        found = dict(self.server.tiers.links)
        if self.server.memory is not None:
            found |= self.server.memory.links
        for name, counters in found.items():
            link = counters.snapshot()
            recent = self._recent.of(f"link {name}", link.latency)
            yield self._view(LinkView, link_record(link, None, recent, time=0.0), link=name)

    def _tree(self) -> TreeView:
        server, device = self.server, self.server.tiers.device
        now = server.clock.now
        if now - self._shaped >= 1.0:
            self._shape, self._shaped = shape_of(device.listed()), now
        shape = self._shape
        return TreeView(
            **self._home(),
            nodes=shape.nodes,
            leaves=shape.leaves,
            depth=shape.depth,
            deepest_tokens=shape.deepest * PAGE_TOKENS,
            cached_tokens=device.of[HOST].pages * PAGE_TOKENS,
            evictable_tokens=(device.of[HOST].pages - device.pinned_pages) * PAGE_TOKENS,
            protected_tokens=device.pinned_pages * PAGE_TOKENS,
            reused_tokens=server.counts["reused_tokens"],
            prompt_tokens=server.counts["prompt_tokens"],
            evicted_tokens=server.tiers.device_counters.evictions * PAGE_TOKENS,
            complete=True,
        )

    def _leases(self, donor: str, borrower: str, views: list[LeaseView]) -> LeasesView:
        said = leases_record(views, at_donor=donor == self.server.lease_name, time=0.0)
        return self._view(LeasesView, said, donor=donor, borrower=borrower)

    def _view(self, kind: type[AnyView], said: Record, **words: Any) -> AnyView:
        """What a reader of the bus would see."""
        return read_view(kind, said, **self._home(), **words)

    def _request(self, one: DemoRequest) -> RequestView:
        server = self.server
        base = server.wall() - server.clock.now
        story = server.device.story(one.restoration) if one.restoration is not None else None
        settled = one.first_token is not None
        came = dict.fromkeys(("peer", "host", "ssd"), 0)
        if settled and story is not None:
            came |= {name: pages for name, pages in _came(story.runs).items() if name in came}
        found = one.on_device + sum(came.values())
        total = -(-one.prompt_tokens // PAGE_TOKENS)
        runs = (("device", one.on_device), *(story.runs if story is not None else ()))
        left = total - sum(pages for _, pages in runs)
        return RequestView(
            **self._home(),
            rid=one.rid,
            state=one.state,
            arrived=base + one.arrived,
            prompt_tokens=one.prompt_tokens,
            output_tokens=one.output_tokens(server.clock.now),
            device_tokens=one.on_device * PAGE_TOKENS,
            peer_tokens=came["peer"] * PAGE_TOKENS if settled else None,
            host_tokens=came["host"] * PAGE_TOKENS if settled else None,
            ssd_tokens=came["ssd"] * PAGE_TOKENS if settled else None,
            recomputed_tokens=max(0, one.prompt_tokens - found * PAGE_TOKENS) if settled else None,
            restore=_verdict(one, story is not None and story.pages(COMPUTED) > 0),
            restore_seconds=story.there_seconds if story is not None and one.found else None,
            restore_story=story,
            queue_seconds=None if one.began is None else one.began - one.arrived,
            first_token_seconds=None if one.first_token is None else one.first_token - one.arrived,
            ended=None if one.ended is None else base + one.ended,
            pages=total,
            tiers=tuple(run for run in (*runs, ("compute", left)) if run[1] > 0) if settled else (),
            last_page=one.call.keys[-1].hex() if one.call.keys else "",
            block_table=tuple((first + 1, last + 1) for first, last in one.block_table) if one.ended is None else (),
        )


def _verdict(one: DemoRequest, split: bool) -> str:
    if not one.found:
        return "none"
    if one.first_token is None:
        return "waiting"
    return "split" if split else "completed"


def _came(runs: Iterable[tuple[str, int]]) -> dict[str, int]:
    came: dict[str, int] = {}
    for name, pages in runs:
        came[name] = came.get(name, 0) + pages
    return came


def _by_partner(views: Iterable[LeaseView], side: str) -> dict[str, list[LeaseView]]:
    found: dict[str, list[LeaseView]] = {}
    for view in views:
        found.setdefault(getattr(view, side).name, []).append(view)
    return found
