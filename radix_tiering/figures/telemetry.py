"""What the serving engine above tells about requests, its device memory and its tree: typed, for whoever publishes it.

The engine fills these at a safe point of its own thread; others only read them. They hold ids, counts and page numbers,
never token ids or text.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Generic, NamedTuple, Never, Protocol

import msgspec

from ..base.slot_map import TierMap
from .counters import PageFacts, PagePlaces, StackSnapshot
from .declare import Figures, Gap, counter, fact, gauge, several, text
from .forms import RUNS, STORY, NodeEntry
from .story import RestoreStory


class RequestState(Enum):
    WAITING = "waiting"
    RESTORING = "restoring"  # its pages are coming up
    RUNNING = "running"
    FINISHED = "finished"
    ABORTED = "aborted"


class RequestFigures(Figures, Generic[Gap]):
    """One request. Its times are by its server's clock."""

    arrived: float | Gap = fact("time")
    prompt_tokens: int | Gap = fact("")
    output_tokens: int | Gap = counter("so far")
    device_tokens: int | Gap = fact("of the prompt: found on the device")
    peer_tokens: int | Gap = fact("of the prompt: loaded from memory of other servers")
    host_tokens: int | Gap = fact("of the prompt: loaded from host memory")
    ssd_tokens: int | Gap = fact("of the prompt: loaded from ssd")
    remote_tokens: int | Gap = fact("of the prompt: loaded from a remote store")
    recomputed_tokens: int | Gap = fact("of the prompt: computed")
    restore: str = text("`none`, `waiting`, `completed`, `split`, `cut short`, `expired` or `cancelled`")
    restore_seconds: float | Gap = fact(
        "until its pages from below the device were there or given up, partly beside computing if `split`"
    )
    restore_story: RestoreStory | None = several(
        "JSON object: how its prefix came back, and why so; empty until it is looked for", STORY
    )
    queue_seconds: float | None = fact("from arrival to the first computation; empty before it")
    first_token_seconds: float | None = fact("from arrival to the first output token; empty before it")
    ended: float | None = fact("time; empty while it is there")
    tiers: tuple[tuple[str, int], ...] = several(
        "where its pages were when it was admitted, as runs: `device 12, host 30, compute 4`", RUNS
    )
    last_page: str = text("hex key of the last whole page of its prompt; empty until it is known, or without one")


class RequestSample(RequestFigures[Never]):
    """One request at one moment."""

    rid: str
    state: RequestState
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


class TreeFigures(Figures, Generic[Gap]):
    """SGLang's radix tree on the device."""

    nodes: int | Gap = gauge("of SGLang's radix tree")
    leaves: int | Gap = gauge("")
    depth: int | Gap = gauge("nodes on the longest path")
    deepest_tokens: int | Gap = gauge("tokens on the longest path")
    cached_tokens: int | Gap = gauge("held by the tree")
    evictable_tokens: int | Gap = gauge("")
    protected_tokens: int | Gap = gauge("in use by requests")
    reused_tokens: int | Gap = counter("prompt tokens found in the tree, summed")
    prompt_tokens: int | Gap = counter("prompt tokens of all admitted requests, summed")
    evicted_tokens: int | Gap = counter("that left the device")
    complete: bool | Gap = fact("0 if the tree was too large to walk: nodes, leaves and depths are of a part")


class TreeSample(TreeFigures[Never]):
    """The tree at one moment."""


class EngineFigures(Figures, Generic[Gap]):
    """The serving engine of one rank."""

    running_requests: int | Gap = gauge("being computed")
    waiting_requests: int | Gap = gauge("not yet admitted")
    sample_seconds: float | Gap = counter("what sampling requests and tree took the scheduler's thread, summed")


class EngineSample(EngineFigures[Never]):
    """What was sampled in one turn of the engine's thread."""

    time: float
    requests: tuple[RequestSample, ...]  # that are there; ended ones are told apart
    device: DevicePoolSample
    tree: TreeSample


class TreeNodes(msgspec.Struct, frozen=True, kw_only=True):
    """The largest subtrees of SGLang's radix tree. Not `complete`: sizes are of the part of it that is known."""

    time: float
    nodes: int  # of the tree
    complete: bool
    table: tuple[NodeEntry, ...]  # the largest subtree first; with whole keys


class PageAnswer(NamedTuple):
    """What is known of one page below the device, if it is held there; its slot on the device, if that is known; its
    whole key, unless only the beginning was asked for, and no page below the device begins so, or several do."""

    facts: PageFacts | None
    device_slot: int | None = None
    key: bytes | None = None


class PrefixAnswer(NamedTuple):
    """The pages of a sequence; none if it is not known."""

    pages: int
    listed: Sequence[PagePlaces]  # the last ones of them


class NotYet(Exception):
    """The engine's thread has not got to it: ask again soon."""


class NoAnswer(Exception):
    """There is none, and will be none; says why."""


class Answerer(Protocol):
    """Who knows what readers of the bus ask. Called on the publisher's thread; waits for nothing but short locks.

    Where the engine's thread has to look first, a method raises NotYet until it has; then the answer is of a moment
    between the first time and now. What many ask for is looked for once.
    """

    def page(self, key: bytes) -> PageAnswer:
        """Where a page is. `key`: its first bytes at least."""
        ...

    def prefix(self, key: bytes, most: int) -> PrefixAnswer:
        """Where the pages of a sequence are, of which this is the last; the last `most` of them one by one."""
        ...

    def map(self, tier: str) -> TierMap:
        """What is in each slot of a tier. Raises NoAnswer."""
        ...

    def nodes(self, count: int) -> TreeNodes:
        """The largest subtrees. Raises NoAnswer."""
        ...


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
