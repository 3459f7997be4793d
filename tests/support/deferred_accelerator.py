"""An accelerator on the CPU that is late: what is queued happens when somebody waits for it, in any order it may."""

from __future__ import annotations

import ctypes
import random
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from swift_tiers.kernels.copy_queue import Accelerator, CopyQueue, ListedCopy
from swift_tiers.kernels.page_digest import digest_bytes, page_digests, pool_digests
from swift_tiers.kernels.page_gather import PageLists, page_lists
from swift_tiers.kernels.piece_copy import copy_pieces
from swift_tiers.kernels.pool_planes import PoolPlanes


class LateMark:
    def __init__(self, queue: LateQueue, position: int) -> None:
        self.queue = queue
        self.position = position

    @property
    def reached(self) -> bool:
        return self.queue.done >= self.position

    def wait(self) -> None:
        self.queue.accelerator.forward.after(self)

    def synchronize(self) -> None:
        self.queue.accelerator.run_until(lambda: self.reached)

    def query(self) -> bool:
        return self.reached


class LateQueue(CopyQueue):
    def __init__(self, accelerator: DeferredAccelerator) -> None:
        self.accelerator = accelerator
        self.done = 0
        self.jobs: list[Callable[[], bool]] = []  # False: not yet

    def step(self) -> bool:
        """Do the next job, if there is one and it may be done."""
        if self.done == len(self.jobs) or not self.jobs[self.done]():
            return False
        self.done += 1
        return True

    def do(self, job: Callable[[], object]) -> None:
        def run() -> bool:
            job()
            return True

        self.jobs.append(run)

    def after(self, mark: LateMark) -> None:
        self.jobs.append(lambda: mark.reached)

    def rows(self, source: torch.Tensor, target: torch.Tensor) -> None:
        assert source.shape == target.shape
        assert source.stride(1) == target.stride(1) == 1
        self.accelerator.engine_calls += 1
        self.do(lambda: target.copy_(source))

    def listed(self, sources: np.ndarray, targets: np.ndarray, nbytes: int) -> None:
        assert self.accelerator.copies_lists
        assert sources.dtype == targets.dtype == np.uint64
        order = np.random.default_rng(self.done).permutation(len(sources))
        pairs = list(zip(targets[order].tolist(), sources[order].tolist(), strict=True))
        self.accelerator.engine_calls += 1
        self.do(lambda: [ctypes.memmove(target, source, nbytes) for target, source in pairs])

    def lists(self, pool: PoolPlanes, pages: np.ndarray, slab: torch.Tensor, slots: np.ndarray) -> PageLists:
        self.accelerator.uploads += 1
        return page_lists(pool, pages.copy(), slab, slots.copy())

    def copy(self, copy: ListedCopy, lists: PageLists, most_programs: int | None = None) -> None:
        self.accelerator.kernel_calls += 1
        self.do(lambda: copy.run(lists, most_programs))

    def pieces(self, source: torch.Tensor, target: torch.Tensor, pieces: np.ndarray) -> None:
        pieces = pieces.copy()
        self.accelerator.kernel_calls += 1
        self.do(lambda: copy_pieces(source, target, pieces))

    def digests(self, slab: torch.Tensor, slots: np.ndarray, nbytes: int) -> list[bytes]:
        found: list[bytes] = []
        self.accelerator.kernel_calls += 1
        self.do(lambda: found.extend(digest_bytes(page_digests(slab, slots, nbytes))))
        self.mark().synchronize()
        return found

    def pool_digests(self, pools: Sequence[PoolPlanes], pages: np.ndarray) -> np.ndarray:
        found: list[np.ndarray] = []
        pages = pages.copy()
        self.accelerator.kernel_calls += 1
        self.do(lambda: found.append(pool_digests(pools, pages).numpy()))
        self.mark().synchronize()
        return found[0]

    def seconds(self, work: Callable[[], None]) -> float:
        began = time.perf_counter()
        work()
        self.mark().synchronize()
        return time.perf_counter() - began

    def mark(self) -> LateMark:
        return LateMark(self, len(self.jobs))


class DeferredAccelerator(Accelerator):
    """`forward`: the queue that the model runs on. `locked`: whether it reaches all host memory. `lists`: whether
    its engine copies lists."""

    def __init__(self, seed: int, *, locked: bool, lists: bool = False) -> None:
        self.device = torch.device("cpu")
        self.locked = locked
        self.copies_lists = lists
        self.engine_calls = 0
        self.kernel_calls = 0
        self.uploads = 0
        self.queues: list[LateQueue] = []
        self.forward = self.queue()
        self._chance = random.Random(seed)
        self._stepping = threading.RLock()  # one thread at a time plays the device
        self._own: set[int] = set()

    def queue(self) -> LateQueue:
        self.queues.append(LateQueue(self))
        return self.queues[-1]

    def mark_here(self) -> LateMark:
        return self.forward.mark()

    def run_until(self, reached: Callable[[], bool]) -> None:
        with self._stepping:
            while not reached():
                ready = self._chance.sample(self.queues, len(self.queues))
                assert any(queue.step() for queue in ready), "queues wait for each other"
            for _ in range(self._chance.choice([0, 0, 2, 100])):  # it does not stop there
                self._chance.choice(self.queues).step()

    def page_locked(self, memory: torch.Tensor) -> bool:
        return self.locked or memory.data_ptr() in self._own

    def host_memory(self, rows: int, row_bytes: int) -> torch.Tensor:
        memory = torch.full((rows, row_bytes), 0xEE, dtype=torch.uint8)
        self._own.add(memory.data_ptr())
        return memory
