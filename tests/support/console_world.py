"""A small world for the console: three servers at one frozen time, with something wrong, and how it goes on."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import msgspec

from swift_tiers.console.feeds.feed import Feed, Look, ViewAnswers, ViewQuestion
from swift_tiers.console.model.alarms import Alarm, Alarms
from swift_tiers.console.model.events import EventHistory
from swift_tiers.console.model.history import History
from swift_tiers.console.model.moment import Moment
from swift_tiers.console.model.place import Place
from swift_tiers.console.views.parts.view import Scene
from swift_tiers.radix_tiering.base.errors import BusError
from swift_tiers.radix_tiering.base.read_config import dump_config, parse_config
from swift_tiers.radix_tiering.bus.contract.commands import AnyCommand
from swift_tiers.radix_tiering.bus.contract.gpu_views import GpuView, ReachView
from swift_tiers.radix_tiering.bus.contract.views import (
    CommandView,
    DeviceView,
    DirectoryView,
    LeaseEntry,
    LeasesView,
    LinkView,
    RankState,
    RankView,
    RequestView,
    ServerState,
    ServerView,
    Snapshot,
    StripeSetView,
    TierView,
    TreeView,
)
from swift_tiers.radix_tiering.bus.hear.event_reading import StreamEvent
from swift_tiers.radix_tiering.figures.story import RestoreStory

from support.console_answers import answers_of

START = 1_763_700_000.0
MIB, GIB = 2**20, 2**30
PAGE_BYTES = 368_640
KEY = "5e" * 32
#: Of every server.
CONFIGURATION = json.loads(
    json.dumps(dump_config(parse_config({"host": {"size": "64GiB"}, "policy": {"eviction": "lfu"}})))
)
GPUS = ("GPU-00000000-1111-2222-3333-444455556666", "GPU-00000001-1111-2222-3333-444455556666")


def _off(number: int) -> float:
    """How far a server's clock is off, seconds."""
    return 0.003 * number


