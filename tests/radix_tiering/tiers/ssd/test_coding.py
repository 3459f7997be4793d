"""Pages that lie in fewer stripe units than they have, and are what they were."""

from __future__ import annotations

import hashlib
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from swift_tiers.radix_tiering.base.page import BLOCK_BYTES, page_digest, round_up
from swift_tiers.radix_tiering.base.runner import THREADS
from swift_tiers.radix_tiering.tiers.ssd import Operation, StoredPage, StripeSet, WriteRequest
from swift_tiers.radix_tiering.tiers.ssd import coders as coders_module
from swift_tiers.radix_tiering.tiers.ssd.blockio import aligned_buffer
from swift_tiers.radix_tiering.tiers.ssd.coders import Coders
from swift_tiers.radix_tiering.tiers.ssd.coding import Coder
from swift_tiers.radix_tiering.tiers.ssd.fsck import check
from swift_tiers.radix_tiering.tiers.ssd.layout import CHECKSUM_OFFSET, Geometry
from swift_tiers.radix_tiering.tiers.ssd.places import StripePlaces
from swift_tiers.radix_tiering.tiers.ssd.transfers import PageWrite
from swift_tiers.radix_tiering.tiers.testing.memory_array import MemoryArray
from swift_tiers.radix_tiering.tiers.tier import DAMAGED, ReadOutcome

from support.silent import WAIT, SilentArray, wait_for

UNIT = 8192
#: Of a page of four units that is coded in two or three, of the rig's contents.
LENGTH, CODABLE, NOISE = 4 * UNIT - 100, 1, 3


def encoded(page: np.ndarray, unit_bytes: int = UNIT) -> tuple[int, np.ndarray]:
    into = aligned_buffer(round_up(len(page), BLOCK_BYTES))
    into[:] = 0xEE
    return Coder().encode(page, into, unit_bytes), into


def decoded(coded: np.ndarray, length: int) -> np.ndarray | None:
    page = np.full(max(length, len(coded)), 0xDD, np.uint8)
    page[: len(coded)] = coded
    return page[:length] if Coder().decode(page, len(coded), length) else None


# ---- bytes ----


def test_golden_bytes() -> None:
    """A change here is a change of the format, and what was written before is lost; the zstd frame alone may be another
    one."""
    page = (np.arange(16384, dtype="<u2") & 0x807F | 0x3F80).view(np.uint8)
    units, into = encoded(page)
    assert units == 3
    assert into[:8].tobytes() == b"SWFTCODE"
    assert into[8:24].view("<u4").tolist()[:2] == [1, 0]
    assert int(into[16:24].view("<u8")[0]) == len(page)
    frame = int(into[24:32].view("<u8")[0])
    rest = into[32 : 32 + 16384]
    assert hashlib.sha256(rest.tobytes()).hexdigest()[:16] == "5c3b26496b6d1f0a"
    assert into[32 + 16384 : 32 + 16384 + 4].tobytes() == b"\x28\xb5\x2f\xfd", "the frame begins as zstd's do"
    assert not into[32 + 16384 + frame : units * UNIT].any()
    assert np.array_equal(decoded(into[: units * UNIT], len(page)), page)


floats = st.tuples(st.integers(0, 2**32 - 1), st.integers(1, 20_000), st.integers(0, 0x7F80), st.integers(0, 0xFFFF))


