"""The state of one rank on the bus, from what the engine and SGLang tell."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping

import msgspec

from ...base.config import BusConfig
from ...base.runner import Runner
from ...figures.counters import LatencySnapshot, LinkSnapshot, StackSnapshot
from ...figures.telemetry import EngineSample, RequestSample, Telemetry
from ...gpus.snapshots import GpuSample
from ...lending.leases.hand import LeaseSnapshot
from ..contract import records
from ..contract.faults import Faults
from ..contract.lease_records import lease_sums, leases_record, partners
from ..contract.neighbours import Scope
from ..contract.recent import LinkRates, RecentLatencies
from ..contract.records import PublisherNumbers, ServerInfo, gpu_record, reach_record, reaches, record
from ..contract.schema import (
    LINKS,
    MOST_DONOR_LINKS,
    SCHEMA_VERSION,
    SERVER_TTL,
    STATE_TTL_INTERVALS,
    STATE_TTL_LOWEST,
    Keys,
)
from ..contract.views import DirectoryView, StripeSetView, TreeView
from ..redis.batch import RedisBatch
from .mirror import Mirror
from .request_board import RequestBoard

#: By how much a clock has to be off what it was to have been set, seconds.
SET_SECONDS = 1.0


class RankSpeaker:
    """One thread."""

    def __init__(
        self,
        config: BusConfig,
        keys: Keys,
        server: str,
        rank: str,
        life: str,
        info: ServerInfo,
        telemetry: Telemetry,
        faults: Faults,
        *,
        leases: Callable[[], LeaseSnapshot] | None,
        gpu: Callable[[], GpuSample | None] | None,
        scope: Scope,
        leader: bool,
        runner: Runner,
    ) -> None:
        self._config = config
        self._keys = keys
        self._server = server
        self._rank = rank
        self._life = life
        self._info = info
        self._telemetry = telemetry
        self._faults = faults
        self._leases = leases
        self._gpu = gpu
        self._scope = scope
        self._leader = leader
        self._wall = runner.time
        self._boot_time = runner.boot_time
        self._began = runner.boot_time() - (runner.time() - info.started)  # by that clock, which is never set
        ttl = max(STATE_TTL_LOWEST, STATE_TTL_INTERVALS * float(config.interval))
        self.mirror = Mirror(ttl, runner.monotonic)
        self._board = RequestBoard(keys, self.mirror, server, rank, runner)
        self._sample: EngineSample | None = None
        self._rates = LinkRates(runner.monotonic)
        self._recent = RecentLatencies(runner.monotonic)
        self._families: dict[str, set[str]] = {}  # what each name of the schema was last written for

    def forget(self) -> None:
        """Redis may hold none of it: the next publishing writes everything."""
        self.mirror.forget()
        self._board.forget()
        self._sample = None

    def check(self, batch: RedisBatch) -> None:
        """Between two publishings: see whether the state is still there."""
        self.mirror.check(batch, self._key("rank"))

    def publish(self, batch: RedisBatch, numbers: PublisherNumbers, redis_now: float) -> None:
        """Queue everything that is to be said now. `redis_now`: by Redis' clock."""
        stack: StackSnapshot | None = None
        leases: LeaseSnapshot | None = None
        engine: EngineSample | None = None
        ended: list[RequestSample] = []
        with self._faults.at("the tiers' snapshot"):
            stack = self._telemetry.stack()
        if self._leases is not None:
            with self._faults.at("the leases' snapshot"):
                leases = self._leases()
        with self._faults.at("the requests' samples"):
            # In this order: a request that ends in between is in the newer of the two.
            engine = self._telemetry.engine()
            ended = self._telemetry.ended()
        now = self._wall()
        if self._leader:
            with self._faults.at("what is told of the server"):
                self._publish_server(batch, now, redis_now)
        with self._faults.at("what is told of the rank"):
            sums, links = lease_sums(leases, self._scope), _links(stack)
            said = records.rank_record(stack, engine, numbers, sums, links, time=now, pid=os.getpid(), life=self._life)
            self._write(batch, said, "rank")
        with self._faults.at("what is told of the tiers"):
            self._publish_stack(batch, stack, now)
        with self._faults.at("what is told of leases"):
            self._publish_leases(batch, leases, now)
        if self._gpu is not None:
            with self._faults.at("what is told of the GPU"):
                self._publish_gpu(batch, self._gpu())
        with self._faults.at("what is told of requests"):
            self._publish_engine(batch, engine)
            self._board.publish(batch, engine, ended, now)

    def leave(self, batch: RedisBatch) -> None:
        """The rank ends: nothing is said of it any more but which requests it had."""
        self._board.leave(batch, self._wall())
        self.mirror.remove_all(batch)

    def _publish_server(self, batch: RedisBatch, now: float, redis_now: float) -> None:
        config, servers = self._config, self._keys.of("servers")
        started = now - (self._boot_time() - self._began)
        if abs(started - self._info.started) > SET_SECONDS:
            self._info = msgspec.structs.replace(self._info, started=started)
        batch.add("SET", self._keys.of("schema"), SCHEMA_VERSION, "NX")
        said = records.server_record(
            self._info,
            time=now,
            pid=os.getpid(),
            interval=float(config.interval),
            clock_offset=now - redis_now,
            control=config.control,
        )
        self._write(batch, said, "info")
        batch.add("ZADD", servers, f"{redis_now:.6f}", self._server)
        batch.add("ZREMRANGEBYSCORE", servers, "-inf", f"({redis_now - SERVER_TTL:.6f}")

    def _publish_stack(self, batch: RedisBatch, stack: StackSnapshot | None, now: float) -> None:
        if stack is None:
            return
        told = _links(stack)
        recent = {name: self._recent.of(name, latency) for name, latency in _latencies(stack, told)}
        self._recent.only(recent)
        self._rates.only(told)
        for tier, counters in stack.tiers.items():
            self._write(batch, records.tier_record(counters, recent[f"tier {tier}"], time=now), "tier", tier=tier)
        links = {
            name: records.link_record(link, self._rates.of(name, link.bytes), recent[f"link {name}"], time=now)
            for name, link in told.items()
        }
        self._write_family(batch, links, "link", "link")
        self._write(batch, record(DirectoryView, stack.directory, time=now), "directory")
        if stack.stripe is not None:
            self._write(batch, record(StripeSetView, stack.stripe, time=now, set=stack.stripe.set_id), "stripe")
        for number, device in enumerate(stack.devices):
            said = records.ssd_record(device, recent[f"ssd {number}"], time=now)
            self._write(batch, said, "ssd", number=str(number))

    def _publish_leases(self, batch: RedisBatch, leases: LeaseSnapshot | None, now: float) -> None:
        if leases is None:
            return
        lent, borrowed = partners(leases.lent, leases.name), partners(leases.borrowed, leases.name)
        given = {name: leases_record(views, at_donor=True, time=now) for name, views in lent.items()}
        taken = {name: leases_record(views, at_donor=False, time=now) for name, views in borrowed.items()}
        self._write_family(batch, given, "lent", "borrower")
        self._write_family(batch, taken, "borrowed", "donor")

    def _publish_gpu(self, batch: RedisBatch, sample: GpuSample | None) -> None:
        """With the time of the sample: where nobody samples any more, it grows old."""
        if sample is None:
            return
        self._write(batch, gpu_record(sample), "gpu")
        ways = {uuid: reach_record(one, time=sample.time) for uuid, one in reaches(sample).items()}
        self._write_family(batch, ways, "reach", "gpu")

    def _publish_engine(self, batch: RedisBatch, engine: EngineSample | None) -> None:
        if engine is None:
            return
        tier, tree = self._key("tier", tier="device"), self._key("tree")
        if engine is self._sample:
            self.mirror.keep(batch, tier)
            self.mirror.keep(batch, tree)
            return
        self._sample = engine
        self.mirror.write(batch, tier, records.device_tier_record(engine.device, time=engine.time))
        self.mirror.write(batch, tree, record(TreeView, engine.tree, time=engine.time))

    def _key(self, name: str, **words: str) -> str:
        return self._keys.of(name, server=self._server, rank=self._rank, **words)

    def _write(self, batch: RedisBatch, said: records.Record, name: str, **words: str) -> None:
        self.mirror.write(batch, self._key(name, **words), said)

    def _write_family(self, batch: RedisBatch, family: Mapping[str, records.Record], name: str, word: str) -> None:
        """The records of all keys of a name, by the one word that these differ in: what is not among them goes."""
        for gone in self._families.get(name, set()) - family.keys():
            self.mirror.remove(batch, self._key(name, **{word: gone}))
        self._families[name] = set(family)
        for which, said in family.items():
            self._write(batch, said, name, **{word: which})


def _latencies(stack: StackSnapshot, links: Mapping[str, LinkSnapshot]) -> Iterator[tuple[str, LatencySnapshot]]:
    """Every histogram that is told of, by a name of its own."""
    yield from ((f"tier {name}", tier.read_latency) for name, tier in stack.tiers.items())
    yield from ((f"link {name}", link.latency) for name, link in links.items())
    yield from ((f"ssd {number}", device.latency) for number, device in enumerate(stack.devices))


def _links(stack: StackSnapshot | None) -> dict[str, LinkSnapshot]:
    """Those that are told of: between tiers, and of single donors those over which most has gone."""
    if stack is None:
        return {}
    tiers = {name: link for name, link in stack.links.items() if name in LINKS}
    donors = sorted(stack.links.keys() - tiers.keys(), key=lambda name: (-stack.links[name].bytes, name))
    return tiers | {name: stack.links[name] for name in sorted(donors[:MOST_DONOR_LINKS])}
