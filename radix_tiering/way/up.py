"""A page's way up, as one procedure: from what a request asks for to pages in its device's slots.

1. `begin`: a request has arrived, and the device lacks a chain of its pages. Nothing waits for that, but where it
   takes a moment (`_start_here`).
2. `_start`, on a thread of its own, or at once where that takes a moment (`_start_here`): the chain is claimed page by
   page as far as it is held, and pinned; a tier of hints is asked for the rest (`_ask`), and what it finds is entered
   and claimed (`_found`); a decision is made by what loading and computing cost (`Pacing`); each source is given what
   to read (`SourceTurns`, `Reads`); and what was in host memory is verified.
3. `_read`: pages have come up, verified, or will not come. The next are read.
4. `poll`: whether the request may be admitted, with all that there is or with a part. It may compute the rest
   meanwhile: then `step` says how far, and `take` hears what it has taken.
5. `present`, `places`: what can be copied to the device now. Nothing is promised that is not held.
   `verifier.verified`: where pages are verified beside their copy, the load ends only when that has said that they are
   sound, and SGLang makes no answer before the load has ended.
6. `release`: nothing is pinned for it any more.

A restore begins when its request arrives, which may be long before there is room for it on the device. So that a long
queue does not pin all of host memory, one that nobody has asked for yet (`poll`) starts only while fewer than 64 are
under way and, with its own pages, no more than half of host memory, less what operators keep there, is pinned; and the
deadline counts from the first `poll`, since only from then on somebody waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Literal

from ..base.events import EventLog
from ..base.page import ROOT_KEY, PageRecord
from ..base.runner import Flag, Runner
from ..figures.counters import RestoreSnapshot
from ..restore.flight import Step, Unit
from ..restore.plan import Strategy
from ..restore.planner import Decision, Planner
from ..table.held_page import Page, Places
from ..table.page_table import PAGES_PER_HOLD, PageTable
from ..table.tier_copies import HOST
from ..tiers.host.host_tier import HostTier
from ..tiers.host.landing import LandingSlots
from ..tiers.tier import Chain, Tier
from .checking import Checkers
from .down import Mover
from .draining import Draining
from .pacing import Pacing
from .reads import DROPPED, Reads, WaitOver
from .request_restore import NOBODY_COMPUTES_LAYERS, Readiness, Restore, RestoreState
from .source_turns import NearestCopy, SourceTurns, Waiter
from .verifying import Looked, Verifier

#: Share of host memory, less what operators keep there, that restores may pin for requests that cannot be admitted yet.
EARLY_SHARE = 0.5
#: Who asks for restores starts them, as long as they are of no more pages together before the worker has its turn:
#: half a millisecond.
AT_ONCE = 512
#: Restores under way with which no other begins before somebody waits for it: each is looked at for every pick.
MOST_EARLY = 64
#: Restores that were put off, and still cannot begin, that are passed by those behind them.
MOST_PASSED = 4
#: Chains whose use is still to be counted; where there are more, uses of others are not. Each is some milliseconds of
#: the worker for 10,000 pages, when nobody waits for anything else of it.
MOST_USES = 256
#: Pages that are claimed in one hold of the lock behind such as were all in host memory: they most often are, too, and
#: then the hold takes 0.2 ms, else less than one.
RESIDENT_PER_HOLD = 192
#: Pages whose use is counted in one hold of it: no object is made of most of them.
USES_PER_HOLD = 512


class Restorer:
    """Runs restores on one worker thread ("swift-restore"); reads complete on the threads of their tiers."""

    def __init__(
        self,
        table: PageTable,
        host: HostTier,
        tiers: Sequence[Tier],
        movers: Sequence[Mover],
        *,
        events: EventLog,
        runner: Runner,
        deadline_seconds: float,
        verify: bool | Literal["beside"],
        checkers: Checkers,
        planner: Planner,
        turns: SourceTurns,
        behind: float,
        landing: LandingSlots | None = None,
    ) -> None:
        """`tiers`: those of `table` beneath host memory, the nearest first; `movers`: one for each of them. `verify`:
        see `HostConfig`. `checkers`: compute checksums of pages in host memory, where these are to be verified; closed
        with this."""
        self._table = table
        self._host = host
        self._names = [copies.name for copies in table.of]
        self._events = events
        self._runner = runner
        self._clock = clock = runner.monotonic
        self._page_tokens = host.geometry.tokens
        self._deadline_seconds = deadline_seconds
        self._turns = turns
        self._jobs = runner.queue()  # of functions to call on its thread, and None at the end
        self._uses: deque[Iterator[None]] = deque()  # to be gone on with when there is no job; the worker's own
        #: Pages of restores that were started where they were asked for, since the worker's last turn. But for this
        #: count, `begin` would be for several threads at a time.
        self._here = 0
        self._rounds_asked = 0  # turns that the worker was asked to have, by who counts these pages
        self._rounds_had = 0  # ... and that it has had, by the worker
        self._deferred: dict[Restore, None] = {}  # that nobody asks for yet, in order
        #: What brings single pages up.
        self.reads: Reads[Waiter] = Reads(
            table, host, tiers, events=events, clock=clock, settled=self._read, landing=landing
        )
        turns.reads = self.reads
        self._draining = turns.draining = Draining(table, tiers, landing)
        turns.changed = self._finish_if_settled
        self._movers = movers
        self._beneath = [mover.number for mover in movers]
        #: Knows of pages that the table does not.
        self._finder = tiers[table.hints - 1] if table.hints else None
        #: Pages that were in host memory already are verified before they are promised, or while they are copied.
        self._verify_first = verify is True
        self.verifier = Verifier(table, host, checkers, events, runner, beside=verify == "beside")
        self._pacing = Pacing(
            planner,
            turns,
            self._draining,
            events,
            clock,
            behind=behind,
            deadline_seconds=lambda: self._deadline_seconds,
            lands_what_is_here=not self._verify_first,
        )
        self._counts = dict.fromkeys(RestoreSnapshot.__struct_fields__, 0)
        self._thread = runner.thread(self._run, "swift-restore")
        self._thread.start()

    # ---- 1. a request arrives; any thread, one at a time ----

    def begin(
        self,
        keys: Sequence[bytes],
        prefix_keys: Sequence[bytes] = (),
        *,
        can_compute: bool = False,
        no_layers: str = NOBODY_COMPUTES_LAYERS,
        beside: int = 0,
        wanted: int | None = None,
    ) -> Restore:
        """Start to bring up `keys`, a chain of pages; returns in half a millisecond, whatever that takes. Counts a use
        of `prefix_keys` too.

        `can_compute`: the device could compute a part of them meanwhile; `no_layers`: why not all of them, layer by
        layer; empty if it could. `beside`: so many of them, the last ones, stand for no tokens of their own; `wanted`:
        pages of tokens that are lacking, of which the others are these.
        """
        restore = Restore(
            keys,
            prefix_keys,
            self._clock(),
            tiers=self._names,
            page_tokens=self._page_tokens,
            can_compute=can_compute,
            no_layers=no_layers,
            wanted=wanted,
        )
        restore.beside = beside
        if not self._start_here(restore):
            self._jobs.put(lambda: self._start(restore))
        return restore

    def _start_here(self, restore: Restore) -> bool:
        """Start it on the caller's thread, if that takes a moment: what is held of its few pages is in host memory, and
        need not be verified first, and no tier is asked for the others. A scheduler finds it ready then in this round,
        not in the next, which may be a forward later. Whether it was."""
        pages = len(restore.keys) + len(restore.prefix_keys)
        if self._rounds_had == self._rounds_asked:
            self._here = 0
        if self._verify_first or self._here + pages > AT_ONCE:
            return False
        found = 0
        for start in range(0, len(restore.keys), PAGES_PER_HOLD):
            some = restore.keys[start : start + PAGES_PER_HOLD]
            with self._table.lock:
                held = self._table.settled_chain(self._table.serving, some)
                there = self._table.resident_run(held) == len(held) and self._may_start_early(len(restore.keys))
            if not there or (not held and not start):
                return False
            found += len(held)
            if len(held) < len(some):
                break
        if self.asks(len(restore.prefix_keys) + found, len(restore.keys) - found):
            return False  # its answer is to be waited for
        if not self._here:
            self._rounds_asked += 1
            self._jobs.put(self._has_its_turn)
        self._here += pages
        self._do(lambda: self._start(restore, here=True))
        return True

    def _has_its_turn(self) -> None:
        self._rounds_had += 1

    def nothing(
        self, keys: Sequence[bytes], prefix_keys: Sequence[bytes] = (), why: str = "", wanted: int | None = None
    ) -> Restore:
        """A restore of `keys` where nothing is held, or, if `why` says so, wanted: ready now, with no page. Counts the
        misses and the uses."""
        restore = Restore(
            keys, prefix_keys, self._clock(), tiers=self._names, page_tokens=self._page_tokens, why=why, wanted=wanted
        )
        restore.end("", restore.started)
        restore.complete = True
        restore.settle(0)
        self._jobs.put(lambda: self._miss(restore))
        return restore

    # ---- 2. its chain is claimed, as far as it is held; on the worker, or at once ----

    def _start(self, restore: Restore, *, here: bool = False) -> None:
        """`here`: on the thread of who asks; what its use makes tiers want, and reading what is to land, is left to the
        worker."""
        with self._table.lock:
            if restore.state is not RestoreState.WAITING:
                self._deferred.pop(restore, None)
                return
            if restore.asked is None and not self._may_start_early(len(restore.keys)):
                self._deferred[restore] = None
                return
            self._deferred.pop(restore, None)
            restore.state = RestoreState.RUNNING
            now = self._table.tick()
        for _ in self._use(restore.prefix_keys, now, restore.reach, restore, offers=not here):
            continue  # what it claims may lean on pages that others have heard of
        asked = False
        try:
            self._claim(restore, now, offers=not here)
            if here and self._movers:
                used = [*restore.prefix_keys, *restore.keys[: len(restore.claimed)]]
                self._jobs.put(lambda: self._later(self._offer_again(used)))
            asked = self._ask(restore, now)
        finally:
            if here and self._lands(restore):
                self._jobs.put(lambda: self._claimed(restore))
            elif not asked:
                self._claimed(restore)

    def _lands(self, restore: Restore) -> bool:
        with self._table.lock:
            return bool(self._pacing.to_land(restore))

    def _claimed(self, restore: Restore) -> None:
        """Its chain is claimed, as far as it goes."""
        with self._table.lock:
            if restore.state is RestoreState.RUNNING:
                restore.story.found(restore.by_source())
            self._count_misses(restore.wanted, restore.sources[: restore.with_tokens])
        with self._table.lock:
            restore.complete = True
            if restore.state is RestoreState.RUNNING:
                self._counts["restores_started"] += not restore.found_nothing
                self._turns.add(restore)
                if self._pacing.plan(restore):
                    self._end(restore, "split")
                    self._let_go(restore, 0)
                    self._finish(restore, 0)
                self._turns.pump()
        with self._table.lock:
            self._verify_resident(restore)
            self._finish_if_settled(restore)

    def _may_start_early(self, pages: int) -> bool:
        if len(self._turns.batch) >= MOST_EARLY:
            return False
        kept = self._table.operator_pins.kept_pages
        return self._table.pinned_pages - kept + pages <= (self._host.limit_slots - kept) * EARLY_SHARE

    def _claim(self, restore: Restore, now: int, *, offers: bool = True) -> None:
        """Pin the chain as far as it is held."""
        with self._table.lock:
            nearest = self._turns.nearest()
        start, most = 0, PAGES_PER_HOLD
        while start < len(restore.keys):
            batch = restore.keys[start : start + most]
            with self._table.lock:
                if restore.state is not RestoreState.RUNNING:
                    return
                pages = self._table.settled_chain(self._table.serving, batch)
                with self._held(restore, now, offers=offers):
                    resident = self._claim_some(restore, pages, nearest)
                if len(restore.claimed) < start + len(batch):
                    return
            start += len(batch)
            most = RESIDENT_PER_HOLD if resident else PAGES_PER_HOLD

    def _claim_some(self, restore: Restore, pages: Sequence[Page], nearest: NearestCopy) -> bool:
        """The next pages of its chain, up to the first that is nowhere; whether all were in host memory. Within
        `_held`."""
        resident = self._table.resident_run(pages)
        self._claim_resident(restore, pages[:resident])
        beneath = resident
        if len(self._names) == HOST + 2 and not self.reads.lands:
            beneath += self._table.beneath_run(pages[resident:])
            self._claim_beneath(restore, pages[resident:beneath])
        others = pages[beneath:]
        nearest.expect(page for page in others if not page.in_host and page.landing < 0 and page.saved)
        for page in others:
            if not self._claim_page(restore, page, nearest):
                break
        return resident == len(pages)

    @contextmanager
    def _held(self, restore: Restore, now: int, *, offers: bool = True) -> Iterator[None]:
        """Pages of it that are claimed within are pinned at the end, whatever is raised: what is claimed is unpinned
        some time, and counts on it."""
        start = len(restore.claimed)
        try:
            yield
        finally:
            claimed = self._hold(restore, start)
        self._table.use_all(claimed, now, restore.reach)
        if offers:
            self._offer(claimed)

    def _hold(self, restore: Restore, start: int) -> list[Page]:
        """Pages of it, from this one on, have just been claimed: they."""
        claimed = restore.claimed[start:]
        self._table.pin_all(claimed)
        return claimed

    def asks(self, depth: int, pages: int) -> bool:
        """Whether a tier would be asked now for so many pages behind the first `depth` ones, that nobody holds. Any
        thread."""
        return self._finder is not None and self._finder.asks(depth, pages)

    def _ask(self, restore: Restore, now: int) -> bool:
        """Ask the tier of hints for what of its chain no other tier has; whether `_found` follows."""
        if self._finder is None:
            return False
        with self._table.lock:
            held, before = len(restore.claimed), len(restore.prefix_keys)
            chain = Chain(self._table.serving, before + held, restore.keys[held:])
            if restore.state is not RestoreState.RUNNING or not self.asks(chain.depth, len(chain.keys)):
                return False
            # Nothing is entered behind a page that is not held: rule 1.
            if held == 0 and before and self._table.find(chain.namespace, restore.prefix_keys[-1]) is None:
                return False
        try:
            self._finder.find(chain, lambda places: self._jobs.put(lambda: self._found(restore, chain, places, now)))
        except RuntimeError:  # it was closed meanwhile
            return False
        return True

    def _found(self, restore: Restore, chain: Chain, places: Sequence[object], now: int) -> None:
        """The tier of hints may have the first pages of `chain`, which follow those that are claimed, at these
        places."""
        before = [*restore.prefix_keys[-1:], *restore.keys[: len(restore.keys) - len(chain.keys)]][-1:]
        parents = [*(before or [ROOT_KEY]), *chain.keys]
        try:
            for start in range(0, len(places), PAGES_PER_HOLD):
                with self._table.lock:
                    if restore.state is not RestoreState.RUNNING or self._table.serving != chain.namespace:
                        return
                    held, nearest = len(restore.claimed), self._turns.nearest()
                    with self._held(restore, now):
                        for at, place in enumerate(places[start : start + PAGES_PER_HOLD], start):
                            depth, length = chain.depth + at + 1, self._host.geometry.page_bytes
                            record = PageRecord(chain.keys[at], parents[at], chain.namespace, depth, length)
                            page = self._table.hear(record, place, now)
                            page = page or self._table.settled(chain.namespace, record.key)
                            if page is None or not self._claim_page(restore, page, nearest):
                                break
                    if len(restore.claimed) < held + len(places[start : start + PAGES_PER_HOLD]):
                        return
        finally:
            self._claimed(restore)

    def _claim_resident(self, restore: Restore, pages: Sequence[Page]) -> None:
        """Take pages of its chain that are in host memory, which most often are all of them; see `_claim_page`."""
        restore.claimed += pages
        restore.sources += [HOST] * len(pages)
        state = Unit.LOADING if self._verify_first else Unit.PRESENT
        restore.flight.append_all(restore.tiers[HOST], len(pages), state)

    def _claim_beneath(self, restore: Restore, pages: Sequence[Page]) -> None:
        """Take pages of its chain that the only tier beneath host memory has, and that nobody reads; see
        `_claim_page`."""
        restore.claimed += pages
        restore.sources += [HOST + 1] * len(pages)
        restore.flight.append_all(restore.tiers[HOST + 1], len(pages), Unit.ABSENT)

    def _claim_page(self, restore: Restore, page: Page, nearest: NearestCopy) -> bool:
        """One more page of its chain; whether there is one. It is to be pinned in the same hold of the lock."""
        unit = len(restore.claimed)
        there = False
        if page.resident:
            source, under_way, there = HOST, True, not self._verify_first
        elif page.landing >= 0:
            # What a page lands from is the nearest tier that has it; once it has left there, nobody knows.
            below = range(HOST + 1, len(self._table.of))
            source, under_way, there = next(filter(page.whole_in, below), below[-1]), True, True
        elif (joined := self.reads.join(page, (restore, unit, None))) is not None:
            source, under_way = joined, True
        elif page.saved:
            source, under_way = nearest.choose(page), False
        else:
            return False
        restore.claimed.append(page)
        restore.sources.append(source)
        restore.flight.append(restore.tiers[source])
        if under_way:
            restore.flight.take_load(range(unit, unit + 1))
        if there:
            restore.flight.arrived(unit)
        return True

    def _verify_resident(self, restore: Restore) -> None:
        """Have the bytes of the pages looked at that were in host memory already. Lock held."""
        if self._verify_first and restore.state is RestoreState.RUNNING:
            self.verifier.look_at(
                restore, self._resident(restore, 0, len(restore.sources)), partial(self._checked, restore)
            )

    @staticmethod
    def _resident(restore: Restore, first: int, end: int) -> list[int]:
        """Those of pages `[first, end)` that were in host memory when they were claimed, and come from there."""
        return [unit for unit in range(first, end) if restore.sources[unit] == HOST]

    def _checked(self, restore: Restore, looked: Looked) -> None:
        with self._table.lock:
            if restore.state is not RestoreState.RUNNING:
                return  # no longer pinned: the slots may hold other pages by now
            for unit, digest in looked:
                page = restore.claimed[unit]
                self._settle(restore, unit, HOST, DROPPED if page.dropped else self.verifier.damage(page, digest))
            self._finish_if_settled(restore)

    def _use(
        self, keys: Sequence[bytes], now: int, reach: int, restore: Restore | None = None, *, offers: bool = True
    ) -> Iterator[None]:
        """Count a use of pages that the device has, in steps. What `restore` claims lies behind them: those that other
        restores have only heard of do not leave with these."""
        for start in range(0, len(keys), USES_PER_HOLD):
            some = keys[start : start + USES_PER_HOLD]
            with self._table.lock:
                lacking = self._table.use_chain(some, now, reach, self._beneath)
                if restore is not None and restore.state is RestoreState.RUNNING:
                    hinted = self._table.hinted_chain(some)
                    self._table.pin_all(hinted)
                    restore.leans_on += hinted
            for at in range(0, len(lacking) if offers else 0, PAGES_PER_HOLD):
                with self._table.lock:
                    self._offer([page for page in lacking[at : at + PAGES_PER_HOLD] if not page.dropped])
            yield

    def used(self, keys: Sequence[bytes]) -> None:
        """Count a use of pages, one after the other, of which the device has what they hold. Any thread."""
        self._jobs.put(lambda: self._later(self._use(keys, self._now(), len(keys))))

    def _later(self, steps: Iterator[None]) -> None:
        """Go on with these when nobody waits for anything else of the worker, who calls this."""
        if len(self._uses) < MOST_USES:
            self._uses.append(steps)

    def _go_on(self) -> None:
        """One step of what has time."""
        if next(self._uses[0], _OVER) is _OVER:
            self._uses.popleft()

    def _now(self) -> int:
        with self._table.lock:
            return self._table.tick()

    def _offer(self, pages: Sequence[Page]) -> None:
        """Once more to tiers that have not got them: a use may have made them worth it."""
        lacking = self._table.lacking(pages, self._beneath)
        for mover in self._movers:
            mover.offer(lacking)

    def _offer_again(self, keys: Sequence[bytes]) -> Iterator[None]:
        """What is still held of this chain, in steps."""
        for start in range(0, len(keys), PAGES_PER_HOLD):
            with self._table.lock:
                self._offer(self._table.settled_chain(self._table.serving, keys[start : start + PAGES_PER_HOLD]))
            yield

    def _count_misses(self, wanted: int, sources: Sequence[int] = ()) -> None:
        """Of so many pages with tokens those of `sources` were found, each in its tier: every other tier that comes
        before that one lacks it. Lock held."""
        for copies in self._table.of:
            wanted -= sources.count(copies.number)
            copies.counters.misses += wanted

    def _miss(self, restore: Restore) -> None:
        with self._table.lock:
            now = self._table.tick()
            self._count_misses(restore.wanted)
        self._later(self._use(restore.prefix_keys, now, restore.reach))

    # ---- 3. pages have come up, or will not; lock held, on the threads of the tiers ----

    def _read(self, told: Sequence[WaitOver[Waiter]]) -> None:
        """Pages that were on their way up are there, or will not come."""
        now, restores = self._clock(), dict[Restore, None]()
        asked_of: dict[int, list[int]] = {}  # by tier: of each page that has come or will not, its bytes that have
        for (restore, unit, asked), source, failure in told:
            restores[restore] = None
            if unit < len(restore.sources):
                restore.sources[unit] = source
            if asked is not None:
                asked_of.setdefault(asked, []).append(0 if failure else self._host.geometry.page_bytes)
            if not failure:
                restore.story.arrived(self._names[source], now)
        for tier, nbytes in asked_of.items():
            self._turns.answered(self._names[tier], nbytes)
        for (restore, unit, _), source, failure in told:
            self._settle(restore, unit, source, failure)
        for restore in restores:
            self._finish_if_settled(restore)

    def pump(self) -> None:
        """Account for pages that have been read; read what there is room for. Lock held, when a tier has answered."""
        self.reads.settle()
        self._turns.pump()

    def _settle(self, restore: Restore, unit: int, source: int, failure: str) -> None:
        if not failure:
            restore.flight.arrived(unit)
            if restore.flight[unit] is not Unit.PRESENT and unit not in restore.also_here:
                # The device has computed it, or will: it came too late. One that host memory has, too, may be being
                # copied from there.
                self._draining.spare(restore, [unit])
            return
        if restore.state is RestoreState.RUNNING and restore.flight[unit] is Unit.LOADING:
            restore.story.lost(self._names[source], failure)
        restore.flight.failed(unit)

    def _finish_if_settled(self, restore: Restore) -> None:
        if restore.state is RestoreState.RUNNING and not restore.computing and restore.settled:
            usable = restore.usable
            whole = usable == len(restore.claimed) and not restore.short
            self._end(restore, "completed" if whole else "cut_short")
            self._finish(restore, usable)

    def _finish(self, restore: Restore, usable: int) -> None:
        """READY: keep the pages that arrived, from the start of the chain; let the others go, unless the device can
        compute what is missing between them."""
        if not restore.complete:  # its time was up before its chain was claimed
            restore.story.found(restore.by_source())
        self._turns.remove(restore)
        if not restore.can_compute or restore.outcome == "expired":
            self._let_go(restore, usable)
        restore.settle(usable)
        if self._deferred:
            self._jobs.put(self._start_deferred)

    def _let_go(self, restore: Restore, first: int) -> None:
        left = restore.let_go(first)
        if left:
            self._jobs.put(lambda: self._unpin(left))

    def _end(self, restore: Restore, outcome: str) -> None:
        if not restore.complete:
            # It is not known what there was to be found: without this, more would end than begin.
            self._counts["restores_started"] += 1
        if restore.found_nothing:
            outcome = ""  # a tier was asked for what nobody has: no restore, as where none is asked
        else:
            self._counts[f"restores_{outcome}"] += 1
        now = self._clock()
        restore.end(outcome, now)
        if outcome == "completed":
            restore.story.ready(now)
        if outcome != "cancelled":
            self._tell_lost(restore)

    def _tell_lost(self, restore: Restore) -> None:
        """Pages that were found, and that a source did not bring."""
        waited = round(self._clock() - restore.started, 3)
        for where, pages in restore.story.lost_pages.items():
            source, _, reason = where.partition(": ")
            self._counts["lost_pages"] += pages
            self._events.emit("restore.pages_lost", source=source, pages=pages, seconds=waited, reason=reason)

    # ---- 4. the request waits, or is admitted; the thread that drives the device ----

    def poll(self, restore: Restore) -> Readiness:
        """What the request may do now. Past its deadline it is no longer kept waiting: it goes on with what has come
        up, or computes what is missing."""
        now = self._clock()
        if not restore.under_way:
            return self._pacing.readiness_of_settled(restore)
        if restore.asked is None:
            restore.asked = now
            restore.story.waited_for(now)
            restore.deadline = now + self._deadline_seconds
            self._jobs.put(lambda: self._start(restore))  # in case it had been deferred
        if restore.can_compute and restore.complete:
            with self._table.lock:
                return self._pacing.compute_or_wait(restore, now)
        if restore.complete and not restore.priced:
            with self._table.lock:
                if restore.under_way and self._pacing.recomputes(restore):
                    self._end(restore, "split")
                    self._finish(restore, restore.usable)
                    return Readiness.READY
        if now < restore.deadline:
            return Readiness.WAIT
        with self._table.lock:
            if restore.under_way:
                self._end(restore, "expired")
                waited = self._clock() - restore.started
                self._events.emit("restore.expired", pages=len(restore.keys), seconds=round(waited, 3))
                self._finish(restore, restore.usable)
        return Readiness.READY

    def at_once(self, restore: Restore) -> Readiness:
        """What the request may do without waiting for anything, without beginning to wait. One that is to compute a
        part may have to wait after all, for the page that it would come to first: `poll` says that."""
        if not restore.under_way:
            return self._pacing.readiness_of_settled(restore)
        decision = restore.decision
        computes = restore.can_compute and decision is not None and decision.compute
        return Readiness.COMPUTE if computes and not restore.drains else Readiness.WAIT

    def may_wait(self, restore: Restore) -> bool:
        """Whether what it is to compute comes meanwhile if it does not yet: it does both, and has not been under way
        for as long as that was to take. A hint."""
        decision = restore.decision
        if not restore.under_way or restore.late or restore.estimate is None or decision is None:
            return False
        doing_both = decision.strategy is Strategy.TOKEN_WISE
        return doing_both and self._clock() - restore.started < restore.estimate

    # ---- the device computes, while pages come up ----

    def step(self, restore: Restore, front: int) -> Step:
        """What the device should do next for `restore`, of whose pages it has the first `front`.

        What it says stays possible until the next call of this, of `take` or of `poll`. It holds (`end == jump`) while
        it would compute what is about to arrive. Nothing is waited for without bound: what takes longer than
        `restore.behind` times its estimate is computed.
        """
        with self._table.lock:
            flight = restore.flight
            flight.computed()
            flight.observe(front)
            flight.reserve(0)
            step = self._pacing.next_step(restore)
            flight.abandon_loading(step.jump, step.end)
            flight.reserve(step.end)
            self._turns.pump()
            return step

    def not_taken(self, restore: Restore) -> None:
        """The device takes nothing of the last step: there was no room for it. What was left to it comes up like the
        rest of the restore."""
        with self._table.lock:
            restore.flight.reserve(0)
            self._turns.pump()

    def wait_for_nothing(self, restore: Restore, front: int) -> None:
        """None of its pages behind the first `front` is waited for: until the next `step` all of them may be taken as
        computed."""
        with self._table.lock:
            restore.flight.abandon_loading(front)
            restore.flight.reserve(len(restore.flight))

    def take(self, restore: Restore, step: Step) -> None:
        """The device copies and computes as `step` says; see `Flight.take`."""
        with self._table.lock:
            restore.flight.take(step)
            self._draining.taken(restore, step)
            restore.begins(self._clock())
            if step.end > step.jump:
                self._pacing.goes_on(restore)  # else it waits on, and for no longer because pages come one by one
            self._pacing.launched(restore, step)
            restore.story.computed(step.jump, step.end)
            self._turns.batch.set_computing(restore, True)
            self._turns.pump()

    def split(self, restore: Restore) -> None:
        """The device has computed or taken every page of it, or is about to. What it took stays pinned until it is
        released."""
        with self._table.lock:
            self._turns.remove(restore)
            restore.story.taken(self._clock())
            if restore.state is RestoreState.RUNNING:
                self._end(restore, "split")
                restore.settle(len(restore.claimed))

    def refuse_draining(self, restore: Restore) -> None:
        """Its pages are not taken as they land, whatever was decided: it waits for them, or computes some."""
        with self._table.lock:
            self._pacing.not_draining(restore)
            self._turns.pump()

    def copied_first(self, restore: Restore, front: int) -> None:
        """The device, which has the first `front` pages, is to have all of it before a forward that needs it begins."""
        with self._table.lock:
            self._counts["restores_copied_first"] += 1
            why = "every page is in host memory, and copied before its forward, since others decode"
            restore.decision = Decision(False, True, 0, None, why)
            restore.story.decided(restore.decision, front)

    # ---- it computes layer by layer ----

    def wants_layers(self, restore: Restore) -> bool:
        """Whether its layers are to be computed from the bottom, as things are."""
        with self._table.lock:
            return self._pacing.by_layers(restore)

    def refuse_layers(self, restore: Restore, why: str) -> None:
        """They cannot be, for this reason: it goes on as if that had never been thought of."""
        with self._table.lock:
            self._pacing.not_by_layers(restore, why)

    def take_layers(self, restore: Restore, front: int, end: int) -> None:
        """The device, which has the first `front` pages, computes those up to `end` layer by layer. What is missing of
        them still comes up: `arrived` says when the upper layers can be copied instead."""
        with self._table.lock:
            restore.flight.begin(front)
            restore.begins(self._clock())
            self._pacing.goes_on(restore)
            restore.story.computed(front, end)
            if self.verifier.beside:
                # The upper layers are copied before anybody would look at what a forward has made of them.
                resident = self._resident(restore, front, end)
                restore.unchecked = self.verifier.look_at(restore, resident, partial(self._checked_for_layers, restore))
            # Its pages are of use together only, so none is left out for being computed sooner.
            self._turns.batch.set_computing(restore, False)
            self._turns.pump()

    def _checked_for_layers(self, restore: Restore, looked: Looked) -> None:
        with self._table.lock:
            restore.unchecked -= 1
            if restore.state is RestoreState.RELEASED:
                return
            for unit, digest in looked:
                self._settle(restore, unit, HOST, self.verifier.damage(restore.claimed[unit], digest))

    def layers_arrived(self, restore: Restore, front: int, end: int) -> bool | None:
        """Whether pages `[front, end)` have come, and what is to be verified of them has been; None if one of them
        never will. Then nothing more is read for it."""
        with self._table.lock:
            if restore.unchecked:
                return False
            if restore.flight.arrived_all(front, end):
                return not any(page.dropped for page in restore.claimed[front:end]) or None
            if restore.flight.to_compute(front, end):
                self._turns.remove(restore)
                return None
            return False

    def count_layers(self, restore: Restore, pages: int, computed: int, layers: int) -> None:
        """Of `pages` pages `computed` of `layers` layers were computed, and the others copied to the device."""
        with self._table.lock:
            length = restore.claimed[0].length if restore.claimed else 0
            self._table.of[HOST].counters.bytes_read += pages * length * (layers - computed) // layers
            restore.story.by_layers(computed, layers)

    # ---- 5. pages are copied to the device ----

    def present(self, restore: Restore, front: int) -> int:
        """How many pages from the start the device could have at once, which has the first `front` of them now: behind
        those, what is there and pinned, as READY has it. Any number of looks, in any order, changes nothing of it.

        Where the device may compute a part meanwhile, what it has now is not loaded as long as it has it.
        """
        with self._table.lock:
            flight = restore.flight
            if restore.can_compute:
                flight.observe(min(front, len(flight)))  # the device may have what nobody else has
            arrived = flight.arrived_from(front)
            if restore.drains and not restore.computing and not flight.done:
                arrived = max(0, arrived - 1)  # no batch is without anything to compute: this is what it begins with
            return front + arrived

    def places(self, restore: Restore, first: int, end: int) -> Places:
        """See `Restore.places`."""
        with self._table.lock:
            return restore.places(first, end)

    def copies(self, restore: Restore, first: int, pages: int) -> None:
        """Pages of it, from its page `first` (from 0) on, are about to be copied to the device: their `places`."""
        with self._table.lock:
            if restore.state is not RestoreState.RELEASED:
                self._draining.copies(restore, first, pages)

    def copied(self, restore: Restore, first: int, pages: int) -> None:
        """They have all been, and nothing reads them there any more. Those that the device had taken (`take`) when this
        copy began leave landing memory, and others land there. Not to be called for a copy that failed, or was
        withdrawn. Any thread."""
        if not restore.copying:
            return  # nothing ever lands here
        for start in range(first, first + pages, PAGES_PER_HOLD):
            with self._table.lock:
                if restore.state is RestoreState.RELEASED:
                    return
                self._draining.copied(restore, start, min(PAGES_PER_HOLD, first + pages - start))
        with self._table.lock:
            self._turns.pump()

    def count_load(
        self, restore: Restore, first: int, pages: int, seconds: float | None, *, failed: bool, landed: int = 0
    ) -> None:
        """Account for a copy of `pages` pages, from the restore's page `first` (from 0), to the device; `landed` of
        them were copied from landing memory. `seconds`: None for what is in the time of another copy. Those that stand
        for no tokens are no hits, as they are no misses: a prompt is found in as far as its tokens are."""
        with self._table.lock:
            if failed:
                self._counts["failed_loads"] += 1
                self._events.emit("load.failed", pages=pages)
                return
            served = restore.sources[first : min(first + pages, restore.with_tokens)]
            # One of them, as those before may have been let go.
            length = restore.claimed[first].length if first < len(restore.claimed) else 0
            for copies in self._table.of:
                copies.counters.hits += served.count(copies.number)
            self._table.of[HOST].counters.bytes_read += (pages - landed) * length
            if seconds is not None:
                self._table.of[HOST].counters.read_latency.observe(seconds)
                restore.story.copy_seconds += seconds

    # ---- 6. the request has them, or is gone ----

    def release(self, restore: Restore) -> None:
        """The request has its pages on the device, or ended: nothing is pinned for it any more. Idempotent."""
        with self._table.lock:
            if restore.state is RestoreState.RELEASED:
                return
            self._turns.ended(restore)
            self._pacing.goes_on(restore)
            self._turns.remove(restore)
            self._deferred.pop(restore, None)
            if restore.under_way:
                self._end(restore, "completed" if restore.all_there else "cancelled")
            claimed = restore.release()
        if claimed:
            self._jobs.put(lambda: self._give_back(claimed))

    def _give_back(self, claimed: Sequence[Page]) -> None:
        """Unpin, then go on with the restores that were put off for want of room."""
        self._unpin(claimed)
        self._start_deferred()
        if self.reads.lands:
            with self._table.lock:
                self._turns.pump()  # somebody may wait for room in landing memory

    def _unpin(self, claimed: Sequence[Page]) -> None:
        for start in range(0, len(claimed), PAGES_PER_HOLD):
            with self._table.lock:
                some = claimed[start : start + PAGES_PER_HOLD]
                hinted = self._table.hinted(some)
                self._table.unpin_all(some)
                self._table.forget_hints(hinted)

    def _start_deferred(self) -> None:
        """Go on with restores that were put off, in their order: one that needs more room than there is does not hold
        up the next few. On the worker."""
        passed: set[Restore] = set()
        while len(passed) < MOST_PASSED:
            with self._table.lock:
                restore = next((one for one in self._deferred if one not in passed), None)
            if restore is None:
                return
            self._start(restore)
            if restore in self._deferred:
                passed.add(restore)

    # ---- the restorer itself; any thread ----

    @property
    def behind(self) -> float:
        """So many times its estimate a load may take. May be changed at any time."""
        return self._pacing.behind

    @behind.setter
    def behind(self, factor: float) -> None:
        self._pacing.behind = factor

    def serve(self, *, by_age: bool) -> None:
        """Whom sources load for first from now on: the oldest, or who has most recomputation left."""
        self._turns.batch.by_age = by_age

    def change_deadline(self, seconds: float) -> None:
        """How long those who begin to wait from now on will wait."""
        self._deadline_seconds = seconds

    def snapshot(self) -> RestoreSnapshot:
        return RestoreSnapshot(**{**self._counts, "restores_late": self._pacing.late})

    def wait_idle(self) -> None:
        """Wait until every job queued so far has run, and what it left for later, and the pages have been verified that
        it found in host memory."""
        done = self._runner.flag()
        self._jobs.put(lambda: self._uses.append(_telling(done)))
        done.wait()
        self.verifier.checkers.wait_idle()

    def close(self, timeout: float | None = None) -> None:
        """Finish queued jobs and end the worker; one that has not ended after `timeout` seconds is left to itself, and
        so are the checkers; what a worker left behind asks of them is not answered."""
        until = None if timeout is None else self._clock() + timeout
        self._jobs.put(None)
        self._thread.join(timeout)
        self.verifier.checkers.close(None if until is None else max(0.0, until - self._clock()))

    def _run(self) -> None:
        while (job := self._next()) is not None:
            self._do(job)
        while self._uses:
            self._do(self._go_on)

    def _next(self) -> Callable[[], None] | None:
        """What somebody may wait for comes before what has time."""
        return self._go_on if self._uses and self._jobs.empty() else self._jobs.get()

    def _do(self, job: Callable[[], None]) -> None:
        try:
            job()
        except Exception as error:  # noqa: BLE001 - whoever does it must outlive any one request
            self._events.emit("restore.error", error=repr(error))


#: That there are no more steps.
_OVER = object()


def _telling(done: Flag) -> Iterator[None]:
    """A step that says that it has been come to."""
    done.set()
    yield
