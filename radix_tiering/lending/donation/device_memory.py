"""What a device's memory must be able to do to be lent: be exported by one process and mapped by others."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch

from .arena import ArenaKind


class DeviceMemory(ABC):
    """One device, as this process sees it. Any thread may call, if it may wait for a copy.

    Memory is a flat tensor, uint8 `[size]`. It lives until nobody has it mapped and no descriptor of it is open: its
    donor may end while it is mapped elsewhere. That a donor has ended must be learnt elsewhere, as with memory of the
    host (see `arena`).
    """

    #: What sort of memory it is, as the arena protocol says it.
    kind: ArenaKind = "cuda"
    #: The device's name, the same in every process: its UUID, "GPU-...".
    name: str

    @abstractmethod
    def export(self, size: int) -> tuple[int, torch.Tensor]:
        """`size` bytes of the device, zeroed, and a descriptor by which other processes may map them; it is the
        caller's to close. Raises ArenaError where they cannot be had."""

    @abstractmethod
    def attach(self, fd: int, size: int) -> torch.Tensor:
        """Map what another process, or this one, has exported as `size` bytes, for kernels and copies of this device,
        to be read. `fd` stays the caller's, and may be closed afterwards. Raises ArenaError for what is no memory of a
        device, is smaller, or lies where this device does not reach."""

    @abstractmethod
    def release(self, memory: torch.Tensor) -> None:
        """Unmap what `export` or `attach` has returned; no copy or kernel may be under way in it, and the tensor, and
        all views of it, are not to be touched any more. Idempotent. Raises ArenaError where the driver refuses."""

    @abstractmethod
    def lock(self, memory: np.ndarray) -> bool:
        """Have the driver copy from this memory of the host, uint8, as it is and not by a buffer of its own; whether it
        does. The memory may be mapped for reading alone. Until `unlock`, before which it must not be unmapped."""

    @abstractmethod
    def unlock(self, memory: np.ndarray) -> None:
        """Undo a `lock` that was True. No copy of it is under way."""

    def read(self, memory: torch.Tensor, pieces: np.ndarray, into: np.ndarray) -> None:
        """Copy `pieces` of `memory` to host memory: int64 [n, 3] of (offset in memory, offset in `into`, length in
        bytes); `into`: uint8, contiguous. Complete on return.

        Raises ValueError for pieces that are not within both, ArenaError where the device fails.
        """
        _check(pieces, len(memory), into.nbytes)
        self._read(memory, pieces, into)

    def write(self, source: np.ndarray, memory: torch.Tensor, pieces: np.ndarray) -> None:
        """Copy `pieces` of host memory to `memory`: int64 [n, 3] of (offset in `source`, offset in memory, length in
        bytes). Nothing is under way any more when this returns or raises. Raises as `read` does."""
        _check(pieces, source.nbytes, len(memory))
        self._write(source, memory, pieces)

    def pull(self, source: torch.Tensor, memory: torch.Tensor, pieces: np.ndarray) -> None:
        """Copy `pieces` of `source`, which `attach` or `export` has mapped here, to `memory`: int64 [n, 3] of (offset
        in `source`, offset in memory, length in bytes). Nothing is under way any more when this returns or raises.
        Raises as `read` does."""
        _check(pieces, len(source), len(memory))
        self._pull(source, memory, pieces)

    @abstractmethod
    def _read(self, memory: torch.Tensor, pieces: np.ndarray, into: np.ndarray) -> None:
        """`read`, of pieces that are within both."""

    @abstractmethod
    def _write(self, source: np.ndarray, memory: torch.Tensor, pieces: np.ndarray) -> None:
        """`write`, of pieces that are within both."""

    @abstractmethod
    def _pull(self, source: torch.Tensor, memory: torch.Tensor, pieces: np.ndarray) -> None:
        """`pull`, of pieces that are within both."""


def _check(pieces: np.ndarray, source_bytes: int, target_bytes: int) -> None:
    if pieces.dtype != np.int64 or pieces.ndim != 2 or pieces.shape[1] != 3:
        raise ValueError(f"pieces are int64 [n, 3], not {pieces.dtype} {list(pieces.shape)}")
    source, target, length = pieces.T
    # The sums could overflow: what is left behind each offset is compared instead.
    inside = (pieces >= 0).all() and (length <= source_bytes - source).all() and (length <= target_bytes - target).all()
    if not inside:
        raise ValueError(
            f"pieces reach beyond the {source_bytes} bytes that they come from or the {target_bytes} that they go to"
        )
