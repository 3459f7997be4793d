"""Servers that are on a bus only: they say twice a second what busy ones would, for the bench of the console."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import redis

from swift_tiers.radix_tiering.bus.contract.schema import SCHEMA_VERSION, Keys

RANK = "dp0-tp0"
#: Requests of each server: that are there, and that ended lately.
LIVE, ENDED = 16, 240
#: Tokens of a page, and bytes.
PAGE_TOKENS, PAGE_BYTES = 16, 368_640
#: Runs of one state in a map, slots.
RUN = 23

Hash = dict[str, Any]


class BusyServers:
    """`count` servers with `pages` slots each on their devices. One thread."""

    def __init__(self, client: redis.Redis, count: int, pages: int) -> None:
        self._client = client
        self._keys = Keys("swift")
        self._names = [f"server-{number}" for number in range(count)]
        self._pages = pages
        self._ticks = 0

    def begin(self) -> None:
        """What does not change any more: the ended requests."""
        now = time.time()
        pipeline = self._client.pipeline()
        pipeline.set(self._keys.of("schema"), SCHEMA_VERSION)
        for name in self._names:
            for number in range(ENDED):
                self._request(pipeline, name, f"ended-{number:04}", now - 290 + number, "finished", now)
        pipeline.execute()

    def say(self) -> None:
        """What every server says in one publishing."""
        self._ticks += 1
        now = time.time()
        pipeline = self._client.pipeline()
        for number, name in enumerate(self._names):
            pipeline.zadd(self._keys.of("servers"), {name: now})
            for key, fields in self._state(number, name, now):
                pipeline.hset(key, mapping=_timed(now, fields))
            for request in range(LIVE):
                self._request(pipeline, name, f"live-{request:02}", now - request, "running", now)
            if self._ticks % 2:
                # As if it had been asked: an answer is new each second.
                key = self._keys.of("map", server=name, rank=RANK, tier="device")
                pipeline.hset(key, mapping=_timed(now, self._map()))
        pipeline.execute()

    def _state(self, number: int, name: str, now: float) -> Iterator[tuple[str, Hash]]:
        home = {"server": name, "rank": RANK}
        ticks = self._ticks
        yield self._keys.of("info", server=name), {
            "host": "box", "address": f"127.0.0.1:{30000 + number}", "pid": number, "started": now - 9000,
            "version": "0.1.0", "sglang_version": "0.5.23", "model": "/models/Llama-3.1-8B", "ranks": RANK,
            "interval_seconds": 0.5, "clock_offset_seconds": 0.0, "control": 1, "configuration": "{}",
        }  # fmt: skip
        yield self._keys.of("rank", **home), {
            "pid": number, "namespace": "ab" * 16, "page_tokens": PAGE_TOKENS, "page_bytes": PAGE_BYTES,
            "running_requests": LIVE, "waiting_requests": 2, "restores_started": ticks, "restores_completed": ticks,
            "restores_cut_short": 0, "restores_expired": 0, "restores_late": 0,
            "restores_copied_first": 0, "write_queue_pages": ticks % 7,
            "links": "device-host,host-device,host-ssd,ssd-host",
        }  # fmt: skip
        for at, tier in enumerate(("device", "host", "ssd")):
            yield self._keys.of("tier", **home, tier=tier), {
                "capacity_bytes": self._pages * PAGE_BYTES << at, "used_bytes": self._pages * PAGE_BYTES * 9 // 10,
                "pages": self._pages, "pinned_pages": 5, "hits": 40 * ticks, "misses": 3 * ticks,
                "bytes_read": 30_000_000 * ticks + 999 * number, "bytes_written": 9_000_000 * ticks,
                "evictions": 2 * ticks, "checksum_failures": 0, "restores": ticks,
            }  # fmt: skip
        yield self._keys.of("stripe", **home), {"set": "ab12", "unit_bytes": 131_072, "devices": 4, "missing": 0}
        for device in range(4):
            yield self._keys.of("ssd", **home, number=str(device)), {
                "path": f"/ssd{device}", "service": "in service", "capacity_bytes": 2**40, "used_bytes": 2**39,
                "bytes_read": 7_000_000 * ticks, "bytes_written": 2_000_000 * ticks, "reads": 60 * ticks,
                "writes": 20 * ticks, "read_errors": 0, "write_errors": 0, "corrupt_units": 0,
                "in_flight": (ticks + device) % 9, "recent_requests": 9000,
                "recent_p50_seconds": 0.0004, "recent_p99_seconds": 0.002,
            }  # fmt: skip
        for link in ("device-host", "host-device", "host-ssd", "ssd-host"):
            yield self._keys.of("link", **home, link=link), {
                "transfers": 12 * ticks, "pages": 60 * ticks, "bytes": 22_000_000 * ticks, "seconds": 0.01 * ticks,
                "recent_transfers": 800,
                "recent_p50_seconds": 0.002, "recent_p99_seconds": 0.008, "bytes_per_second": 44_000_000 + ticks,
            }  # fmt: skip
        yield self._keys.of("tree", **home), {
            "nodes": 4000, "leaves": 900, "depth": 12, "cached_tokens": self._pages * 12, "complete": 1,
            "reused_tokens": 9000 * ticks, "prompt_tokens": 11_000 * ticks, "evicted_tokens": 500 * ticks,
        }  # fmt: skip

    def _request(self, pipeline: Any, name: str, rid: str, arrived: float, state: str, now: float) -> None:
        home = {"server": name, "rank": RANK}
        pipeline.zadd(self._keys.of("requests", **home), {rid: arrived})
        story = {
            "page_tokens": PAGE_TOKENS, "wanted_pages": 250, "found_pages": {"host": 50, "ssd": 200},
            "strategy": "token-wise", "why": "both at once", "estimated_seconds": 0.4, "planned_meeting_pages": 120,
            "runs": [["compute", 118], ["ssd", 132]], "meeting_pages": 118, "there_seconds": 0.41,
        }  # fmt: skip
        ended = {"ended": arrived + 2} if state == "finished" else {}
        fields = {
            "time": now, "state": state, "arrived": arrived, "prompt_tokens": 4000, "output_tokens": self._ticks % 500,
            "device_tokens": 100, "host_tokens": 400, "ssd_tokens": 1500, "remote_tokens": 0,
            "recomputed_tokens": 2000, "restore": "split", "restore_seconds": 0.4, "restore_story": json.dumps(story),
            "queue_seconds": 0.45, "pages": 260,
            "first_token_seconds": 0.5, "tiers": "compute 118, ssd 132", "block_table": "17-140 300-420 7", **ended,
        }  # fmt: skip
        pipeline.hset(self._keys.of("request", **home, rid=rid), mapping=fields)

    def _map(self) -> Hash:
        states = ("cached", "private", "free", "pinned", "cached", "lent", "cached", "loading")
        runs = [f"{states[(at + self._ticks) % len(states)]} {RUN}" for at in range(self._pages // RUN)]
        return {
            "slots": self._pages // RUN * RUN, "first_slot": 1, "slot_bytes": PAGE_BYTES, "slots_per_cell": 1,
            "cells": " ".join(runs),
        }  # fmt: skip


def _timed(now: float, fields: Hash) -> Any:
    return {"time": now, **fields}


def serve(socket: str, count: int, pages: int) -> None:
    """Say it all until the Redis is gone."""
    with redis.Redis(unix_socket_path=socket, decode_responses=True) as client:
        servers = BusyServers(client, count, pages)
        servers.begin()
        while True:
            started = time.monotonic()
            servers.say()
            time.sleep(max(0.0, 0.5 - (time.monotonic() - started)))


if __name__ == "__main__":
    try:
        serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    except (redis.RedisError, KeyboardInterrupt):
        raise SystemExit(0) from None
