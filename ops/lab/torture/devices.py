"""Devices that fail in the ways that devices do, and what is left on them when the process or the power has gone."""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from swift_tiers.radix_tiering.base.runner import Runner
from swift_tiers.radix_tiering.tiers.ssd.arrays.checking import copy_in, copy_out
from swift_tiers.radix_tiering.tiers.ssd.arrays.devices import Completion, Operation, Request
from swift_tiers.radix_tiering.tiers.testing.model_array import ModelArray

#: What a device writes whole, or not at all, bytes.
SECTOR = 512
#: What devices do, as it is counted.
DEVICES_FAIL = ("an error", "a short read", "a torn write", "no space", "a sync fails", "a sync does nothing")
#: What may become of a write that is not durable when the power goes.
FATES = ("all", "nothing", "torn", "sectors")


class _Write(NamedTuple):
    """One that may not be durable yet."""

    device: int
    offset: int
    data: np.ndarray


class PowerArray(ModelArray):
    """Adds to `ModelArray` transfers that end half done, devices that are full, syncs that fail or lie, and the end of
    the power. `full`: devices that take no write. `lying`: devices that say they have synced, and have not."""

    def __init__(
        self,
        runner: Runner,
        images: Sequence[np.ndarray],
        happened: Counter[str],
        *,
        seconds: float = 1e-4,
    ) -> None:
        """`images`: what is on the devices. `happened` counts faults by their names."""
        super().__init__(runner, [image.nbytes for image in images], seconds=seconds)
        self.images = [image.copy() for image in images]
        self.full: set[int] = set()
        self.lying: set[int] = set()
        #: Whether a device has said that it synced what it did not.
        self.lied = False
        self._durable = [image.copy() for image in images]
        self._unsynced: list[_Write] = []
        self._happened = happened

    def heal(self) -> None:
        self.full.clear()
        self.lying.clear()
        super().heal()

    def mend(self, device: int) -> None:
        self.full.discard(device)
        self.lying.discard(device)
        super().mend(device)

    def sync(self, device: int) -> int:
        due = [write for write in self._unsynced if write.device == device]
        super().sync(device)
        if device in self.failing and self._draw.random() < 0.5:
            self._happened["fault: a sync fails"] += 1
            return errno.EIO
        if device in self.lying:
            self._happened["fault: a sync does nothing"] += 1
            self.lied = True
            return 0
        synced = set(map(id, due))
        for write in due:
            self._durable[device][write.offset : write.offset + write.data.nbytes] = write.data
        self._unsynced = [write for write in self._unsynced if id(write) not in synced]
        return 0

    def left_behind(self, draw: random.Random, *, power: bool) -> list[np.ndarray]:
        """What the next process finds. Requests that are under way are done, or not, or in part; where the power goes
        as well, so are writes that no sync has followed."""
        images = [image.copy() for image in (self._durable if power else self.images)]
        writes = self._unsynced if power else []
        under_way = [
            _Write(request.device, request.offset, np.array(copy_out(request.buffers)))
            for _, _, request in self._due
            if request.operation == Operation.WRITE
        ]
        for write in (*writes, *under_way):
            self._leave(images[write.device], write, draw)
        return images

    def _leave(self, image: np.ndarray, write: _Write, draw: random.Random) -> None:
        """All of a write, nothing, its beginning, or any of its sectors."""
        fate = draw.choice(FATES)
        self._happened[f"crash: a write leaves {fate}"] += 1
        sectors = -(-write.data.nbytes // SECTOR)
        torn = draw.randrange(sectors + 1)
        for sector in range(sectors):
            if fate == "all" or (fate == "torn" and sector < torn) or (fate == "sectors" and draw.random() < 0.5):
                part = write.data[sector * SECTOR : (sector + 1) * SECTOR]
                start = write.offset + sector * SECTOR
                image[start : start + part.nbytes] = part

    def _carry_out(self, request: Request) -> Completion:
        if request.device in self.full and request.operation == Operation.WRITE:
            self._happened["fault: no space"] += 1
            return Completion(request.tag, request.device, errno.ENOSPC)
        if request.device in self.failing and self._draw.random() < 0.9:
            return self._fail(request)
        completion = super()._carry_out(request)
        if not completion.error and request.operation == Operation.WRITE:
            self._unsynced.append(_Write(request.device, request.offset, np.array(copy_out(request.buffers))))
        return completion

    def _fail(self, request: Request) -> Completion:
        """Nothing of it is done, or its beginning: arrays report a short transfer as EIO."""
        if self._draw.random() < 0.5:
            self._happened["fault: an error"] += 1
            return Completion(request.tag, request.device, errno.EIO)
        done = request.length // SECTOR // 2 * SECTOR
        place = self.images[request.device][request.offset : request.offset + request.length]
        if request.operation == Operation.READ:
            self._happened["fault: a short read"] += 1
            found = copy_out(request.buffers).copy()
            found[:done] = place[:done]
            copy_in(request.buffers, found)
        else:
            self._happened["fault: a torn write"] += 1
            place[:done] = copy_out(request.buffers)[:done]
        return Completion(request.tag, request.device, errno.EIO)
