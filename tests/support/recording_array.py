"""What devices hold after a crash: every write recorded, and the images a power loss may leave behind.

    recording = RecordingArray(MemoryArray([1 << 20] * 3))
    ...                                          # drive the engine over `recording`
    for point in recording.crash_points(seed=1):
        engine = open_engine(MemoryArray.from_images(point.images))
        assert_recovered(engine, point.label)

or one crash at a time: `images_after(7)`, `images_after(7, torn=TornPrefix(2))`, `images_at(position, lose=3)`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from swift_tiers.radix_tiering.base.page import BLOCK_BYTES
from swift_tiers.radix_tiering.tiers.ssd.arrays.checking import check_requests, copy_out
from swift_tiers.radix_tiering.tiers.ssd.arrays.devices import Completion, DeviceArray, NewDevice, Operation, Request
from swift_tiers.radix_tiering.tiers.ssd.arrays.wrapping import WrappingArray


@dataclass
class RecordedWrite:
    """One write as it was submitted."""

    index: int  # among the writes, from 0
    position: int  # among writes and syncs, from 0
    device: int
    offset: int  # bytes
    data: np.ndarray  # its own copy
    reaped_at: int | None = None  # the recording's position when its completion was reaped
    error: int = 0

    @property
    def sectors(self) -> int:
        """4 KiB blocks; a device writes each of them wholly or not at all."""
        return -(-self.data.nbytes // BLOCK_BYTES)


class RecordedSync(NamedTuple):
    """One sync that returned; from then on the writes of this device reaped before it are durable if `error` is 0."""

    position: int
    device: int
    error: int


class TornPrefix(NamedTuple):
    """The first `sectors` 4 KiB blocks of the write arrived."""

    sectors: int


class TornSubset(NamedTuple):
    """Each 4 KiB block of the write arrived or not, by a seeded coin."""

    seed: int


Torn = TornPrefix | TornSubset


class CrashPoint(NamedTuple):
    label: str  # says which crash, for the message of a failing test
    writes: int  # how many were wholly issued before it
    images: list[np.ndarray]


class RecordingArray(WrappingArray):
    """Passes everything through and remembers all writes, in the order of their submission, and all syncs."""

    def __init__(self, inner: DeviceArray, initial: Sequence[np.ndarray] | None = None) -> None:
        """`initial`: what the devices hold now; read from `inner` if None. Raises OSError if that cannot be read."""
        super().__init__(inner)
        self.description = f"{inner.description}, recorded"
        self.writes: list[RecordedWrite] = []
        self.syncs: list[RecordedSync] = []
        self._initial = _read_all(inner) if initial is None else [np.array(image, np.uint8) for image in initial]
        self._number = 0
        self._inside: dict[int, tuple[int, RecordedWrite | None]] = {}  # the caller's tag, and the write it was

    @property
    def position(self) -> int:
        """Writes and syncs so far. Keep it when something has been promised, to ask later what a crash left of it."""
        return len(self.writes) + len(self.syncs)

    def append(self, device: NewDevice) -> None:
        """Only bytes in memory: reading a file here would take the completions of requests under way."""
        if not isinstance(device, np.ndarray):
            raise TypeError(f"only bytes in memory can join what is recorded, not {type(device).__name__}")
        self._initial.append(device.copy())
        super().append(device)

    def submit(self, requests: Sequence[Request]) -> None:
        check_requests(requests, self.sizes)
        renumbered = []
        for request in requests:
            write = None
            if request.operation == Operation.WRITE:
                data = copy_out(request.buffers)
                write = RecordedWrite(len(self.writes), self.position, request.device, request.offset, data)
                self.writes.append(write)
            self._number += 1
            self._inside[self._number] = (request.tag, write)
            renumbered.append(request._replace(tag=self._number))
        self.inner.submit(renumbered)

    def reap(self, at_least: int, timeout: float | None = None) -> list[Completion]:
        completions = []
        for completion in self.inner.reap(at_least, timeout):
            tag, write = self._inside.pop(completion.tag)
            if write is not None:
                write.reaped_at, write.error = self.position, completion.error
            completions.append(completion._replace(tag=tag))
        return completions

    def sync(self, device: int) -> int:
        error = self.inner.sync(device)
        self.syncs.append(RecordedSync(self.position, device, error))
        return error

    def images_after(self, count: int, *, torn: Torn | None = None, lose: int | None = None) -> list[np.ndarray]:
        """What the devices hold if the power fails after the first `count` writes, before any sync that follows.

        See `images_at` for `torn` (of write number `count`, the next one) and `lose`.
        """
        if not 0 <= count <= len(self.writes):
            raise ValueError(f"{count} writes asked for; {len(self.writes)} were recorded")
        position = self.writes[count - 1].position + 1 if count else 0
        return self.images_at(position, torn=torn, lose=lose)

    def images_at(self, position: int, *, torn: Torn | None = None, lose: int | None = None) -> list[np.ndarray]:
        """What the devices hold if the power fails at `position`: one new array per device.

        With neither option every write issued before `position` arrived, whole and in order (failed ones did not).
        `torn`: of the next write, too, these sectors arrived. `lose`, a seed: devices have volatile caches; each write
        that no sync had made durable is kept, lost, or torn, one by one. That covers reordering: in any order of
        writing, a sector ends up with some version since its last durable one, and so it does if those after it were
        lost. A failed write may then have arrived as well.
        """
        images = [image.copy() for image in self._initial]
        coin = random.Random(f"{lose}/{position}")
        upcoming = None
        for write in self.writes:
            if write.position >= position:
                upcoming = write
                break
            if lose is None:
                arrived = np.full(write.sectors, write.error == 0)
            elif self._durable(write, position):
                arrived = np.ones(write.sectors, bool)
            else:
                arrived = _coins(coin, write.sectors, coin.choice((1.0, 1.0, 0.0, 0.5)))
            _apply(images, write, arrived)
        if torn is not None:
            if upcoming is None:
                raise ValueError(f"no write follows position {position}: nothing can be torn")
            _apply(images, upcoming, _torn_sectors(upcoming, torn))
        return images

    def crash_points(self, seed: int, *, tears: int = 2, losses: int = 1) -> Iterator[CrashPoint]:
        """Crashes after each number of writes: plain, torn at `tears` seeded prefixes and as many subsets, and
        `losses` times with unsynced writes lost, the next one torn too."""
        coin = random.Random(seed)
        for count in range(len(self.writes) + 1):
            yield CrashPoint(f"after {count} writes", count, self.images_after(count))
            following = self.writes[count] if count < len(self.writes) else None
            kinds: list[Torn] = []
            if following is not None:
                prefixes = coin.sample(range(following.sectors), min(tears, following.sectors))
                kinds += [TornPrefix(sectors) for sectors in prefixes]
                kinds += [TornSubset(coin.getrandbits(32)) for _ in range(tears if following.sectors > 1 else 0)]
            for torn in kinds:
                yield CrashPoint(f"after {count} writes, the next {torn}", count, self.images_after(count, torn=torn))
            for _ in range(losses):
                lose = coin.getrandbits(32)
                tear = TornSubset(lose) if following is not None else None
                images = self.images_after(count, torn=tear, lose=lose)
                yield CrashPoint(f"after {count} writes, lose={lose}, torn={tear}", count, images)

    def _durable(self, write: RecordedWrite, position: int) -> bool:
        return (
            write.reaped_at is not None
            and write.error == 0
            and any(
                sync.device == write.device and not sync.error and write.reaped_at <= sync.position < position
                for sync in self.syncs
            )
        )


def _torn_sectors(write: RecordedWrite, torn: Torn) -> np.ndarray:
    if isinstance(torn, TornPrefix):
        if not 0 <= torn.sectors <= write.sectors:
            raise ValueError(f"{torn}: write {write.index} has {write.sectors} sectors")
        return np.arange(write.sectors) < torn.sectors
    return _coins(random.Random(torn.seed), write.sectors, 0.5)


def _coins(coin: random.Random, count: int, chance: float) -> np.ndarray:
    return np.array([coin.random() < chance for _ in range(count)], bool)


def _apply(images: list[np.ndarray], write: RecordedWrite, arrived: np.ndarray) -> None:
    for sector in np.flatnonzero(arrived).tolist():
        part = write.data[sector * BLOCK_BYTES : (sector + 1) * BLOCK_BYTES]
        start = write.offset + sector * BLOCK_BYTES
        images[write.device][start : start + part.nbytes] = part


def _read_all(array: DeviceArray) -> list[np.ndarray]:
    """The bytes of every device, through the array itself; in blocks at 4 KiB boundaries, for direct I/O."""
    images = []
    for device, size in enumerate(array.sizes):
        room = np.zeros(size + BLOCK_BYTES, np.uint8)
        start = -room.ctypes.data % BLOCK_BYTES
        image = room[start : start + size]
        array.submit([Request(0, Operation.READ, device, 0, [image])])
        for completion in array.reap(1):
            if completion.error:
                raise OSError(completion.error, f"device {device} of {array.description} cannot be read")
        images.append(image)
    return images
