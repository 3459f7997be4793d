"""What a transfer asks of an accelerator: copies on a side stream, in order, none of which the caller waits for.

Two ways lead between the device and pages in host memory. The copy engine moves rows, a list of them in one call,
beside whatever the device computes; kernels move the pieces of any list of pages, on processors that a forward would
use.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from .cuda_runtime import CudaRuntime, Rows, cuda_runtime
from .page_digest import digest_bytes, page_digests, pool_digests
from .page_gather import ListedCopy, PageLists, page_lists
from .piece_copy import copy_pieces
from .pool_planes import PoolPlanes

#: Streams that torch has, and hands out by turns, to whoever asks.
_STREAMS = 32


class QueueMark(Protocol):
    """A point in a queue; as torch's events are."""

    def wait(self) -> None:
        """Whatever the caller queues on its current stream from now on begins once the queue has come to the mark."""

    def synchronize(self) -> None:
        """Return once the queue has come to the mark."""

    def query(self) -> bool:
        """Whether the queue has come to the mark."""


class CopyQueue(ABC):
    """Copies that begin in the order of the calls, each once the one before it is done. One thread at a time.

    Host memory that a queued copy uses must stay as it is until a later mark has been reached.
    """

    @abstractmethod
    def after(self, mark: Any) -> None:
        """Go on only once `mark`, of another queue or an event of the device, has been reached."""

    @abstractmethod
    def rows(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """By the copy engine: uint8 `[rows, bytes]` to a tensor of the same shape, one of the two in page-locked host
        memory, the other on the device. Rows may lie apart; the bytes of a row lie together."""

    @abstractmethod
    def listed(self, sources: np.ndarray, targets: np.ndarray, nbytes: int) -> None:
        """By the copy engine, in one call: `nbytes` from each address of `sources` to the one of `targets`, uint64 [n],
        see `addresses`; the ones in page-locked host memory, the others on the device. They are done in no order of
        their own. The lists may change as soon as this returns. Only where the accelerator `copies_lists`."""

    @abstractmethod
    def lists(self, pool: PoolPlanes, pages: np.ndarray, slab: torch.Tensor, slots: np.ndarray) -> PageLists:
        """Pages and rows for `copy`, checked and uploaded once for any number of copies; see `page_gather.page_lists`.
        The arrays may change as soon as this returns."""

    @abstractmethod
    def copy(self, copy: ListedCopy, lists: PageLists, most_programs: int | None = None) -> None:
        """By a kernel: `copy` of these pages, with no more than so many programs."""

    @abstractmethod
    def pieces(self, source: torch.Tensor, target: torch.Tensor, pieces: np.ndarray) -> None:
        """By a kernel: pieces of `source`, a donor's mapped memory for one, to places of `target`, in memory of the
        device; see `piece_copy.copy_pieces`. `pieces` itself may change as soon as this returns."""

    @abstractmethod
    def digests(self, slab: torch.Tensor, slots: np.ndarray, nbytes: int) -> list[bytes]:
        """By a kernel: of rows of `slab`, in memory of the device, see `page_digest.page_digests`; 16 bytes each. Comes
        in its turn, and is waited for."""

    @abstractmethod
    def pool_digests(self, pools: Sequence[PoolPlanes], pages: np.ndarray) -> np.ndarray:
        """By a kernel: of pages of pools where they lie, see `page_digest.pool_digests`; int64 [n, 2]. Comes in its
        turn, and is waited for."""

    @abstractmethod
    def mark(self) -> QueueMark:
        """The end of what is queued so far."""

    @abstractmethod
    def seconds(self, work: Callable[[], None]) -> float:
        """What the device takes for what `work` queues here, by its own clock. Waits for it."""


class Accelerator(ABC):
    """A device that copies beside computing."""

    device: torch.device
    #: Whether its queues have `listed`.
    copies_lists: bool = True

    @abstractmethod
    def queue(self) -> CopyQueue:
        """A queue of its own, beside all others."""

    def keep_clear_of(self, stream: Any) -> None:  # noqa: B027 - most devices have streams enough
        """No queue from now on is one with `stream`, of somebody else's."""

    @abstractmethod
    def mark_here(self) -> QueueMark:
        """The end of what the caller has asked of the device so far, on its current stream."""

    @abstractmethod
    def page_locked(self, memory: torch.Tensor) -> bool:
        """Whether the device reaches this host memory by itself."""

    @abstractmethod
    def host_memory(self, rows: int, row_bytes: int) -> torch.Tensor:
        """Page-locked, uint8 `[rows, row_bytes]`."""

    def device_memory(self, rows: int, row_bytes: int) -> torch.Tensor:
        """uint8 `[rows, row_bytes]` on the device, that nothing queued before touches: any queue may use it at once."""
        return torch.empty((rows, row_bytes), dtype=torch.uint8, device=self.device)


class CudaAccelerator(Accelerator):
    """A CUDA device. Its queues are side streams."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._runtime = cuda_runtime()
        self.copies_lists = self._runtime.copies_lists
        self._taken: set[int] = set()  # handles of streams that others use

    def keep_clear_of(self, stream: Any) -> None:
        self._taken.add(stream.cuda_stream)

    def queue(self) -> CopyQueue:
        torch.cuda.set_device(self.device)  # of the calling thread, which is the one that will queue
        for _ in range(_STREAMS):
            stream = torch.cuda.Stream(self.device)
            if stream.cuda_stream not in self._taken:
                break
        # Where all are taken, two share one: everything is in its order all the same, but nothing beside the other.
        self._taken.add(stream.cuda_stream)
        return _CudaQueue(stream, self._runtime)

    def mark_here(self) -> QueueMark:
        with torch.cuda.device(self.device):
            return _marked(torch.cuda.current_stream())

    def page_locked(self, memory: torch.Tensor) -> bool:
        return memory.is_pinned()

    def host_memory(self, rows: int, row_bytes: int) -> torch.Tensor:
        return torch.empty((rows, row_bytes), dtype=torch.uint8, pin_memory=True)

    def device_memory(self, rows: int, row_bytes: int) -> torch.Tensor:
        memory = super().device_memory(rows, row_bytes)
        # It may have been freed by what the current stream has still to do, and queues do not wait for that stream.
        torch.cuda.current_stream(self.device).synchronize()
        return memory


class _CudaQueue(CopyQueue):
    def __init__(self, stream: torch.cuda.Stream, runtime: CudaRuntime) -> None:
        self._stream = stream
        self._runtime = runtime

    def after(self, mark: Any) -> None:
        self._stream.wait_event(mark)

    def rows(self, source: torch.Tensor, target: torch.Tensor) -> None:
        count, width = target.shape
        # torch copies strided host memory by way of a temporary, and waits for it.
        self._runtime.copy_rows(
            Rows(source.data_ptr(), source.stride(0)),
            Rows(target.data_ptr(), target.stride(0)),
            width,
            count,
            self._stream.cuda_stream,
        )

    def listed(self, sources: np.ndarray, targets: np.ndarray, nbytes: int) -> None:
        if len(sources):
            self._runtime.copy_list(sources, targets, nbytes, self._stream.cuda_stream)

    def lists(self, pool: PoolPlanes, pages: np.ndarray, slab: torch.Tensor, slots: np.ndarray) -> PageLists:
        with torch.cuda.stream(self._stream):
            return page_lists(pool, pages, slab, slots)

    def copy(self, copy: ListedCopy, lists: PageLists, most_programs: int | None = None) -> None:
        with torch.cuda.stream(self._stream):
            copy.run(lists, most_programs)

    def pieces(self, source: torch.Tensor, target: torch.Tensor, pieces: np.ndarray) -> None:
        with torch.cuda.stream(self._stream):
            copy_pieces(source, target, pieces)

    def digests(self, slab: torch.Tensor, slots: np.ndarray, nbytes: int) -> list[bytes]:
        # On this stream to the end: the copy to the host would otherwise wait for the forward.
        with torch.cuda.stream(self._stream):
            return digest_bytes(page_digests(slab, slots, nbytes))

    def pool_digests(self, pools: Sequence[PoolPlanes], pages: np.ndarray) -> np.ndarray:
        with torch.cuda.stream(self._stream):
            return pool_digests(pools, pages).cpu().numpy()

    def mark(self) -> QueueMark:
        return _marked(self._stream)

    def seconds(self, work: Callable[[], None]) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record(self._stream)
        work()
        end.record(self._stream)
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000


def addresses(memory: torch.Tensor, rows: np.ndarray) -> np.ndarray:
    """Where these rows of `memory`, uint8 `[_, bytes]`, begin: uint64 [n]."""
    return np.uint64(memory.data_ptr()) + rows.astype(np.uint64) * np.uint64(memory.stride(0))


def _marked(stream: torch.cuda.Stream) -> QueueMark:
    # Whoever waits for it on the host sleeps: it has a thread of its own, and the cores are others' too.
    event = torch.cuda.Event(blocking=True)
    event.record(stream)
    return event
