"""Requests: what a client does, and what it may rely on."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch

from swift_tiers.radix_tiering.base.page import ROOT_KEY
from swift_tiers.radix_tiering.way.request_restore import Readiness, Restore, RestoreState

from .stacks import content, device_says
from .state import UNDER_WAY, WorldState

#: How long a request may wait for its pages, virtual seconds: the deadline, and what is lost on the way to it.
LONGEST_WAIT = 30.0


class Clients:
    """The actions of `plan.CLIENT`, by their names."""

    def __init__(self, state: WorldState) -> None:
        self._state = state

    def put(self, draw: random.Random) -> None:
        state, stack = self._state, self._state.stack
        keys, parent, depth = state.prompt(draw), ROOT_KEY, 1
        if len(keys) > 2 and draw.random() < 0.3:
            cut = draw.randrange(1, len(keys))
            parent, depth, keys = keys[cut - 1], cut + 1, keys[cut:]
        state.tell(f"puts {state.words(keys)} from page {depth} on")
        for key in keys:
            state.put_at[key] = UNDER_WAY
        offered = stack.intake.begin(keys, parent, depth)
        outgoing = state.neighbourhood.outgoing if state.neighbourhood is not None else None
        rows = outgoing.take(len(offered.slots)) if outgoing is not None else []
        for at, (index, slot) in enumerate(zip(offered.indices, offered.slots, strict=True)):
            state.runner.sleep(draw.random() * 1e-4)
            page = stack.host.page(slot)
            page[:] = content(keys[index], len(page))
            if outgoing is not None and at < len(rows):
                outgoing.memory[rows[at]] = torch.from_numpy(page.copy())
        if draw.random() < 0.1:
            for slot in offered.slots:
                stack.host.page(slot)[:] = 0xFF
            if outgoing is not None:
                outgoing.memory[rows] = 0xFF
                outgoing.give_back(rows)
            stack.intake.abort(offered)
        else:
            digests = stack.intake.digests(offered)
            # Of some it has said nothing yet, as of those that come up from other tiers.
            if state.plan.by_device and keys[0][0] % 3:
                device_says(stack, offered, keys)
            if outgoing is not None:
                outgoing.enter(rows, digests[: len(rows)])
            stack.intake.commit(offered, digests)
        state.moment += 1
        for key in keys:
            state.put_at[key] = state.moment
        state.look()

    def restore(self, draw: random.Random) -> None:
        state, stack = self._state, self._state.stack
        keys, flushed = state.prompt(draw), state.flushed_at
        state.tell(f"restores {state.words(keys)}")
        restore = stack.restore(keys)
        self._await(restore, lambda readiness: bool(readiness))
        state.tell(f"has {restore.pages} of {len(keys)} pages of {state.words(keys)}")
        assert restore.state is RestoreState.READY
        places = restore.slots.tolist()
        state.compare(restore, keys, 0, places)
        assert all(state.put_at[key] > flushed for key in keys[: restore.pages]), "a page that was flushed"
        state.happened["pages"] += restore.pages
        state.happened["pages from the store"] += restore.found(0, restore.pages).count("remote")
        if draw.random() < 0.5:
            state.runner.sleep(draw.random() * 0.01)
            state.compare(restore, keys, 0, places)
        stack.restorer.release(restore)
        if draw.random() < 0.2:
            stack.restorer.wait_idle()
        state.look()

    def leave(self, draw: random.Random) -> None:
        """A request that is aborted, at whatever moment."""
        state, stack = self._state, self._state.stack
        keys = state.prompt(draw)
        state.tell(f"wants {state.words(keys)}, and leaves")
        restore = stack.restore(keys, can_compute=draw.random() < 0.5)
        if draw.random() < 0.5:
            state.runner.sleep(draw.random() ** 3 * 1e-3)
            stack.restorer.poll(restore)
        stack.restorer.release(restore)

    def wait_in_line(self, draw: random.Random) -> None:
        """A request that waits for room, and is looked at in every round, on a device that gains and loses pages."""
        state, stack = self._state, self._state.stack
        keys = state.prompt(draw)
        state.tell(f"waits in line with {state.words(keys)}")
        restore = stack.restore(keys, can_compute=True)
        self._await(restore, lambda readiness: readiness is not Readiness.WAIT)
        on_device = 0
        for _ in range(draw.randint(1, 4)):
            on_device = min(draw.choice((on_device, 0, draw.randint(0, len(keys)))), len(restore.claimed))
            pages = stack.restorer.present(restore, on_device)
            with stack.table.lock:
                dropped = any(page.dropped for page in restore.claimed)
            if not dropped:
                state.compare(restore, keys, on_device, restore.places(on_device, pages).numbers.tolist())
            state.happened["rounds"] += 1
            state.runner.sleep(0.001)
        stack.restorer.release(restore)

    def _await(self, restore: Restore, ready: Callable[[Readiness], bool]) -> None:
        state = self._state
        began = state.runner.monotonic()
        while not ready(state.stack.restorer.poll(restore)):
            state.runner.sleep(0.0005)
            assert state.runner.monotonic() - began < LONGEST_WAIT, "a request waits for longer than its deadline"
