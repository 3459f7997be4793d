"""Pages that come up when a test says so, and requests that are driven by hand, in SGLang's real scheduler.

These functions run in the scheduler's process; `s` is its `StepScheduler`.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np

from swift_tiers.radix_tiering.table.rules import check_rules

from support import prompts

#: A guard against hanging, not a measure: of what threads have to do, and of all that requests have to do.
PATIENCE, RUN_SECONDS = 60.0, 270.0


def token_wise(folders: Any, *, page: int, tokens: int, chunk: int) -> list[str]:
    """SGLang's arguments for a tiny model whose prefixes are computed from the front while they are loaded from the
    back. `folders`: pytest's `tmp_path_factory`; `tokens`: of the device's pool."""
    config = {
        "ssd": {"directories": [str(folders.mktemp("ssd"))], "size_per_device": "64MiB", "stripe_unit": "8KiB"},
        "restore": {"strategy": "token-wise", "chunk": chunk},
    }
    return tiny_server(folders, config, page=page, tokens=tokens)


def tiny_server(folders: Any, config: dict[str, Any], *, page: int, tokens: int) -> list[str]:
    """SGLang's arguments for a tiny model with tiers. `folders`: pytest's `tmp_path_factory`; `config`: of them, beyond
    a little host memory; `tokens`: of the device's pool."""
    from swift_tiers.ops.base.model import tiny_model

    config = {
        "host": {"size": "8MiB"}, "policy": {"restore_deadline": "60s"}, "bus": {"enabled": False}, **config,
    }  # fmt: skip
    return [
        "--model-path", str(tiny_model(folders.mktemp("model"))), "--dtype", "float32", "--page-size", str(page),
        "--max-total-tokens", str(tokens), "--max-running-requests", "8", "--chunked-prefill-size", "512",
        "--enable-swift-tiers", "--swift-tiers-config", json.dumps(config),
    ]  # fmt: skip


def prompt(seed: int, tokens: int = 1000) -> list[int]:
    return prompts.prompt(seed, tokens)


def alike(dice: random.Random, seed: int, count: int) -> list[list[int]]:
    """Prompts of many lengths, of which some begin alike."""
    shared = prompt(900 + seed, 480)
    return [
        [*(shared if dice.random() < 0.5 else []), *prompt(910 + seed * 10 + n, dice.randrange(100, 700))]
        for n in range(count)
    ]


def to_ssd(s, *prompts: list[int]) -> list[list[int]]:
    """The answers to `prompts`, whose pages are then on ssd alone."""
    answers = [s.generate(one) for one in prompts]
    s.empty_memory()
    return answers


def quiet(s) -> None:
    """Wait until nothing moves, then require that nothing is kept for any request."""
    s.settle()
    assert not s.linker.requests, "requests leaked"
    table = s.linker.stack.table
    with table.lock:
        check_rules(table)
        assert table.pinned_pages == 0, "pins leaked"


class Copies:
    """What copies to the device do, where a test wants something of them."""

    #: Pages, by place, that were copied; a copy waits as long as it is `held`; so many are to fail.
    copied: ClassVar[list[list[int]]] = []
    held = False
    fails = 0
    seconds_each = 0.0

    @classmethod
    def clear(cls) -> None:
        """Nothing is wanted of them any more."""
        cls.copied.clear()
        cls.held, cls.fails, cls.seconds_each = False, 0, 0.0

    @classmethod
    def begins(cls, slots: np.ndarray) -> None:
        """One of these pages, before it copies any. Raises OSError where it is to fail."""
        cls.copied.append(slots.tolist())
        while cls.held:
            time.sleep(1e-4)
        if cls.fails:
            cls.fails -= 1
            raise OSError("injected")
        time.sleep(cls.seconds_each * len(slots))


class Broken:
    """In place of a function: fails, from call `first` on, so many times."""

    def __init__(self, function: Any, first: int, times: float) -> None:
        self.function, self.first, self.times, self.calls = function, first, times, 0

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.calls += 1
        if self.first <= self.calls < self.first + self.times:
            raise RuntimeError("an error of ours")
        return self.function(*arguments, **named)


