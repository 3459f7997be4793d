"""Devices that are bytes in RAM, for tests and the simulator."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from ..ssd.arrays.checking import check_requests, copy_in, copy_out
from ..ssd.arrays.devices import Completion, NewDevice, Operation, Request


class MemoryArray:
    """Carries requests out when they are reaped, in a seeded random order.

    It is as unhelpful as the interface allows: a buffer is read or filled as late as possible, requests overtake each
    other, and `reap` gives any number of completions from `at_least` to all. What a caller wrongly takes for granted
    shows here.
    """

    description = "memory"

    def __init__(self, sizes: Sequence[int], *, seed: int = 0) -> None:
        #: The bytes of each device, uint8; a test may look, and may change them while nothing is in flight.
        self.images = [np.zeros(size, np.uint8) for size in sizes]
        self._random = random.Random(seed)
        self._requests: list[Request] = []

    @classmethod
    def from_images(cls, images: Sequence[np.ndarray], *, seed: int = 0) -> MemoryArray:
        """Devices that start with a copy of these bytes."""
        array = cls([], seed=seed)
        array.images = [np.array(image, np.uint8) for image in images]
        return array

    @property
    def sizes(self) -> Sequence[int]:
        return tuple(image.nbytes for image in self.images)

    def append(self, device: NewDevice) -> None:
        if not isinstance(device, np.ndarray):
            raise TypeError(f"an array in memory takes bytes, not {type(device).__name__}")
        self.images.append(device)

    @property
    def in_flight(self) -> int:
        return len(self._requests)

    def submit(self, requests: Sequence[Request]) -> None:
        check_requests(requests, self.sizes)
        self._requests.extend(requests)

    def reap(self, at_least: int, timeout: float | None = None) -> list[Completion]:
        self._random.shuffle(self._requests)
        count = self._random.randint(max(0, min(at_least, len(self._requests))), len(self._requests))
        taken, self._requests = self._requests[:count], self._requests[count:]
        return [self._carry_out(request) for request in taken]

    def sync(self, device: int) -> int:
        return 0

    def present(self, device: int) -> bool:
        return True

    def close(self) -> None:
        while self._requests:
            self.reap(len(self._requests))

    def _carry_out(self, request: Request) -> Completion:
        place = self.images[request.device][request.offset : request.offset + request.length]
        if request.operation == Operation.READ:
            copy_in(request.buffers, place)
        else:
            place[:] = copy_out(request.buffers)
        return Completion(request.tag, request.device, 0)
