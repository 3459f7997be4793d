"""GPUDirect Storage without either: files in memory, read late, and landing memory on the CPU."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

import numpy as np
import torch

from swift_tiers.kernels.page_digest import digest_bytes, host_page_digest, page_digests
from swift_tiers.radix_tiering.base.runner import THREADS, Runner
from swift_tiers.radix_tiering.tiers.host.landing import Landing
from swift_tiers.radix_tiering.tiers.ssd.direct import DirectFiles
from swift_tiers.radix_tiering.tiers.ssd.direct_reads import DirectReads
from swift_tiers.radix_tiering.tiers.ssd.ssd_tier import SsdTier
from swift_tiers.radix_tiering.tiers.testing.memory_array import MemoryArray
from swift_tiers.radix_tiering.tiers.testing.model_array import ModelArray

POISON = 0xAA


class PlainLanding:
    """As `Landing`, without queues."""

    queue = None

    def __init__(self, page_bytes: int, slots: int, runner: Runner = THREADS) -> None:
        self.page_bytes = page_bytes
        self.slots = slots
        self.memory = torch.full((slots, -(-page_bytes // 4096) * 4096), POISON, dtype=torch.uint8)
        self.landed = self.memory.numpy()
        self._free = list(range(slots))
        self._lock = runner.lock()

    @property
    def used_slots(self) -> int:
        return self.slots - len(self._free)

    def take(self) -> int | None:
        with self._lock:
            return self._free.pop() if self._free else None

    def give_back(self, slot: int) -> None:
        with self._lock:
            assert slot not in self._free, "a landing slot was given back twice"
            self.landed[slot] = POISON
            self._free.append(slot)

    def digest(self, page: np.ndarray) -> bytes:
        return host_page_digest(page)

    def digests(self, slots: Sequence[int]) -> list[bytes]:
        return digest_bytes(page_digests(self.memory, np.array(slots), self.page_bytes))


class _Late:
    """What is read is read when it is waited for; `held` holds it up."""

    def __init__(self, files: MemoryFiles, path: str, memory: torch.Tensor, offset: int) -> None:
        self._files, self._path, self._memory, self._offset = files, path, memory, offset

    def get(self) -> int:
        files = self._files
        assert files.held.wait(30), "held for ever"
        files.gets += 1
        if files.error is not None:
            raise files.error
        files.wait_for_device(self._path)
        image = files.images()[self._path]
        part = image[self._offset : self._offset + len(self._memory)][: files.most]
        self._memory[: len(part)] = torch.from_numpy(part.copy())
        return len(part)


class MemoryFiles(DirectFiles):
    """The devices of a `MemoryArray`; those of a `ModelArray` fail here as they do there."""

    def __init__(self, array: MemoryArray, names: Callable[[], Sequence[str]], runner: Runner = THREADS) -> None:
        self._array = array
        self._names = names
        self._runner = runner
        self.held = runner.flag()
        self.held.set()
        self.error: Exception | None = None  # of every read
        self.refused: Exception | None = None  # when a read is asked for
        self.most = 2**60  # bytes that come
        self.reads = self.gets = 0
        self.closed = False

    def images(self) -> dict[str, np.ndarray]:
        return dict(zip(self._names(), self._array.images, strict=True))

    def read(self, path: str, memory: torch.Tensor, offset: int) -> _Late:
        assert not self.closed
        assert offset % 4096 == 0
        assert memory.is_contiguous()
        self.reads += 1
        if self.refused is not None:
            raise self.refused
        return _Late(self, path, memory, offset)

    def wait_for_device(self, path: str) -> None:
        """Until it answers. Raises OSError where it does not, or with an error."""
        array, number = self._array, list(self._names()).index(path)
        if isinstance(array, ModelArray):
            while number in array.silent:
                self._runner.sleep(0.01)
            if number in array.lost or (number in array.failing and self._runner.random.random() < 0.5):
                raise OSError(errno.EIO, "the device failed")

    def close(self) -> None:
        self.closed = True


class SettlingReads(DirectReads):
    """One that tests can wait for."""

    def settle(self) -> None:
        """Until everything asked for so far has been answered."""
        self.files.held.set()
        done = self.runner.flag()
        while not self.learn(np.zeros(0, np.uint8), b"nothing", lambda digest: done.set()):
            if self._closing:
                return
        assert done.wait(30), "it does not answer"

    files: MemoryFiles
    runner: Runner


def direct_reads(
    ssd: SsdTier, array: MemoryArray, landing: PlainLanding | Landing, *, runner: Runner = THREADS
) -> SettlingReads:
    """Reads of the array's devices into this landing memory."""
    files = MemoryFiles(array, lambda: ssd.paths, runner)
    reads = SettlingReads(ssd.stripes, files, landing, ssd.fingerprint, runner)  # type: ignore[arg-type]
    reads.files, reads.runner = files, runner
    return reads
