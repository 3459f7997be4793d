"""A bus as servers leave it, written by hand from the schema: every key, every field."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import redis

from swift_tiers.radix_tiering.bus.contract.schema import BY_NAME, SCHEMA_VERSION, Keys

Fields = Mapping[str, object]

RID = "0123456789abcdef0123456789abcdef"
PAGE = "ab" * 32


class HandWritten:
    """One server, on the bus only. Its clock is `offset` seconds ahead of Redis'; times are given by Redis' clock."""

    def __init__(
        self,
        client: redis.Redis,
        name: str = "alpha",
        *,
        ranks: tuple[str, ...] = ("dp0-tp0",),
        offset: float = 0.0,
        life: str = "4242-7200.500000-0000abcd",
        prefix: str = "swift",
        control: bool = True,
        lends: bool = False,
        gpu: bool = False,
    ) -> None:
        self.client = client
        self.name = name
        self.ranks = ranks
        self.offset = offset
        self.life = life
        self.keys = Keys(prefix)
        self.control = control
        self.lends = lends
        self.gpu = gpu
        self.sequences: dict[str, int] = {}

    def now(self) -> float:
        """By Redis' clock."""
        seconds, microseconds = self.client.time()
        return float(seconds) + microseconds / 1e6

    def key(self, spec: str, rank: str = "dp0-tp0", **words: str) -> str:
        return self.keys.of(spec, server=self.name, rank=rank, **words)

    def hash(self, spec: str, fields: Fields, rank: str = "dp0-tp0", *, ago: float = 0.0, **words: str) -> str:
        """Write a hash whose `time` is `ago` seconds back, with the server's clock error."""
        key = self.key(spec, rank, **words)
        content = {"time": self.now() - ago + self.offset, **fields}
        self.client.hset(key, mapping={name: str(value) for name, value in content.items()})
        return key

    def write(self) -> HandWritten:
        """Everything that a server with nothing wrong writes."""
        self.client.set(self.keys.of("schema"), SCHEMA_VERSION)
        self.heartbeat()
        for rank in self.ranks:
            self.write_rank(rank)
        return self

    def heartbeat(self, ago: float = 0.0) -> None:
        self.client.zadd(self.keys.of("servers"), {self.name: self.now() - ago})
        self.hash(
            "info",
            {
                "host": "box",
                "address": "127.0.0.1:30000",
                "pid": 4242,
                "started": self.now() - 7200 + self.offset,
                "version": "0.1.0",
                "sglang_version": "0.5.23",
                "model": "/models/SmolLM2",
                "ranks": ",".join(self.ranks),
                "interval_seconds": 0.5,
                "clock_offset_seconds": self.offset,
                "control": int(self.control),
                "configuration": json.dumps({"host": {"size": 2**30}}),
            },
            ago=ago,
        )

    def write_rank(self, rank: str) -> None:
        self.hash("rank", RANK, rank)
        for tier, fields in TIERS.items():
            self.hash("tier", {**TIER, **fields}, rank, tier=tier)
        self.hash("stripe", STRIPE, rank)
        for number in range(2):
            self.hash("ssd", {**DEVICE, "path": f"/ssd{number}/swift-tiers-{rank}.stripe"}, rank, number=str(number))
        for link in ("device-host", "host-device", "host-ssd", "ssd-host"):
            self.hash("link", LINK, rank, link=link)
        if self.lends:
            self.write_leases(rank)
        if self.gpu:
            self.write_gpu(rank)
        self.hash("tree", TREE, rank)
        self.hash("directory", DIRECTORY, rank)
        self.request(RID, rank)
        self.event("stripe.opened", rank, devices=2)

    def write_leases(self, rank: str, **changes: object) -> None:
        """It lends to `beta.dp0-tp0` and borrows from it, a link for each way; `changes` are of the rank."""
        beta = "beta.dp0-tp0"
        for way in ("peer-host", "host-peer", f"{beta}-host", f"host-{beta}"):
            self.hash("link", LINK, rank, link=way)
        self.hash("tier", TIER, rank, tier="peer")
        self.hash("rank", {**RANK, **LENDING, **changes}, rank)
        self.hash("lent", LEASES, rank, borrower=beta)
        self.hash("borrowed", {**LEASES, **BORROWED}, rank, donor=beta)

    def write_gpu(self, rank: str, **changes: object) -> None:
        """It is on an NVIDIA GPU, and reaches one by NVLink and one by PCIe; `changes` are of the GPU."""
        self.hash("gpu", {**GPU, **changes}, rank)
        self.hash("reach", REACH, rank, gpu="GPU-1")
        self.hash("reach", {**REACH, **NO_NVLINK}, rank, gpu="GPU-2")

    def request(self, rid: str, rank: str = "dp0-tp0", *, ago: float = 4.0, **changes: object) -> None:
        """A request that arrived `ago` seconds back."""
        arrived = self.now() - ago
        self.client.zadd(self.key("requests", rank), {rid: arrived + self.offset})
        self.hash("request", {"arrived": arrived + self.offset, **REQUEST, **changes}, rank, rid=rid)

    def event(
        self,
        kind: str,
        rank: str = "dp0-tp0",
        *,
        sequence: int | None = None,
        ago: float = 0.0,
        at: float | None = None,
        **fields: Any,
    ) -> str:
        """The next event of this rank, or the one with this number; its entry's id. It happened at `at`, or `ago`."""
        self.sequences[rank] = self.sequences.get(rank, 0) + 1 if sequence is None else sequence
        entry = {
            "rank": rank,
            "life": self.life,
            "sequence": self.sequences[rank],
            "time": (self.now() - ago if at is None else at) + self.offset,
            "kind": kind,
            "fields": json.dumps(fields),
        }
        return str(self.client.xadd(self.key("events"), entry))  # type: ignore[arg-type]

    def outcome(self, identifier: str, state: str, **fields: str) -> None:
        """What became of a command."""
        self.hash("command", {"state": state, **fields}, id=identifier)

    def die(self) -> None:
        """Its state has expired; what has no TTL stays."""
        keep = {self.keys.of("servers"), self.keys.of("schema"), self.key("events")}
        self.client.delete(*(key for key in self.client.scan_iter(match=f"*{self.name}*") if key not in keep))

    @contextmanager
    def answering(self, **page: object) -> Iterator[None]:
        """Every rank answers questions while this lasts; `page`: what differs in answers about pages."""
        stop = threading.Event()

        def answer() -> None:
            after = "0-0"
            while not stop.wait(0.01):
                for entry, question in self.client.xrange(self.key("questions"), min=f"({after}"):
                    after = entry
                    ((name, word),) = question.items()
                    for rank in self.ranks:
                        if name == "map":
                            self.hash("map", MAPS.get(word, NO_MAP), rank, tier=word)
                        elif name == "nodes":
                            self.hash("nodes", NODES, rank)
                        else:
                            self.hash(name, {**ANSWER, **page} if name == "page" else PREFIX, rank, key=word)

        with _thread(answer, stop):
            yield

    @contextmanager
    def obeying(self, state: str = "done", reason: str = "", ranks: Mapping[str, str] | None = None) -> Iterator[None]:
        """Commands have this outcome while this lasts."""
        stop = threading.Event()
        outcomes = dict.fromkeys(self.ranks, "done") if ranks is None else ranks

        def obey() -> None:
            after = "0-0"
            while not stop.wait(0.01):
                for entry, order in self.client.xrange(self.key("control"), min=f"({after}"):
                    after = entry
                    kind = json.loads(order["command"])["type"]
                    said = {"author": order["author"], "type": kind, "reason": reason}
                    self.outcome(order["id"], "accepted", **said)
                    fields = {f"rank:{rank}": outcome for rank, outcome in outcomes.items()}
                    self.outcome(order["id"], state, **said, **fields)

        with _thread(obey, stop):
            yield


