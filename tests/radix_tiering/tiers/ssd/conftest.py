"""A stripe set in memory, driven step by step and compared with what was put in."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from swift_tiers.radix_tiering.base.page import BLOCK_BYTES, ROOT_KEY, PageRecord, round_up
from swift_tiers.radix_tiering.tiers.ssd import StoredPage, StripeSet
from swift_tiers.radix_tiering.tiers.ssd.arrays.devices import DeviceArray
from swift_tiers.radix_tiering.tiers.ssd.blockio import Patience, aligned_buffer
from swift_tiers.radix_tiering.tiers.ssd.opening import create_set
from swift_tiers.radix_tiering.tiers.testing.memory_array import MemoryArray
from swift_tiers.radix_tiering.tiers.tier import ReadOutcome

UNIT = 8192
NAMESPACE = b"namespace-one..."
OTHER = b"namespace-two..."
SET_ID = b"set-id-for-tests"
WAIT = 60.0


def key_of(number: int) -> bytes:
    return (number.to_bytes(3, "little") + b"k") * 8


def content(number: int, version: int, length: int) -> np.ndarray:
    """Bytes that tell which page they are, and which version of it; those of two versions of three are 16-bit floats
    of one exponent, which can be coded, and those of the third cannot."""
    found = np.random.default_rng([number, version, length]).integers(0, 256, length, dtype=np.uint8)
    if version % 3:
        words = found[: length // 2 * 2].view("<u2")
        words[:] = words & 0x807F | 0x3F80
    return found


class Rig:
    """Blocking calls on a stripe set."""

    UNIT = UNIT
    NAMESPACE = NAMESPACE
    OTHER = OTHER
    SET_ID = SET_ID
    content = staticmethod(content)
    key_of = staticmethod(key_of)

    def __init__(self) -> None:
        self.opened: list[StripeSet] = []

    def memory(self, devices: int = 3, slots: int = 8, seed: int = 0) -> MemoryArray:
        """A new stripe set on blank devices with exactly so many slots each."""
        array = MemoryArray([self.device_bytes(slots)] * devices, seed=seed)
        create_set(array, UNIT, Patience(), SET_ID)
        return array

    @staticmethod
    def device_bytes(slots: int) -> int:
        from swift_tiers.radix_tiering.tiers.ssd.layout import first_slot_offset

        return first_slot_offset(slots) + slots * (BLOCK_BYTES + UNIT)

    def open(self, array: DeviceArray, **options: object) -> StripeSet:
        stripes = StripeSet.open(array, **options)  # type: ignore[arg-type]
        self.opened.append(stripes)
        return stripes

    def record(self, number: int, length: int, namespace: bytes = NAMESPACE, parent: int | None = None) -> PageRecord:
        depth = 1 if parent is None else 2
        return PageRecord(key_of(number), ROOT_KEY if parent is None else key_of(parent), namespace, depth, length)

    def write(self, stripes: StripeSet, record: PageRecord, payload: np.ndarray) -> tuple[StoredPage | None, str]:
        """Reserve, write, wait. (None, "full") where there is no room."""
        placement = stripes.reserve(record.length)
        if placement is None:
            return None, "full"
        data = aligned_buffer(round_up(record.length, BLOCK_BYTES))
        data[: record.length] = payload
        data[record.length :] = 0xEE
        ended = threading.Event()
        result: list[tuple[StoredPage | None, str]] = []

        def done(stored: StoredPage | None, reason: str) -> None:
            result.append((stored, reason))
            ended.set()

        stripes.write(record, placement, data, done)
        assert ended.wait(WAIT), "a write never ended"
        return result[0]

    def put(self, stripes: StripeSet, number: int, version: int = 0, length: int = 20_000, **record: object
            ) -> StoredPage:  # fmt: skip
        stored, reason = self.write(
            stripes,
            self.record(number, length, **record),
            content(number, version, length),  # type: ignore[arg-type]
        )
        assert stored is not None, reason
        return stored

    def read(self, stripes: StripeSet, stored: StoredPage) -> tuple[ReadOutcome, np.ndarray]:
        return self.read_all(stripes, [stored])[0]

    def read_all(self, stripes: StripeSet, pages: Sequence[StoredPage]) -> list[tuple[ReadOutcome, np.ndarray]]:
        from swift_tiers.radix_tiering.tiers.ssd import ReadRequest

        left = threading.Semaphore(0)
        outcomes: list[ReadOutcome | None] = [None] * len(pages)
        buffers = [aligned_buffer(round_up(page.record.length, BLOCK_BYTES)) for page in pages]

        def done_of(index: int):
            def done(outcome: ReadOutcome) -> None:
                assert outcomes[index] is None, "called back twice"
                outcomes[index] = outcome
                left.release()

            return done

        stripes.read_many([ReadRequest(page, buffers[at], done_of(at)) for at, page in enumerate(pages)])
        for _ in pages:
            assert left.acquire(timeout=WAIT), "a read never ended"
        return [
            (outcome, buffer[: page.record.length])  # type: ignore[misc]
            for outcome, buffer, page in zip(outcomes, buffers, pages, strict=True)
        ]

    def holds(self, stripes: StripeSet, stored: StoredPage, number: int, version: int = 0) -> bool:
        outcome, data = self.read(stripes, stored)
        return outcome is ReadOutcome.OK and bool((data == content(number, version, stored.record.length)).all())

    def close_all(self) -> None:
        for stripes in self.opened:
            stripes.close(None)


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close_all()