@contextmanager
def broken(s, call: str, first: int, times: float) -> Iterator[Broken]:
    owner, _, name = call.rpartition(".")
    whose = attrgetter(owner)(s.linker)
    function = Broken(getattr(whose, name), first, times)
    setattr(whose, name, function)
    try:
        yield function
    finally:
        setattr(whose, name, function.function)


@contextmanager
def tiers_that_do_not_answer(s, deadline: float = 3600.0) -> Iterator[None]:
    """Restores begin, and do not come to an end until this is left; requests wait for them for so many seconds."""
    answer = threading.Event()
    restorer = s.linker.stack.restorer
    start, before = restorer._start, restorer._deadline_seconds
    restorer._start = lambda restore: (answer.wait(60), start(restore))
    restorer._deadline_seconds = deadline
    try:
        yield
    finally:
        restorer._start, restorer._deadline_seconds = start, before
        answer.set()


class Unknown:
    """What costs are, so that nothing depends on how fast this machine is today."""

    compute = compute_at_worst = None
    together = 1.0
    sources: ClassVar[dict[str, object]] = {}


def has_found_its_pages(s) -> None:
    """A server that starts anew serves before it knows what its devices have kept."""
    until = time.monotonic() + 60
    while any(filling.unread for filling in s.linker.stack.fillings.values()):
        assert time.monotonic() < until, "it is still looking for its pages"
        time.sleep(0.01)


def costs_are_unknown(s) -> None:
    """And stay so: what can be loaded is waited for, and given up for its deadline alone. By what it costs, more of it
    is recomputed the busier this machine is."""
    s.linker.stack.planner.costs = Unknown()


@contextmanager
def strategy(s, choice: str, costs: Any = None) -> Iterator[None]:
    """With `restore.strategy` = `choice`, and by these costs; None: as they are."""
    planner = s.linker.stack.planner
    before = planner.choice, planner.costs
    planner.choice, planner.costs = choice, costs or planner.costs
    try:
        yield
    finally:
        planner.choice, planner.costs = before


class Link:
    """Stands between the restorer and the ssd tier: pages arrive when the test says so, and are waited for until then
    unless `patient` is False."""

    def __init__(self, s, *, patient: bool = True) -> None:
        self.planner, self.costs = s.linker.stack.planner, s.linker.stack.costs
        self.restorer = s.linker.stack.restorer
        self.behind = 1e9 if patient else self.restorer.behind
        self.deadline = 1e9 if patient else self.restorer._deadline_seconds
        self.kept: list = []
        self.tier = s.linker.stack.tiers["ssd"]
        self.read = self.tier.stripes.read_many

    def __enter__(self):
        self._swap()
        self.planner.costs = Unknown()
        self.tier.stripes.read_many = self.kept.extend
        return self

    def __exit__(self, *_: object) -> None:
        self._swap()
        self.planner.costs = self.costs
        self.tier.stripes.read_many = self.read
        self.deliver(len(self.kept))

    def _swap(self) -> None:
        """How long pages are waited for, then and now."""
        self.restorer.behind, self.behind = self.behind, self.restorer.behind
        self.restorer._deadline_seconds, self.deadline = self.deadline, self.restorer._deadline_seconds

    def deliver(self, pages: int) -> int:
        """Let the first `pages` of those asked for come in; how many did."""
        import threading

        now, self.kept[:] = self.kept[:pages], self.kept[pages:]
        for read in now:
            there = threading.Event()

            def came(outcome, done=read.done, there=there):
                done(outcome)
                there.set()

            self.read([read._replace(done=came)])
            assert there.wait(PATIENCE)
            with self.restorer._table.lock:
                pass  # which is held until what has come is accounted for
        return len(now)

    def fail(self, pages: int) -> int:
        from swift_tiers.radix_tiering.tiers.tier import ReadOutcome

        now, self.kept[:] = self.kept[:pages], self.kept[pages:]
        for read in now:
            with self.tier.answers:
                read.done(ReadOutcome.CHECKSUM)
        return len(now)


