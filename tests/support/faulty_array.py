"""Devices that fail as planned."""

from __future__ import annotations

import errno
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from swift_tiers.radix_tiering.tiers.ssd.arrays.devices import DeviceArray, Operation, Request
from swift_tiers.radix_tiering.tiers.ssd.arrays.wrapping import AdmittedRequest, Clock, DelayingArray


class Fail(NamedTuple):
    """The request (or sync) completes with this errno, and nothing is transferred."""

    error: int = errno.EIO


class Delay(NamedTuple):
    """The request completes this many seconds later than it would."""

    seconds: float


class Gone(NamedTuple):
    """This request and everything after it on its device fails with this errno; `present` is False from then on."""

    error: int = errno.ENODEV


class FlipBits(NamedTuple):
    """A read succeeds with this many bits of its bytes inverted, at seeded places."""

    bits: int = 1


class Lose(NamedTuple):
    """A write is reported as done and never reaches the device."""


Effect = Fail | Delay | Gone | FlipBits | Lose


@dataclass(frozen=True)
class Fault:
    """An effect and the requests it strikes: those for which every given condition holds.

    `FlipBits` strikes reads only, `Lose` writes only, and a sync only `Fail` and `Gone`, and only where `operation` is
    "sync".
    """

    effect: Effect
    device: int | None = None
    operation: Operation | Literal["sync"] | None = None  # None: reads and writes
    start: int = 0  # the request touches bytes from here ...
    stop: int | None = None  # ... to before here (None: the end)
    nth: int | None = None  # only the nth request, from 1, that meets the conditions above
    rate: float = 1.0  # of the requests that meet all conditions above, this share, by a seeded coin
    times: int | None = None  # at most this often

    def __post_init__(self) -> None:
        if not 0.0 <= self.rate <= 1.0:
            raise ValueError(f"rate is a share from 0 to 1, not {self.rate}")
        if self.nth is not None and self.nth < 1:
            raise ValueError(f"nth counts from 1, not {self.nth}")
        if self.operation == "sync" and not isinstance(self.effect, Fail | Gone):
            raise ValueError(f"a sync cannot have {self.effect}")


@dataclass(frozen=True)
class FaultPlan:
    """Faults, looked at in order for each request; all that strike have their effect, the first error counts."""

    faults: tuple[Fault, ...] = ()
    seed: int = 0


class _Progress:
    """How often a fault's conditions were met and how often it struck."""

    def __init__(self, fault: Fault, seed: str) -> None:
        self.fault = fault
        self.met = 0
        self.struck = 0
        self.random = random.Random(seed)

    def strikes(self, device: int, operation: Operation | Literal["sync"], start: int, stop: int) -> bool:
        fault = self.fault
        if fault.device not in (None, device):
            return False
        if operation == "sync" or fault.operation == "sync":
            if operation != fault.operation:
                return False
        else:
            if fault.operation not in (None, operation):
                return False
            if isinstance(fault.effect, FlipBits) and operation != Operation.READ:
                return False
            if isinstance(fault.effect, Lose) and operation != Operation.WRITE:
                return False
            if stop <= fault.start or (fault.stop is not None and start >= fault.stop):
                return False
        self.met += 1
        if fault.nth is not None and self.met != fault.nth:
            return False
        if fault.times is not None and self.struck >= fault.times:
            return False
        if fault.rate < 1.0 and self.random.random() >= fault.rate:
            return False
        self.struck += 1
        return True


class FaultyArray(DelayingArray):
    """Carries out a plan of faults over an array that has none. The same plan and requests give the same faults."""

    def __init__(self, inner: DeviceArray, plan: FaultPlan | None = None, *, clock: Clock | None = None) -> None:
        super().__init__(inner, clock)
        plan = plan or FaultPlan()
        self.description = f"{inner.description}, with faults"
        self._seed = plan.seed
        self._progress: list[_Progress] = []
        self._gone: dict[int, int] = {}  # device -> errno
        self._flips: dict[int, list[int]] = {}  # by number of a request inside: the bits to invert when it is done
        for fault in plan.faults:
            self.add(fault)

    def add(self, fault: Fault) -> None:
        """One more fault, from now on."""
        self._progress.append(_Progress(fault, f"{self._seed}/{len(self._progress)}"))

    def clear(self) -> None:
        """No faults from now on; devices that are gone stay gone."""
        self._progress.clear()

    def remove_device(self, device: int, error: int = errno.ENODEV) -> None:
        """The device is gone from now on. Requests inside may still succeed, as with a real one."""
        self._gone[device] = error

    def return_device(self, device: int) -> None:
        """The device is back, with what it held."""
        self._gone.pop(device, None)

    @property
    def struck(self) -> Sequence[int]:
        """How often each fault has struck, in the order of the plan."""
        return [progress.struck for progress in self._progress]

    def admit(self, number: int, request: Request, now: float) -> AdmittedRequest:
        if request.device in self._gone:
            return AdmittedRequest(now, self._gone[request.device])
        due, error = now, None
        flips: list[int] = []
        for progress in self._progress:
            if not progress.strikes(request.device, request.operation, request.offset, request.offset + request.length):
                continue
            effect = progress.fault.effect
            if isinstance(effect, Delay):
                due += effect.seconds
            elif isinstance(effect, FlipBits):
                bits = request.length * 8
                flips += progress.random.sample(range(bits), min(effect.bits, bits))
            elif error is None:
                error = 0 if isinstance(effect, Lose) else effect.error
                if isinstance(effect, Gone):
                    self._gone[request.device] = effect.error
        if flips and error is None:
            self._flips[number] = flips
        return AdmittedRequest(due, error)

    def finish(self, number: int, request: Request, error: int) -> int:
        for place in self._flips.pop(number, ()):
            if not error:
                _flip(request, place)
        return error

    def sync(self, device: int) -> int:
        if device in self._gone:
            return self._gone[device]
        for progress in self._progress:
            if progress.strikes(device, "sync", 0, 0):
                effect = progress.fault.effect
                assert isinstance(effect, Fail | Gone), "checked when the fault was made"
                if isinstance(effect, Gone):
                    self._gone[device] = effect.error
                return effect.error
        return self.inner.sync(device)

    def present(self, device: int) -> bool:
        return device not in self._gone and self.inner.present(device)


def _flip(request: Request, place: int) -> None:
    byte, bit = divmod(place, 8)
    for buffer in request.buffers:
        if byte < buffer.nbytes:
            buffer.reshape(-1)[byte] ^= 1 << bit
            return
        byte -= buffer.nbytes


__all__ = [
    "Delay",
    "Fail",
    "Fault",
    "FaultPlan",
    "FaultyArray",
    "FlipBits",
    "Gone",
    "Lose",
]
