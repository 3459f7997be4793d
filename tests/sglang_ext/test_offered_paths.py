"""What SGLang's tree offers of a prompt that is computed in chunks, while no copy of it has ended: each page once."""

from __future__ import annotations

import random
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from sglang.srt.mem_cache.base_prefix_cache import InsertParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

from swift_tiers.radix_tiering.base.virtual import VirtualRunner
from swift_tiers.radix_tiering.table.page_table import PAGES_PER_HOLD
from swift_tiers.sglang_ext.pools.lending_allocator import TokenLendingAllocator
from swift_tiers.sglang_ext.tell.on_the_way import OnTheWay
from swift_tiers.sglang_ext.way import linker
from swift_tiers.sglang_ext.way.cache import SwiftRadixCache
from swift_tiers.sglang_ext.way.linker import SwiftLinker
from swift_tiers.sglang_ext.way.offloads import Offload, Offloader

from support.engine import GEOMETRY, chain, check, close, end_all, make_stack, wait_until
from support.examples import exhaustive

#: Tokens that the device has, of which each is a page, and of a chunk.
TOKENS, CHUNK = 4096, 8
#: Histories of one run.
SEEDS = 4000 if exhaustive() else 150


class GatedPool:
    """A device pool whose copies begin, and go on when the test says so; `fails`: the next one does, and those behind
    it do not go on if `stalls_then`."""

    device = torch.device("cpu")
    geometry = GEOMETRY
    model_layers, begin_with, states = GEOMETRY.layers, range(0), None
    releases = tuple(range(layer, layer + 1) for layer in range(GEOMETRY.layers))
    page_size = 1
    pool_pages = TOKENS
    outgoing: Any = None
    has_digests = False

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.fails: BaseException | None = None
        self.stalls_then = False

    def adopt_thread(self) -> None:
        pass

    def page_indices(self, rows: torch.Tensor) -> np.ndarray:
        self.begun.set()
        assert self.go_on.wait(60)
        if self.fails is not None:
            error, self.fails = self.fails, None
            if self.stalls_then:
                self.go_on.clear()
            raise error
        return rows.numpy()

    def copy_out(self, pages: np.ndarray, slab: np.ndarray, slots: np.ndarray, after: Any, came: Any = None) -> None:
        pass


class Server:
    """SGLang's tree over the tiers, and what is handed to the thread that copies."""

    def __init__(self) -> None:
        self.pool, self.stack = GatedPool(), make_stack(TOKENS, clock=time.monotonic)
        self.linker = SwiftLinker.over(self.pool, self.stack)  # type: ignore[arg-type]
        self.linker.record_offload_ready = list
        self.allocator = TokenLendingAllocator(TOKENS, torch.float32, "cpu", None, False)
        self.cache = SwiftRadixCache(
            CacheInitParams(
                disable=False,
                req_to_token_pool=None,
                token_to_kv_pool_allocator=self.allocator,
                page_size=1,
                tree_components=(ComponentType.FULL,),
                tree_core_backend=None,
            )
        )
        self.cache.init_cache_linker(self.linker)
        self.jobs: list[Offload] = []
        submit = self.linker.offloader.submit
        self.linker.offloader.submit = lambda job: (self.jobs.append(job), submit(job))[1]  # type: ignore[method-assign]

    def compute(self, tokens: list[int], rows: torch.Tensor | None = None, chunk: int = CHUNK) -> torch.Tensor:
        """A prompt in chunks, of which the device has `rows`; all of its rows."""
        rows = torch.empty(0, dtype=torch.int64) if rows is None else rows
        for end in range(len(rows) + chunk, len(tokens) + 1, chunk):
            before = len(rows)
            rows = torch.cat((rows, self.allocator.alloc(end - before)))
            key = RadixKey(array("q", tokens[:end]))
            self.cache.insert(InsertParams(key=key, value=rows.clone(), prev_prefix_len=before))
        return rows

    def compute_and_lose(self, tokens: list[int]) -> torch.Tensor:
        """A prompt that the tiers had, and have lost: the rows that the device has of it. No copy ends from now on."""
        rows = self.compute(tokens)
        self.answer()
        self.stack.flush("memory")
        self.pool.go_on.clear()
        return rows

    def hand_on(self) -> int:
        """Pages handed to the thread since this was asked last."""
        pages, self.jobs = sum(len(job.hashes) for job in self.jobs), []
        return pages

    def answer(self) -> list[bool]:
        """Every offer's, as SGLang's next round takes them."""
        wrapper = self.cache.linker
        self.pool.go_on.set()
        assert self.linker.wait_offloads(60)
        answers = wrapper.take_completed_offloads(wrapper.num_completed_offloads())
        wrapper.commit_completed_offloads(answers)
        assert not wrapper.pending_offloads
        assert self.linker.offloader._ends == {}
        return answers

    @property
    def held(self) -> int:
        return self.stack.snapshot().tiers["host"].pages


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    try:
        yield made
        check(made.stack)
    finally:
        made.pool.go_on.set()
        made.linker.close()