class Watch:
    """Every forward that is computed layer by layer: how many layers were. Before its `at`-th layer is thought of,
    `then` is called, and all copies that it lets begin are waited for."""

    def __init__(self, s, at: int = 0, then=lambda: None) -> None:
        self.at, self.then = at, then
        self.met: list[int] = []
        self.loader = s.linker.loader

    def __enter__(self):
        from swift_tiers.sglang_ext.way.layer_wise import Copying

        self.type, self.to_compute, self.end = Copying, Copying.to_compute, Copying.end
        Copying.to_compute = lambda copying: self._asked(copying)
        Copying.end = lambda copying: self._ended(copying)
        return self

    def __exit__(self, *_: object) -> None:
        self.type.to_compute, self.type.end = self.to_compute, self.end

    def _asked(self, copying: Any) -> int:
        if copying._layers.computed == self.at:
            self.then()
            self.to_compute(copying)
            self._settle()
        return self.to_compute(copying)

    def _settle(self) -> None:
        """Whatever the loading thread has been told is done when it comes to this."""
        import torch

        from swift_tiers.radix_tiering.table.held_page import Places
        from swift_tiers.sglang_ext.tell.on_the_way import OnTheWay
        from swift_tiers.sglang_ext.way.loads import LayerLoad

        done = threading.Event()

        class Last:
            def next_load(self):
                done.set()

        self.loader.start_layers(LayerLoad(Last(), Places.none(), OnTheWay(torch.empty(0, dtype=torch.int64)), []))
        assert done.wait(60)

    def _ended(self, copying: Any) -> None:
        self.end(copying)
        self.met.append(copying._layers.computed)


def extends(
    s, link: Link | None, pages_a_step: int, until=lambda: False, seconds: float = RUN_SECONDS
) -> list[tuple[int, int]]:
    """Run to the end, with so many pages arriving at each step: (prefix, extend) of each forward over prompts."""
    log = []
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if link is not None:
            link.deliver(pages_a_step)
        batch = s.step()
        if batch is not None and batch.forward_mode.is_extend():
            log += list(zip(batch.prefix_lens, batch.extend_lens, strict=True))
        if until() or nothing_left(s, batch):
            return log
    raise AssertionError(f"not done after {seconds:g} s: {log[-5:]}")


def nothing_left(s, batch) -> bool:
    """Whether nobody waits or is computed, after the step that made `batch`."""
    return batch is None and not s.scheduler.waiting_queue and s.scheduler.chunked_req is None


def abort_one(s, dice: random.Random, reqs, aborted: set[str]) -> None:
    """Abort one of them, and again those that were: SGLang may not have come to them."""
    from sglang.srt.managers.io_struct import AbortReq

    aborted.add(dice.choice(reqs).rid)
    for rid in aborted:
        s.scheduler.abort_request(AbortReq(rid=rid))


def told_the_same(s, questions, reqs, answers, aborted: set[str]) -> None:
    """Whatever happened to them, they have been answered as ever, those that ended early as far as they came; nothing
    is kept for any of them, and the same questions are answered so again."""
    for req, answer in zip(reqs, answers, strict=True):
        output = list(req.output_ids)
        assert output == answer[: len(output)]
        assert len(output) == len(answer) or req.rid in aborted
    quiet(s)
    s.run()
    assert [s.generate(question) for question in questions] == answers


@contextmanager
def verified_beside(s: Any) -> Iterator[None]:
    """As with `host.verify` = "beside"."""
    restorer = s.linker.stack.restorer
    restorer._verify_first, restorer.verifier.beside = False, True
    try:
        yield
    finally:
        restorer._verify_first, restorer.verifier.beside = True, False


def in_memory(s: Any, question: list[int]) -> tuple[list[int], list[np.ndarray]]:
    """The answer to a question whose pages are then in host memory and not on the device; and their bytes there."""
    table = s.linker.stack.table
    before = {page.key for page in table.listed()}
    answer: list[int] = s.generate(question)
    s.empty_device()
    pages = sorted((page for page in table.listed() if page.key not in before), key=lambda page: page.depth)
    return answer, [s.linker.stack.host.page(page.slot) for page in pages]
