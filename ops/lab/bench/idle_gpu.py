"""A GPU of capability 9.0 that does nothing: everything up to a launch or a copy is done, compiled for and bound."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from swift_tiers.kernels import launch, pool_planes
from swift_tiers.kernels.copy_queue import Accelerator, CopyQueue, ListedCopy
from swift_tiers.kernels.cuda_runtime import CudaRuntime, Rows
from swift_tiers.kernels.page_digest import digest_bytes, page_digests, pool_digests
from swift_tiers.kernels.page_gather import PageLists, page_lists
from swift_tiers.kernels.piece_copy import copy_pieces
from swift_tiers.kernels.pool_planes import PoolPlanes

#: Told of each launch: the kernel's name, the hash of what was compiled for it, programs and arguments.
Launched = Callable[[str, str, int, tuple[Any, ...]], None]


class IdleDriver:
    """Triton's driver of it."""

    def __init__(self, launched: Launched | None) -> None:
        self._launched = launched
        self.utils = SimpleNamespace(
            load_binary=lambda *_: (1, 1, 32, 0, 1024),
            unload_module=lambda module: None,
            get_device_properties=lambda device: {"max_shared_mem": 2**20},
        )

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        tell = self._launched
        if tell is None:
            return lambda *_: None
        # After the grid, the stream, the function and what hooks are told of.
        return lambda *given: tell(metadata.name, metadata.hash, given[0], given[9:])


@contextmanager
def idle_gpu(launched: Launched | None = None) -> Iterator[IdleAccelerator]:
    """Kernels over memory of the host are launched on it, by this process and for so long."""
    with ExitStack() as stack:
        # Not by `set_active`: where there is no GPU, there is no driver to go back to.
        stack.enter_context(patch.object(driver, "_active", IdleDriver(launched)))
        stack.enter_context(patch.object(pool_planes, "by_kernel", lambda device: True))
        stack.enter_context(patch.object(launch, "is_interpreted", lambda device: False))
        stack.enter_context(patch.object(launch, "on_device", nullcontext))
        yield IdleAccelerator()


class IdleMark:
    """Reached at once."""

    def wait(self) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True


class IdleQueue(CopyQueue):
    """What a queue of CUDA's asks of it."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None)
        # A call that does nothing but compare its first two arguments, and says 0 where they differ. Each is an object
        # of its own, with its types.
        self._runtime = CudaRuntime(
            SimpleNamespace(
                cudaMemcpy2DAsync=libc["pthread_equal"],
                cudaMemcpyBatchAsync=libc["pthread_equal"],
                cudaHostRegister=libc["pthread_equal"],
                cudaHostUnregister=libc["pthread_self"],
                cudaGetLastError=libc["pthread_equal"],
            )
        )

    def after(self, mark: Any) -> None:
        pass

    def rows(self, source: torch.Tensor, target: torch.Tensor) -> None:
        count, width = target.shape
        sides = Rows(source.data_ptr(), source.stride(0)), Rows(target.data_ptr(), target.stride(0))
        self._runtime.copy_rows(*sides, width, count, 0)

    def listed(self, sources: np.ndarray, targets: np.ndarray, nbytes: int) -> None:
        self._runtime.copy_list(sources, targets, nbytes, 0)

    def lists(self, pool: PoolPlanes, pages: np.ndarray, slab: torch.Tensor, slots: np.ndarray) -> PageLists:
        return page_lists(pool, pages, slab, slots)

    def copy(self, copy: ListedCopy, lists: PageLists, most_programs: int | None = None) -> None:
        copy.run(lists, most_programs)

    def pieces(self, source: torch.Tensor, target: torch.Tensor, pieces: np.ndarray) -> None:
        copy_pieces(source, target, pieces)

    def digests(self, slab: torch.Tensor, slots: np.ndarray, nbytes: int) -> list[bytes]:
        return digest_bytes(page_digests(slab, slots, nbytes))

    def pool_digests(self, pools: Sequence[PoolPlanes], pages: np.ndarray) -> np.ndarray:
        return pool_digests(pools, pages).numpy()

    def seconds(self, work: Callable[[], None]) -> float:
        work()
        return 1.0

    def mark(self) -> IdleMark:
        return IdleMark()


class IdleAccelerator(Accelerator):
    """It reaches all memory, which is the host's."""

    device = torch.device("cpu")

    def queue(self) -> IdleQueue:
        return IdleQueue()

    def mark_here(self) -> IdleMark:
        return IdleMark()

    def page_locked(self, memory: torch.Tensor) -> bool:
        return True

    def host_memory(self, rows: int, row_bytes: int) -> torch.Tensor:
        return torch.empty((rows, row_bytes), dtype=torch.uint8)
