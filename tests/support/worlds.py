"""Requests over a whole `TierStack` in virtual time, while devices, leases and operators do what they like.

The engine is the real one; devices (`ModelArray`) and lent memory (`ModelPeer`) are models. A world follows from its
seed: what everybody does is drawn here, and in which order by the runner.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from swift_tiers.radix_tiering.base.page import ROOT_KEY, page_digest
from swift_tiers.radix_tiering.base.virtual import VirtualRunner
from swift_tiers.radix_tiering.bus.contract.commands import CapTier, Drop, Pin, Unpin
from swift_tiers.radix_tiering.stack import TierStack
from swift_tiers.radix_tiering.table.held_page import HOST
from swift_tiers.radix_tiering.table.rules import check_rules
from swift_tiers.radix_tiering.tiers.peer import LentMemory
from swift_tiers.radix_tiering.tiers.testing.model_array import ModelArray
from swift_tiers.radix_tiering.tiers.testing.model_tier import ModelTier
from swift_tiers.radix_tiering.way import down, sweeps, up
from swift_tiers.radix_tiering.way.request_restore import Readiness, Restore, RestoreState

from support.engine import chain, check, close, content, copy_of, get, make_stack, memory_ssd, obey, page_at, put
from support.model_peer import ModelPeer

#: Constants that bound a step, and what a world sets them to: in small steps, more happens between two of them.
KNOBS: list[tuple[Any, str, Sequence[int]]] = [
    (up, "PAGES_PER_HOLD", (1, 2, 64)),
    (sweeps, "STEP_PAGES", (1, 3, 64)),
    (LentMemory, "writes_in_flight", (1, 16)),
    (down, "WRITE_BACK_STEP", (1, 64)),
]
#: How long a request may wait for its pages, virtual seconds: the deadline, and what is lost on the way to it.
LONGEST_WAIT = 30.0
#: When a page was put that is being put now.
UNDER_WAY = 1 << 60

Step = Callable[[random.Random], None]


def pages_at_peers_alone(stack: TierStack, peer: ModelPeer, keys: Sequence[bytes]) -> None:
    """Put pages, and leave of them only what memory that is lent has."""
    put(stack, keys)
    with stack.table.lock:
        assert stack.movers["peer"].wait_idle(30.0)
        for page in reversed(stack.table.listed()):
            assert copy_of(stack, page, "peer"), "it was not lent to"
            stack.table.lose(page, HOST)


def recalled_while_it_is_restored(seed: int) -> None:
    """A lease is recalled at about the time at which a request wants what lies under it. Only times are random."""
    draw = random.Random(seed)
    runner = VirtualRunner(
        seed, switch=draw.choice((0.1, 0.3, 0.7)), stall=draw.choice((0.0, 0.01, 0.05)), stall_seconds=1e-3,
        changes=draw.randint(1, 4) if seed % 2 else 0, expected_steps=600, most_seconds=300.0,
    )  # fmt: skip

    def main() -> None:
        peer = ModelPeer(4096, runner=runner)
        stack = make_stack(32, lent=peer, runner=runner)
        keys, lease = chain(*range(8)), peer.lend(16)
        peer.settle()
        pages_at_peers_alone(stack, peer, keys)

        def recall() -> None:
            runner.sleep(draw.random() * 1e-4)
            peer.recall(lease)

        thread = runner.thread(recall, "recall")
        thread.start()
        runner.sleep(draw.random() * 1e-4)
        get(stack, keys)
        thread.join()
        runner.sleep(1.0)
        check(stack)
        for event in stack.events.since():
            assert event.kind != "restore.error"
            assert "no room" not in str(event.fields.get("reason")), "there is room for four times as many pages"
        close(stack)

    runner.run(main)


def recalled_before_what_follows(seed: int) -> None:
    """The lent copies of a prefix are recalled, while what follows it lies in lent memory alone: host memory, full of
    the prefix, still takes new pages. Only sizes and times are random."""
    draw = random.Random(seed)
    room, length = draw.randint(2, 6), draw.randint(1, 4)
    runner = VirtualRunner(seed, switch=draw.choice((0.1, 0.3, 0.7)), most_seconds=300.0)

    def main() -> None:
        peer = ModelPeer(4096, runner=runner)
        stack = make_stack(room + length, lent=peer, runner=runner)
        keys = chain(*range(room + length))
        prefix, rest = keys[:room], keys[room:]
        lease = peer.lend(room)
        peer.settle()
        put(stack, prefix)
        runner.sleep(draw.random())
        peer.lend(length + draw.randint(0, 2))
        peer.settle()
        put(stack, rest, prefix[-1], room + 1)
        runner.sleep(draw.random())
        obey(stack, CapTier(tier="host", limit=room * 4096))
        peer.recall(lease)
        runner.sleep(draw.random() * 1e-3)
        taken = put(stack, chain("new"))
        runner.sleep(1.0)
        assert taken or put(stack, chain("new")), "host memory takes nothing more"
        check(stack)
        close(stack)

    runner.run(main)


class World:
    """One stack, clients, and whatever goes wrong. `run` once."""

    def __init__(self, seed: int, *, calm: bool = False, lent: bool = False, steps: int = 12) -> None:
        """`calm`: nothing goes wrong. `lent`: there is lent memory and no ssd. `steps`: what each client does."""
        self._draw = draw = random.Random(seed)
        self._steps = steps
        self._calm = calm
        self._lent = lent
        self.runner = VirtualRunner(
            seed, switch=draw.choice((0.1, 0.3, 0.7)), stall=draw.choice((0.0, 0.002, 0.02)),
            changes=draw.choice((0, 0, 0, 3)), most_seconds=600.0,
        )  # fmt: skip
        #: How often what happened: what a run of many worlds has never reached, it has not tested.
        self.happened: Counter[str] = Counter()
        self._moment = 0
        self._put_at: dict[bytes, int] = {}
        self._flushed_at = -1  # when the last flush of everything began that has returned
        self._leases: list[Any] = []

    def run(self) -> World:
        with pytest.MonkeyPatch.context() as patch:
            for module, name, values in KNOBS:
                patch.setattr(module, name, self._draw.choice(values))
            self.runner.run(self._main)
        return self

    def _main(self) -> None:
        began = self.runner.monotonic()
        self._build()
        self._soon(began, "the start")
        jobs = [self._client] * 3 + ([] if self._calm else [self._trouble])
        jobs += [self._neighbours] if self.peer is not None else []
        threads = [self._thread(job, number) for number, job in enumerate(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.array is not None:
            self.array.heal()
        if self.peer is not None:
            self.peer.hold(False)
        if not self._calm:
            self.runner.sleep(5.0)  # what was late comes
        began = self.runner.monotonic()
        assert self.stack.wait_written(30), "what was admitted is never written"
        self._soon(began, "writing")
        with self.stack.table.lock:
            assert all(mover.wait_idle(30) for mover in self.stack.movers.values()), "lent memory is never written"
        if self.peer is not None:
            self.runner.sleep(0.5)  # what is being saved of a lease that goes has come
        check(self.stack)
        began = self.runner.monotonic()
        close(self.stack)
        self._soon(began, "the end")
        assert not self.errors(), self.errors()

    def _soon(self, began: float, what: str) -> None:
        """Where nothing is wrong, nothing waits for whoever looks once in a second: that is a belt."""
        assert not self._calm or self.runner.monotonic() - began < 0.5, f"{what} waits for somebody who looks"

    def _build(self) -> None:
        draw, runner = self._draw, self.runner
        with_peer, with_ssd = draw.random() < 0.5 or self._lent, draw.random() < 0.8 and not self._lent
        self.array: ModelArray | None = None
        ssd = None
        if with_ssd or not with_peer:
            sizes = [262_144 + draw.randint(3, 20) * 8192] * draw.randint(1, 3)
            self.array = ModelArray(runner, sizes, seconds=draw.choice((1e-5, 1e-4, 2e-3)))
            ssd = memory_ssd(array=self.array, runner=runner, verifiers=draw.choice((0, 1, 2)), stall_seconds=5.0)
        self.peer: ModelPeer | None = None
        if with_peer:
            fingerprint = page_digest if ssd is None else ssd.fingerprint
            self.peer = ModelPeer(4096, fingerprint, landing_slots=draw.choice((0, 0, 3)), runner=runner)
        self.attic: ModelTier | None = None
        if draw.random() < 0.4:
            fingerprint = page_digest if ssd is None else ssd.fingerprint
            seconds = draw.choice((0.0, 1e-5, 1e-3))
            self.attic = ModelTier(
                "attic", 4096, draw.randint(1, 20), runner=runner, seconds=seconds, fingerprint=fingerprint
            )
        policy = {
            "write": draw.choice(("through", "back")), "ssd_admission": draw.choice(("always", "reuse")),
            "eviction": draw.choice(("lru", "lfu")), "restore_deadline": "20s",
        }  # fmt: skip
        self.stack: TierStack = make_stack(
            draw.randint(2, 12), ssd, lent=self.peer, runner=runner, policy=policy,
            others=[self.attic] if self.attic is not None else [],
            restore={"strategy": draw.choice(("load", "token-wise", "auto"))},
        )  # fmt: skip

    def _thread(self, job: Step, number: int) -> Any:
        draw = random.Random(self._draw.random())
        return self.runner.thread(lambda: job(draw), f"{job.__name__}-{number}")

    def errors(self) -> list[Any]:
        return [event for event in self.stack.events.since() if event.kind in ("restore.error", "linker.error")]

    # ---- clients ----

    def _client(self, draw: random.Random) -> None:
        for _ in range(self._steps):
            step: Step = draw.choices((self._put, self._restore, self._leave, self._wait_in_line), (4, 4, 1, 4))[0]
            step(draw)
            self.happened[step.__name__.lstrip("_")] += 1
            if draw.random() < 0.3:
                self.runner.sleep(draw.random() ** 3 * 0.02)

    def _prompt(self, draw: random.Random) -> list[bytes]:
        """Few branches, so that requests share prefixes."""
        return chain(*(draw.choice((0, 0, 1)) for _ in range(draw.randint(1, 7))))

    def _put(self, draw: random.Random) -> None:
        keys, parent, depth = self._prompt(draw), ROOT_KEY, 1
        if len(keys) > 2 and draw.random() < 0.3:
            cut = draw.randrange(1, len(keys))
            parent, depth, keys = keys[cut - 1], cut + 1, keys[cut:]
        for key in keys:
            self._put_at[key] = UNDER_WAY
        offered = self.stack.intake.begin(keys, parent, depth)
        for index, slot in zip(offered.indices, offered.slots, strict=True):
            self.runner.sleep(draw.random() * 1e-4)
            self.stack.host.page(slot)[:] = content(keys[index])
        if draw.random() < 0.1:
            for slot in offered.slots:
                self.stack.host.page(slot)[:] = 0xFF
            self.stack.intake.abort(offered)
        else:
            self.stack.intake.commit(offered)
        self._moment += 1
        for key in keys:
            self._put_at[key] = self._moment
        self._look()

    def _restore(self, draw: random.Random) -> None:
        keys, flushed = self._prompt(draw), self._flushed_at
        restore = self.stack.restore(keys)
        self._await(restore, lambda readiness: bool(readiness))
        assert restore.state is RestoreState.READY
        places = restore.slots
        self._compare(keys, places)
        assert all(self._put_at[key] > flushed for key in keys[: restore.pages]), "a page that was flushed"
        self.happened["pages"] += restore.pages
        if draw.random() < 0.5:
            self.runner.sleep(draw.random() * 0.01)
            self._compare(keys, places)
        self.stack.restorer.release(restore)
        if draw.random() < 0.2:
            self.stack.restorer.flush()
        self._look()

    def _leave(self, draw: random.Random) -> None:
        """A request that is aborted, at whatever moment."""
        restore = self.stack.restore(self._prompt(draw), can_compute=draw.random() < 0.5)
        if draw.random() < 0.5:
            self.runner.sleep(draw.random() ** 3 * 1e-3)
            self.stack.restorer.poll(restore)
        self.stack.restorer.release(restore)

    def _wait_in_line(self, draw: random.Random) -> None:
        """A request that waits for room, and is looked at in every round, on a device that gains and loses pages."""
        keys = self._prompt(draw)
        restore = self.stack.restore(keys, can_compute=True)
        self._await(restore, lambda readiness: readiness is not Readiness.WAIT)
        on_device = 0
        for _ in range(draw.randint(1, 4)):
            on_device = min(draw.choice((on_device, 0, draw.randint(0, len(keys)))), len(restore.claimed))
            pages = self.stack.restorer.present(restore, on_device)
            with self.stack.table.lock:
                dropped = any(page.dropped for page in restore.claimed)
            if not dropped:
                self._compare(keys[on_device:], restore.places(on_device, pages).numbers)
            self.happened["rounds"] += 1
            self.runner.sleep(0.001)
        self.stack.restorer.release(restore)

    def _await(self, restore: Restore, ready: Callable[[Readiness], bool]) -> None:
        began = self.runner.monotonic()
        while not ready(self.stack.restorer.poll(restore)):
            self.runner.sleep(0.0005)
            assert self.runner.monotonic() - began < LONGEST_WAIT, "a request waits for longer than its deadline"

    def _compare(self, keys: Sequence[bytes], places: Any) -> None:
        for key, place in zip(keys, places, strict=False):
            assert place >= 0, "a page is promised that is nowhere"
            assert key in self._put_at, "a page that nobody put"
            assert np.array_equal(page_at(self.stack, int(place)), content(key)), "wrong bytes"

    def _look(self) -> None:
        with self.stack.table.lock:
            check_rules(self.stack.table)

    # ---- trouble ----

    def _trouble(self, draw: random.Random) -> None:
        for _ in range(self._steps // 2):
            self.runner.sleep(draw.random() ** 2 * 0.05)
            step: Step = draw.choice((
                self._flush, self._flush, self._device, self._damage_memory, self._damage_disk, self._drop, self._pin,
                self._cap, self._empty_attic,
            ))  # fmt: skip
            step(draw)
            self.happened[step.__name__.lstrip("_")] += 1

    def _flush(self, draw: random.Random) -> None:
        everything, began = draw.random() < 0.5, self._moment
        self.stack.flush(memory=True, durable=everything)
        if everything:
            self._flushed_at = max(self._flushed_at, began)

    def _device(self, draw: random.Random) -> None:
        if self.array is not None and len(self.array.sizes) > 1:
            among = draw.choice((self.array.lost, self.array.silent, self.array.failing))
            among.add(draw.randrange(len(self.array.sizes)))

    def _damage_memory(self, draw: random.Random) -> None:
        with self.stack.table.lock:
            for page in self.stack.table.listed():
                if page.resident and not page.pins and page.digest is not None:
                    self.stack.host.page(page.slot)[3] ^= 0x40
                    return

    def _damage_disk(self, draw: random.Random) -> None:
        if self.array is not None:
            image = draw.choice(self.array.images)
            image[draw.randrange(131_072, image.nbytes)] ^= 1

    def _drop(self, draw: random.Random) -> None:
        obey(self.stack, Drop(page=self._prompt(draw)[-1].hex()))

    def _pin(self, draw: random.Random) -> None:
        key = self._prompt(draw)[-1].hex()
        if isinstance(obey(self.stack, Pin(page=key)), str) and draw.random() < 0.8:
            obey(self.stack, Unpin(page=key))

    def _empty_attic(self, draw: random.Random) -> None:
        if self.attic is not None:
            self.attic.lose_all()

    def _cap(self, draw: random.Random) -> None:
        obey(
            self.stack,
            CapTier(tier=draw.choice(("host", "attic")), limit=draw.choice((None, 4096 * draw.randint(1, 8)))),
        )

    # ---- neighbours ----

    def _neighbours(self, draw: random.Random) -> None:
        assert self.peer is not None
        for _ in range(self._steps):
            self.runner.sleep(draw.random() ** 2 * 0.03)
            kind = draw.choice(("lend", "lend", "lend", "recall", "late", "end", "hold"))
            self.happened[f"lease {kind}"] += 1
            if kind == "lend" or not self._leases:
                self._leases.append(self.peer.lend(draw.randint(1, 8), draw.choice(("d1", "d2"))))
            elif kind == "hold":
                self.peer.hold(True)
                self.runner.sleep(draw.random() * 0.01)
                self.peer.hold(False)
            else:
                lease = self._leases.pop(draw.randrange(len(self._leases)))
                if kind == "end":
                    self.peer.end(lease)
                else:
                    self.peer.recall(lease, in_time=kind == "recall")
