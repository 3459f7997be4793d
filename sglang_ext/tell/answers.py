"""What readers of the bus ask of one scheduler, answered: by the tier stack, and by the scheduler's thread.

The scheduler is asked for one map and one copy of its tree at a time, and for none while there is one that is new
enough: however many ask, it does the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import msgspec

from swift_tiers.radix_tiering.base.slot_map import TierMap
from swift_tiers.radix_tiering.bus.contract.schema import MOST_LISTED_NODES
from swift_tiers.radix_tiering.figures.counters import PagePlaces
from swift_tiers.radix_tiering.figures.forms import NodeEntry
from swift_tiers.radix_tiering.figures.telemetry import NoAnswer, NotYet, PageAnswer, PrefixAnswer, TreeNodes
from swift_tiers.radix_tiering.stack import TierStack
from swift_tiers.radix_tiering.way.observing import prefix_places, tier_map, whole_key

from . import device_map
from .errands import Errand, Errands
from .sampler import Sampler
from .tree_nodes import Children, Whereabouts, children_of, largest_subtrees, read_keys
from .tree_shape import TreeCopy

#: What was read of the scheduler, and the map of another tier, answers questions for so long, seconds.
FRESH_SECONDS = 0.5
#: How long the answer about a page waits for what the device has of it, seconds: so many turns of the scheduler, with
#: the least and the most. Whoever asks waits for three seconds.
DEVICE_SECONDS, DEVICE_TURNS, MOST_DEVICE_SECONDS = 1.0, 3, 2.0
#: Nobody who waited has asked for so long, seconds: what is being found out is for nobody.
GIVEN_UP_SECONDS = 10.0
#: Sequences that are looked for on the device at a time; who asks for further ones is told nothing of the device.
MOST_LOOKUPS = 16

Read = TypeVar("Read")


class Reading(Generic[Read]):
    """Something that the scheduler's thread is asked for when it is wanted, and not more often than it is new for."""

    def __init__(self, errands: Errands, read: Callable[[], Read]) -> None:
        """`read` runs on the scheduler's thread."""
        self._errands = errands
        self._read = read
        self._errand: Errand | None = None
        self._found: list[Read] = []
        self._at = float("-inf")

    def get(self) -> Read:
        """The newest. Raises NotYet; NoAnswer where it cannot be read."""
        if time.monotonic() - self._at < FRESH_SECONDS:
            return self._found[-1]
        if self._errand is None:
            self._found = []
            errand = Errand(self._work)
            if self._errands.submit(errand):
                self._errand = errand
            raise NotYet
        if not self._errand.ended:
            raise NotYet
        failed, self._errand = self._errand.failed, None
        if failed:
            raise NoAnswer("it cannot be read; see the server's log")
        self._at = time.monotonic()
        return self._found[-1]

    def _work(self) -> Iterator[None]:
        self._found.append(self._read())
        yield


class RankAnswerer:
    """The engine's `Answerer`, for one publisher's thread."""

    def __init__(self, stack: TierStack, sampler: Sampler | None) -> None:
        """`sampler` is None where sampling is off: then the scheduler is asked nothing."""
        self._stack = stack
        self._scheduler = _Scheduler(sampler) if sampler is not None else None
        self._maps: dict[str, tuple[float, TierMap]] = {}  # by tier: read when, monotonic seconds

    def page(self, key: bytes) -> PageAnswer:
        whole = whole_key(self._stack, key)
        if whole is None:
            return PageAnswer(None)
        return PageAnswer(self._stack.page_facts(whole), self._device_slots(whole).get(whole.hex()), whole)

    def prefix(self, key: bytes, most: int) -> PrefixAnswer:
        slots = self._device_slots(key)
        chain = prefix_places(self._stack, key)
        if not chain:
            # No tier below has it, and the device may.
            chain = [PagePlaces(depth, one) for depth, one in enumerate(slots, start=1)]
        listed = [one._replace(device_slot=slots.get(one.key)) for one in chain[-most:]]
        return PrefixAnswer(len(chain), listed)

    def map(self, tier: str) -> TierMap:
        if tier == "device":
            return self._running().device_map()
        at, found = self._maps.get(tier, (float("-inf"), None))
        if found is None or time.monotonic() - at >= FRESH_SECONDS:
            found = tier_map(self._stack, tier, time=time.time())
            if found is None:
                raise NoAnswer(f"there is no {tier} tier")
            self._maps[tier] = time.monotonic(), found
        return found

    def nodes(self, count: int) -> TreeNodes:
        return self._running().nodes(count)

    def _running(self) -> _Scheduler:
        if self._scheduler is None:
            raise NoAnswer("bus.requests_interval is 0: the scheduler is not looked into")
        return self._scheduler

    def _device_slots(self, key: bytes) -> dict[str, int]:
        if self._scheduler is None:
            return {}
        return self._scheduler.device_slots(key, lambda: [one.key for one in prefix_places(self._stack, key)])


class _Lookup:
    """One sequence that is looked for on the device. It is begun when there is room for it."""

    def __init__(self, since: float) -> None:
        self.since = since  # monotonic seconds
        self.places: Whereabouts | None = None
        self.errand: Errand | None = None

    def drop(self) -> None:
        if self.errand is not None:
            self.errand.dropped = True