@pytest.mark.parametrize("chunks", [10, 40])
def test_pages_of_a_prompt_in_chunks_are_offered_once_while_no_copy_ends(server: Server, chunks: int) -> None:
    server.compute(list(range(chunks * CHUNK)))
    assert server.hand_on() == chunks * CHUNK
    assert server.answer() == [True] * chunks
    assert server.held == chunks * CHUNK


def test_pages_that_were_passed_over_are_offered_once_at_the_next_use(server: Server) -> None:
    tokens = list(range(40 * CHUNK))
    rows = server.compute(tokens)
    assert server.pool.begun.wait(60)
    server.hand_on()
    server.linker.make_room()
    assert server.linker.offloader._ends == {}, "what is not to come"
    assert server.answer() == [False] * 40
    assert server.held == 0
    server.pool.go_on.clear()
    server.compute([*tokens, 7], rows, 1)
    assert server.hand_on() == len(tokens) + 1
    assert server.answer() == [True] * 41
    assert server.held == len(tokens) + 1


def test_chunks_behind_one_that_was_passed_over_bring_their_path_once(server: Server) -> None:
    """They come before it has been answered: SGLang believes it under way."""
    tokens = list(range(40 * CHUNK))
    rows = server.compute(tokens[: 20 * CHUNK])
    assert server.pool.begun.wait(60)
    server.hand_on()
    server.linker.make_room()
    server.compute(tokens, rows)
    assert server.hand_on() == 20 * CHUNK + len(tokens) - 20 * CHUNK, "the first of them brings what is before it"
    assert server.answer() == [False] * 20 + [True] * 20
    assert server.held == len(tokens)


@pytest.mark.parametrize("error", [OSError("injected"), SystemExit()], ids=["the copy", "the thread"])
def test_nothing_is_stored_behind_what_could_not_be_copied_and_nothing_is_lost(
    server: Server, error: BaseException
) -> None:
    tokens = list(range(20 * CHUNK))
    server.pool.fails = error
    rows = server.compute(tokens)
    assert server.answer() == [False] * 20
    assert server.held == 0
    server.hand_on()
    rows = server.compute([*tokens, *range(CHUNK)], rows)
    assert server.hand_on() == len(rows)
    assert server.answer() == [True] * 21
    assert server.held == len(rows)


def test_nobody_counts_on_what_comes_behind_a_copy_that_failed(server: Server) -> None:
    """It waits for its turn as before, and is not stored then."""
    tokens = list(range(10 * CHUNK))
    server.pool.fails, server.pool.stalls_then = OSError("injected"), True
    rows = server.compute(tokens)
    server.hand_on()
    server.pool.go_on.set()
    wait_until(lambda: server.linker.num_completed_offloads() == 1, "the first is never answered")
    server.compute([*tokens, *range(2 * CHUNK)], rows)
    assert server.hand_on() == len(tokens) + 2 * CHUNK, "the first of them brings what is before it"
    assert server.answer() == [False] * 10 + [True] * 2
    assert server.held == len(tokens) + 2 * CHUNK


def test_what_the_tiers_lost_comes_along_though_it_waits_for_its_state(server: Server) -> None:
    """A page that is named for the state behind it comes without its prefix: nothing is to follow it."""
    tokens = list(range(4 * CHUNK))
    rows = server.compute_and_lose(tokens)
    (*_, before, last) = server.jobs[-1].hashes
    node = linker.NodeTransfer(
        name=linker.PoolName.KV,
        keys=[last],
        device_indices=rows[-1:],
        parent=before,
        depth=len(tokens),
        state_only=True,
    )
    server.linker.offload([node])
    assert not server.linker.brings(last)
    server.hand_on()
    server.compute([*tokens, *range(CHUNK)], rows)
    assert server.hand_on() == len(tokens) + CHUNK
    server.pool.go_on.set()
    assert server.linker.wait_offloads(60)
    assert [server.linker.pop_completed_offload() for _ in range(2)] == [False, True]
    assert server.held == len(tokens) + CHUNK
    server.cache.linker.commit_completed_offloads([True])