class World:
    """Time goes on by `tick`; everything follows from the number of ticks, so that two runs are alike."""

    def __init__(
        self, servers: tuple[str, ...] = ("alpha", "beta", "gamma"), gone: tuple[str, ...] = ("gamma",)
    ) -> None:
        self.servers = servers
        self.gone = gone
        self.ticks = 0
        self.sick = True
        self.on_gpus = False
        self.tiers = ("device", "peer", "host", "ssd")

    def tick(self, count: int = 1) -> None:
        self.ticks += count

    @property
    def time(self) -> float:
        return START + 0.5 * self.ticks

    def snapshot(self) -> Snapshot:
        return Snapshot(time=self.time, servers=tuple(self._server(number) for number in range(len(self.servers))))

    def _server(self, number: int) -> ServerState:
        name = self.servers[number]
        if name in self.gone:
            return ServerState(server=ServerView(server=name, alive=False, age_seconds=754.0))
        view = ServerView(
            server=name, alive=True, time=self.time - 0.2, age_seconds=0.2, host=f"node-{number}",
            address=f"10.0.0.{number + 1}:30000", pid=4000 + number, started=START - 86_400 - number * 3600,
            up_seconds=86_400.0 + number * 3600 + 0.5 * self.ticks, version="0.1.0", sglang_version="0.5.23",
            model=("/models/Llama-3.1-8B-Instruct", "/models/Qwen3-32B", "/models/SmolLM2-135M")[number % 3],
            ranks=("dp0-tp0",), interval_seconds=0.5, clock_offset_seconds=_off(number), control=True,
            configuration=CONFIGURATION,
        )  # fmt: skip
        return ServerState(server=view, ranks=(self._rank(number),))

    def _rank(self, number: int) -> RankState:
        said = self.time - 0.2 + _off(number)
        home = {"server": self.servers[number], "rank": "dp0-tp0", "time": said, "age_seconds": 0.2}
        lends, borrows = number == 0, number == 1
        donor, borrower = f"{self.servers[0]}.dp0-tp0", f"{self.servers[min(1, len(self.servers) - 1)]}.dp0-tp0"
        lease = {"donor": donor, "borrower": borrower, **self._leases(borrows)}
        return RankState(
            name="dp0-tp0",
            rank=RankView(
                **home, pid=4000 + number, namespace="c0ffee" * 8, page_tokens=16, page_bytes=PAGE_BYTES,
                io_engine="io_uring", write_queue_pages=3 * number,
                running_requests=2 + number, waiting_requests=number,
                restores_started=128 + self.ticks, restores_completed=100 + self.ticks, restores_split=20,
                restores_cut_short=2, restores_expired=0, restores_cancelled=1, restores_late=1,
                restores_copied_first=0, lost_pages=0,
                failed_loads=0, events=40 + self.ticks, events_lost=0, publishes=1000 + self.ticks, publish_failures=0,
                publish_seconds=0.002, publish_cpu_seconds=3.2, links=("device-host", "host-device"),
                lent_bytes=2 * GIB if lends else 0, lendable_bytes=3 * GIB if lends else None,
                lends_to=(borrower,) if lends else (), borrowed_bytes=2 * GIB if borrows else 0,
                borrows_from=(donor,) if borrows else (), lend_window_seconds=60.0 if lends else None,
                lend_peak_bytes=5 * GIB if lends else None,
            ),
            tiers=tuple(self._tier(home, number, tier) for tier in self.tiers),
            stripe_set=StripeSetView(
                **home, set="abcdef0123456789", unit_bytes=128 * 1024, devices=4, missing=0, capacity_units=4_000_000,
                free_units=2_400_000, queued=3, coded=0, saved_bytes=0,
                reads={"ok": 4000 + 50 * self.ticks, "corrupt: checksum": number},
            ),
            devices=tuple(self._device(home, number, device) for device in range(4)),
            gpu=self._gpu(number) if self.on_gpus else None,
            reaches=self._reaches(number) if self.on_gpus else (),
            links=tuple(
                self._link(home, number, at, link) for at, link in enumerate((*_LINKS, *(_DONORS if borrows else ())))
            ),
            tree=TreeView(
                **home, nodes=412, leaves=120, depth=14, deepest_tokens=31_200, cached_tokens=118_000,
                evictable_tokens=90_000, protected_tokens=28_000, reused_tokens=900_000 + 4000 * self.ticks,
                prompt_tokens=1_200_000 + 5000 * self.ticks, evicted_tokens=300_000 + 100 * self.ticks, complete=True,
            ),
            directory=DirectoryView(
                **home, pages=20_000, both_pages=8500,
                deepest_pages=1950, first_pages=120, foreign_pages=0,
            ),
            requests=self._requests(home, number),
            lent=(LeasesView(**home, **lease),) if lends else (),
            borrowed=(LeasesView(**home, **lease),) if borrows else (),
        )  # fmt: skip

    def _tier(self, home: dict, number: int, tier: str) -> TierView:
        capacity = {"device": 16 * GIB, "peer": 2 * GIB, "host": 64 * GIB, "ssd": 2048 * GIB}.get(tier, 8 * GIB)
        share = {"device": 0.93, "peer": 0.41, "host": 0.97, "ssd": 0.38}.get(tier, 0.75)
        share -= 0.2 * number * (tier != "device")
        return TierView(
            **home, tier=tier, capacity_bytes=capacity, used_bytes=int(capacity * max(0.02, share)),
            pages=int(capacity * max(0.02, share) / PAGE_BYTES), only_pages=2000,
            pinned_pages=12 * number, limit_bytes=capacity,
            hits=5000 + 30 * self.ticks, misses=800 + self.ticks, bytes_read=10**10 + 40 * MIB * self.ticks,
            bytes_written=10**10 + 12 * MIB * self.ticks, evictions=400 + 2 * self.ticks,
            checksum_failures=1 if self.sick and number == 1 and tier == "ssd" else 0,
            refused={"full": 3} if number == 1 and tier == "host" else {}, restores=200, restore_seconds=9.5,
            recent_restores=25, recent_p50_seconds=0.033, recent_p99_seconds=0.21,
        )  # fmt: skip

    def _device(self, home: dict, number: int, device: int) -> DeviceView:
        out = self.sick and number == 0 and device == 2
        slow = self.sick and number == 1 and device == 3
        done = 0.0 if out else _swung(self.ticks, number + device)
        return DeviceView(
            **home, number=device, path=f"/ssd{device}/swift-tiers-dp0-tp0.stripe",
            service="out" if out else "in service", reason="write failed: Input/output error" if out else "",
            capacity_bytes=512 * GIB, used_bytes=int(512 * GIB * (0.36 + 0.02 * device)),
            bytes_read=10**11 + int((20 + device) * MIB * done),
            bytes_written=4 * 10**10 + int(5 * MIB * done), reads=900_000 + int(160 * done),
            writes=300_000 + int(40 * done), read_errors=0, write_errors=4 if out else 0,
            corrupt_units=1 if number == 1 and device == 1 and self.sick else 0,
            in_flight=0 if out else 3 + (device + self.ticks // 3) % 5,
            recent_requests=9000, recent_p50_seconds=0.0004, recent_p99_seconds=0.031 if slow else 0.0021,
        )  # fmt: skip

    def _link(self, home: dict, number: int, at: int, link: str) -> LinkView:
        rate = (24 + 30 * number + 7 * at) * MIB
        done = _swung(self.ticks, number + at)
        return LinkView(
            **home, link=link, transfers=9000 + int(12 * done), pages=40_000 + int(60 * done),
            bytes=10**10 + int(rate * done / 2), seconds=12.5 + 0.01 * (at + 1) * done,
            recent_transfers=300, recent_p50_seconds=0.0021 + 0.0004 * at, recent_p99_seconds=0.0085 + 0.002 * at,
            bytes_per_second=float(rate),
        )  # fmt: skip

    def _gpu(self, number: int) -> GpuView:
        """Of one of two on a machine, looked at every two seconds. What others copy is steady."""
        look = self.ticks // 4
        spent = _swung(4 * look, number)
        time = START + 2 * look - 0.3
        return GpuView(
            server=self.servers[number], rank="dp0-tp0", time=time, age_seconds=self.time - time, index=number,
            uuid=GPUS[number], name="NVIDIA H200", pci=f"0000:{0x1B + number:02x}:00.0", mig=False,
            memory_total_bytes=140 * GIB, memory_used_bytes=(122 - 9 * number) * GIB,
            memory_free_bytes=(18 + 9 * number) * GIB, busy_share=0.81 - 0.2 * number, nvlinks=18,
            nvlink_sent_bytes=10**12 + int(400 * MIB * spent), nvlink_received_bytes=10**12 + int(90 * MIB * spent),
            nvlink_sent_bytes_per_second=800.0 * MIB, nvlink_received_bytes_per_second=180.0 * MIB,
            pcie_sent_bytes_per_second=(70 + 9 * (look % 3)) * float(MIB),
            pcie_received_bytes_per_second=(190 + 20 * (look % 2)) * float(MIB), reaches=(GPUS[1 - number],),
        )  # fmt: skip

    def _reaches(self, number: int) -> tuple[ReachView, ...]:
        gpu = self._gpu(number)
        return (
            ReachView(
                server=gpu.server, rank=gpu.rank, time=gpu.time, age_seconds=gpu.age_seconds, gpu=GPUS[1 - number],
                name="NVIDIA H200", nvlinks=18, switched=True, pcie="node", read="ok", write="ok", nvlink="ok",
            ),
        )  # fmt: skip

    def _leases(self, borrows: bool = False) -> dict:
        """As the donor knows them, or as the borrower does."""
        usual = "active" if borrows else "lent"
        table = tuple(
            LeaseEntry(
                lease=12 + one, bytes=256 * MIB, state="recalled" if one == 2 else usual,
                seconds_left=2.0 - 0.2 * one - 0.01 * borrows, pinned=one == 1 and not borrows,
            )
            for one in range(8)
        )  # fmt: skip
        return {
            "epoch": 0x3F09A1C25D,
            "leases": 8, "bytes": 2 * GIB, "recalled_bytes": 256 * MIB, "pinned_bytes": None if borrows else 256 * MIB,
            "shortest_seconds": 0.6, "listed": 8, "table": table,
        }  # fmt: skip

    def _requests(self, home: dict, number: int) -> tuple[RequestView, ...]:
        done = [self._ended(home, number, one) for one in range(6)]
        came = (self.ticks + 7 * number) % 16
        story = RestoreStory(
            page_tokens=16, prefix_pages=4, wanted_pages=1900, found_pages={"host": 300, "ssd": 1500},
            strategy="token-wise", why="loading all takes 2.1 s, computing all 1.4 s; together 0.84 s",
            estimated_seconds=0.84, estimated_compute_seconds=0.8, estimated_load_seconds={"host": 0.1, "ssd": 0.84},
            planned_lead_pages=0, planned_meeting_pages=760, runs=(("compute", 320 + 20 * came),),
            computed_pages=320 + 20 * came, arrived_pages=500 + 25 * came, loading_pages=128,
            load_seconds={"host": 0.09}, compute_seconds=0.36,
        )  # fmt: skip
        running = RequestView(
            **home, rid=f"{number}restore{'0' * 24}", state="restoring", arrived=home["time"] - 0.4,
            prompt_tokens=30_464, output_tokens=0, device_tokens=64, restore="waiting", restore_story=story, pages=1904,
        )  # fmt: skip
        decoding = RequestView(
            **home, rid=f"{number}decode{'0' * 25}", state="running", arrived=home["time"] - 4.8, prompt_tokens=2048,
            output_tokens=77, device_tokens=1024, peer_tokens=0, host_tokens=512, ssd_tokens=0, remote_tokens=0,
            recomputed_tokens=512, restore="completed", restore_seconds=0.04, queue_seconds=0.06,
            first_token_seconds=0.31, pages=133,
            tiers=(("device", 64), ("host", 32), ("compute", 32)), last_page=KEY, block_table=((17, 80), (200, 268)),
        )  # fmt: skip
        return (*done, decoding, running)

    def _ended(self, home: dict, number: int, one: int) -> RequestView:
        story = RestoreStory(
            page_tokens=16, wanted_pages=256, found_pages={"ssd": 256}, strategy="token-wise",
            why="both sides at once", estimated_seconds=0.5, estimated_compute_seconds=0.5,
            estimated_load_seconds={"ssd": 0.5}, planned_lead_pages=0, planned_meeting_pages=128,
            runs=(("compute", 120 + one), ("ssd", 136 - one)), meeting_pages=120 + one, there_seconds=0.48 + 0.01 * one,
            compute_seconds=0.47, load_seconds={"ssd": 0.49}, copy_seconds=0.02,
            late="ssd fell behind" if one == 3 else "", late_pages=12 if one == 3 else 0,
        )  # fmt: skip
        return RequestView(
            **home, rid=f"{number}done{one}{'0' * 26}", state="finished", arrived=START - 60 + one + _off(number),
            prompt_tokens=4100, output_tokens=128, device_tokens=0, peer_tokens=0, host_tokens=0,
            ssd_tokens=16 * (136 - one), remote_tokens=0, recomputed_tokens=4100 - 16 * (136 - one), restore="split",
            restore_seconds=0.49, restore_story=story, queue_seconds=0.5, first_token_seconds=0.52 + 0.05 * one,
            ended=START - 40 + one + _off(number), pages=264, tiers=(("compute", 120 + one), ("ssd", 136 - one)),
            last_page=KEY,
        )  # fmt: skip

    def events(self) -> tuple[StreamEvent, ...]:
        """Those of the first look."""
        said = (
            ("alpha", "ssd.recovered", {"pages": 20_000, "seconds": 1.2}),
            ("alpha", "device.out", {"device": "/ssd2/swift-tiers-dp0-tp0.stripe", "reason": "write failed"}),
            ("beta", "page.corrupt", {"page": KEY, "tier": "ssd"}),
            ("alpha", "lending.sized", {"decision": "shrink", "from_bytes": 3 * GIB, "to_bytes": 2 * GIB}),
            ("beta", "restore.behind", {"rid": "1done3", "reason": "ssd fell behind", "pages": 12}),
            ("beta", "borrowed.recalled", {"donor": "alpha.dp0-tp0", "lease": 11, "pages": 700, "saving": 640}),
            ("alpha", "lending.taken_back", {"pages": 700, "seconds": 0.018}),
        )
        return tuple(
            StreamEvent(
                server=server, rank="dp0-tp0", entry=f"{1000 + at}-0", sequence=at + 1, time=START - 30 + at,
                happened=START - 30 + at, age_seconds=30.0 - at, kind=kind, fields=fields,
            )
            for at, (server, kind, fields) in enumerate(said)
        )  # fmt: skip


def _swung(ticks: int, phase: int) -> float:
    """A count that grows by one a tick, in the mean: now faster, now slower."""
    return ticks + 4 * (math.sin(ticks / 5 + phase) - math.sin(phase))


_LINKS = ("device-host", "host-device", "host-ssd", "ssd-host", "peer-host", "host-peer")
_DONORS = ("alpha.dp0-tp0-host", "host-alpha.dp0-tp0")


class WorldFeed(Feed):
    """The world as a feed: a tick for each look. What is asked is answered from `replies`, else as servers do."""

    name = "redis://10.0.0.9:6379"

    def __init__(self, world: World | None = None, *, steers: bool = True, ticks: int = 1) -> None:
        self.world = World() if world is None else world
        self.steers = steers
        self.ticks = ticks
        self.lost = ""  # why looks fail
        self.looks = 0
        self.asked: list[ViewQuestion] = []
        self.replies: dict[ViewQuestion, ViewAnswers] = {}
        self.sent: list[tuple[str, AnyCommand]] = []
        self.outcome = CommandView(server="", id="c-1", state="done", ranks={"dp0-tp0": "done"})

    def look(self) -> Look:
        if self.lost:
            raise BusError(self.lost)
        self.looks += 1
        items = self.world.events() if self.looks == 1 else ()
        look = Look(snapshot=self.world.snapshot(), items=items)
        self.world.tick(self.ticks)
        return look

    def ask(self, question: ViewQuestion) -> ViewAnswers:
        self.asked.append(question)
        alive = tuple(server for server in self.world.servers if server not in self.world.gone)
        return self.replies[question] if question in self.replies else answers_of(alive, question)

    def command(self, server: str, command: AnyCommand) -> CommandView:
        self.sent.append((server, command))
        return msgspec.structs.replace(self.outcome, server=server)


def moment_of(world: World, ticks: int = 20, lost: str = "", age: float = 0.1) -> Moment:
    """What the console knows after it has watched the world for so many ticks."""
    history, events, alarms = History(), EventHistory(), Alarms()
    events.add(world.events())
    found: tuple[Alarm, ...] = ()
    snapshot = world.snapshot()
    for _ in range(ticks):
        snapshot = world.snapshot()
        history.observe(snapshot)
        found = alarms.of(snapshot, history)
        world.tick()
    return Moment(snapshot, age, lost, history, found, events)


def scene_of(place: Place, world: World | None = None, **changes: Any) -> Scene:
    """The scene of a place in a world that was watched for ten seconds; `changes` are of the scene."""
    return replace(Scene(moment_of(world or World()), place), **changes)


class StillFeed(WorldFeed):
    """A world that goes on for so many looks and then stands still: what is shown then is always the same."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.limit = looks

    def look(self) -> Look:
        self.ticks = int(self.looks < self.limit)
        return super().look()