class _KeyedNodes:
    """A ranking of nodes whose keys are being read."""

    def __init__(self, core: Any, tree: TreeCopy, at: float, table: list[NodeEntry]) -> None:
        """`at`: when the tree was copied, seconds since the epoch."""
        self.asked = time.monotonic()  # last
        self._tree = tree
        self._at = at
        self._table = table
        self._keys = keys = dict[int, str]()
        # It does not lead back to this, or the tree would stay until the garbage collector comes.
        self.errand = Errand(lambda: read_keys(core, [node.node for node in table], keys))

    def told(self) -> TreeNodes:
        """Once the errand has ended."""
        found = tuple(node._replace(key=self._keys.get(node.node, "")) for node in self._table)
        return TreeNodes(time=self._at, nodes=len(self._tree.nodes), complete=self._tree.complete, table=found)


class _Scheduler:
    """What is read of the scheduler, for one publisher's thread."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._errands = sampler.errands
        self._core = sampler.scheduler.tree_cache.tree_core
        self._walk = False
        self._captured = Reading(self._errands, self._capture)
        self._map: tuple[device_map.CapturedMap, TierMap] | None = None
        self._tree = Reading(self._errands, self._copy_tree)
        self._children: tuple[TreeCopy, Children] | None = None
        self._nodes: tuple[float, TreeNodes] | None = None  # told first when, monotonic seconds
        self._keyed: _KeyedNodes | None = None
        self._lookups: dict[bytes, _Lookup] = {}

    # ---- the device's pool ----

    def _capture(self) -> device_map.CapturedMap:
        return device_map.capture(self._sampler.scheduler, self._sampler.linker, walk=self._walk)

    def device_map(self) -> TierMap:
        captured = self._captured.get()
        if not captured.ready():
            raise NotYet
        if self._map is None or self._map[0] is not captured:
            self._walk = False
            try:
                self._map = captured, device_map.completed(captured)
            except NoAnswer:
                if not captured.may_walk:
                    raise
                self._walk = True
                self._captured = Reading(self._errands, self._capture)
                raise NotYet from None
        return self._map[1]

    # ---- the tree ----

    def _copy_tree(self) -> tuple[TreeCopy, list[int], float]:
        cache = self._sampler.scheduler.tree_cache
        held = [cache.node_of(req) for req in self._sampler.present() if req.kv.holds_kv]
        ends = [node for node in held if node is not None]
        self._sampler.shape.sample()  # what has come since the last one
        return self._sampler.shape.copy(), ends, time.time()

    def nodes(self, count: int) -> TreeNodes:
        now = time.monotonic()
        keyed = self._keyed
        if keyed is not None and now - keyed.asked >= GIVEN_UP_SECONDS:
            keyed.errand.dropped = True
            keyed = self._keyed = None
        # What is under way is told, however old it is by then: who begins anew might never end.
        if keyed is not None:
            keyed.asked = now
            if not keyed.errand.ended:
                raise NotYet
            self._keyed, self._nodes = None, (now, keyed.told())
        if self._nodes is None or now - self._nodes[0] >= FRESH_SECONDS:
            tree, ends, at = self._tree.get()
            keyed = _KeyedNodes(self._core, tree, at, largest_subtrees(tree, ends, MOST_LISTED_NODES, now))
            if self._errands.submit(keyed.errand):
                self._keyed = keyed
            raise NotYet
        return msgspec.structs.replace(self._nodes[1], table=self._nodes[1].table[:count])

    # ---- pages ----

    def device_slots(self, key: bytes, chain: Callable[[], list[str]]) -> dict[str, int]:
        """The device's pages of the sequence that ends with `key`, by hex key; nothing where that does not come out in
        time. `chain` gives the keys of the sequence, as far as another tier knows it."""
        now = time.monotonic()
        self._forget_old(now)
        lookup = self._lookups.setdefault(key, _Lookup(now))
        try:
            slots = self._look_for(key, lookup, chain)
        except NotYet:
            if now - lookup.since < max(DEVICE_SECONDS, min(MOST_DEVICE_SECONDS, DEVICE_TURNS * self._errands.turn)):
                raise
            slots = {}
        except NoAnswer:
            slots = {}
        lookup.drop()
        del self._lookups[key]
        return slots

    def _look_for(self, key: bytes, lookup: _Lookup, chain: Callable[[], list[str]]) -> dict[str, int]:
        if lookup.errand is None or lookup.places is None:
            if sum(one.errand is not None for one in self._lookups.values()) >= MOST_LOOKUPS:
                raise NotYet
            tree, _, _ = self._tree.get()
            if self._children is None or self._children[0] is not tree:
                self._children = tree, children_of(tree)
            known = chain()
            page_size = self._sampler.linker.pool.page_size
            root = self._sampler.scheduler.tree_cache.root_node_handle()
            lookup.places = Whereabouts(self._core, root, self._children[1], known or [key.hex()], page_size)
            errand = Errand(lookup.places.follow if known else lookup.places.search)
            if self._errands.submit(errand):
                lookup.errand = errand
            raise NotYet
        if not lookup.errand.ended or not lookup.places.ready():
            raise NotYet
        return {} if lookup.errand.failed else lookup.places.slots()

    def _forget_old(self, now: float) -> None:
        """Questions that were given up before they were answered."""
        for key, lookup in list(self._lookups.items()):
            if now - lookup.since >= 2 * max(DEVICE_SECONDS, MOST_DEVICE_SECONDS):
                lookup.drop()
                del self._lookups[key]
