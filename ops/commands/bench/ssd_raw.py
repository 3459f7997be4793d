"""The device arrays against fio on the same files, and the scaling of throttled devices. No engine above them.

fio is the reference for what a disk gives: both read the same files with the same request size and depth, by turns in
one run, because the speed of a disk (and of a machine shared with others) changes from minute to minute while the ratio
of neighbours does not. Both read into huge pages, which decide the speed more than anything else here.

Bounds: an array reads at least 0.85 of what fio reads, on one file and on four; four throttled devices give at least
0.95 of four times one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from swift_tiers.radix_tiering.base.errors import SwiftTiersError
from swift_tiers.radix_tiering.base.memory import huge_array
from swift_tiers.radix_tiering.tiers.ssd.arrays.devices import DeviceArray, Operation, Request
from swift_tiers.radix_tiering.tiers.ssd.arrays.throttled import ThrottledArray
from swift_tiers.radix_tiering.tiers.ssd.files import Engine, create_device_file, open_array

from ...base.arguments import path_argument
from .report import MISSED, Figure, finish, parser, ratio, spread, take_turns

HEADER_BYTES = 4096
ARRAY_OVER_FIO = 0.85
LINEARITY = 0.95
#: Read before the clock starts, seconds: caches, queues and clocks of the disk settle.
RAMP_SECONDS = 0.3

Pattern = Literal["random", "sequential"]


@dataclass(frozen=True)
class RawReads:
    """Direct reads, round robin over the files, `depth` requests in flight over all of them.

    Random by default, as slots of pages are read. Sequential requests of one batch are merged by the block layer into
    fewer and larger ones before the disk sees them, which measures something else, and differently for fio, which
    submits one by one.
    """

    payload_bytes: int = 256 << 10
    depth: int = 32
    seconds: float = 1.5
    pattern: Pattern = "random"

    @property
    def request_bytes(self) -> int:
        return HEADER_BYTES + self.payload_bytes


@dataclass(frozen=True)
class Speed:
    """One measurement."""

    bytes_per_second: float
    cores: float  # CPU time over wall time


@dataclass(frozen=True)
class Comparison:
    """One array engine and fio, by turns, on the same files."""

    files: int
    description: str  # of the array
    fio: list[Speed]
    array: list[Speed]

    @property
    def over_fio(self) -> float:
        """Array over fio: the median of the rounds' ratios."""
        return ratio(*([speed.bytes_per_second for speed in speeds] for speeds in (self.array, self.fio)))


@dataclass(frozen=True)
class Scaling:
    """Throttled devices: bytes per second by number of devices, one entry per round."""

    rate: float  # bytes per second of each device
    speeds: dict[int, list[float]]

    def linearity(self, devices: int) -> float:
        """Speed of so many devices over so many times the speed of one: the median of the rounds' ratios."""
        return ratio(self.speeds[devices], [devices * one for one in self.speeds[1]])


def lay_out(folder: Path, count: int, size: int) -> list[Path]:
    """`count` files of `size` bytes in `folder`, every byte written: what is only allocated needs no disk to read."""
    paths = [folder / f"ssd-raw-{number}" for number in range(count)]
    piece = huge_array(8 << 20)
    piece[:] = np.random.default_rng(0).integers(0, 256, piece.nbytes, np.uint8)
    for path in paths:
        create_device_file(path, size)
    array = open_array(paths)
    try:
        for at in range(0, size, piece.nbytes):
            part = piece[: min(piece.nbytes, size - at)]
            array.submit([Request(at, Operation.WRITE, device, at, [part]) for device in range(count)])
            for completion in array.reap(count):
                if completion.error:
                    raise OSError(completion.error, os.strerror(completion.error), str(paths[completion.device]))
        for device in range(count):
            array.sync(device)
    finally:
        array.close()
    return paths


