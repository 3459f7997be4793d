"""The one contract, over every array; then what only arrays of real files have."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swift_tiers.radix_tiering.base.errors import ConfigError, StripeSetBusyError
from swift_tiers.radix_tiering.tiers.ssd.arrays import file_array, uring
from swift_tiers.radix_tiering.tiers.ssd.arrays.devices import Completion, DeviceArray, Operation, Request
from swift_tiers.radix_tiering.tiers.ssd.arrays.throttled import ThrottledArray
from swift_tiers.radix_tiering.tiers.ssd.files import ThreadArray, UringArray, create_device_file, open_array
from swift_tiers.radix_tiering.tiers.testing.memory_array import MemoryArray

from support.examples import examples
from support.faulty_array import FaultyArray
from support.recording_array import RecordingArray

BLOCK = 4096
BLOCKS = 16
SIZES = (BLOCKS * BLOCK,) * 3
READ, WRITE = Operation.READ, Operation.WRITE

Maker = Callable[[Path], DeviceArray]


def paths_in(folder: Path) -> list[Path]:
    paths = [folder / f"device{i}" for i in range(len(SIZES))]
    for path, size in zip(paths, SIZES, strict=True):
        create_device_file(path, size)
    return paths


MAKERS: dict[str, Maker] = {
    "io_uring": lambda folder: UringArray(paths_in(folder), depth=4),
    "threads": lambda folder: ThreadArray(paths_in(folder), depth=4, threads=2),
    "memory": lambda folder: MemoryArray(SIZES),
    "recording": lambda folder: RecordingArray(MemoryArray(SIZES)),
    "faulty": lambda folder: FaultyArray(MemoryArray(SIZES)),
    "throttled": lambda folder: ThrottledArray(MemoryArray(SIZES), 1e9, latency=1e-5),
    "throttled files": lambda folder: ThrottledArray(open_array(paths_in(folder)), 1e9, latency=1e-5),
}


@contextlib.contextmanager
def opened(maker: Maker) -> Iterator[DeviceArray]:
    reason = uring.probe()
    if reason is not None:
        pytest.fail(f"UringArray cannot be tested here: {reason}")
    with tempfile.TemporaryDirectory() as folder:
        array = maker(Path(folder))
        try:
            yield array
        finally:
            array.close()


@pytest.fixture(params=list(MAKERS))
def array(request: pytest.FixtureRequest) -> Iterator[DeviceArray]:
    with opened(MAKERS[request.param]) as array:
        yield array


def aligned(size: int, fill: int = 0) -> np.ndarray:
    """`size` bytes at a 4 KiB boundary."""
    room = np.full(size + BLOCK, fill, np.uint8)
    start = -room.ctypes.data % BLOCK
    return room[start : start + size]


def run(array: DeviceArray, *requests: Request) -> dict[int, int]:
    """Carry requests out; tag -> error."""
    array.submit(requests)
    completions = array.reap(len(requests), 30)
    assert {(c.tag, c.device) for c in completions} == {(r.tag, r.device) for r in requests}
    return {completion.tag: completion.error for completion in completions}


def test_an_idle_array_waits_for_nothing(array: DeviceArray) -> None:
    assert tuple(array.sizes) == SIZES
    assert array.description
    array.submit([])
    assert array.in_flight == 0
    assert list(array.reap(0)) == []
    assert list(array.reap(5)) == []  # nothing is in flight: asking for more does not wait for ever


def test_header_and_payload_slices_come_back_in_order(array: DeviceArray) -> None:
    pieces = [aligned(BLOCK, 1), aligned(3 * BLOCK, 2), aligned(BLOCK, 3)]
    assert run(array, Request(41, WRITE, 1, 2 * BLOCK, pieces)) == {41: 0}
    assert array.sync(1) == 0
    room = [aligned(2 * BLOCK), aligned(3 * BLOCK)]
    others = aligned(SIZES[0])
    assert run(array, Request(42, READ, 1, 2 * BLOCK, room), Request(43, READ, 0, 0, [others])) == {42: 0, 43: 0}
    assert bytes(np.concatenate(room)) == bytes(np.concatenate(pieces))
    assert not others.any()
    assert array.present(1)


def test_more_requests_than_the_system_takes_at_once(array: DeviceArray) -> None:
    rooms = [aligned(BLOCK) for _ in range(200)]
    array.submit([Request(i, READ, i % 3, (i % BLOCKS) * BLOCK, [room]) for i, room in enumerate(rooms)])
    assert array.in_flight == 200
    seen = []
    while array.in_flight:
        before = array.in_flight
        got = array.reap(7, 30)
        assert len(got) >= min(7, before)
        assert array.in_flight == before - len(got)
        seen += [completion.tag for completion in got]
    assert sorted(seen) == list(range(200))


def test_more_buffers_than_usual_and_the_same_tag_twice(array: DeviceArray) -> None:
    pieces = [aligned(BLOCK, i) for i in range(BLOCKS)]
    array.submit([Request(1, WRITE, 0, 0, pieces), Request(1, WRITE, 2, 0, pieces)])
    assert sorted(array.reap(2, 30)) == [Completion(1, 0, 0), Completion(1, 2, 0)]
    room = aligned(SIZES[2])
    run(array, Request(1, READ, 2, 0, [room]))
    assert bytes(room[::BLOCK]) == bytes(range(BLOCKS))


@pytest.mark.parametrize(
    "bad",
    [
        Request(9, READ, 3, 0, [aligned(BLOCK)]),
        Request(9, READ, -1, 0, [aligned(BLOCK)]),
        Request(9, READ, 0, -BLOCK, [aligned(BLOCK)]),
        Request(9, WRITE, 0, SIZES[0], [aligned(BLOCK)]),
        Request(9, WRITE, 0, SIZES[0] - BLOCK, [aligned(BLOCK), aligned(BLOCK)]),
        Request(9, READ, 0, 0, []),
        Request(9, READ, 0, 0, [aligned(2 * BLOCK)[::2]]),
        Request(9, READ, 0, 0, [aligned(BLOCK).view(np.uint16)]),
        Request(9, READ, 0, 0, [np.frombuffer(bytes(BLOCK), np.uint8)]),
    ],
)
def test_a_request_that_cannot_be_meant_is_raised_and_nothing_is_started(array: DeviceArray, bad: Request) -> None:
    data = aligned(BLOCK, 7)
    with pytest.raises(ValueError, match="request 9"):
        array.submit([Request(1, WRITE, 0, 0, [data]), bad])
    assert array.in_flight == 0
    room = aligned(BLOCK)
    run(array, Request(2, READ, 0, 0, [room]))
    assert not room.any()


def test_close_waits_for_what_is_in_flight_and_may_be_repeated() -> None:
    for engine in (UringArray, ThreadArray):
        with tempfile.TemporaryDirectory() as folder:
            paths = paths_in(Path(folder))
            array = engine(paths, depth=2)
            array.submit([Request(i, WRITE, i % 3, 0, [aligned(SIZES[0], 0xA0 + i)]) for i in range(3)])
            array.close()
            array.close()
            with pytest.raises(ValueError, match="closed"):
                array.submit([Request(1, READ, 0, 0, [aligned(BLOCK)])])
            assert list(array.reap(1)) == []
            assert [path.read_bytes() for path in paths] == [bytes([0xA0 + i]) * SIZES[0] for i in range(3)]


ACCESS = st.tuples(st.sampled_from(Operation), st.integers(0, 2), st.integers(0, BLOCKS - 1), st.integers(1, 5))
BATCHES = st.lists(st.tuples(st.lists(ACCESS, max_size=12), st.integers(0, 12)), max_size=6)


@pytest.mark.parametrize("name", list(MAKERS))
@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(batches=BATCHES, seed=st.integers(0, 2**32 - 1))
def test_an_array_agrees_with_a_bytearray(
    name: str, batches: list[tuple[list[tuple[Operation, int, int, int]], int]], seed: int
) -> None:
    """Reads and writes that do not overlap while in flight give what a bytearray would."""
    generator = np.random.default_rng(seed)
    model = [bytearray(size) for size in SIZES]
    with opened(MAKERS[name]) as array:
        for accesses, at_least in batches:
            taken: set[tuple[int, int]] = set()
            requests, expected = [], {}
            for operation, device, first, count in accesses:
                count = min(count, BLOCKS - first)
                blocks = {(device, block) for block in range(first, first + count)}
                if blocks & taken:
                    continue
                taken |= blocks
                cut = int(generator.integers(0, count)) * BLOCK
                whole = aligned(count * BLOCK)
                start, stop = first * BLOCK, (first + count) * BLOCK
                if operation == WRITE:
                    whole[:] = generator.integers(0, 256, whole.nbytes, np.uint8)
                    model[device][start:stop] = whole.tobytes()
                else:
                    expected[len(requests)] = (whole, bytes(model[device][start:stop]))
                buffers = [part for part in (whole[:cut], whole[cut:]) if part.nbytes]
                requests.append(Request(len(requests), operation, device, start, buffers))
            array.submit(requests)
            got = list(array.reap(at_least, 30))
            assert len(got) >= min(at_least, len(requests))
            got += array.reap(array.in_flight, 30)
            assert sorted(got) == [Completion(request.tag, request.device, 0) for request in requests]
            for whole, content in expected.values():
                assert whole.tobytes() == content
        for device, content in enumerate(model):
            room = aligned(len(content))
            assert run(array, Request(0, READ, device, 0, [room])) == {0: 0}
            assert room.tobytes() == bytes(content)


# -- Real files --------------------------------------------------------------------------------------------------------

ENGINES = pytest.mark.parametrize("engine", ["io_uring", "threads"])


@ENGINES
def test_reading_past_what_a_file_still_has_is_eio(engine: str, tmp_path: Path) -> None:
    paths = paths_in(tmp_path)
    array = open_array(paths, engine=engine)  # type: ignore[arg-type]
    os.truncate(paths[0], 2 * BLOCK)
    requests = [Request(i, READ, 0, i * BLOCK, [aligned(2 * BLOCK)]) for i in (0, 1, 4)]
    assert run(array, *requests) == {0: 0, 1: errno.EIO, 4: errno.EIO}
    assert not array.present(0)
    assert array.present(1)
    array.close()


@ENGINES
def test_a_deleted_file_is_not_present_and_a_misaligned_request_is_einval(engine: str, tmp_path: Path) -> None:
    paths = paths_in(tmp_path)
    array = open_array(paths, engine=engine)  # type: ignore[arg-type]
    assert [array.present(i) for i in range(3)] == [True] * 3
    paths[1].unlink()
    assert [array.present(i) for i in range(3)] == [True, False, True]
    assert run(array, Request(1, WRITE, 0, 0, [aligned(2 * BLOCK)])) == {1: 0}
    assert run(array, Request(2, READ, 0, 100, [aligned(BLOCK)])) == {2: direct_read_error(paths[0], 100)}
    array.close()
    assert array.sync(0) == errno.EBADF
    assert not array.present(0)


def direct_read_error(path: Path, offset: int) -> int:
    """What this file system itself says to a direct read there: most refuse a misaligned one, some do not mind."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        os.preadv(fd, [aligned(BLOCK)], offset)
    except OSError as error:
        return error.errno or 0
    finally:
        os.close(fd)
    return 0


