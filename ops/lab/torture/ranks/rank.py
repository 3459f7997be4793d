"""One rank of a server: SGLang's scheduler and tree as they are, over tiers in virtual time.

What the server does (requests, aborts, flushes) is the same on every rank; what goes wrong is each rank's own.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from operator import attrgetter
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from swift_tiers.radix_tiering.base.virtual import VirtualRunner
from swift_tiers.radix_tiering.stack import TierStack
from swift_tiers.radix_tiering.table.rules import check_rules
from swift_tiers.sglang_ext.way import cache as sglang_cache
from swift_tiers.sglang_ext.way.cache import SwiftLinkerWrapper
from swift_tiers.sglang_ext.way.layer_wise import LayerWise
from swift_tiers.sglang_ext.way.linker import SwiftLinker
from swift_tiers.sglang_ext.way.request import why_all_whole

from ..devices import PowerArray
from ..model_peer import ModelPeer
from ..plan import REFUSING, WINDOWED, Job, Plan, landing_slots, ranks_borrow, ranks_land, stumble_of
from ..stacks import check, memory_ssd, new_stack, rows_at
from ..state import WorldState
from ..taking import KnownCosts
from ..trouble import Lenders, Troublemaker
from .forward import NumberedForward, answer
from .lockstep import Lockstep
from .scheduler import StepScheduler

#: Pages that a branch of a prompt is long, and branches that a prompt has at most.
BRANCH_PAGES, MOST_BRANCHES = 2, 12
#: How long all that was asked may take at the end, virtual seconds: deadlines, and what is computed after them.
LONGEST_END = 200.0
#: The same where nothing goes wrong: a second is how often belts look.
CALM_END = 3.0
#: Between two rounds in which nothing is computed, seconds; after so many of them, so that a world in which all wait
#: comes to `LONGEST_END` within a minute.
ROUND_SECONDS, SOON_ROUNDS, LATE_ROUND_SECONDS = 1e-3, 200, 2e-2
#: A load to the device takes up to so long on a rank, one of these.
COPY_SECONDS = (0.0, 1e-3, 2e-2)


class RankWorldState(WorldState):
    """What is in the world of one rank."""

    linker: SwiftLinker

    def __init__(self, plan: Plan, number: int) -> None:
        super().__init__(plan)
        self._number = number

    def tell(self, what: str) -> None:
        super().tell(f"rank {self._number}: {what}")

    def prompt(self, draw: random.Random) -> list[bytes]:
        """The key of any page that is held here."""
        with self.stack.table.lock:
            keys = [page.key for page in self.stack.table.listed()] or [b"\0" * 32]
        return [draw.choice(keys)]

    def words(self, keys: Sequence[bytes]) -> str:
        return keys[-1].hex()[:8]


class RankWorld:
    """`run` once, in a process of its own whose scheduler has not served yet."""

    def __init__(self, plan: Plan, number: int, steps: StepScheduler, others: Any) -> None:
        self.plan = plan
        self.number = number
        self.state = RankWorldState(plan, number)
        draw = plan.draw(f"rank {number}")
        self.runner = self.state.runner = VirtualRunner(
            plan.schedule * 8 + number,
            switch=draw.choice((0.1, 0.3, 0.7)),
            stall=draw.choice((0.0, 0.002, 0.02)),
            most_seconds=5000.0,
        )
        self._s = steps
        self._lockstep = Lockstep(others, self.runner, self.state.history)
        self._asked: list[tuple[Any, list[int], int]] = []  # SGLang's request, its prompt, tokens to be answered with
        self._aborted: set[int] = set()  # requests that were, by their number
        self._rounds = self._idle_rounds = 0
        self._armed: dict[str, ExitStack] = {}  # what stumbles when it is called next
        self._images = _images_of(plan)

    def run(self) -> None:
        """Live it to its end. Raises AssertionError, or what the engine or SGLang does, where something is wrong."""
        runner = self.runner
        with ExitStack() as clocks:
            # SGLang's times are those of the runner: it only looks at the clock.
            for name, now in (
                ("monotonic", lambda: runner.now),
                ("perf_counter", lambda: runner.now),
                ("time", lambda: 1.7e9 + runner.now),
            ):
                clocks.enter_context(patch.object(time, name, now))
            clocks.enter_context(patch.object(sglang_cache, "images_of", lambda req: self._images))
            runner.run(self._live)

    # ---- the server ----

    def _live(self) -> None:
        self._build()
        jobs = {job.name: job for job in self.plan.jobs}
        troubles = []
        for name, does in (("rank", self._trouble), ("leases", self._lend)):
            if (own := jobs.get(f"{name}-{self.number}")) is not None:
                troubles.append(self.runner.thread(partial(does, own), own.name))
                troubles[-1].start()
        server = jobs.get("server")
        for action in server.actions.values() if server is not None else ():
            if action.pause:
                self.runner.sleep(action.pause)
            draw = random.Random(action.seed)
            getattr(self, f"_{action.name}")(draw)
            self.state.happened[action.name] += 1
            for _ in range(draw.choice((0, 0, 1, 4, 16))):
                self._round()
        for trouble in troubles:
            trouble.join()
        self._end()

    def _build(self) -> None:
        """Tiers of this rank's own, beneath the scheduler's tree."""
        state, plan, runner, scheduler = self.state, self.plan, self.runner, self._s.scheduler
        old: SwiftLinker = self._s.linker
        draw, alike = plan.draw(f"tiers of rank {self.number}"), plan.draw("tiers")
        sizes = [262_144 + alike.randint(6, 40) * 8192] * alike.randint(1, 3)
        images = [np.zeros(size, np.uint8) for size in sizes]
        state.array = PowerArray(runner, images, state.happened, seconds=draw.choice((1e-5, 1e-3, 3e-3, 1e-2)))
        policy = {"write": alike.choice(("through", "back")), "restore_deadline": "20s", "flush_cache": "host"}
        restore = {"strategy": alike.choice(("load", "token-wise", "token-wise", "auto")), "chunk": 8}
        host_pages, landing = alike.randint(8, 20), landing_slots(plan, self.number)
        if plan.kind == WINDOWED:  # three pages more at each end of a prompt or an answer
            host_pages *= 3
        if ranks_land(plan):
            # What lies in lent memory alone lands; ranks without landing memory have it in host memory.
            restore["strategy"] = alike.choice(("load", "auto"))
            host_pages = alike.randint(3, 8) if landing else 2 * host_pages
        ssd, geometry = memory_ssd(array=state.array, runner=runner, verifiers=draw.choice((0, 1))), old.pool.geometry
        if ranks_borrow(plan):
            state.peer = ModelPeer(geometry.page_bytes, ssd.fingerprint, landing_slots=landing, runner=runner)
        state.stack = new_stack(
            host_pages, ssd, old.stack.namespace, lent=state.peer, runner=runner, policy=policy, restore=restore,
            host={"verify": plan.verify},
        )  # fmt: skip
        if landing and state.peer is not None:
            _copy_from_landing(old.pool, state.stack, state.peer.landed)
        _copy_slowly(old.pool, runner.sleep, draw)
        if old.pool.states is not None:
            self._count_states(old.pool.states)
        if ranks_land(plan) and state.peer is not None:
            state.stack.planner.costs = KnownCosts(draw.choice((1e-4, 1e-3, 1e-2)), geometry.page_bytes)
            state.peer.lend(64)
        state.linker = SwiftLinker.over(old.pool, state.stack)
        cache = self._s.cache
        cache._all_reduce_attn_groups = self._lockstep.all_reduce
        cache.linker = SwiftLinkerWrapper(cache, state.linker)
        cache.linker.whole = why_all_whole(scheduler, old.pool)
        cache.linker.images_whole = bool(self._images)
        cache.linker.jump_ahead = self._counted("jump_ahead", "loaded ahead")
        cache.linker.copied_first = self._counted("copied_first", "copied first")
        # By its own lights, as each rank has its own costs: they have to agree.
        state.stack.planner.copied_first = lambda start, pages: draw.random() < 0.7  # type: ignore[method-assign]
        model_runner = scheduler.tp_worker.model_runner
        layer_wise = LayerWise(scheduler, model_runner, state.linker)
        layer_wise.why_not = lambda req: "no layers are computed here"  # type: ignore[method-assign]
        model_runner.swift_layer_wise = cache.linker.layer_wise = layer_wise
        for waits in (
            model_runner.token_to_kv_pool.register_layer_transfer_counter,
            scheduler.tp_worker.register_hicache_layer_transfer_counter,
        ):
            waits(state.linker.layer_done_counter)
        self.forward = NumberedForward(scheduler, runner.sleep, damage_comes=_damage_may_refuse(plan))
        scheduler.tp_worker.forward_batch_generation = self.forward

    def _count_states(self, states: Any) -> None:
        copy_in = states.copy_in

        def counted(*given: Any) -> None:
            copy_in(*given)
            self.state.happened["states loaded"] += 1

        states.copy_in = counted

    def _counted(self, method: str, name: str) -> Callable[..., bool]:
        """This method of the wrapper, which counts under this name how often it says yes."""

        def called(*given: Any) -> bool:
            said: bool = getattr(SwiftLinkerWrapper, method)(self._s.cache.linker, *given)
            self.state.happened[name] += said
            return said

        return called

    def _round(self) -> Any:
        """One step of the scheduler; SGLang's batch, or None."""
        batch = self._s.step()
        self._rounds += 1
        self._lockstep.meet(f"round {self._rounds}: {_words(batch)}")
        self._idle_rounds = 0 if batch is not None else self._idle_rounds + 1
        if batch is None:
            self.runner.sleep(ROUND_SECONDS if self._idle_rounds <= SOON_ROUNDS else LATE_ROUND_SECONDS)
        return batch

    # ---- what the server is asked for: the actions of `plan.SERVER`, by their names ----

    def _ask(self, draw: random.Random) -> None:
        self._add(self._prompt(draw), draw)

    def _ask_again(self, draw: random.Random) -> None:
        """A prompt once more, which the device may have forgotten meanwhile."""
        if self._asked:
            _, prompt, _ = draw.choice(self._asked)
            if draw.random() < 0.6:
                self._evict(draw)
            self._add(prompt, draw)

    def _ask_as(self, draw: random.Random) -> None:
        """Another prompt of the same length under the id of one that waits: two tokenizers may let one pass twice."""
        if not self._s.scheduler.waiting_queue:
            self._ask_again(draw)
        if waiting := self._s.scheduler.waiting_queue:
            req = draw.choice(waiting)
            self._add(self._prompt(draw, len(req.origin_input_ids)), draw, rid=req.rid)

    def _abort(self, draw: random.Random) -> None:
        from sglang.srt.managers.io_struct import AbortReq

        if live := [req for req, *_ in self._asked if not req.finished()]:
            rid = draw.choice(live).rid
            self._tell(f"{rid} is aborted")
            self._aborted |= {number for number, (req, *_) in enumerate(self._asked) if req.rid == rid}
            self._s.scheduler.abort_request(AbortReq(rid=rid))

    def _evict(self, draw: random.Random) -> None:
        """SGLang takes room from prefixes that nobody uses, as it does for a request that needs it."""
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams

        tokens = self._s.cache.page_size * draw.choice((draw.randint(1, 64), 64))
        windows = self.plan.kind == WINDOWED and draw.random() < 0.5
        self._tell(f"the device gives up {tokens} tokens{' of windows' if windows else ''}")
        self._s.cache.evict(EvictParams(swa_num_tokens=tokens) if windows else EvictParams(num_tokens=tokens))

    def _retract(self, draw: random.Random) -> None:
        """Whatever runs is taken off the device, and begins anew, as where room runs short."""
        from sglang.srt.managers.io_struct import ContinueGenerationReqInput, PauseGenerationReqInput

        self._tell("what runs is retracted")
        self._s.scheduler.pause_generation(PauseGenerationReqInput(mode="retract"))
        self._s.scheduler.continue_generation(ContinueGenerationReqInput(torch_empty_cache=False))

    def _flush_cache(self, draw: random.Random) -> None:
        """/flush_cache, which SGLang refuses while anything runs."""
        if self._s.scheduler.flush_cache():
            self._tell("the cache is flushed")

    def _rounds_pass(self, draw: random.Random) -> None:
        for _ in range(draw.randint(1, 10)):
            self._round()

    def _prompt(self, draw: random.Random, length: int | None = None) -> list[int]:
        """There are few branches, so that prompts share prefixes; and a few tokens of its own. Those of a given length
        have nothing in common with the others."""
        page = self._s.cache.page_size
        branch = BRANCH_PAGES * page
        own = draw.randint(1, page + 1) if length is None else length % branch or branch
        branches = draw.randint(1, MOST_BRANCHES) if length is None else (length - own) // branch
        name, tokens = "" if length is None else "other", []
        for _ in range(branches):
            name += str(draw.choice((0, 0, 0, 0, 1)))
            tokens += random.Random(name).choices(range(1, 200), k=branch)
        return tokens + draw.choices(range(1, 200), k=own)

    def _add(self, prompt: list[int], draw: random.Random, rid: str = "") -> None:
        rid = rid or f"r{len(self._asked):03d}"  # as long as each other: SGLang aborts whatever begins with an id
        new = draw.choice((1, 2, 4, 12, 40))
        before = set(map(id, self._s.scheduler.waiting_queue))
        self._s.add(prompt, new, rid=rid)
        (req,) = [one for one in self._s.scheduler.waiting_queue if id(one) not in before]
        self._tell(f"{rid} asks with {len(prompt)} tokens for {new}")
        self._asked.append((req, prompt, new))

    def _tell(self, what: str) -> None:
        """What the server is asked for, which the first rank tells for all."""
        if not self.number:
            self.state.tell(what)

    # ---- what goes wrong on this rank alone ----

    def _trouble(self, job: Job) -> None:
        troublemaker = Troublemaker(self.state)
        for action in job.actions.values():
            self.runner.sleep(action.pause)
            if action.name == "stumble":
                self._stumble(stumble_of(self.plan, action))
            else:
                getattr(troublemaker, action.name)(random.Random(action.seed))
            self.state.happened[action.name] += 1

    def _lend(self, job: Job) -> None:
        """What becomes of this rank's leases, of which the others know nothing."""
        lenders = Lenders(self.state)
        for action in job.actions.values():
            self.runner.sleep(action.pause)
            getattr(lenders, action.name)(random.Random(action.seed))

    def _stumble(self, name: str) -> None:
        """Something of ours raises, once."""
        path, _, method = name.rpartition(".")
        owner = attrgetter(path)(self.state.linker)

        def raises(*_: Any, **__: Any) -> Any:
            self._armed.pop(name).close()
            self.state.tell(f"{name} fails")
            self.state.happened[f"stumble: {name}"] += 1
            raise RuntimeError(f"{name} stumbles")

        if name not in self._armed:
            self._armed[name] = ExitStack()
            self._armed[name].enter_context(patch.object(owner, method, raises))

    # ---- the end ----

    def _end(self) -> None:
        state, began = self.state, self.runner.now
        calm = len(self.plan.jobs) == 1
        longest = CALM_END if calm else LONGEST_END
        if state.array is not None:
            state.array.heal()
        while self._round() is not None or not self._idle():
            assert self.runner.now - began < longest, self._who_waits()
        self._judge()
        assert state.linker.wait_offloads(30.0), "copies out of the device never end"
        self._lockstep.meet("the end of copies")
        self._round()  # SGLang hears of it
        stack = state.stack
        assert not state.linker.requests, f"kept for requests that are over: {list(state.linker.requests)}"
        for stumble in self._armed.values():  # what has not happened yet is not to
            stumble.close()
        if state.peer is not None:
            state.peer.hold(False)
        if not calm:
            self.runner.sleep(5.0)  # what was late comes
        check(stack)
        with stack.table.lock:
            check_rules(stack.table)
        self._count()
        state.linker.close()

    def _count(self) -> None:
        """What tells whether the world was about anything."""
        happened, snapshot = self.state.happened, self.state.stack.snapshot()
        happened["tokens computed"] += self.forward.tokens
        happened["tokens compared"] += self.forward.compared
        happened["pages loaded"] += snapshot.links["host-device"].pages
        happened["pages from ssd"] += snapshot.tiers["ssd"].hits
        if self.state.peer is not None:
            happened["pages from lent memory"] += snapshot.tiers["peer"].hits
            happened["pages landed"] += self.state.peer.landings
        happened["restores split"] += snapshot.restores.restores_split
        happened["restores expired"] += snapshot.restores.restores_expired

    def _idle(self) -> bool:
        scheduler = self._s.scheduler
        return not scheduler.waiting_queue and scheduler.chunked_req is None

    def _who_waits(self) -> str:
        waiting = [req.rid for req, *_ in self._asked if not req.finished()]
        return f"not answered within its time: {', '.join(waiting)}"

    def _judge(self) -> None:
        """Every request has its whole answer, unless it was aborted, or its pages could not be copied to the device."""
        happened = self.state.happened
        actions = [action for job in self.plan.jobs for action in job.actions.values()]
        refused = any(action.name == "stumble" and stumble_of(self.plan, action) in REFUSING for action in actions)
        refused = refused or _damage_may_refuse(self.plan)
        for number, (req, prompt, new) in enumerate(self._asked):
            said = list(req.output_ids)
            assert said == answer(prompt, new)[: len(said)], f"{req.rid} has another answer"
            if len(said) < new and number not in self._aborted:
                assert refused, f"{req.rid} ended early: {getattr(req.finished_reason, 'message', 'it is not over')}"
                happened["answers refused"] += 1
            happened["answers"] += 1
            happened["retracted"] += bool(req.retraction_count)


