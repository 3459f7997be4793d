"""What an engine and a scheduler tell, made up: every field, as many requests and devices as wanted."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import numpy as np

from swift_tiers.radix_tiering.base.slot_map import MapPiece, SlotState, TierMap
from swift_tiers.radix_tiering.bus.contract.records import ServerInfo
from swift_tiers.radix_tiering.bus.contract.schema import LINKS
from swift_tiers.radix_tiering.figures.counters import (
    DeviceSnapshot,
    DirectorySnapshot,
    LatencyHistogram,
    LinkSnapshot,
    PageFacts,
    PagePlaces,
    RestoreSnapshot,
    StackSnapshot,
    StripeSnapshot,
    TierSnapshot,
)
from swift_tiers.radix_tiering.figures.forms import NodeEntry
from swift_tiers.radix_tiering.figures.story import RestoreStory
from swift_tiers.radix_tiering.figures.telemetry import (
    DevicePoolSample,
    EngineSample,
    NoAnswer,
    PageAnswer,
    PrefixAnswer,
    RequestSample,
    RequestState,
    TreeNodes,
    TreeSample,
)
from swift_tiers.radix_tiering.gpus.snapshots import Gpu, GpuSample, Reach, ReachSample
from swift_tiers.radix_tiering.lending.leases import LeaseView, Party
from swift_tiers.radix_tiering.lending.leases.hand import LeaseSnapshot

INFO = ServerInfo(
    host="box",
    address="127.0.0.1:30000",
    started=1_700_000_000.0,
    version="0.1.0",
    sglang_version="0.5.23",
    model="/models/SmolLM2",
    ranks=("dp0-tp0",),
    configuration={"host": {"size": 2**30}},
)


def latency(*seconds: float) -> Any:
    histogram = LatencyHistogram()
    for one in seconds:
        histogram.observe(one)
    return histogram.snapshot()


def tier(**changes: Any) -> TierSnapshot:
    fields: dict[str, Any] = {
        "capacity_bytes": 2**30,
        "limit_bytes": 2**29,
        "used_bytes": 2**28,
        "pages": 700,
        "only_pages": 500,
        "pinned_pages": 12,
        "unread_pages": 0,
        "hits": 900,
        "misses": 100,
        "bytes_read": 10**9,
        "bytes_written": 2 * 10**9,
        "evictions": 40,
        "refusals": {"full": 3},
        "checksum_failures": 1,
        "read_latency": latency(0.001, 0.002, 0.2),
    }
    return TierSnapshot(**{**fields, **changes})


def device(number: int, **changes: Any) -> DeviceSnapshot:
    fields: dict[str, Any] = {
        "path": f"/ssd{number}/swift-tiers.stripe",
        "service": "in service",
        "in_service": True,
        "takes_pages": True,
        "reason": "",
        "capacity_bytes": 2**33,
        "used_bytes": 2**30,
        "bytes_read": 10**9,
        "bytes_written": 2 * 10**9,
        "reads": 4000,
        "writes": 8000,
        "read_errors": 2,
        "write_errors": 1,
        "corrupt_units": 1,
        "in_flight": 2,
        "latency": latency(0.0001, 0.0002),
    }
    return DeviceSnapshot(**{**fields, **changes})


def stack(devices: int = 2, **changes: Any) -> StackSnapshot:
    copies = LinkSnapshot(transfers=100, pages=1600, bytes=10**9, seconds=0.5, latency=latency(*[0.005] * 100))
    fields: dict[str, Any] = {
        "namespace": "cd" * 16,
        "page_bytes": 368640,
        "tokens_per_page": 16,
        "tiers": {"peer": tier(), "host": tier(), "ssd": tier(capacity_bytes=2**34, read_latency=latency())},
        "links": dict.fromkeys((*LINKS, "beta.dp0-tp0-host", "host-beta.dp0-tp0"), copies),
        "directory": DirectorySnapshot(
            pages=2000,
            both_pages=956,
            deepest_pages=256,
            first_pages=12,
            foreign_pages=3,
        ),
        "stripe": StripeSnapshot(
            set_id="ef" * 16,
            unit_bytes=2**18,
            devices=devices,
            missing=1,
            capacity_units=65536,
            free_units=60000,
            queued=4,
            coded=700,
            saved_bytes=2**31,
            reads={"ok": 800, "corrupt: checksum": 1},
        ),
        "devices": tuple(device(number) for number in range(devices)),
        "restores": RestoreSnapshot(
            restores_started=40,
            restores_completed=30,
            restores_cut_short=1,
            restores_split=6,
            restores_expired=2,
            restores_cancelled=1,
            failed_loads=1,
            restores_late=1,
            restores_copied_first=3,
            lost_pages=3,
        ),
        "page_codec": "int8",
        "io_engine": "io_uring",
        "write_queue_pages": 3,
        "landing_pages": 113,
        "landing_used_pages": 7,
        "hung_threads": 1,
        "outgoing_pages": 32,
        "outgoing_used_pages": 5,
        "remote_engine": "asked",
        "remote_engine_asked": 1,
        "remote_questions": 12,
        "remote_late": 2,
        "remote_errors": 4,
        "remote_lost": 3,
        "remote_bad": 1,
        "events_emitted": 5,
    }
    return StackSnapshot(**{**fields, **changes})


STORY = RestoreStory(
    page_tokens=16,
    prefix_pages=12,
    wanted_pages=34,
    found_pages={"host": 10, "ssd": 20},
    strategy="token-wise",
    why="recomputing 160 of 480 tokens meanwhile takes 200 ms",
    estimated_seconds=0.2,
    estimated_compute_seconds=0.2,
    estimated_load_seconds={"ssd": 0.19},
    planned_lead_pages=10,
    planned_meeting_pages=20,
    runs=(("host", 10), ("compute", 11), ("ssd", 9)),
    meeting_pages=21,
    there_seconds=0.32,
    waited_seconds=0.21,
    held_seconds=0.01,
    compute_seconds=0.2,
    load_seconds={"ssd": 0.25},
    copy_seconds=0.004,
    lost_pages={"ssd: io error": 1},
)


def request(rid: str, **changes: Any) -> RequestSample:
    fields: dict[str, Any] = {
        "rid": rid,
        "state": RequestState.RUNNING,
        "arrived": 1_700_000_100.0,
        "prompt_tokens": 736,
        "output_tokens": 12,
        "device_tokens": 192,
        "peer_tokens": 0,
        "host_tokens": 480,
        "ssd_tokens": 0,
        "remote_tokens": 0,
        "recomputed_tokens": 64,
        "restore": "completed",
        "restore_seconds": 0.21,
        "restore_story": STORY,
        "queue_seconds": 0.25,
        "first_token_seconds": 0.4,
        "ended": None,
        "tiers": (("device", 12), ("host", 30), ("compute", 4)),
        "last_page": "ef" * 32,
        "block_table": (17, 40, 3, 3, 90, 110),
    }
    return RequestSample(**{**fields, **changes})


def ended(rid: str, at: float, **changes: Any) -> RequestSample:
    return request(rid, **{"state": RequestState.FINISHED, "ended": at, "block_table": (), **changes})


def engine(*requests: RequestSample, at: float | None = None) -> EngineSample:
    return EngineSample(
        time=time.time() if at is None else at,
        requests=requests,
        running_requests=len(requests),
        waiting_requests=1,
        device=DevicePoolSample(
            capacity_bytes=2**31,
            used_bytes=2**30,
            pages=2900,
            pinned_pages=100,
            hits=500,
            misses=200,
            bytes_read=10**8,
            bytes_written=10**7,
            evictions=60,
        ),
        tree=TreeSample(
            nodes=120,
            leaves=40,
            depth=7,
            deepest_tokens=4096,
            cached_tokens=8000,
            evictable_tokens=6000,
            protected_tokens=2000,
            reused_tokens=70000,
            prompt_tokens=100000,
            evicted_tokens=12000,
            complete=True,
        ),
        sample_seconds=1.5,
    )


def lease(number: int, donor: str, borrower: str, **changes: Any) -> LeaseView:
    view = LeaseView(Party(donor, 7), Party(borrower, 8), number, 2**21, "lent", 1.75)
    return view._replace(**changes)


def leases(own: str = "alpha.dp0-tp0", **changes: Any) -> LeaseSnapshot:
    """A rank that lends three, one of them pinned and one recalled, and borrows one."""
    fields: dict[str, Any] = {
        "name": own,
        "address": f"ipc:///run/swift/{own}.lease",
        "lent": (
            lease(12, own, "beta.dp0-tp0", pinned=True),
            lease(13, own, "beta.dp0-tp0", state="recalled", seconds_left=0.25),
            lease(14, own, "gamma.dp0-tp0", bytes=2**22),
        ),
        "borrowed": (lease(3, "beta.dp0-tp0", own, state="active"),),
        "lendable_bytes": 2**23,
        "limit_bytes": 2**30,
        "window_seconds": 60.0,
        "peak_bytes": 2**28,
        "lend_ignored": 5,
        "lend_other_releases": 3,
        "lend_faults": 1,
    }
    return LeaseSnapshot(**{**fields, **changes})


GPUS = tuple(f"GPU-0000000{number}-1111-2222-3333-444455556666" for number in range(3))


def gpu(**changes: Any) -> GpuSample:
    """The first of three GPUs, with direct links to the second, and none to the third."""
    usual = {"switched": False, "read": "ok", "write": "ok"}
    sample = GpuSample(
        time=1_700_000_004.0,
        gpu=Gpu(
            index=0,
            uuid=GPUS[0],
            name="NVIDIA H200",
            pci="0000:1b:00.0",
            mig=False,
            memory_total_bytes=140 * 2**30,
            memory_used_bytes=120 * 2**30,
            memory_free_bytes=20 * 2**30,
            busy_share=0.37,
        ),
        nvlinks=4,
        nvlink_sent_bytes=10**9,
        nvlink_received_bytes=2 * 10**9,
        nvlink_sent_bytes_per_second=3 * 10**6,
        nvlink_received_bytes_per_second=4 * 10**6,
        pcie_sent_bytes_per_second=5 * 10**6,
        pcie_received_bytes_per_second=6 * 10**6,
        reaches=(
            ReachSample(
                reach=Reach(one=GPUS[0], other=GPUS[1], nvlinks=4, pcie="node", nvlink="ok", **usual),
                name="NVIDIA H200",
                nvlink_sent_bytes=10**9,
                nvlink_received_bytes=2 * 10**9,
                nvlink_sent_bytes_per_second=3 * 10**6,
                nvlink_received_bytes_per_second=4 * 10**6,
            ),
            ReachSample(
                reach=Reach(one=GPUS[0], other=GPUS[2], nvlinks=0, pcie="system", nvlink="not supported", **usual),
                name="NVIDIA H200",
            ),
        ),
    )
    return msgspec.structs.replace(sample, **changes)


PAGE = "ab" * 32
FACTS = PageFacts(
    namespace="cd" * 16,
    depth=12,
    parent="12" * 32,
    children=1,
    bytes=368640,
    uses=3,
    pins=0,
    host_slot=77,
    peer="beta.dp0-tp0 lease 12 slot 3",
    ssd_placement=((0, 17), (1, 4)),
    generation=9,
    checksum="ef" * 16,
    last_used_seconds=4.5,
    origin="computed here",
)
PREFIX = PrefixAnswer(
    5000,
    (
        PagePlaces(4999, "12" * 32),
        PagePlaces(5000, PAGE, 17, 3, ("beta.dp0-tp0", 12, 4), ((0, 5), (1, 9))),
    ),
)
HOST_MAP = TierMap(
    time=1_700_000_003.0,
    slot_bytes=368640,
    states=np.repeat(np.array([SlotState.FREE, SlotState.CACHED, SlotState.PINNED], np.uint8), [120, 30, 2]),
)
SSD_MAP = TierMap(
    time=1_700_000_003.0,
    slot_bytes=2**18,
    states=np.repeat(np.array([SlotState.CACHED, SlotState.FREE, SlotState.OUT], np.uint8), [3, 5, 8]),
    pieces=(MapPiece("0", 8), MapPiece("1", 8)),
)
NODES = TreeNodes(
    time=1_700_000_003.0,
    nodes=3,
    complete=True,
    table=(
        NodeEntry(7, None, 1024, 4096, 3, 1, 12.5, PAGE),
        NodeEntry(9, 7, 3072, 3072, 1, 0, None, ""),
        NodeEntry(11, None, 64, 64, 1, 0, 0.25, "34" * 32),
    ),
)


class MadeUp:
    """A `Telemetry`, and an `Answerer`, that says what it is told to."""

    def __init__(self) -> None:
        self.tiers: StackSnapshot | Exception = stack()
        self.sample: EngineSample | None = engine(request("one"))
        self.over: list[RequestSample] = []
        self.pages: dict[bytes, PageFacts] = {bytes.fromhex(PAGE): FACTS}
        self.lending: LeaseSnapshot | Exception = leases()
        self.maps: dict[str, TierMap] = {"host": HOST_MAP, "ssd": SSD_MAP}
        self.tree = NODES

    def stack(self) -> StackSnapshot:
        if isinstance(self.tiers, Exception):
            raise self.tiers
        return self.tiers

    def engine(self) -> EngineSample | None:
        return self.sample

    def ended(self) -> list[RequestSample]:
        over, self.over = self.over, []
        return over

    def leases(self) -> LeaseSnapshot:
        if isinstance(self.lending, Exception):
            raise self.lending
        return self.lending

    def facts(self, key: bytes) -> PageFacts | None:
        return self.pages.get(key)

    def page(self, key: bytes) -> PageAnswer:
        if len(key) < 32:
            key = next((one for one in self.pages if one.startswith(key)), b"")
            if not key:
                return PageAnswer(None)
        facts = self.facts(key)
        return PageAnswer(facts, None if facts is None else 17, key)

    def prefix(self, key: bytes, most: int) -> PrefixAnswer:
        return PREFIX if key.hex() == PAGE else PrefixAnswer(0, ())

    def map(self, tier: str) -> TierMap:
        if tier not in self.maps:
            raise NoAnswer(f"there is no {tier} tier")
        return self.maps[tier]

    def nodes(self, count: int) -> TreeNodes:
        return msgspec.structs.replace(self.tree, table=self.tree.table[:count])
