"""What the serving engine above tells about requests, its device memory and its tree: typed, for whoever publishes it.

The engine fills these at a safe point of its own thread; others only read them. They hold ids, counts and page numbers,
never token ids or text.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

import msgspec

from swift_tiers.radix_tiering.counters import StackSnapshot
from swift_tiers.radix_tiering.restore.story import RestoreStory


class RequestState(Enum):
    WAITING = "waiting"
    RESTORING = "restoring"  # its pages are coming up
    RUNNING = "running"
    FINISHED = "finished"
    ABORTED = "aborted"


class RequestSample(msgspec.Struct, frozen=True, kw_only=True):
    """One request at one moment. Times are seconds since the epoch; None: it has not come to that yet."""

    rid: str
    state: RequestState
    arrived: float
    prompt_tokens: int
    output_tokens: int
    device_tokens: int  # of the prompt, by where they came from
    peer_tokens: int
    host_tokens: int
    ssd_tokens: int
    recomputed_tokens: int
    restore: str  # "none", "waiting", "completed", "cut short", "expired", "cancelled"
    restore_seconds: float
    restore_story: RestoreStory | None  # None: its prefix has not been looked for below the device
    queue_seconds: float | None
    first_token_seconds: float | None
    ended: float | None
    tiers: tuple[tuple[str, int], ...]  # runs of pages, in order: (("device", 12), ("host", 30), ("compute", 4))
    last_page: str  # hex key of the last whole page of its prompt; empty if there is none, or it is not known yet
    block_table: tuple[int, ...]  # device pages in order, as pairs first, last of runs; empty unless it is running


class DevicePoolSample(msgspec.Struct, frozen=True, kw_only=True):
    """The device's KV pool and what the tree keeps in it. Bytes and pages are of this rank."""

    capacity_bytes: int
    used_bytes: int
    pages: int  # in use or cached
    pinned_pages: int  # in use by requests
    hits: int  # pages of prompts that were found on the device
    misses: int  # pages of prompts that were not
    bytes_read: int  # copied to host memory
    bytes_written: int  # loaded from below
    evictions: int  # pages


class TreeSample(msgspec.Struct, frozen=True, kw_only=True):
    """SGLang's radix tree. `complete` is False where it was too large to be walked in the time allowed."""

    nodes: int
    leaves: int
    depth: int
    deepest_tokens: int
    cached_tokens: int
    evictable_tokens: int
    protected_tokens: int
    reused_tokens: int
    prompt_tokens: int
    evicted_tokens: int
    complete: bool


class EngineSample(msgspec.Struct, frozen=True, kw_only=True):
    """What was sampled in one turn of the engine's thread."""

    time: float
    requests: tuple[RequestSample, ...]  # that are there; ended ones are told apart
    running_requests: int
    waiting_requests: int
    device: DevicePoolSample
    tree: TreeSample
    sample_seconds: float  # what sampling has taken that thread so far, in all


class Telemetry(Protocol):
    """Where a publisher gets everything from. Called on the publisher's thread; waits for nothing but short locks."""

    def stack(self) -> StackSnapshot:
        """Tiers, devices, restores, links and directory, now."""
        ...

    def engine(self) -> EngineSample | None:
        """The newest sample; None before the first, or if sampling is off. The same object until there is a new one."""
        ...

    def ended(self) -> list[RequestSample]:
        """Requests that have ended since the last call, each once, oldest first; at most the newest 1,024."""
        ...