def test_a_timeout_returns_what_there_is_and_a_short_transfer_goes_on(tmp_path: Path) -> None:
    """A pipe in the place of a device, because it is the one file that gives short counts to order."""
    array = UringArray(paths_in(tmp_path), depth=4)
    source, sink = os.pipe()
    kept, array._fds[0] = array._fds[0], source
    rooms = [aligned(BLOCK), aligned(BLOCK), aligned(BLOCK)]
    content = np.random.default_rng(1).integers(0, 256, 3 * BLOCK, np.uint8).tobytes()
    array.submit([Request(1, READ, 0, 0, rooms)])
    for part in (content[:512], content[512 : BLOCK + 1024]):
        os.write(sink, part)
        started = time.monotonic()
        assert list(array.reap(1, 0.03)) == []
        assert time.monotonic() - started < 5
        assert array.in_flight == 1
    os.write(sink, content[BLOCK + 1024 :])
    assert list(array.reap(1, 10)) == [Completion(1, 0, 0)]
    assert b"".join(room.tobytes() for room in rooms) == content

    array.submit([Request(2, READ, 0, 0, rooms)])
    os.write(sink, content[:100])  # where direct I/O cannot resume
    assert list(array.reap(1, 10)) == [Completion(2, 0, errno.EIO)]
    array._fds[0] = kept
    array.close()
    os.close(source)
    os.close(sink)


