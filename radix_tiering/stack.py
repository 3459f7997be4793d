"""The tier stack of one rank: host memory, and the tiers beneath it, behind one door.

The engine knows nothing of SGLang and of devices: it takes pages in (`intake`), brings chains of pages up (`restore`),
and says what it holds (`probe`, `snapshot`). Whoever drives it copies the bytes between the device and the host slots
that it is given. A page's way down reads from top to bottom in `way/down.py`, its way up in `way/up.py`.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple

import msgspec

from .base.config import TiersConfig
from .base.ending import Ending
from .base.errand_thread import ErrandThread
from .base.errors import SwiftTiersError
from .base.events import EventLog
from .base.page import HeldPages, Namespace
from .base.runner import THREADS, Runner
from .figures.counters import DEVICE_LINKS, LinkCounters, PageFacts, StackSnapshot
from .lending.leases.hand import LeaseHand
from .restore.live import LiveCosts, TimedLink
from .restore.planner import Planner
from .table.held_page import Page
from .table.page_table import PageTable
from .table.policy import eviction_policy
from .table.use_times import UseTimes
from .tiers.host.host_tier import HostTier
from .tiers.host.landing import LandingSlots
from .tiers.tier import Tier
from .way import sweeps
from .way.checking import Checkers
from .way.down import Intake, Mover
from .way.filling import Filling, Stage
from .way.observing import page_facts, take_snapshot
from .way.parts import AnswerBatch, Parts
from .way.request_restore import NOBODY_COMPUTES_LAYERS, Restore
from .way.sending import Sender
from .way.source_turns import SourceTurns
from .way.up import Restorer
from .way.write_queue import WriteQueue

logger = logging.getLogger(__name__)

#: How long the end of a stack waits for one step of what an operator has commanded.
ERRAND_SECONDS = 5.0
#: What is left for the index at the end, seconds, and as much for each million pages: twice what it takes.
INDEX_SECONDS = 2.0
#: Why the writes of a mover wait.
NAMESPACE = "the tier does not know the namespace"
#: What a flush empties: no tier; of all pages those that a restart empties; of this namespace's pages every tier.
Emptied = Literal["nothing", "memory", "all"]


class Flushed(NamedTuple):
    """What a flush has done."""

    pages: int  # that have left a tier
    durable: bool  # whether no crash brings them back; True, too, where nothing had to be written down for that


class TierStack:
    """See the module. Every method may be called from any thread."""

    def __init__(
        self,
        namespace: Namespace,
        config: TiersConfig,
        host: HostTier,
        tiers: Sequence[Tier] = (),
        *,
        events: EventLog | None = None,
        runner: Runner = THREADS,
        costs: LiveCosts | None = None,
        landing: LandingSlots | None = None,
        check_threads: int = 1,
        copies_beside: bool = False,
        fill_behind: bool = False,
    ) -> None:
        """`tiers`: those beneath host memory, in the order in which a page that several have is read. `landing`: where
        pages land that do not pass through host memory. `check_threads`: that verify what is in host memory.
        `copies_beside`: see `HostConfig.verifies`. `fill_behind`: what durable tiers have kept is entered on a thread
        of its own, "swift-fill", and is a miss until then; else before this returns."""
        self.namespace = namespace
        self.config = config
        self.host = host
        self.tiers = {tier.name: tier for tier in tiers}
        self.landing = landing
        #: For operators, where this server lends or borrows; set by whoever made it so.
        self.lease_hand: LeaseHand | None = None
        #: Told who lends, by lease name with the address, where somebody wants to know; on the publisher's thread.
        self.on_neighbours: Callable[[Mapping[str, str]], None] | None = None
        self.events = events or EventLog(runner.time, runner=runner)
        timed = TimedLink()
        self.links = {name: timed if name == "host-device" else LinkCounters() for name in DEVICE_LINKS}
        self.runner = runner
        self.clock = runner.monotonic
        self.use_times = UseTimes()  # as of snapshots
        self.errands = ErrandThread(runner)
        self.closed = False
        self.hung_threads = 0  # by whoever watches threads
        self.table = PageTable(
            host,
            eviction_policy(config.policy),
            tiers,
            runner=runner,
            release_landing=landing.give_back if landing is not None else lambda slot: None,
            pin_lost=self._pin_lost,
            too_much=self._too_much,
            clean=lambda: self.errands.start(sweeps.clean(self.table)),
        )
        self.table.serving = namespace.digest()
        # As a durable tier makes it, where there is one: what it computes for a write then also says whether the bytes
        # were still the page's.
        unit = next((tier.checksum_unit for tier in tiers if tier.durable), None)
        geometry, restoring = namespace.geometry, config.restore
        verify = config.host.verifies(copies_beside=copies_beside)
        self.movers = {
            tier.name: (Sender if tier.hints else Mover)(
                self.table,
                host,
                tier,
                runner=runner,
                events=self.events,
                admission=tier.admission(config.policy, geometry.tokens),
                verify=bool(verify),
                stored=self._stored,
            )
            for tier in tiers
        }
        #: Of what durable tiers have kept.
        self.fillings = {
            name: Filling(self.table, mover, runner=runner, events=self.events)
            for name, mover in self.movers.items()
            if mover.copies.durable
        }
        self.filler = ErrandThread(runner, "swift-fill")
        #: What the device offers is taken in here.
        self.intake = Intake(
            self.table,
            host,
            tuple(self.movers.values()),
            through=lambda: self.config.policy.write == "through",
            checksum_unit=unit,
        )
        #: What recomputing and loading cost, as far as is known: from a profile, or learnt.
        self.costs = costs or LiveCosts(runner=runner)
        self.planner = Planner(
            self.costs,
            page_tokens=geometry.tokens,
            page_bytes=geometry.page_bytes,
            layers=geometry.layers,
            choice=restoring.strategy,
            chunk_tokens=restoring.chunk,
            copy_first=restoring.copy_first,
        )
        self.planner.copying = timed.copying
        self.restorer = Restorer(
            self.table,
            host,
            tiers,
            tuple(self.movers.values()),
            events=self.events,
            runner=runner,
            deadline_seconds=float(config.policy.restore_deadline),
            verify=verify,
            checkers=Checkers(host, unit, check_threads if verify else 0, runner),
            planner=self.planner,
            turns=SourceTurns(self.planner, self.costs, self.clock, tiers, by_age=restoring.loads == "by-age"),
            behind=restoring.behind,
            landing=landing,
        )
        answers = {
            name: AnswerBatch(self.table.lock, (mover.pump, self.restorer.pump)) for name, mover in self.movers.items()
        }
        #: What tiers tell of their leases and devices.
        self.parts = {
            name: Parts(
                self.table,
                mover,
                self.restorer.reads,
                answers[name],
                runner=runner,
                start=self.errands.start,
                events=self.events,
                filling=self.fillings.get(name),
                register=self._register_served,
            )
            for name, mover in self.movers.items()
        }
        for tier in tiers:
            tier.answer_within(answers[tier.name])
            tier.tell_costs(partial(self.costs.loaded, tier.name))
            tier.watch(self.parts[tier.name])
            for event, facts in () if tier.durable else tier.opened():
                self.events.emit(event, **facts)
        for name, filling in self.fillings.items():
            mover = self.movers[name]
            if fill_behind:
                self.filler.start(filling.steps(partial(self._register_served, mover)))
            else:
                sweeps.run(filling.steps(partial(mover.tier.register, self.digest, _described(namespace))))

    @property
    def digest(self) -> bytes:
        """Of the namespace that is served, which scopes the keys."""
        return self.table.serving

    @property
    def _durable(self) -> list[Mover]:
        """Those that write what survives a restart."""
        return [mover for mover in self.movers.values() if mover.copies.durable]

    def _stored(self, pages: Sequence[Page]) -> None:
        self.restorer.reads.learn(pages)

    # ---- up ----

    def probe(self, keys: Sequence[bytes]) -> int:
        """How many pages from the start of `keys` are held somewhere: a hint, taken without waiting for anything."""
        return self.table.probe(self.digest, keys)

    def branches(self, keys: Sequence[bytes]) -> list[int]:
        """Of a chain that is held: behind how many of its pages another one follows than the next; likewise."""
        return self.table.branches(self.digest, keys)

    def last_held(self, keys: Sequence[bytes]) -> int | None:
        """The last of these pages, which are no chain, that is held somewhere; likewise."""
        return self.table.last_held(self.digest, keys)

    def restore(
        self,
        keys: Sequence[bytes],
        prefix_keys: Sequence[bytes] = (),
        *,
        can_compute: bool = False,
        no_layers: str = NOBODY_COMPUTES_LAYERS,
        beside: int = 0,
        wanted: int | None = None,
    ) -> Restore:
        """Start to bring up the chain `keys`; see `Restore` and `Restorer.begin`. Nothing is waited for.

        `prefix_keys` are the pages before it, which the device has: they count as used. If nothing of `keys` is held,
        and no tier is to be asked for it, the answer is ready at once.
        """
        if self.config.restore.strategy == "recompute":
            return self.restorer.nothing(keys, prefix_keys, why="restore.strategy is recompute", wanted=wanted)
        if self.probe(keys[:1]) or self.restorer.asks(len(prefix_keys), len(keys)):
            return self.restorer.begin(
                keys, prefix_keys, can_compute=can_compute, no_layers=no_layers, beside=beside, wanted=wanted
            )
        return self.restorer.nothing(keys, prefix_keys, wanted=wanted)

    # ---- steering ----

    def flush(self, which: Emptied) -> None:
        """Empty tiers. Pinned pages go when their requests are done."""
        sweeps.run(self.flush_steps(which))

    def flush_soon(self, which: Emptied) -> None:
        """As `flush`, for whoever cannot wait until pages have left: none of them is found any more when this returns.
        Waits for durable tiers to write that down, where they are to be emptied."""
        steps = self.flush_steps(which)
        try:
            next(steps)
        except StopIteration:
            return
        self.errands.start(steps)

    def flush_steps(self, which: Emptied) -> Generator[None, None, Flushed]:
        """`flush`, step by step. From the first one on nothing is found; it waits for the devices.

        What was written until then of a page that comes in meanwhile may be flushed: a miss. A tier whose index is
        being read cannot write this down before it has read it; it does so then, and that is told again.
        """
        memory, durable = which != "nothing", which == "all"
        digest, pages = self.digest, 0
        written: list[bool] = []
        queued: list[WriteQueue] = []
        with self.table.lock:
            if memory:  # else what is to be written is still there
                queued += (mover.clear() for mover in self.movers.values())
            if durable:
                pages = self.table.forget_namespace(digest)
                told = [self.fillings[mover.tier.name].flush(digest) for mover in self._durable]
            elif memory:
                self.table.forget_memory()
        if durable:
            written = [now and mover.tier.flush(digest) for mover, now in zip(self._durable, told, strict=True)]
        if memory:
            for mover in self.movers.values():
                mover.tier.forget_arrived()
        yield
        queued.clear()  # here, where nobody waits
        if durable:
            yield from sweeps.clean(self.table)
        elif memory:
            pages = yield from sweeps.settle_memory(self.table)
        # Whether it would survive a crash is a question only where something was to be written down.
        survives = {"durable": all(written)} if written else {}
        self.events.emit("tiers.flushed", host=memory, ssd=durable, **survives)
        return Flushed(pages, all(written))

    def find_nothing(self) -> None:
        """No page that came before is found from now on, until the namespace has changed: for whoever could not change
        it."""
        self.table.serving = b""

    def change_namespace(self, namespace: Namespace, *, comes_back: bool = True) -> None:
        """The model's weights changed: from now on no page that came before is found.

        Old pages on ssd stay, since the old weights may come back, and are evicted like any others; where it is known
        that they do not, `comes_back` is False, and their pages go in steps. Waits for no device: new pages go to ssd
        once the devices know their namespace.
        """
        digest, before = namespace.digest(), self.digest
        with self.table.lock:
            for mover in self._durable:
                mover.clear()
                mover.enabled = True
                mover.waits_for.add(NAMESPACE)
            self.namespace = namespace
            self.table.serving = digest
            self.table.forget_memory()
            if before != digest and not comes_back:
                self.table.forget_namespace(before)
            pinned = dict(self.table.operator_pins.pinned) if before != digest else {}
            # One whose index is being read is told of the namespace that is served then.
            opened = [mover for mover in self._durable if self.fillings[mover.tier.name].opened]
        self.errands.start(self._leave_behind(pinned))
        registered = [self._register_soon(mover, namespace) for mover in opened]
        for mover in self._durable:
            if before != digest:
                mover.tier.retire(before, comes_back=comes_back)
        self.events.emit("namespace.changed", namespace=digest.hex(), on_ssd=any(registered))

    def _leave_behind(self, pinned: Mapping[Page, bytes]) -> Generator[None, None, int]:
        """After a change of namespace: memory is for pages of the new one."""
        for page, key in pinned.items():
            # Nobody could take such a pin back: no page of the old weights is found by its key.
            if (yield from sweeps.let_go(self.table, page)):
                self.events.emit("prefix.unpinned", page=key.hex(), reason="the weights changed")
        return (yield from sweeps.settle_memory(self.table))

    def wait_written(self, timeout: float) -> bool:
        """Wait until everything admitted to a durable tier is written; False on timeout. For demos, simulations,
        benches and tests."""
        with self.table.lock:
            return all(mover.wait_idle(timeout) for mover in self._durable)

    def close(self, timeout: float = 30.0) -> None:
        """Write what is admitted, save the indices, release everything, in about `timeout` seconds. What one part
        raises keeps no other from ending, and is raised at the end. Idempotent."""
        if self.closed:
            return
        self.closed = True
        ending = Ending(timeout, self.runner)
        known: dict[str, bool] = {}
        ending.end(self._end_fillings, known, ending)
        # What reads an index ends when its tier is closed.
        opened = all(filling.opened for filling in self.fillings.values())
        ending.end(self.filler.close, ending.left(ERRAND_SECONDS) if opened else 0.0)
        ending.end(self.errands.close, ending.left(ERRAND_SECONDS))
        ending.end(self.restorer.close, ending.left())
        for tier in self.tiers.values():
            if not tier.durable:
                ending.end(self._end_beside, tier, ending)
        for mover in self._durable:
            ending.end(self._end_durable, mover, known.get(mover.tier.name, False), ending)
        ending.end(self.filler.close, ending.left(ERRAND_SECONDS))
        ending.over()

    def _end_fillings(self, known: dict[str, bool], ending: Ending) -> None:
        with self.table.lock:
            for name, filling in self.fillings.items():
                known[name] = filling.end(ending.left(ERRAND_SECONDS))

    def _end_beside(self, tier: Tier, ending: Ending) -> None:
        """Close a tier that keeps nothing, in half of the time at most: one that waits for others' processes must not
        keep the indices from being written."""
        thread = self.runner.thread(partial(ending.end, tier.close, (), ending.left()), "swift-end")
        thread.start()
        thread.join(ending.left() / 2)
        if thread.is_alive():
            logger.warning("swift-tiers: the %s tier has not ended in time, and is left", tier.name)

    def _end_durable(self, mover: Mover, known: bool, ending: Ending) -> None:
        """`known`: what the tier has, so that its index may be written."""
        held: Iterator[HeldPages] | None = None
        try:
            held = self._last_writes(mover, ending)
        finally:
            mover.tier.close(held if known else None, ending.left())

    def _last_writes(self, mover: Mover, ending: Ending) -> Iterator[HeldPages]:
        """Write what memory alone has, as long as there is time; then what the tier has."""
        sweeps.run(sweeps.clean(self.table))
        sweeps.run(sweeps.offer(self.table, mover, self.table.parents_first(list(self.table.in_memory()))))
        filling = self.fillings[mover.tier.name]
        with self.table.lock:
            # What waits for the index is not written any more.
            index = INDEX_SECONDS * (1 + self.table.pages / 1e6)
            most = max(ending.left() / 2, ending.left() - index)
            if not mover.wait_idle(most if filling.stage is Stage.FILLED else 0.0):
                self.events.emit(f"{mover.tier.name}.not_all_written", pages=mover.backlog)
                mover.clear()
        # Nobody changes pages any more, but for a part that goes.
        return itertools.chain(filling.rest(), self.table.held_in(mover.number))

    def snapshot(self) -> StackSnapshot:
        """Everything that is counted, at one moment."""
        return take_snapshot(self)

    def page_facts(self, key: bytes) -> PageFacts | None:
        """Where a page of this namespace is; None if no whole copy of it is held."""
        return page_facts(self, key)

    # ---- inside ----

    def _pin_lost(self, key: bytes) -> None:
        self.events.emit("prefix.unpinned", page=key.hex(), reason="the page was flushed, dropped or lost")

    def _too_much(self) -> None:
        self.errands.start(sweeps.shed(self.table))

    def _register_soon(self, mover: Mover, namespace: Namespace) -> bool:
        """Go on writing once a durable tier knows `namespace`. False where it cannot take another one now: its pages
        stay in memory alone."""
        digest, name = namespace.digest(), mover.tier.name

        def registered(durable: bool) -> None:
            """On the tier's thread."""
            if not durable:
                self.events.emit(f"{name}.namespace_refused", reason="no device is left")
            self._resume_writing(mover, digest, durable)

        try:
            mover.tier.register(digest, _described(namespace), registered)
        except (SwiftTiersError, RuntimeError) as error:
            self.events.emit(f"{name}.namespace_refused", reason=str(error))
            self._resume_writing(mover, digest, False)
            return False
        return True

    def _resume_writing(self, mover: Mover, digest: bytes, enabled: bool) -> None:
        with self.table.lock:
            if self.digest == digest:  # else another has come since, and waits for its own
                mover.enabled = enabled
                mover.waits_for.discard(NAMESPACE)
                if enabled:
                    mover.pump()
                else:
                    mover.clear()

    def _register_served(self, mover: Mover) -> None:
        """Have a tier know the namespace that is served now."""
        with self.table.lock:
            mover.waits_for.add(NAMESPACE)
            namespace = self.namespace
        self._register_soon(mover, namespace)


def _described(namespace: Namespace) -> str:
    """A namespace for people, as durable tiers note it."""
    return msgspec.json.encode(namespace, order="sorted").decode()
