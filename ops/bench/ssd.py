"""The SSD tier: reading pages through it against fio, and its devices added up.

Read speed: pages in random order through `StripeSet.read_many`, every byte verified (xxh3-128), straight into host
pages, against fio (where it is installed) reading the same files with the same request size, by turns. Scaling: 1 to 4
devices throttled to one speed each.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from swift_tiers.ops.bench.report import Figure, finish, parser, spread

FILES, FILE_BYTES = 4, 512 * 2**20
UNIT = 256 * 2**10
PAGE_UNITS = 8
DEPTH = 32
THROTTLE = 100 * 10**6
AGAINST_FIO, LINEAR = 0.85, 0.95


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser("ssd", __doc__, rounds=5)
    arguments.add_argument("--directory", type=Path, help="where to measure (default: a temporary directory)")
    options = arguments.parse_args(argv)
    folder = Path(tempfile.mkdtemp(prefix="swift-tiers-bench-", dir=options.directory))
    try:
        return _measure(folder, options)
    finally:
        shutil.rmtree(folder)


def _measure(folder: Path, options: Any) -> int:
    from swift_tiers.ops.bench.ssd_raw import Workload, run_fio
    from swift_tiers.radix_tiering.ssd.files import create_device_file, open_array

    paths = [folder / f"device{number}" for number in range(FILES)]
    for path in paths:
        create_device_file(path, FILE_BYTES)
    stripes, array = _open(open_array(paths))
    pages = _fill(stripes)
    total = sum(page.record.length for page in pages)
    with_fio = shutil.which("fio") is not None
    tier: list[float] = []
    fio: list[float] = []
    for number in range(options.rounds + 1):
        speed = total / _read(stripes, pages, number)
        if number:
            tier.append(speed)
        if with_fio:
            # fio's requests carry header and payload, as the tier's do; only payload counts for the tier.
            speed = run_fio(paths, Workload(UNIT, DEPTH)).bytes_per_second * UNIT / (UNIT + 4096)
            if number:
                fio.append(speed)
    stripes.close(pages)
    array.close()
    print(f"{FILES} files of {FILE_BYTES >> 20} MiB, {len(pages)} pages of {PAGE_UNITS} x 256 KiB, {array.description}")
    print(spread("through the tier, verified", [value / 1e9 for value in tier], "GB/s"))
    figures = []
    if with_fio:
        print(spread("fio", [value / 1e9 for value in fio], "GB/s"))
        ratio = statistics.median(ours / theirs for ours, theirs in zip(tier, fio, strict=True))
        figures.append(Figure("read", ratio, " of fio", at_least=AGAINST_FIO))
    else:
        print("  fio is not installed: nothing to hold the speed against")
    rates = _scaling(folder)
    for count, rate in rates.items():
        print(f"  {count} device(s) throttled to {THROTTLE / 1e6:.0f} MB/s: {rate / 1e6:8.1f} MB/s")
    linear = min(rate / count / rates[1] for count, rate in rates.items())
    figures.append(Figure("scaling", linear, " of linear", at_least=LINEAR))
    figures.append(Figure("read_speed", statistics.median(tier) / 1e9, "GB/s"))
    return finish("ssd", figures, {"tier": tier, "fio": fio, "scaling": rates}, options.json)


def _open(array: Any) -> tuple[Any, Any]:
    from swift_tiers.radix_tiering.ssd import StripeSet
    from swift_tiers.radix_tiering.ssd.members import Standing, probe

    if all(probe(array, device).standing is Standing.BLANK for device in range(len(array.sizes))):
        StripeSet.create(array, UNIT)
    return StripeSet.open(array, depth=DEPTH), array


def _fill(stripes: Any, share: float = 0.9) -> list[Any]:
    """Write pages of random bytes until the devices are nearly full."""
    import numpy as np

    from swift_tiers.radix_tiering.memory import huge_array
    from swift_tiers.radix_tiering.page import ROOT_KEY, PageRecord

    namespace = bytes(16)
    stripes.register_namespace(namespace, "bench")
    length = PAGE_UNITS * UNIT
    data = huge_array(length)
    data[:] = np.random.default_rng(0).integers(0, 256, length, dtype=np.uint8)
    pages, written = [], threading.Semaphore(0)
    count = int(stripes.free_units * share) // PAGE_UNITS

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


def _read(stripes: Any, pages: Sequence[Any], seed: int) -> float:
    """Seconds to read and verify all pages in random order, a bounded number of them at a time."""
    import numpy as np

    from swift_tiers.radix_tiering.memory import huge_array

    length = PAGE_UNITS * UNIT
    buffers = huge_array(32 * length).reshape(32, length)
    free = list(range(32))
    some_free = threading.Semaphore(32)
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
    for _ in range(32):
        some_free.acquire()
    seconds = time.perf_counter() - started
    assert not failed, failed[:3]
    return seconds


def _scaling(folder: Path) -> dict[int, float]:
    """Bytes per second through stripe sets of 1 to 4 devices, each throttled to `THROTTLE`."""
    from swift_tiers.radix_tiering.ssd.files import create_device_file, open_array
    from swift_tiers.radix_tiering.ssd.throttled import ThrottledArray

    rates = {}
    for count in range(1, FILES + 1):
        paths = [folder / f"throttled{count}-{number}" for number in range(count)]
        for path in paths:
            create_device_file(path, 64 * 2**20)
        stripes, array = _open(open_array(paths))
        pages = _fill(stripes)
        stripes.close(pages)
        array.close()
        array = ThrottledArray(open_array(paths), THROTTLE)
        stripes, _ = _open(array)
        pages = stripes.recovered
        rates[count] = sum(page.record.length for page in pages) / _read(stripes, pages, count)
        stripes.close(pages)
        array.close()
    return rates


if __name__ == "__main__":
    raise SystemExit(main())