def test_short_transfers_of_threads_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, offset: real(fd, [buffers[0][:BLOCK]], offset))
    paths = paths_in(tmp_path)
    array = ThreadArray(paths)
    pieces = [aligned(3 * BLOCK, 1), aligned(2 * BLOCK, 2)]
    assert run(array, Request(1, WRITE, 0, BLOCK, pieces)) == {1: 0}
    array.close()
    assert paths[0].read_bytes()[BLOCK : 6 * BLOCK] == bytes([1] * 3 * BLOCK + [2] * 2 * BLOCK)


def test_a_kernel_short_of_memory_delays_requests_and_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = UringArray(paths_in(tmp_path), depth=4)
    real = array._ring.enter
    refused = []

    def enter(wait: int = 0, timeout: float | None = None, *, submit: bool = True) -> bool:
        if submit and len(refused) < 5:
            refused.append(wait)
            return False
        return real(wait, timeout, submit=submit)

    monkeypatch.setattr(array._ring, "enter", enter)
    assert run(array, *(Request(i, READ, 0, 0, [aligned(BLOCK)]) for i in range(9))) == dict.fromkeys(range(9), 0)
    assert len(refused) == 5
    array.close()


@ENGINES
def test_a_stripe_set_belongs_to_one_process(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_array, "HELD_SECONDS", 0.1)
    paths = paths_in(tmp_path)
    gc.collect()  # what other tests have left must not go meanwhile
    handles = len(os.listdir("/proc/self/fd"))
    array = open_array(paths[1:], engine=engine)  # type: ignore[arg-type]
    with pytest.raises(StripeSetBusyError, match=r"device1: another server holds it; stop"):
        open_array(paths)
    array.close()
    open_array(paths).close()
    assert len(os.listdir("/proc/self/fd")) == handles  # also of the set that could not be opened