def _images_of(plan: Plan) -> list[tuple[int, int]]:
    """Tokens that are of an image in every prompt, and of no use in a part: none in half of the worlds."""
    draw = plan.draw("images")
    begin = draw.randrange(60)
    return [(begin, begin + draw.randint(2, 40))] if draw.random() < 0.5 else []


def _copy_from_landing(pool: Any, stack: TierStack, landed: np.ndarray) -> None:
    """Have the pool, which is in host memory, copy from modelled landing memory, too."""
    pool.landing, original = torch.from_numpy(landed), pool._copy_in
    pool._copy_in = lambda pages, slab, slots, layer_done, after: original(
        pages, rows_at(stack, slots), np.arange(len(slots)), layer_done, after
    )


def _copy_slowly(pool: Any, sleep: Callable[[float], None], draw: random.Random) -> None:
    """Copies to the device take their time."""
    original, most = pool._copy_in, draw.choice(COPY_SECONDS)

    def copy_in(*given: Any) -> None:
        sleep(draw.random() * most)
        original(*given)

    pool._copy_in = copy_in


def _damage_may_refuse(plan: Plan) -> bool:
    """Whether a load may turn out to have copied a damaged page, on whichever rank."""
    actions = [action.name for job in plan.jobs for action in job.actions.values()]
    return plan.verify == "beside" and "damage_memory" in actions


def _words(batch: Any) -> str:
    """What a batch computes, for people, and for being compared."""
    if batch is None:
        return "nothing"
    lengths = batch.extend_lens if batch.forward_mode.is_extend() else [1] * len(batch.reqs)
    parts = [
        f"{req.rid}[{end - length}+{length}]"
        for req, length, end in zip(batch.reqs, lengths, batch.seq_lens.tolist(), strict=True)
    ]
    return f"{batch.forward_mode.name.lower()} {' '.join(parts)}"