def run_fio(paths: Sequence[Path], workload: RawReads) -> Speed:
    """The same reads by fio (io_uring, direct). Raises FileNotFoundError without fio, RuntimeError if it fails."""
    command = [
        "fio",
        "--name=ssd-raw",
        "--ioengine=io_uring",
        "--direct=1",
        "--readonly",
        *(["--rw=randread", "--norandommap"] if workload.pattern == "random" else ["--rw=read"]),
        "--file_service_type=roundrobin",
        f"--filename={':'.join(str(path).replace(':', chr(92) + ':') for path in paths)}",
        f"--bs={workload.request_bytes}",
        f"--iodepth={workload.depth}",
        f"--runtime={round(workload.seconds * 1000)}ms",
        f"--ramp_time={round(RAMP_SECONDS * 1000)}ms",
        "--time_based",
        "--mem=malloc",
        "--output-format=json",
    ]
    # fio's own huge pages need hugetlbfs; glibc can ask for transparent ones, as our arrays' buffers do.
    environment = os.environ | {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=workload.seconds + 60)
    if done.returncode != 0:
        raise RuntimeError(f"fio failed: {done.stderr.strip() or done.stdout.strip()[-500:]}")
    return parse_fio(done.stdout)


def parse_fio(output: str) -> Speed:
    """The speed in fio's JSON; it may have warnings before it."""
    job = json.loads(output[output.index("{") :])["jobs"][0]
    if job["error"]:
        raise RuntimeError(f"fio reports error {job['error']}")
    return Speed(float(job["read"]["bw_bytes"]), (job["usr_cpu"] + job["sys_cpu"]) / 100)


