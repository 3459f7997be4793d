"""The SSD tier: reading pages through it against fio, and its devices added up.

Read speed: pages in random order through `StripeSet.read_many`, every byte verified (xxh3-128), against fio (where it
is installed) reading the same files with the same request size and as many requests in flight, by turns, at two depths.

A third reader tells what verifying costs from what looking at the bytes costs: the bare device array, which loads one
word of every cache line it has read and does nothing else. On a virtual machine whose disk is copied into memory by the
host, that alone takes up to a third of the speed: the copy has to fetch every line back from the cache of the one who
looked. fio never looks. Scaling: 1 to 4 devices throttled to one speed each. Coded: pages of made-up KV in bfloat16
from devices so slow, written by `ssd.codec` zstd, against the same pages written as they are.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ...base.arguments import path_argument
from .report import Figure, finish, parser, ratio, spread, take_turns

FILES, FILE_BYTES = 4, 512 * 2**20
THROTTLED_BYTES = 64 * 2**20
UNIT = 256 * 2**10  # bytes of a stripe unit
#: One unit a device: two neighbours on one device would become one request of twice the size in the block layer.
PAGE_UNITS = FILES
#: Requests in flight on all devices together. The tier's land in as many pages as that takes, twice over for the lower
#: depth, since a page gives its buffer back with its last unit only; fio's land in one buffer each.
DEPTHS = (32, 128)
WINDOWS = {32: 16, 128: 64}  # pages
THROTTLE = 100 * 10**6
#: Of a page of Qwen3-8B, of which seven are left by the codec.
CODED_UNITS = 9
AGAINST_FIO, LINEAR, CODED = {32: 0.85, 128: 0.9}, 0.95, 1.2


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser("ssd", __doc__, rounds=5)
    arguments.add_argument("--directory", type=path_argument, help="where to measure (default: a temporary directory)")
    arguments.add_argument(
        "--size", type=int, default=FILE_BYTES >> 20, metavar="MIB", help="of each of the files (%(default)s)"
    )
    options = arguments.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="swift-tiers-bench-", dir=options.directory) as folder:
        return _measure(Path(folder), options)


def _measure(folder: Path, options: Any) -> int:
    from swift_tiers.radix_tiering.tiers.ssd.files import create_device_file, open_array

    paths = [folder / f"device{number}" for number in range(FILES)]
    for path in paths:
        create_device_file(path, options.size << 20)
    stripes, array = _open(open_array(paths))
    count = len(pages := _fill(stripes))
    description = array.description
    stripes.close(pages)
    array.close()
    with_fio = shutil.which("fio") is not None
    cases: dict[tuple[str, int], Callable[[], float]] = {}
    for depth in DEPTHS:
        cases["tier", depth] = partial(_read_speed, paths, depth)
        cases["looking", depth] = partial(_look_speed, paths, depth)
        if with_fio:
            cases["fio", depth] = partial(_fio_speed, paths, depth)
    speeds = take_turns(cases, options.rounds)
    print(f"{FILES} files of {options.size} MiB, {count} pages of {PAGE_UNITS} x 256 KiB, {description}")
    figures = []
    names = {"tier": "through the tier, verified", "looking": "bare array, looked at", "fio": "fio, not looked at"}
    for (reader, depth), values in speeds.items():
        print(spread(f"{names[reader]}, {depth} at a time", [value / 1e9 for value in values], "GB/s"))
    for depth in DEPTHS:
        if with_fio:
            share = ratio(speeds["tier", depth], speeds["fio", depth])
            figures.append(Figure(f"read_{depth}", share, " of fio", at_least=AGAINST_FIO[depth]))
        share = ratio(speeds["tier", depth], speeds["looking", depth])
        figures.append(Figure(f"verifying_{depth}", share, " of looking at it"))
    if not with_fio:
        print("  fio is not installed: nothing to hold the speed against")
    rates = _scaling(folder, min(THROTTLED_BYTES, options.size << 20))
    for count, rate in rates.items():
        print(f"  {count} device(s) throttled to {THROTTLE / 1e6:.0f} MB/s: {rate / 1e6:8.1f} MB/s")
    linear = min(rate / count / rates[1] for count, rate in rates.items())
    figures.append(Figure("scaling", linear, " of linear", at_least=LINEAR))
    coded = {codec: _coded_rate(folder, min(THROTTLED_BYTES, options.size << 20), codec) for codec in ("none", "zstd")}
    for codec, rate in coded.items():
        print(f"  {FILES} such devices, ssd.codec {codec}: {rate / 1e6:8.1f} MB/s of pages")
    figures.append(Figure("coded", coded["zstd"] / coded["none"], " of as they are", at_least=CODED))
    fastest = max(statistics.median(speeds["tier", depth]) for depth in DEPTHS)
    figures.append(Figure("read_speed", fastest / 1e9, "GB/s"))
    measured = {f"{reader}_{depth}": values for (reader, depth), values in speeds.items()}
    smaller = options.size << 20 < FILE_BYTES
    return finish("ssd", figures, {**measured, "scaling": rates, "coded": coded}, options.json, smaller=smaller)


def _read_speed(paths: Sequence[Path], depth: int) -> float:
    """Bytes of pages per second through the tier."""
    from swift_tiers.radix_tiering.tiers.ssd.files import open_array

    stripes, array = _open(open_array(paths), depth // FILES)
    pages = stripes.recovered
    seconds = _read(stripes, pages, depth, WINDOWS[depth])
    stripes.close(pages)
    array.close()
    return sum(page.record.length for page in pages) / seconds


def _fio_speed(paths: Sequence[Path], depth: int) -> float:
    """As `_read_speed`, by fio: its requests carry header and payload, as the tier's do, and only payload counts."""
    from .ssd_raw import RawReads, run_fio

    workload = RawReads(UNIT, depth)
    return run_fio(paths, workload).bytes_per_second * UNIT / workload.request_bytes


