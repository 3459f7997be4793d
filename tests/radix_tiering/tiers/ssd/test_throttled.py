"""Rates, latency and waiting, on a clock of our own; then once on the real one."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import pytest

from swift_tiers.radix_tiering.tiers.ssd.arrays.devices import Completion, Operation, Request
from swift_tiers.radix_tiering.tiers.ssd.arrays.throttled import ThrottledArray
from swift_tiers.radix_tiering.tiers.testing.memory_array import MemoryArray

KIB = 1024
READ, WRITE = Operation.READ, Operation.WRITE


class FakeClock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.sleeps: list[float] = []

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.sleeps.append(seconds)
        self.time += seconds


def make(rate: float | Sequence[float], devices: int = 1, latency: float = 0.0) -> tuple[ThrottledArray, FakeClock]:
    clock = FakeClock()
    inner = MemoryArray([64 * KIB] * devices)
    return ThrottledArray(inner, rate, latency=latency, clock=clock), clock


def requests(count: int, device: int = 0, operation: Operation = READ) -> list[Request]:
    return [Request(i, operation, device, 0, [np.zeros(KIB, np.uint8)]) for i in range(count)]


def arrivals(array: ThrottledArray, clock: FakeClock) -> list[tuple[int, int, float]]:
    """(device, tag, seconds since the start) of everything in flight, one by one."""
    seen = []
    while array.in_flight:
        completions = array.reap(1)
        assert completions
        seen += [(c.device, c.tag, round(clock.time - 1000, 6)) for c in completions]
    return seen


def test_two_requests_pass_at_once_and_then_the_rate_rules() -> None:
    array, clock = make(rate=10 * KIB)
    array.submit(requests(6))
    assert clock.sleeps == []  # submitting never sleeps
    assert [at for _, _, at in arrivals(array, clock)] == [0, 0, 0.1, 0.2, 0.3, 0.4]


def test_latency_is_added_to_each_request_and_not_to_the_rate() -> None:
    array, clock = make(rate=10 * KIB, latency=0.05)
    array.submit(requests(4))
    assert [at for _, _, at in arrivals(array, clock)] == [0.05, 0.05, 0.15, 0.25]


def test_devices_do_not_share_their_rates_but_reads_and_writes_of_one_do() -> None:
    array, clock = make(rate=[10 * KIB, 20 * KIB], devices=2)
    array.submit(requests(2) + requests(2, operation=WRITE) + requests(4, device=1))
    seen = arrivals(array, clock)
    assert [at for device, _, at in seen if device == 0] == [0, 0, 0.1, 0.2]
    assert [at for device, _, at in seen if device == 1] == [0, 0, 0.05, 0.1]


def test_a_rested_device_saves_up_two_requests_and_no_more() -> None:
    array, clock = make(rate=10 * KIB)
    array.submit(requests(3))
    arrivals(array, clock)
    clock.time = 1100.0
    array.submit(requests(4))
    assert [round(at - 100, 6) for _, _, at in arrivals(array, clock)] == [0, 0, 0.1, 0.2]


def test_reaping_with_a_timeout_waits_no_longer_and_without_waiting_not_at_all() -> None:
    array, clock = make(rate=10 * KIB)
    array.submit(requests(4))
    while array.in_flight > 2:
        array.reap(1)  # the two of the burst
    assert array.reap(0) == []
    assert clock.sleeps == []
    assert array.reap(1, timeout=0.04) == []
    assert clock.sleeps == pytest.approx([0.04])
    assert sorted(array.reap(5, timeout=None)) == [Completion(tag, 0, 0) for tag in (2, 3)]
    assert clock.time == pytest.approx(1000.2)


def test_the_bytes_arrive() -> None:
    array, _ = make(rate=10 * KIB)
    array.submit([Request(1, WRITE, 0, KIB, [np.full(KIB, 9, np.uint8)])])
    array.reap(1)
    room = np.zeros(KIB, np.uint8)
    array.submit([Request(2, READ, 0, KIB, [room])])
    array.reap(1)
    assert room.tobytes() == bytes([9]) * KIB
    array.close()


@pytest.mark.parametrize("rate", [0, -1, [1, 2], [1, 0, 1]])
def test_rates_must_be_positive_and_one_for_each_device(rate: float | list[float]) -> None:
    with pytest.raises(ValueError, match="positive rate"):
        make(rate=rate, devices=3)
    with pytest.raises(ValueError, match="latency"):
        make(rate=1, latency=-1)


def test_a_busy_array_cannot_be_wrapped() -> None:
    inner = MemoryArray([KIB])
    inner.submit(requests(1))
    with pytest.raises(ValueError, match="1 requests are in flight"):
        ThrottledArray(inner, 1)


def test_the_real_clock_gives_the_rate_asked_for() -> None:
    array = ThrottledArray(MemoryArray([64 * KIB] * 2), 2000 * KIB)
    started = time.monotonic()
    array.submit(requests(202) + requests(202, device=1))
    while array.in_flight:
        array.reap(1)
    # 200 requests beyond the burst at 2000 a second; the upper bound guards against hanging, on a busy machine too.
    assert 0.1 <= time.monotonic() - started < 30.0
    array.close()