def run_array(
    array: DeviceArray, workload: RawReads, use: Callable[[np.ndarray], object] = lambda block: None
) -> Speed:
    """Read through an array for a while: each request a 4 KiB header and a payload, as pages are stored.

    `use` gets what each request has read. Raises OSError on any failed request.
    """
    devices, size = len(array.sizes), workload.request_bytes
    pool = huge_array(workload.depth * size)
    slots = [pool[tag * size : (tag + 1) * size] for tag in range(workload.depth)]
    places = [device_size // size for device_size in array.sizes]
    if min(places) < workload.depth:
        raise ValueError(f"devices of {min(array.sizes)} bytes are too small for {workload.depth} requests of {size}")
    taken = [0] * devices
    generator = random.Random(0)

    def request(tag: int) -> Request:
        # A slot stays with its device, so that each device always has its share of the depth.
        device = tag % devices
        if workload.pattern == "random":
            place = generator.randrange(places[device])
        else:
            place = taken[device] % places[device]
            taken[device] += 1
        return Request(
            tag, Operation.READ, device, place * size, [slots[tag][:HEADER_BYTES], slots[tag][HEADER_BYTES:]]
        )

    array.submit([request(tag) for tag in range(workload.depth)])
    count, cpu, started = 0, _cpu_seconds(), time.perf_counter()
    measuring = False
    while True:
        completions = array.reap(max(1, workload.depth // 8))
        for completion in completions:
            if completion.error:
                raise OSError(completion.error, os.strerror(completion.error), f"device {completion.device}")
            use(slots[completion.tag])
        count += len(completions)
        passed = time.perf_counter() - started
        if measuring and passed >= workload.seconds:
            break
        if not measuring and passed >= RAMP_SECONDS:
            measuring, count, cpu, started = True, 0, _cpu_seconds(), time.perf_counter()
        array.submit([request(completion.tag) for completion in completions])
    spent = _cpu_seconds() - cpu
    while array.in_flight:
        array.reap(array.in_flight)
    return Speed(count * size / passed, spent / passed)


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def compare(paths: Sequence[Path], workload: RawReads, *, rounds: int, engine: Engine = "auto") -> Comparison:
    """fio and an array by turns."""
    array = open_array(paths, engine=engine)
    try:
        speeds = take_turns(
            {"fio": partial(run_fio, paths, workload), "array": partial(run_array, array, workload)}, rounds
        )
        return Comparison(len(paths), array.description, speeds["fio"], speeds["array"])
    finally:
        array.close()


def scale(paths: Sequence[Path], workload: RawReads, *, rate: float, rounds: int) -> Scaling:
    """1 to `len(paths)` devices of `rate` bytes per second each, by turns, 8 requests in flight on each."""

    def speed(count: int) -> float:
        array = ThrottledArray(open_array(paths[:count]), rate, latency=100e-6)
        try:
            return run_array(array, replace(workload, depth=8 * count)).bytes_per_second
        finally:
            array.close()

    return Scaling(rate, take_turns({count: partial(speed, count) for count in range(1, len(paths) + 1)}, rounds))


def _report_comparison(comparison: Comparison) -> None:
    print(f"{comparison.files} file(s); array: {comparison.description}")
    for name, speeds in (("fio", comparison.fio), ("array", comparison.array)):
        cores = statistics.median(speed.cores for speed in speeds)
        print(spread(name, [speed.bytes_per_second / 1e9 for speed in speeds], "GB/s") + f"  {cores:.2f} cores")


def _arguments() -> argparse.ArgumentParser:
    arguments = parser("ssd_raw", __doc__, rounds=7)
    arguments.add_argument(
        "--folder", type=path_argument, help="lay the test files out here (default: the temporary folder)"
    )
    arguments.add_argument(
        "--paths", type=path_argument, nargs="+", help="read these files or block devices instead; never written"
    )
    arguments.add_argument("--size", type=int, default=512, help="MiB of each test file")
    arguments.add_argument("--files", type=int, nargs="+", default=[1, 4], help="numbers of files to compare on")
    arguments.add_argument("--payload", type=int, default=256, help="KiB of payload per request, after a 4 KiB header")
    arguments.add_argument("--depth", type=int, default=32, help="requests in flight")
    arguments.add_argument("--pattern", choices=["random", "sequential"], default="random")
    arguments.add_argument("--seconds", type=float, default=1.5, help="of each measurement")
    arguments.add_argument("--engine", choices=["auto", "io_uring", "threads"], default="auto")
    arguments.add_argument("--rate", type=float, default=100.0, help="MB/s of each throttled device")
    arguments.add_argument("--without-fio", action="store_true", help="measure the scaling only")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run the bench; 0 if every bound is met, 3 if one is missed or could not be measured."""
    options = _arguments().parse_args(argv)
    try:
        with tempfile.TemporaryDirectory(prefix="ssd-raw-", dir=options.folder) as folder:
            paths = options.paths or lay_out(Path(folder), max(*options.files, 4), options.size << 20)
            return _measure(paths, options)
    except (SwiftTiersError, OSError, RuntimeError, ValueError, MemoryError) as error:
        print(f"ssd_raw: failed: {error}", file=sys.stderr)
        return MISSED


def _measure(paths: Sequence[Path], options: argparse.Namespace) -> int:
    workload = RawReads(options.payload << 10, options.depth, options.seconds, options.pattern)
    figures: list[Figure] = []
    comparisons: list[Comparison] = []
    counts = [] if options.without_fio else sorted({min(count, len(paths)) for count in options.files})
    for count in counts:
        over_fio = None
        if shutil.which("fio") is None:
            print(f"{count} file(s): fio is not installed (apt-get install fio); --without-fio leaves it out")
        else:
            comparison = compare(paths[:count], workload, rounds=options.rounds, engine=options.engine)
            _report_comparison(comparison)
            comparisons.append(comparison)
            over_fio = comparison.over_fio
        figures.append(Figure(f"array_over_fio_{count}", over_fio, at_least=ARRAY_OVER_FIO))
    scaling = scale(paths[:4], workload, rate=options.rate * 1e6, rounds=min(3, options.rounds))
    for devices, speeds in scaling.speeds.items():
        line = spread(f"{devices} device(s) of {options.rate:g} MB/s", [speed / 1e6 for speed in speeds], "MB/s")
        print(f"{line}  {scaling.linearity(devices):.3f} of linear")
    devices = max(scaling.speeds)
    figures.append(Figure(f"linearity_{devices}", scaling.linearity(devices), at_least=LINEARITY))
    details = {
        "workload": asdict(workload),
        "comparisons": [asdict(comparison) for comparison in comparisons],
        "scaling": asdict(scaling),
    }
    return finish("ssd_raw", figures, details, options.json)


if __name__ == "__main__":
    raise SystemExit(main())