@contextmanager
def _thread(work: Any, stop: threading.Event) -> Iterator[None]:
    thread = threading.Thread(target=work, name="hand-written")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(20)
        assert not thread.is_alive()


def documented_fields(spec: str) -> set[str]:
    """Names of a hash's or an entry's fields; `refused:*` as it stands."""
    return {field.name for field in BY_NAME[spec].fields}


RANK: Fields = {
    "pid": 4242, "life": "4242-7200.500000-0000abcd",
    "namespace": "cd" * 16, "page_tokens": 16, "page_bytes": 368640, "page_codec": "",
    "io_engine": "io_uring",
    "write_queue_pages": 3, "landing_pages": 0, "landing_used_pages": 0,
    "outgoing_pages": 0, "outgoing_used_pages": 0, "hung_threads": 0,
    "remote_engine": "", "remote_engine_asked": "", "remote_questions": 0, "remote_late": 0, "remote_errors": 0,
    "remote_lost": 0, "remote_bad": 0,
    "running_requests": 2, "waiting_requests": 1, "restores_started": 40,
    "restores_completed": 34, "restores_split": 6, "restores_cut_short": 0, "restores_expired": 0,
    "restores_cancelled": 0, "restores_late": 0, "restores_copied_first": 0, "lost_pages": 0,
    "failed_loads": 0, "events": 1, "events_lost": 0, "publishes": 900, "publish_failures": 0,
    "publish_seconds": 0.0021,
    "publish_cpu_seconds": 1.1, "questions": 0, "questions_ignored": 0, "sample_seconds": 1.5,
    "tiers": "device,host,ssd",
    "links": "device-host,host-device,host-ssd,ssd-host", "lease_address": "", "lease_scope": "", "lent_bytes": "",
    "lendable_bytes": "", "lend_limit_bytes": "",
    "lend_window_seconds": "", "lend_peak_bytes": "", "lends_to": "", "borrowed_bytes": "", "borrows_from": "",
    "lend_ignored": "", "lend_other_releases": "", "lend_faults": "",
}  # fmt: skip
LENDING: Fields = {
    "links": "device-host,host-device,host-ssd,ssd-host,peer-host,host-peer,beta.dp0-tp0-host,host-beta.dp0-tp0",
    "lease_address": "ipc:///run/alpha.dp0-tp0.lease", "lease_scope": "box/1234/1000", "lent_bytes": 3 * 2**21,
    "lendable_bytes": 2**22, "lends_to": "beta.dp0-tp0", "borrowed_bytes": 2**21, "borrows_from": "beta.dp0-tp0",
}  # fmt: skip
LEASES: Fields = {
    "epoch": 0x3F09A1C25D,
    "leases": 3, "bytes": 3 * 2**21, "recalled_bytes": 2**21, "pinned_bytes": 2**21, "shortest_seconds": 0.1,
    "listed": 3, "table": "12:2097152:lent:1.8 13:2097152:recalled:0.1 14:2097152:lent:1.8:pinned",
}  # fmt: skip
BORROWED: Fields = {
    "epoch": 0x77A0B1C2D3,
    "leases": 1, "bytes": 2**21, "recalled_bytes": 0, "pinned_bytes": "", "shortest_seconds": 1.7, "listed": 1,
    "table": "5:2097152:active:1.7",
}  # fmt: skip
TIER: Fields = {
    "capacity_bytes": 2**30, "used_bytes": 2**29, "pages": 1456, "only_pages": 500, "pinned_pages": 12,
    "limit_bytes": 2**30, "unread_pages": 0, "hits": 900, "misses": 100,
    "bytes_read": 10**9, "bytes_written": 2 * 10**9, "evictions": 40, "checksum_failures": 0,
    "refused:full": 0, "restores": 40, "restore_seconds": 1.2, "recent_restores": 9, "recent_p50_seconds": 0.016384,
    "recent_p99_seconds": 0.13,
}  # fmt: skip
TIERS: Mapping[str, Fields] = {
    "device": {
        "restores": 0,
        "restore_seconds": 0,
        "recent_restores": "",
        "recent_p50_seconds": "",
        "recent_p99_seconds": "",
    },
    "host": {},
    "ssd": {"capacity_bytes": 2**34, "limit_bytes": 2**34},
}
STRIPE: Fields = {
    "set": "ef" * 16, "unit_bytes": 2**18, "devices": 2, "missing": 0, "capacity_units": 65536, "free_units": 60000,
    "queued": 4, "coded": 700, "saved_bytes": 2**31, "reads:ok": 800,
}  # fmt: skip
DEVICE: Fields = {
    "service": "in service", "reason": "", "capacity_bytes": 2**33, "used_bytes": 2**30, "bytes_read": 10**9,
    "bytes_written": 2 * 10**9, "reads": 4000, "writes": 8000, "read_errors": 0, "write_errors": 0, "corrupt_units": 0,
    "in_flight": 2, "recent_requests": 4000, "recent_p50_seconds": 0.000128, "recent_p99_seconds": 0.001024,
}  # fmt: skip
LINK: Fields = {
    "transfers": 100, "pages": 1600, "bytes": 10**9, "seconds": 0.5, "recent_transfers": 70,
    "recent_p50_seconds": 0.004096,
    "recent_p99_seconds": 0.016384, "bytes_per_second": 2**20,
}  # fmt: skip
NVLINK: Fields = {
    "nvlink_sent_bytes": 10**9, "nvlink_received_bytes": 2 * 10**9, "nvlink_sent_bytes_per_second": 3 * 2**20,
    "nvlink_received_bytes_per_second": 4 * 2**20,
}  # fmt: skip
GPU: Fields = {
    "index": 0, "uuid": "GPU-0", "name": "NVIDIA H200", "pci": "0000:1b:00.0", "trouble": "", "mig": 0,
    "memory_total_bytes": 140 * 2**30, "memory_used_bytes": 120 * 2**30, "memory_free_bytes": 20 * 2**30,
    "busy_share": 0.37, "nvlinks": 4, **NVLINK, "pcie_sent_bytes_per_second": 5 * 2**20,
    "pcie_received_bytes_per_second": 6 * 2**20, "reaches": "GPU-1,GPU-2",
}  # fmt: skip
REACH: Fields = {
    "name": "NVIDIA H200", "nvlinks": 4, "switched": 0, "pcie": "node", "read": "ok", "write": "ok", "nvlink": "ok",
    **NVLINK,
}  # fmt: skip
NO_NVLINK: Fields = {
    "nvlinks": 0, "pcie": "system", "read": "chipset not supported", "write": "chipset not supported",
    "nvlink": "not supported", **dict.fromkeys(NVLINK, ""),
}  # fmt: skip
TREE: Fields = {
    "nodes": 120, "leaves": 40, "depth": 7, "deepest_tokens": 4096, "cached_tokens": 8000, "evictable_tokens": 6000,
    "protected_tokens": 2000, "reused_tokens": 70000, "prompt_tokens": 100000, "evicted_tokens": 12000, "complete": 1,
}  # fmt: skip
DIRECTORY: Fields = {
    "pages": 2020, "both_pages": 956,
    "deepest_pages": 256, "first_pages": 12, "foreign_pages": 0,
}  # fmt: skip
STORY: Fields = {
    "page_tokens": 16, "prefix_pages": 12, "wanted_pages": 34, "found_pages": {"host": 30}, "whole": "",
    "strategy": "load", "why": "every page is in host memory", "later": "", "estimated_seconds": None,
    "estimated_compute_seconds": None, "estimated_load_seconds": {}, "planned_lead_pages": None,
    "planned_meeting_pages": None, "runs": [["host", 30]], "meeting_pages": 0, "there_seconds": 0.21,
    "waited_seconds": 0.2, "held_seconds": 0.0, "compute_seconds": 0.0, "load_seconds": {}, "copy_seconds": 0.003,
    "lost_pages": {}, "late": "", "late_pages": 0,
}  # fmt: skip
REQUEST: Fields = {
    "state": "running", "prompt_tokens": 736, "output_tokens": 12, "device_tokens": 192, "peer_tokens": 0,
    "host_tokens": 480, "ssd_tokens": 0, "remote_tokens": 0, "recomputed_tokens": 64, "restore": "completed",
    "restore_seconds": 0.21, "restore_story": json.dumps(STORY), "queue_seconds": 0.25,
    "first_token_seconds": 0.4, "ended": "", "pages": 46, "tiers": "device 12, host 30, compute 4",
    "last_page": "ef" * 32, "block_table": "17-40 3 90-110",
}  # fmt: skip
ANSWER: Fields = {
    "held": 1, "whole_key": PAGE, "namespace": "cd" * 16, "depth": 12, "parent": "12" * 32, "children": 1,
    "bytes": 368640, "uses": 3, "pins": 0, "host_slot": 77, "peer": "beta.dp0-tp0 lease 12 slot 3",
    "ssd_placement": "0:17 1:4", "generation": 9, "device_slot": 21, "checksum": "ef" * 16, "last_used_seconds": 4.5,
    "origin": "computed here",
}  # fmt: skip
PREFIX: Fields = {
    "pages": 5000, "listed": 3,
    "table": f"4998:{'12' * 8}:- 4999:{'34' * 8}:host=3,ssd=0/5+1/9 5000:{PAGE[:16]}:device=17,peer=beta.dp0-tp0/12/4",
}  # fmt: skip
MAPS: dict[str, Fields] = {
    "device": {
        "reason": "", "slots": 152, "first_slot": 1, "slot_bytes": 368640, "slots_per_cell": 1, "parts": "",
        "cells": "free 120 cached 30 pinned 2",
    },
    "ssd": {
        "reason": "", "slots": 20, "first_slot": 0, "slot_bytes": 262144, "slots_per_cell": 2, "parts": "0:9 1:11",
        "cells": "cached 4 free 1 out 6",
    },
}  # fmt: skip
NO_MAP: Fields = {"reason": "there is no such tier here"}
NODES: Fields = {
    "reason": "", "nodes": 3, "complete": 1, "listed": 3,
    "table": f"7::1024:4096:3:1:12.5:{PAGE[:16]} 9:7:3072:3072:1:0:: 11::64:64:1:0:0.2:{'34' * 8}",
}  # fmt: skip