def test_a_path_that_is_on_its_way_is_offered_along_once(server: Server) -> None:
    """The tiers have lost it, and two prompts follow it."""
    tokens = list(range(4 * CHUNK))
    rows = server.compute_and_lose(tokens)
    server.hand_on()
    for number in range(2):
        server.compute([*tokens, *[number] * CHUNK], rows)
    assert server.hand_on() == len(tokens) + 2 * CHUNK
    assert server.answer() == [True] * 2
    assert server.held == len(tokens) + 2 * CHUNK


def test_a_copy_that_ends_while_the_next_is_offered_is_not_missed(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, holds = list(range(2 * CHUNK)), server.linker.holds
    rows = server.compute(tokens[:CHUNK])
    server.hand_on()

    def ends_meanwhile(page_hash: str) -> bool:
        held = holds(page_hash)
        server.pool.go_on.set()
        assert server.linker.wait_offloads(60)
        return held

    monkeypatch.setattr(server.linker, "holds", ends_meanwhile)
    server.compute(tokens, rows)
    assert server.hand_on() == CHUNK
    assert server.answer() == [True] * 2


def test_nothing_follows_pages_of_other_weights(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same tokens have the same hashes, but other KV."""
    monkeypatch.setattr(linker, "unnamed_weights", lambda: "new weights")
    server.compute(list(range(CHUNK)))
    assert server.pool.begun.wait(60)
    last = server.jobs[-1].hashes[-1]
    assert server.linker.brings(last)
    monkeypatch.setattr(server.linker, "wait_offloads", lambda: False)
    server.linker.weights_changed(device_emptied=True)
    assert not server.linker.brings(last)


def test_nothing_is_taken_along_of_what_is_not_stored_whatever_is_offered(server: Server) -> None:
    """The device has KV of weights that are gone."""
    server.linker.stale_device = True
    server.compute(list(range(20 * CHUNK)))
    assert server.hand_on() == 20 * CHUNK
    assert server.answer() == [False] * 20
    assert server.held == 0


# ---- which are passed over ----


def behind_one_in_hand(server: Server) -> Callable[..., Offload]:
    """A job is in hand, on a device without room; `submit(pages, after)` offers a sequence that follows job `after`."""
    offloader = server.linker.offloader
    offloader.room = lambda: 0
    numbers = iter(range(1000))

    def submit(pages: int, after: Offload | None = None) -> Offload:
        hashes, rows = [key.hex() for key in chain(f"job {next(numbers)}", *range(pages - 1))], torch.arange(pages)
        parent, depth = (after.hashes[-1], after.depth + len(after.hashes)) if after else (None, 1)
        job = Offload(hashes, OnTheWay(rows), [], parent, depth, server.stack.digest)
        offloader.submit(job)
        return job

    submit(1)
    assert server.pool.begun.wait(60)
    return submit


def answers_of(server: Server) -> list[bool]:
    offloader = server.linker.offloader
    server.pool.go_on.set()
    assert offloader.wait(60)
    return [offloader.take_answer() for _ in range(offloader.answered)]


MOST = TOKENS // 10


def test_who_follows_one_that_is_passed_over_is_passed_over_with_it(server: Server) -> None:
    """It could not be stored, and locks on the device what is before it."""
    submit = behind_one_in_hand(server)
    first, other = submit(100), submit(100)
    second = submit(1, first)
    submit(1, second)
    submit(MOST - 201)
    assert sum(job.brings for job in server.linker.offloader._waiting) == MOST - 101, "the first and all behind it"
    assert not server.linker.brings(second.hashes[-1])
    assert server.linker.brings(other.hashes[-1])
    assert answers_of(server) == [True, False, True, False, False, True]
    assert server.stack.snapshot().tiers["host"].refusals == {"too many wait to be copied": 102}


def test_what_the_newest_follows_stays(server: Server) -> None:
    """It is locked with it: no room would come of passing it over."""
    submit = behind_one_in_hand(server)
    first = submit(100)
    submit(100)
    second = submit(200, first)
    submit(PAGES_PER_HOLD, second)
    assert answers_of(server) == [True, True, False, True, True]
    assert server.held == 1 + 300 + PAGES_PER_HOLD


def test_nobody_is_kept_by_who_has_been_stored(server: Server) -> None:
    submit = behind_one_in_hand(server)
    job = submit(10)
    for _ in range(5):
        job = submit(10, job)
    assert answers_of(server) == [True] * 7
    assert job.after is None


# ---- in any order ----


class FailingPool(GatedPool):
    """Whose copies take their time, fail, and kill their thread."""

    pool_pages = PAGES_PER_HOLD

    def __init__(self, runner: VirtualRunner, draw: random.Random) -> None:
        super().__init__()
        self._runner, self._draw = runner, draw

    def page_indices(self, rows: torch.Tensor) -> np.ndarray:
        self._runner.sleep(self._draw.random() * 1e-3)
        fate = self._draw.random()
        if fate < 0.08:
            raise OSError("injected") if fate < 0.05 else SystemExit
        return rows.numpy()


def history(seed: int) -> tuple[int, int]:
    """Nodes of a tree are offered as SGLang does it, the device forgets none, copies fail, and those that wait are
    passed over; how many were not stored, and how many of these came behind one that was not. In the end all are."""
    draw = random.Random(seed)
    runner = VirtualRunner(seed, switch=draw.choice((0.1, 0.3, 0.7)), most_seconds=300.0)
    pool, refused, behind = FailingPool(runner, draw), 0, 0

    def main() -> None:
        nonlocal refused, behind
        stack: Any = make_stack(1024, runner=runner)
        offloader = Offloader(pool, stack)  # type: ignore[arg-type]
        offloader.room = lambda: draw.choice((0, pool.pool_pages))
        keys: list[list[bytes]] = []  # of all pages before the end of a node
        parents: list[int | None] = []
        names: list[list[str]] = []
        stored: list[bool] = []
        pending: list[int] = []

        def offer(node: int) -> None:
            """As `SwiftLinkerWrapper._offload_node`."""
            parent = parents[node]
            hashes, begins = [key.hex() for key in keys[node]], len(keys[parent]) if parent is not None else 0
            if parent is not None:
                last = keys[parent][-1]
                if not (offloader.brings(stack.digest, last.hex()) or stack.probe([last])):
                    rows = OnTheWay(torch.arange(len(hashes)))
                    offloader.submit(Offload(hashes, rows, [], None, 1, stack.digest, begins))
                    pending.append(node)
                    return
            before, rows = hashes[begins - 1] if begins else None, OnTheWay(torch.arange(len(hashes) - begins))
            offloader.submit(Offload(hashes[begins:], rows, [], before, begins + 1, stack.digest))
            pending.append(node)

        def use(node: int) -> None:
            """It is offered with those before it that are not stored, nor under way, as SGLang does."""
            path: list[int] = []
            at: int | None = node
            while at is not None and not stored[at] and at not in pending:
                path.append(at)
                at = parents[at]
            for one in reversed(path):
                offer(one)

        def answer() -> None:
            nonlocal refused, behind
            for _ in range(offloader.answered):
                node = pending.pop(0)
                stored[node] = offloader.take_answer()
                if stored[node]:
                    assert stack.probe(keys[node]) == len(keys[node]), "it was said to be stored"
                else:
                    parent = parents[node]
                    refused += 1
                    behind += parent is not None and not stored[parent]

        for _ in range(draw.randint(8, 30)):
            chosen = draw.random()
            if chosen < 0.6:
                parent = draw.randrange(len(keys)) if keys and draw.random() < 0.85 else None
                if keys and draw.random() < 0.6:
                    parent = len(keys) - 1  # the next chunk
                own = [f"node {len(keys)}"] * draw.randint(1, 40)
                names.append([*(names[parent] if parent is not None else ()), *own])
                keys.append(chain(*names[-1]))
                parents.append(parent)
                stored.append(False)
                use(len(keys) - 1)
            elif chosen < 0.7 and keys:
                use(draw.randrange(len(keys)))
            elif chosen < 0.78:
                offloader.make_room()
            elif chosen < 0.9:
                runner.sleep(draw.random() * 2e-3)
            else:
                answer()
        for _ in range(200):
            assert offloader.wait(30.0)
            answer()
            check(stack)
            assert offloader._ends == {}
            assert (list(offloader._waiting), offloader._waiting_pages) == ([], 0)
            if all(stored):
                break
            use(draw.choice([node for node, there in enumerate(stored) if not there]))
        assert all(stored), "something is lost for good"
        offloader.close()
        check(stack)
        close(stack)

    runner.run(main)
    return refused, behind


def test_whatever_fails_nothing_is_stored_without_its_prefix_and_nothing_is_lost() -> None:
    refused = behind = 0
    for seed in range(SEEDS):
        try:
            some, of_these = history(seed)
        except BaseException as error:
            error.add_note(f"history({seed}) does it again")
            raise
        finally:
            end_all()
        refused, behind = refused + some, behind + of_these
    assert refused > SEEDS, "little was refused: this tests little"
    assert behind > SEEDS / 4