@given(floats, st.sampled_from([BLOCK_BYTES, UNIT, 4 * UNIT]))
def test_whatever_is_coded_comes_back(of: tuple[int, int, int, int], unit_bytes: int) -> None:
    seed, words, exponent, varies = of
    page = np.random.default_rng(seed).integers(0, 1 << 16, words, np.uint16)
    page = (page & varies | exponent & ~varies).astype("<u2").view(np.uint8)
    units, into = encoded(page, unit_bytes)
    assert units < -(-len(page) // unit_bytes)
    if units:
        assert np.array_equal(decoded(into[: units * unit_bytes], len(page)), page)


@pytest.mark.parametrize("length", [1, 2, 31, 33, UNIT, UNIT + 1])
def test_what_would_take_as_many_units_is_not_coded(length: int) -> None:
    assert encoded(np.zeros(length, np.uint8))[0] == 0


def test_noise_is_not_coded(rig) -> None:
    assert encoded(rig.content(1, NOISE, LENGTH))[0] == 0


@given(st.data())
def test_what_was_not_coded_is_no_page_and_harms_nothing(data) -> None:
    """Whatever stands there: it was read with the right checksums, and may still be of a hand that forges."""
    page = (np.random.default_rng(5).integers(0, 1 << 16, LENGTH // 2, np.uint16) & 0x807F | 0x3F80).view(np.uint8)
    units, into = encoded(page)
    coded = into[: units * UNIT].copy()
    begin = data.draw(st.sampled_from([0, 8, 16, 24, 32 + LENGTH // 2]) | st.integers(0, len(coded) - 1))
    some = np.frombuffer(data.draw(st.binary(min_size=1, max_size=64)), np.uint8)[: len(coded) - begin]
    coded[begin : begin + len(some)] = some
    coded = coded[: data.draw(st.sampled_from([1, 32, 32 + LENGTH // 2, len(coded)]))]
    found = decoded(coded, LENGTH)
    if found is not None:
        assert len(found) == LENGTH


def test_a_frame_that_says_it_is_more_than_the_page_is_not_decoded() -> None:
    """Of four bytes zstd makes 128 KiB, and as many as a frame says, whatever one has room for."""
    blocks = [struct.pack("<I", (number == 63) | 1 << 1 | (1 << 17) << 3)[:3] + b"\0" for number in range(64)]
    frame = b"\x28\xb5\x2f\xfd" + bytes([0xC0, (17 - 10) << 3]) + struct.pack("<Q", 64 << 17) + b"".join(blocks)
    assert len(zstandard.ZstdDecompressor().decompress(frame, max_output_size=LENGTH // 2)) == 64 << 17, "it would be"
    head = struct.pack("<8sIIQQ", b"SWFTCODE", 1, 0, LENGTH, len(frame))
    coded = np.frombuffer((head + bytes(LENGTH // 2) + frame).ljust(3 * UNIT, b"\0"), np.uint8)
    with patch.object(zstandard, "ZstdDecompressor", lambda: pytest.fail("it was decoded")):
        coder = Coder.__new__(Coder)
        coder._scratch = np.empty(0, np.uint8)
        page = np.zeros(4 * UNIT, np.uint8)
        page[: len(coded)] = coded
        assert not coder.decode(page, len(coded), LENGTH)


# ---- a stripe set ----


def opened(rig, array: Any, **options: object) -> StripeSet:
    stripes: StripeSet = rig.open(array, **{"codes": True, **options})
    stripes.register_namespace(rig.NAMESPACE, "coded")
    return stripes


def test_a_page_lies_in_fewer_units_and_the_others_are_free(rig) -> None:
    stripes = opened(rig, rig.memory())
    stored = rig.put(stripes, 1, CODABLE, LENGTH)
    assert len(stored.placement) < stripes.units(LENGTH) == 4
    assert stripes.free_units == stripes.capacity_units - len(stored.placement)
    assert stored.record.length == LENGTH
    assert stored.digest == page_digest(rig.content(1, CODABLE, LENGTH), UNIT)
    assert rig.holds(stripes, stored, 1, CODABLE)
    assert stripes.status().coded_pages == 1
    stripes.release(stored.placement)
    assert stripes.free_units == stripes.capacity_units


def test_noise_lies_as_it_is(rig) -> None:
    stripes = opened(rig, rig.memory())
    stored = rig.put(stripes, 1, NOISE, LENGTH)
    assert len(stored.placement) == 4
    assert rig.holds(stripes, stored, 1, NOISE)
    assert stripes.status().coded_pages == 0


@pytest.mark.parametrize("codes", [False, True])
@pytest.mark.parametrize("clean", [False, True])
def test_pages_are_found_and_read_however_they_are_to_be_written_now(rig, codes: bool, clean: bool) -> None:
    array = rig.memory()
    stripes = opened(rig, array)
    pages = [rig.put(stripes, number, version, LENGTH) for number, version in ((1, CODABLE), (2, NOISE))]
    stripes.close(pages if clean else None)
    assert check(MemoryArray.from_images(array.images), verify_payload=True).sound
    again = opened(rig, MemoryArray.from_images(array.images), codes=codes)
    assert list(again.recovered) == pages
    for page, (number, version) in zip(again.recovered, ((1, CODABLE), (2, NOISE)), strict=True):
        assert rig.holds(again, page, number, version)


def test_a_page_that_is_damaged_in_memory_is_not_written(rig) -> None:
    stripes = opened(rig, rig.memory())
    right = page_digest(rig.content(1, CODABLE, LENGTH), UNIT)
    ended = begin_write(rig, stripes, 1, CODABLE, digest=right[::-1])
    assert ended() == (None, DAMAGED)
    assert stripes.free_units == stripes.capacity_units


def begin_write(
    rig, stripes: StripeSet, number: int, version: int, digest: bytes | None = None, length: int = LENGTH
) -> Callable[[], tuple[StoredPage | None, str]]:
    """Begin to write a page; how that has ended, once it has."""
    data = aligned_buffer(round_up(length, BLOCK_BYTES))
    data[:length] = rig.content(number, version, length)
    placement = stripes.reserve(length)
    assert placement is not None
    came = threading.Event()
    answers: list[tuple[StoredPage | None, str]] = []

    def done(stored: StoredPage | None, reason: str) -> None:
        answers.append((stored, reason))
        came.set()

    stripes.write_many([WriteRequest(rig.record(number, length), placement, data, done, digest)])

    def ended() -> tuple[StoredPage | None, str]:
        assert came.wait(WAIT)
        (answer,) = answers
        return answer

    return ended


class Gate:
    """Holds coders up, before each page."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.reached, self.open = threading.Semaphore(0), threading.Event()
        original = getattr(Coder, name)

        def held(coder: Coder, *arguments: Any) -> Any:
            self.reached.release()
            assert self.open.wait(WAIT)
            return original(coder, *arguments)

        monkeypatch.setattr(Coder, name, held)

    def wait(self) -> None:
        assert self.reached.acquire(timeout=WAIT)


def test_a_page_that_is_flushed_while_it_is_coded_never_comes_back(rig, monkeypatch: pytest.MonkeyPatch) -> None:
    array = rig.memory()
    stripes, gate = opened(rig, array), Gate(monkeypatch, "encode")
    ended = begin_write(rig, stripes, 1, CODABLE)
    gate.wait()
    assert stripes.flush_namespace(rig.NAMESPACE)
    gate.open.set()
    assert ended() == (None, "the namespace was flushed meanwhile")
    assert stripes.free_units == stripes.capacity_units
    stripes.close(None)
    assert len(opened(rig, MemoryArray.from_images(array.images)).recovered) == 0


def test_a_device_that_goes_while_a_page_is_coded_takes_the_write_along(rig, monkeypatch: pytest.MonkeyPatch) -> None:
    stripes, gate = opened(rig, rig.memory()), Gate(monkeypatch, "encode")
    ended = begin_write(rig, stripes, 1, CODABLE)
    gate.wait()
    stripes._io.call(lambda: stripes._io.take_out(1, "it was pulled"))
    gate.open.set()
    assert ended() == (None, "device gone")
    assert stripes.free_units == stripes.capacity_units


@pytest.mark.parametrize("timeout", [None, 0.0])
def test_closing_answers_what_is_being_coded(rig, monkeypatch: pytest.MonkeyPatch, timeout: float | None) -> None:
    """It is written, if there is time for that; else nothing of it is."""
    array = rig.memory()
    stripes, gate = opened(rig, array), Gate(monkeypatch, "encode")
    ended = begin_write(rig, stripes, 1, CODABLE)
    gate.wait()
    closing = threading.Thread(target=stripes.close, args=((), timeout))
    closing.start()
    wait_for(lambda: stripes._io._given_up or timeout is None)
    gate.open.set()
    closing.join(WAIT)
    assert not closing.is_alive()
    stored, _ = ended()
    assert (stored is not None) == (timeout is None)


def test_closing_answers_what_is_being_decoded(rig, monkeypatch: pytest.MonkeyPatch) -> None:
    stripes = opened(rig, rig.memory())
    stored, gate = rig.put(stripes, 1, CODABLE, LENGTH), Gate(monkeypatch, "decode")
    outcomes: list[ReadOutcome] = []
    stripes.read(stored, aligned_buffer(round_up(LENGTH, BLOCK_BYTES)), outcomes.append)
    gate.wait()
    closing = threading.Thread(target=stripes.close, args=((), 0.0))
    closing.start()
    gate.open.set()
    closing.join(WAIT)
    assert outcomes == [ReadOutcome.OK]


def test_reads_go_before_writes_that_wait_for_memory(rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coders_module, "CODED_BYTES", 0)
    monkeypatch.setattr(coders_module, "LEAST_PAGES", 1)
    silent = SilentArray(rig.memory(slots=16))
    stripes = opened(rig, silent)
    stored = rig.put(stripes, 1, CODABLE, LENGTH)
    for device in range(3):
        silent.silence(device, Operation.WRITE)
    ended = [begin_write(rig, stripes, number, CODABLE) for number in range(2, 6)]
    wait_for(lambda: silent.swallowed)
    assert rig.holds(stripes, stored, 1, CODABLE)
    silent.answer()
    for number, one in enumerate(ended, 2):
        found = one()[0]
        assert found is not None
        assert rig.holds(stripes, found, number, CODABLE)


def test_what_comes_of_a_coded_page_and_is_not_the_page_is_not_served(rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its units are sound, as where memory was damaged, or the coder was wrong, before they were written."""
    encode = Coder.encode

    def wrongly(coder: Coder, page: np.ndarray, into: np.ndarray, unit_bytes: int) -> int:
        units = encode(coder, page, into, unit_bytes)
        into[100] ^= 1
        return units

    monkeypatch.setattr(Coder, "encode", wrongly)
    array = rig.memory()
    stripes = opened(rig, array)
    stored = rig.put(stripes, 1, CODABLE, LENGTH)
    assert rig.read(stripes, stored)[0] is ReadOutcome.CHECKSUM
    stripes.close([stored])
    report = check(MemoryArray.from_images(array.images), verify_payload=True)
    assert not report.sound


def test_what_cannot_be_coded_for_want_of_memory_is_written_as_it_is(rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(nbytes: int) -> np.ndarray:
        raise MemoryError

    monkeypatch.setattr(coders_module, "aligned_buffer", fails)
    stripes = opened(rig, rig.memory())
    stored = rig.put(stripes, 1, CODABLE, LENGTH)
    assert len(stored.placement) == 4
    assert rig.holds(stripes, stored, 1, CODABLE)


def test_what_cannot_be_decoded_for_want_of_memory_is_still_there(rig, monkeypatch: pytest.MonkeyPatch) -> None:
    stripes = opened(rig, rig.memory())
    stored = rig.put(stripes, 1, CODABLE, LENGTH)
    with monkeypatch.context() as patch:
        patch.setattr(Coder, "_room", lambda coder, nbytes: np.empty(1 << 60, np.uint8))
        assert rig.read(stripes, stored)[0] is ReadOutcome.CANCELLED
    assert rig.holds(stripes, stored, 1, CODABLE)


def test_a_page_that_is_coded_before_its_writes_are_all_handed_over_is_written_once(
    rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two units it has one then, as pages have that are not coded at all."""
    # A thread for each: one that has coded its page waits for the stripe set's lock, which is held meanwhile.
    stripes = opened(rig, rig.memory(slots=16), coders=5)
    write = Coders.write

    def slowly(coders: Coders, writes: Sequence[PageWrite]) -> None:
        write(coders, writes)
        wait_for(lambda: all(len(one.placement) == 1 for one in writes))

    monkeypatch.setattr(Coders, "write", slowly)
    ended = [begin_write(rig, stripes, number, CODABLE, length=UNIT + 2) for number in range(1, 6)]
    for number, one in enumerate(ended, 1):
        stored, _ = one()
        assert stored is not None
        assert len(stored.placement) == 1
        assert rig.holds(stripes, stored, number, CODABLE)
    wait_for(lambda: stripes.writing == (0, 0))
    assert stripes.free_units == stripes.capacity_units - 5


@pytest.mark.parametrize("failing", ["ssd-code-0", "ssd-code-1"])
def test_a_thread_that_cannot_be_started_ends_the_opening(rig, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    start = threading.Thread.start

    def fails(thread: threading.Thread) -> None:
        if thread.name == failing:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fails)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        StripeSet.open(rig.memory(), codes=True, coders=2)


def test_what_waits_for_coders_is_answered_at_once_when_closing_gives_up(rig, monkeypatch: pytest.MonkeyPatch) -> None:
    stripes, gate = opened(rig, rig.memory(slots=16)), Gate(monkeypatch, "encode")
    ended = [begin_write(rig, stripes, number, CODABLE) for number in range(1, 4)]
    gate.wait()
    closing = threading.Thread(target=stripes.close, args=((), 0.0))
    closing.start()
    assert [one()[0] for one in ended[1:]] == [None, None]
    gate.open.set()
    closing.join(WAIT)
    assert ended[0]()[0] is None
    assert stripes.free_units == stripes.capacity_units


@pytest.mark.parametrize("length", [1 << 45, 1 << 63, UNIT + 1, 2 * UNIT - 62])
def test_a_header_of_a_length_that_its_units_cannot_be_of_is_no_page(rig, length: int) -> None:
    """Half of a page is in the units of one that is coded, and what is written of it before."""
    array = rig.memory(devices=1)
    stripes = opened(rig, array)
    stored, other = rig.put(stripes, 1, NOISE, 8000), rig.put(stripes, 2, NOISE, 8000)
    stripes.close(None)
    at = Geometry.of(len(array.images[0]), UNIT).slot_offset(stored.placement[0][1])
    block = bytearray(array.images[0][at : at + BLOCK_BYTES].tobytes())
    block[128:136], block[136:144] = length.to_bytes(8, "little"), UNIT.to_bytes(8, "little")
    block[CHECKSUM_OFFSET:] = page_digest(bytes(block[:CHECKSUM_OFFSET]))
    array.images[0][at : at + BLOCK_BYTES] = np.frombuffer(bytes(block), np.uint8)
    again = opened(rig, MemoryArray.from_images(array.images))
    assert [page.record.key for page in again.recovered] == [other.record.key]
    StripePlaces(THREADS).found(again.recovered, UNIT)
    again.close(None)
    check(MemoryArray.from_images(array.images), verify_payload=True)