def _open(array: Any, depth: int = 32, *, codes: bool = False) -> tuple[Any, Any]:
    """A stripe set as `SsdTier` opens it, but for the requests in flight per device."""
    from swift_tiers.radix_tiering.tiers.ssd import StripeSet

    return StripeSet.open(array, create=UNIT, depth=depth, verifiers=1, codes=codes), array


def _noise(nbytes: int) -> Any:
    import numpy as np

    return np.random.default_rng(0).integers(0, 256, nbytes, dtype=np.uint8)


def _made_up_kv(nbytes: int) -> Any:
    """Numbers in bfloat16 that are normally distributed, in each channel of 128 as far as it has it."""
    import numpy as np

    draw = np.random.default_rng(0)
    values = draw.standard_normal((nbytes // 256, 128)) * draw.lognormal(0.0, 1.0, 128)
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).reshape(-1)


def _fill(
    stripes: Any, share: float = 0.9, units: int = PAGE_UNITS, content: Callable[[int], Any] = _noise
) -> list[Any]:
    """Write pages of random bytes until the devices are nearly full."""
    from swift_tiers.radix_tiering.base.memory import huge_array
    from swift_tiers.radix_tiering.base.page import ROOT_KEY, PageRecord

    namespace = bytes(16)
    stripes.register_namespace(namespace, "bench")
    length = units * UNIT
    data = huge_array(length)
    data[:] = content(length)
    pages, written = [], threading.Semaphore(0)
    count = int(stripes.free_units * share) // units

    def done(stored: Any, reason: str) -> None:
        assert stored is not None, reason
        pages.append(stored)
        written.release()

    for number in range(count):
        record = PageRecord(number.to_bytes(32, "little"), ROOT_KEY, namespace, 1, length)
        stripes.write(record, stripes.reserve(length), data, done)
    for _ in range(count):
        written.acquire()
    return pages


def _read(stripes: Any, pages: Sequence[Any], seed: int, window: int = 32) -> float:
    """Seconds to read and verify all pages in random order, `window` of them at a time."""
    import numpy as np

    from swift_tiers.radix_tiering.base.memory import huge_array

    length = max(page.record.length for page in pages)
    buffers = huge_array(window * length).reshape(window, length)
    free = list(range(window))
    some_free = threading.Semaphore(window)
    failed: list[Any] = []

    def done_with(slot: int) -> Any:
        def done(outcome: Any) -> None:
            if not outcome.ok:
                failed.append(outcome)
            free.append(slot)
            some_free.release()

        return done

    started = time.perf_counter()
    for index in np.random.default_rng(seed).permutation(len(pages)):
        some_free.acquire()
        slot = free.pop()
        stripes.read(pages[index], buffers[slot], done_with(slot))
    for _ in range(window):
        some_free.acquire()
    seconds = time.perf_counter() - started
    assert not failed, failed[:3]
    return seconds


def _look_speed(paths: Sequence[Path], depth: int) -> float:
    """Likewise, with nothing but the array, loading one word of every cache line."""
    import numpy as np

    from swift_tiers.radix_tiering.tiers.ssd.files import open_array

    from .ssd_raw import RawReads, run_array

    workload = RawReads(UNIT, depth)
    array = open_array(paths)
    try:
        speed = run_array(array, workload, lambda block: block.view(np.uint64)[::8].sum())
    finally:
        array.close()
    return speed.bytes_per_second * UNIT / workload.request_bytes


def _scaling(folder: Path, file_bytes: int) -> dict[int, float]:
    """Bytes per second through stripe sets of 1 to 4 devices of this size, each throttled to `THROTTLE`."""
    return {count: _throttled_rate(folder, f"throttled{count}", count, file_bytes) for count in range(1, FILES + 1)}


def _coded_rate(folder: Path, file_bytes: int, codec: str) -> float:
    """Bytes of pages per second from as many devices, throttled so, that were written in this codec."""
    return _throttled_rate(
        folder, codec, FILES, file_bytes, codes=codec != "none", units=CODED_UNITS, content=_made_up_kv
    )


def _throttled_rate(
    folder: Path, name: str, count: int, file_bytes: int, *, codes: bool = False, **of_pages: Any
) -> float:
    """Bytes of pages per second through a new stripe set of so many devices. `of_pages`: see `_fill`."""
    from swift_tiers.radix_tiering.tiers.ssd.arrays.throttled import ThrottledArray
    from swift_tiers.radix_tiering.tiers.ssd.files import create_device_file, open_array

    paths = [folder / f"{name}-{number}" for number in range(count)]
    for path in paths:
        create_device_file(path, file_bytes)
    stripes, array = _open(open_array(paths), codes=codes)
    pages = _fill(stripes, **of_pages)
    stripes.close(pages)
    array.close()
    array = ThrottledArray(open_array(paths), THROTTLE)
    stripes, _ = _open(array)
    pages = stripes.recovered
    rate = sum(page.record.length for page in pages) / _read(stripes, pages, count)
    stripes.close(pages)
    array.close()
    return rate


if __name__ == "__main__":
    raise SystemExit(main())
