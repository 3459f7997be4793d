"""Worlds of as many pages as a rank has: what is done to one of them, and what is done to all of them, over several
lives of a server, each of which finds what the one before has left.

What is on the devices at first is an index, as an end writes it, and nothing else: so many pages need no bytes. Whoever
asks for one of them finds a page that is not what was written: nothing of it may be served, and all that follows it has
to go. Pages that clients put meanwhile have bytes, and are compared.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial

import numpy as np

from swift_tiers.radix_tiering.base.errand_thread import PAUSE
from swift_tiers.radix_tiering.base.page import BLOCK_BYTES
from swift_tiers.radix_tiering.base.virtual import VirtualRunner
from swift_tiers.radix_tiering.bus.contract.commands import AnyCommand, CapTier, Drop, Flush
from swift_tiers.radix_tiering.stack import TierStack
from swift_tiers.radix_tiering.tiers.ssd.layout import first_slot_offset
from swift_tiers.radix_tiering.tiers.testing.model_array import ModelArray
from swift_tiers.radix_tiering.way.filling import Stage
from swift_tiers.radix_tiering.way.sweeps import ENTERED_TOGETHER

from .made_up import CHAIN, PROMPT, chains_of, make_known, stored_of
from .stacks import GEOMETRY, WAIT, chain, check, get, memory_ssd, new_stack, obey, put
from .state import history_line

#: Devices that `stored_of` spreads pages over, and slots of each that no page has.
DEVICES, SPARE = 4, 500
#: Lives of the server, clients of each, and what each of them does.
LIVES, CLIENTS, STEPS = 3, 2, 6
#: Longer than any of it takes, virtual seconds; and longer than it takes to have a page leave, or enter: each time that
#: another thread has its turn is some time.
MOST_SECONDS, PAGE_SECONDS = 3600.0, 2e-4
#: Pages on the devices at first, by what such worlds are called on the command line.
MANY: dict[str, Callable[[random.Random], int]] = {
    "many": lambda draw: draw.randint(3_000, 6_000),
    "million": lambda draw: 1_000_000,
}
#: Of these, what takes minutes, and runs only if it is named.
MILLION = "million"
#: What can happen in them.
MANY_HAPPENINGS = (
    *("put", "get", "ask", "pages compared", "pages found again", "lives without trouble"),
    *("everything is flushed", "the tier is capped", "a prompt is dropped", "a device is lost"),
    *(f"stopped while {stage.value}" for stage in (Stage.OPENING, Stage.ENTERING)),
)


class ManyPages:
    """One world."""

    def __init__(self, kind: str, seed: int) -> None:
        """`kind`: of `MANY`."""
        self.draw = random.Random(seed)
        pages = MANY[kind](self.draw)
        # What leaves takes two locks a page to give back.
        self.runner = VirtualRunner(
            seed, switch=self.draw.choice((0.02, 0.1, 0.3)), most_steps=2_000_000 + 20 * pages,
            most_seconds=MOST_SECONDS,
        )  # fmt: skip
        self.happened: Counter[str] = Counter()
        #: What was done, in the order of virtual time, for people.
        self.history: list[str] = []
        self._pages = pages
        self._wait = WAIT + PAGE_SECONDS * pages
        self._keys, self._depths = chains_of(pages)
        self._known = pages  # at the last end; 0: not for sure
        self._flushed = False  # so that nothing is left but what clients have put
        self._put: list[list[bytes]] = []  # chains that have bytes

    def run(self) -> None:
        self.runner.run(self._main)

    def _tell(self, what: str) -> None:
        self.history.append(history_line(self.runner, what))

    def _main(self) -> None:
        slots = -(-self._pages // DEVICES) + SPARE
        size = first_slot_offset(slots) + slots * 2 * BLOCK_BYTES
        self._array = ModelArray(self.runner, [size] * DEVICES, seconds=1e-5)
        self._make_known()
        for life in range(LIVES):
            self._live(life)

    def _open(self, *, behind: bool) -> TierStack:
        ssd = memory_ssd(array=self._array, runner=self.runner, behind=behind)
        return new_stack(32, ssd, runner=self.runner, fill_behind=behind)

    def _make_known(self) -> None:
        """The devices have all of them from now on."""
        stack = self._open(behind=False)
        ssd = stack.tiers["ssd"]
        stored = stored_of(self._keys, self._depths, 1, GEOMETRY.page_bytes, stack.digest)
        make_known(stack.table, ssd.places, stored)  # type: ignore[attr-defined]
        stack.close(MOST_SECONDS)

    def _live(self, life: int) -> None:
        stack, draw = self._open(behind=True), self.draw
        done: list[str] = []
        asked = self.happened["ask"]
        threads = [
            self.runner.thread(partial(self._client, stack, f"{life} {number}", done), f"client-{number}")
            for number in range(CLIENTS)
        ]
        trouble = draw.choice((None, None, self._flush, self._cap, self._lose_a_device, self._drop_a_prompt))
        self._tell(f"life {life} begins; {self._known} pages are known to be there")
        if trouble is not None:
            threads.append(self.runner.thread(partial(trouble, stack), "trouble"))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(done) == CLIENTS, "a client has not come to its end"
        stage = stack.fillings["ssd"].stage
        self._tell(f"clients have come to their ends; the index is {stage.value}")
        if draw.random() < 0.4 or life == LIVES - 1:
            assert stack.filler.wait_idle(self._wait), "what was kept is never found again"
            self.happened["pages found again"] += stack.table.named("ssd").pages
            check(stack)
            if self._flushed:
                assert stack.table.pages <= sum(map(len, self._put)), "what was flushed has come back"
        elif stage is not Stage.FILLED:
            self.happened[f"stopped while {stage.value}"] += 1
        known = stack.fillings["ssd"].unread + stack.table.named("ssd").pages
        if stage in (Stage.OPENING, Stage.TAKING):  # nobody knows yet; the next life will
            known = self._known
        calm = stack.errands.wait_idle(0.0)
        stack.close(MOST_SECONDS)
        self._tell(f"life {life} has ended; {known} pages are kept")
        for event in stack.events.since():
            assert event.kind not in ("restore.error", "linker.error", "ssd.not_opened"), event
        unharmed = trouble is None and self.happened["ask"] == asked
        if unharmed:
            assert known >= self._known, f"of {self._known} pages {known} are left, and nothing was wrong"
            self.happened["lives without trouble"] += 1
        # What is leaving counts until it has left. What will not be entered, as something before it was damaged or
        # lost, in this life or one before it, counts until that is found.
        sure = stage is Stage.FILLED or (unharmed and self._known)
        self._known = known if calm and trouble is None and sure else 0

    def _client(self, stack: TierStack, name: str, done: list[str]) -> None:
        draw = random.Random(self.draw.random())
        asks = draw.random() < 0.5
        for number in range(STEPS):
            self.runner.sleep(self._some_time(draw) / STEPS)
            what = draw.choice(("put", "put", "get", "get", "ask" if asks else "get"))
            self.happened[what] += 1
            if what == "put":
                keys = chain(name, *(f"{number} {at}" for at in range(draw.randint(1, 8))))
                self._tell(f"put: {len(keys)} pages")
                put(stack, keys)
                self._put.append(keys)
            elif what == "get" and self._put:
                found = get(stack, draw.choice(self._put))
                self._tell(f"get: {found} pages, compared")
                self.happened["pages compared"] += found
            elif what == "ask":
                asked = self._made_up(draw)
                found = get(stack, asked)
                self._tell(f"ask: {len(asked)} pages of which there are no bytes")
                assert not found, "a page is served of which there are no bytes"
        done.append(name)

    def _made_up(self, draw: random.Random) -> list[bytes]:
        """A prefix of the sequence that hangs together in itself: what is asked of it is damaged."""
        keys: np.ndarray = self._keys[len(self._keys) - CHAIN :, :4]
        begin = 0 if draw.random() < 0.3 else draw.randrange(CHAIN - 1)
        first = [keys[at].tobytes() for at in range(begin + 1)]
        return first[: draw.randint(1, len(first))]

    def _some_time(self, draw: random.Random) -> float:
        """Seconds: mostly so many that finding the pages again is not over."""
        finding = self._pages / ENTERED_TOGETHER * PAUSE
        return draw.choice((0.0, finding, finding, 3 * finding)) * draw.random()

    # ---- trouble ----

    def _order(self, stack: TierStack, name: str, command: AnyCommand) -> None:
        self.runner.sleep(self._some_time(self.draw))
        self.happened[name] += 1
        self._tell(name)
        obey(stack, command, self._wait)
        self._tell(f"{name}: that is done")

    def _flush(self, stack: TierStack) -> None:
        self._order(stack, "everything is flushed", Flush(tiers="all"))
        self._flushed = True

    def _cap(self, stack: TierStack) -> None:
        limit = self._pages // 2 * GEOMETRY.page_bytes
        self._order(stack, "the tier is capped", CapTier(tier="ssd", limit=limit))

    def _drop_a_prompt(self, stack: TierStack) -> None:
        """What nearly all pages begin with."""
        page = self._keys[self.draw.randrange(PROMPT), :4].tobytes()
        self._order(stack, "a prompt is dropped", Drop(page=page.hex()))

    def _lose_a_device(self, stack: TierStack) -> None:
        self.runner.sleep(self._some_time(self.draw))
        self.happened["a device is lost"] += 1
        self._tell("a device is lost")
        self._array.failing.add(self.draw.randrange(DEVICES))
        self.runner.sleep(5.0)
        self._array.heal()
