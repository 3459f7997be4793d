"""Requests over a whole `TierStack` in virtual time, while devices, leases and operators do what they like.

The engine is the real one; devices (`PowerArray`) are models, and so is lent memory (`ModelPeer`), but where real
donors lend it (`neighbours`). A world follows from its plan: what everybody does is drawn there, and in which order by
the runner.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import numpy as np

from swift_tiers.radix_tiering.base.page import page_digest
from swift_tiers.radix_tiering.base.virtual import VirtualRunner
from swift_tiers.radix_tiering.tiers.peer import LentMemory
from swift_tiers.radix_tiering.tiers.remote import RemoteTier
from swift_tiers.radix_tiering.tiers.ssd.ssd_tier import SsdTier
from swift_tiers.radix_tiering.tiers.testing.model_engine import EngineFault
from swift_tiers.radix_tiering.tiers.testing.model_tier import ModelTier
from swift_tiers.radix_tiering.tiers.tier import ReadOutcome
from swift_tiers.radix_tiering.way import down, sweeps, up

from . import statements
from .clients import Clients
from .devices import PowerArray
from .direct_files import PlainLanding, direct_reads
from .model_peer import ModelPeer
from .neighbours import Neighbourhood, Tormentor, slow_memory
from .neighbours.device import TriedLanding
from .plan import BORROWED, Job, Plan
from .shared_store import shared_tier, unreliable_store
from .stacks import GEOMETRY, OF_SEVERAL_UNITS, check, memory_ssd, namespace, new_stack
from .state import WorldState
from .trouble import Lenders, Troublemaker

#: Constants that bound a step, and what a world sets them to: in small steps, more happens between two of them.
KNOBS: list[tuple[Any, str, Sequence[int]]] = [
    (up, "PAGES_PER_HOLD", (1, 2, 64)),
    (sweeps, "PAGES_PER_HOLD", (1, 3, 64)),
    (LentMemory, "writes_in_flight", (1, 16)),
    (down, "WRITE_BACK_STEP", (1, 64)),
    (down, "PREFIX_STEP", (1, 2, 256)),
]
#: How a process ends.
ENDS = ("the end in order", "the process", "the power")


class World:
    """One stack, clients, and whatever goes wrong. `run` once."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.state = WorldState(plan)
        self._steps = 0  # of processes that have ended
        self._images: list[np.ndarray] = []  # what is on the devices when a process begins
        self._calm = plan.kind == "calm"
        draw = plan.draw("runner")
        self._pace: dict[str, Any] = {
            "switch": draw.choice((0.1, 0.3, 0.7)),
            "stall": draw.choice((0.0, 0.002, 0.02)),
            "changes": draw.choice((0, 0, 0, 3)),
        }
        if plan.fine:  # there are so many steps that threads which are held up at some would be late everywhere
            self._pace["stall"] = 0.0
        if plan.kind in BORROWED:  # for long, and several servers: the same holds
            self._pace["stall"] = min(self._pace["stall"], 0.002)
        self._behind = False  # whether what was kept is found while pages are served
        self.state.runner = self._runner(0)

    @property
    def runner(self) -> VirtualRunner:
        """The one of the last process."""
        return self.state.runner

    @property
    def steps(self) -> int:
        """Those of the schedule."""
        return self._steps + self.runner.steps

    def run(self) -> World:
        """Live it to its end. Raises AssertionError, or whatever the engine does, where something is wrong."""
        draw = self.plan.draw("knobs")
        with ExitStack() as patches:
            for owner, name, values in KNOBS:
                patches.enter_context(patch.object(owner, name, draw.choice(values)))
            if self.plan.fine:
                patches.enter_context(statements.switching())
            if self.plan.kind in BORROWED:
                patches.enter_context(slow_memory(self.state.runner, draw))
            for life, seconds in enumerate((*self.plan.crashes, None)):
                if life:
                    self._begin_again(life)
                self._run(life, seconds)
        return self

    def _run(self, life: int, seconds: float | None) -> None:
        """One process, which ends in order, or after so many seconds whatever it does."""
        state, runner = self.state, self.runner
        statements.use(runner if self.plan.fine else None)

        def main() -> None:
            thread = runner.thread(lambda: self._live(life), f"life-{life}")
            thread.start()
            thread.join(seconds)
            state.tell("the process ends")

        runner.run(main if seconds is not None else lambda: self._live(life))

    def _begin_again(self, life: int) -> None:
        """Another process, which has of the one before what its devices have."""
        state, draw = self.state, self.plan.draw(f"end of life {life - 1}")
        self._steps += self.runner.steps
        array, power = state.array, draw.random() < 0.5
        crashed = self.plan.crashes[life - 1] is not None
        state.flushed_at = state.flushed_for_good_at
        if array is not None:
            self._images = array.left_behind(draw, power=power) if crashed else array.images
            if crashed and power and array.lied:
                state.flushed_at = state.flushed_for_good_at = -1
        if not state.opened:  # half made: whoever sees that begins with blank devices
            self._images = []
        state.happened[f"crash: {ENDS[1 + power if crashed else 0]}"] += 1
        state.array, state.peer, state.attic, state.leases = None, None, None, []
        state.runner = self._runner(life)

    def _runner(self, life: int) -> VirtualRunner:
        return VirtualRunner(self.plan.schedule + life * 1_000_003, most_seconds=600.0, **self._pace)

    def _live(self, life: int) -> None:
        state = self.state
        began = state.runner.monotonic()
        self._build(self.plan.draw(f"life {life}"))
        self._soon(began, "the start")
        jobs = [job for job in self.plan.jobs if job.life == life]
        threads = [state.runner.thread(self._job(job), job.name) for job in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if state.array is not None:
            state.array.heal()
        if state.peer is not None:
            state.peer.hold(False)
        if state.store is not None:
            state.store.fault = lambda job: EngineFault.NONE
        if state.neighbourhood is not None:
            state.neighbourhood.heal()
            state.runner.sleep(5.0)  # leases of what is gone end
        if not self._calm:
            state.runner.sleep(5.0)  # what was late comes
        self._end()

    def _end(self) -> None:
        state, stack = self.state, self.state.stack
        began = state.runner.monotonic()
        assert stack.wait_written(30), "what was admitted is never written"
        self._soon(began, "writing")
        with stack.table.lock:
            assert all(mover.wait_idle(30) for mover in stack.movers.values()), "lent memory is never written"
        ssd = stack.tiers.get("ssd")
        if isinstance(ssd, SsdTier):
            state.happened["pages coded"] += ssd.stripes.status().coded_pages
        if isinstance(ssd, SsdTier) and ssd.direct is not None:
            state.happened["pages read to the device"] += ssd.direct.counters[ReadOutcome.OK.value]
        if state.peer is not None:
            state.runner.sleep(0.5)  # what is being saved of a lease that goes has come
        began = state.runner.monotonic()
        check(stack)
        if self._behind:
            self._count_recovered("recovered behind")
        self._soon(began, "what is left to do")
        began = state.runner.monotonic()
        stack.close()
        self._soon(began, "the end")
        if state.neighbourhood is not None:
            state.neighbourhood.close(damaged=state.happened["damage_memory"] > 0)
        errors = [event for event in stack.events.since() if event.kind in ("restore.error", "linker.error")]
        assert not errors, errors

    def _count_recovered(self, name: str) -> None:
        found = (event for event in self.state.stack.events.since() if event.kind == "ssd.recovered")
        self.state.happened[name] += sum(event.fields["pages"] for event in found)

    def _soon(self, began: float, what: str) -> None:
        """Where nothing is wrong, nothing waits for whoever looks once in a second: that is a belt."""
        assert not self._calm or self.runner.monotonic() - began < 0.5, f"{what} waits for somebody who looks"

    def _job(self, job: Job) -> Any:
        state = self.state
        does = self._who(job)

        def run() -> None:
            for action in job.actions.values():
                if action.pause:
                    state.runner.sleep(action.pause)
                getattr(does, action.name)(random.Random(action.seed))
                if isinstance(does, Clients | Troublemaker):
                    state.happened[action.name] += 1

        return run

    def _who(self, job: Job) -> Any:
        """Whose actions a job's are."""
        state, name = self.state, job.name.partition("-")[0]
        if name == "torments":
            assert state.neighbourhood is not None
            return Tormentor(state.neighbourhood, state.tell, state.happened)
        return {"client": Clients, "trouble": Troublemaker, "neighbours": Lenders}[name](state)

    def _build(self, draw: random.Random) -> None:
        state, runner, lent = self.state, self.runner, self.plan.kind == "lent"
        borrowed = self.plan.kind in BORROWED
        with_peer, with_ssd = draw.random() < 0.5 or lent, draw.random() < 0.8 and not lent
        with_ssd = with_ssd or self.plan.kind == "crash"
        behind = self._behind = self.plan.draw("filling").random() < 0.5
        units = self.plan.draw("units of a page")
        space = namespace(geometry=units.choice(OF_SEVERAL_UNITS) if self.plan.coded else GEOMETRY)
        page = space.geometry.page_bytes
        ssd = None
        if with_ssd or not with_peer:
            sizes = [262_144 + draw.randint(3, 20) * 8192] * draw.randint(1, 3)
            images = self._images or [np.zeros(size, np.uint8) for size in sizes]
            state.array = PowerArray(runner, images, state.happened, seconds=draw.choice((1e-5, 1e-4, 2e-3)))
            ssd = memory_ssd(
                array=state.array, runner=runner, verifiers=draw.choice((0, 1, 2)), stall_seconds=5.0, behind=behind,
                codes=self.plan.coded, coders=2,
            )  # fmt: skip
            state.opened = True
        fingerprint = page_digest if ssd is None else ssd.fingerprint
        if borrowed:
            ranked = self.plan.draw("ranks of donors") if self.plan.kind == "ranked" else None
            on_devices = self.plan.draw("devices")
            devices = on_devices if ranked is None and on_devices.random() < 0.5 else None
            state.neighbourhood = Neighbourhood(
                runner, draw, state.happened, fingerprint, 4096, ranked=ranked, devices=devices
            )
        elif with_peer:
            state.peer = ModelPeer(page, fingerprint, landing_slots=draw.choice((0, 0, 3)), runner=runner)
        if draw.random() < 0.4:
            seconds = draw.choice((0.0, 1e-5, 1e-3))
            state.attic = ModelTier(
                "attic", page, draw.randint(1, 20), runner=runner, seconds=seconds, fingerprint=fingerprint
            )
        if self.plan.kind == "shared":
            state.store = unreliable_store(runner, self.plan.draw("store"), state.happened)
        policy = {
            "write": draw.choice(("through", "back")), "ssd_admission": draw.choice(("always", "reuse")),
            "eviction": draw.choice(("lru", "lfu")), "restore_deadline": "20s",
        }  # fmt: skip
        landing: PlainLanding | TriedLanding | None = None
        direct = None
        if state.neighbourhood is not None:
            landing = state.neighbourhood.landing
        sideways = self.plan.draw("direct reads")
        if ssd is not None and state.array is not None and state.peer is None and sideways.random() < 0.4:
            landing = landing or PlainLanding(page, sideways.choice((1, 4)), runner)
            direct = direct_reads(ssd, state.array, landing, runner=runner)
        lent_memory = state.peer if state.neighbourhood is None else state.neighbourhood.tier
        state.stack = new_stack(
            draw.randint(2, 12), ssd, space, lent=lent_memory, runner=runner, policy=policy,
            others=[*([state.attic] if state.attic is not None else []), *self._shared(fingerprint)],
            landing=landing, direct=direct,
            restore={"strategy": draw.choice(("load", "token-wise", "auto"))}, fill_behind=behind,
            host={"verify": self.plan.verify},
        )  # fmt: skip
        if not behind:
            self._count_recovered("recovered")

    def _shared(self, fingerprint: Callable[[np.ndarray], bytes]) -> list[RemoteTier]:
        store, draw = self.state.store, self.plan.draw("remote")
        return [] if store is None else [shared_tier(store, self.runner, draw, fingerprint)]
