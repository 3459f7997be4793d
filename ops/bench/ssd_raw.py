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
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from swift_tiers.radix_tiering.errors import SwiftTiersError
from swift_tiers.radix_tiering.memory import huge_array
from swift_tiers.radix_tiering.ssd.devices import DeviceArray, Operation, Request
from swift_tiers.radix_tiering.ssd.files import Engine, create_device_file, open_array
from swift_tiers.radix_tiering.ssd.throttled import ThrottledArray

HEADER_BYTES = 4096
ARRAY_OVER_FIO = 0.85
LINEARITY = 0.95
#: Read before the clock starts, seconds: caches, queues and clocks of the disk settle.
RAMP_SECONDS = 0.3

Pattern = Literal["random", "sequential"]


@dataclass(frozen=True)
class Workload:
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
    def ratios(self) -> list[float]:
        """Array over fio, round by round."""
        return [mine.bytes_per_second / its.bytes_per_second for mine, its in zip(self.array, self.fio, strict=True)]


@dataclass(frozen=True)
class Scaling:
    """Throttled devices: bytes per second by number of devices, one entry per round."""

    rate: float  # bytes per second of each device
    speeds: dict[int, list[float]] = field(default_factory=dict)

    def linearity(self, devices: int) -> float:
        """Speed of so many devices over so many times the speed of one; medians."""
        one = statistics.median(self.speeds[1])
        return statistics.median(self.speeds[devices]) / (devices * one)


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


def run_fio(paths: Sequence[Path], workload: Workload) -> Speed:
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


def run_array(array: DeviceArray, workload: Workload) -> Speed:
    """Read through an array for a while: each request a 4 KiB header and a payload, as pages are stored.

    Raises OSError on any failed request.
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


def compare(paths: Sequence[Path], workload: Workload, *, rounds: int, engine: Engine = "auto") -> Comparison:
    """fio and an array by turns, the first of each round changing; one more round before, which is not counted."""
    array = open_array(paths, engine=engine)
    try:
        comparison = Comparison(len(paths), array.description, [], [])
        for number in range(-1, rounds):
            measured: dict[str, Speed] = {}
            for who in ("fio", "array") if number % 2 else ("array", "fio"):
                measured[who] = run_fio(paths, workload) if who == "fio" else run_array(array, workload)
            if number >= 0:
                comparison.fio.append(measured["fio"])
                comparison.array.append(measured["array"])
    finally:
        array.close()
    return comparison


def scale(paths: Sequence[Path], workload: Workload, *, rate: float, rounds: int) -> Scaling:
    """1 to `len(paths)` devices of `rate` bytes per second each, by turns, 8 requests in flight on each."""
    scaling = Scaling(rate, {count: [] for count in range(1, len(paths) + 1)})
    for _ in range(rounds):
        for count, speeds in scaling.speeds.items():
            array = ThrottledArray(open_array(paths[:count]), rate, latency=100e-6)
            try:
                speeds.append(run_array(array, replace(workload, depth=8 * count)).bytes_per_second)
            finally:
                array.close()
    return scaling


def _line(name: str, values: Sequence[float], unit: str = "GB/s", scale_by: float = 1e9) -> str:
    scaled = [value / scale_by for value in values]
    return f"{name:<34} {statistics.median(scaled):6.2f} {unit}  ({min(scaled):.2f} to {max(scaled):.2f})"


def _report_comparison(comparison: Comparison) -> None:
    print(f"{comparison.files} file(s); array: {comparison.description}")
    for name, speeds in (("fio", comparison.fio), ("array", comparison.array)):
        cores = statistics.median(speed.cores for speed in speeds)
        print(_line(f"  {name}", [speed.bytes_per_second for speed in speeds]) + f"  {cores:.2f} cores")
    print(_line("  array / fio, round by round", comparison.ratios, "", 1.0))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ssd_raw", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, help="lay the test files out here (default: the temporary folder)")
    parser.add_argument(
        "--paths", type=Path, nargs="+", help="read these files or block devices instead; never written"
    )
    parser.add_argument("--size", type=int, default=512, help="MiB of each test file")
    parser.add_argument("--files", type=int, nargs="+", default=[1, 4], help="numbers of files to compare on")
    parser.add_argument("--payload", type=int, default=256, help="KiB of payload per request, after a 4 KiB header")
    parser.add_argument("--depth", type=int, default=32, help="requests in flight")
    parser.add_argument("--pattern", choices=["random", "sequential"], default="random")
    parser.add_argument("--seconds", type=float, default=1.5, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--engine", choices=["auto", "io_uring", "threads"], default="auto")
    parser.add_argument("--rate", type=float, default=100.0, help="MB/s of each throttled device")
    parser.add_argument("--without-fio", action="store_true", help="measure the scaling only")
    parser.add_argument("--json", type=Path, help="write every measurement to this file")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the bench; 0 if every bound is met, 3 if one is missed or could not be measured."""
    arguments = _arguments(argv)
    try:
        with tempfile.TemporaryDirectory(prefix="ssd-raw-", dir=arguments.folder) as folder:
            paths = arguments.paths or lay_out(Path(folder), max(*arguments.files, 4), arguments.size << 20)
            return _measure(paths, arguments)
    except (SwiftTiersError, OSError, RuntimeError, ValueError, MemoryError) as error:
        print(f"ssd_raw: failed: {error}", file=sys.stderr)
        return 3


def _measure(paths: Sequence[Path], arguments: argparse.Namespace) -> int:
    workload = Workload(arguments.payload << 10, arguments.depth, arguments.seconds, arguments.pattern)
    figures: list[tuple[str, float | None, float]] = []
    comparisons: list[Comparison] = []
    for count in sorted({min(count, len(paths)) for count in arguments.files}):
        if arguments.without_fio:
            continue
        name = f"array_over_fio_{count}"
        if shutil.which("fio") is None:
            print(f"{count} file(s): fio is not installed (apt-get install fio); --without-fio leaves it out")
            figures.append((name, None, ARRAY_OVER_FIO))
            continue
        comparison = compare(paths[:count], workload, rounds=arguments.rounds, engine=arguments.engine)
        _report_comparison(comparison)
        comparisons.append(comparison)
        figures.append((name, statistics.median(comparison.ratios), ARRAY_OVER_FIO))
    scaling = scale(paths[:4], workload, rate=arguments.rate * 1e6, rounds=min(3, arguments.rounds))
    for devices, speeds in scaling.speeds.items():
        line = _line(f"{devices} device(s) of {arguments.rate:g} MB/s", speeds, "MB/s", 1e6)
        print(f"{line}  {scaling.linearity(devices):.3f} of linear")
    devices = max(scaling.speeds)
    figures.append((f"linearity_{devices}", scaling.linearity(devices), LINEARITY))
    if arguments.json is not None:
        content = {
            "workload": asdict(workload),
            "comparisons": [asdict(comparison) | {"ratios": comparison.ratios} for comparison in comparisons],
            "scaling": asdict(scaling),
            "figures": {name: {"value": value, "at_least": bound} for name, value, bound in figures},
        }
        arguments.json.write_text(json.dumps(content, indent=2) + "\n")
    words = [
        f"{name}={'unmeasured' if value is None else f'{value:.3f}'} (>= {bound})" for name, value, bound in figures
    ]
    print("ssd_raw: " + " ".join(words))
    return 0 if all(value is not None and value >= bound for _, value, bound in figures) else 3


if __name__ == "__main__":
    raise SystemExit(main())