def test_the_next_server_waits_until_one_that_was_killed_has_ended(tmp_path: Path) -> None:
    paths = paths_in(tmp_path)
    array = open_array(paths)
    ends = threading.Timer(0.2, array.close)
    ends.start()
    open_array(paths).close()
    ends.join()


def test_what_cannot_be_a_device_is_refused_with_a_reason(tmp_path: Path) -> None:
    paths = paths_in(tmp_path)
    link = tmp_path / "link"
    link.symlink_to(paths[0])
    for wrong, words in [
        ([], "at least one path"),
        ([paths[0], link], "is the same device as"),
        ([paths[0], tmp_path / "nowhere"], "No such file"),
        ([tmp_path], "neither a regular file nor a block device"),
        ([Path("/dev/null")], "neither a regular file nor a block device"),
        ([link], "is a symbolic link"),
    ]:
        with pytest.raises(ConfigError, match=words):
            open_array(wrong)
    with open_locked(paths[0]):
        pass  # nothing above left it locked


@contextlib.contextmanager
def open_locked(path: Path) -> Iterator[None]:
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


@ENGINES
def test_where_direct_io_is_refused_the_array_is_buffered_and_says_so(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refuse(path: Path, flags: int, *rest: int) -> int:
        if flags & os.O_DIRECT and str(path).endswith("device1"):
            raise OSError(errno.EINVAL, "Invalid argument", str(path))
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", refuse)
    array = open_array(paths_in(tmp_path), engine=engine)  # type: ignore[arg-type]
    assert f"O_DIRECT, but {tmp_path / 'device1'} buffered" in array.description
    assert run(array, Request(1, WRITE, 1, 0, [aligned(BLOCK, 5)])) == {1: 0}
    assert (tmp_path / "device1").read_bytes()[:BLOCK] == bytes([5]) * BLOCK
    array.close()
