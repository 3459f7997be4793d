"""What the tiers' threads take of the interpreter: SGLang's scheduler loop over a small batch, alone and beside them.

A real scheduler decodes a small batch of a tiny model, so nearly all of a turn of its loop is Python. By turns it has
the process to itself, shares it with a write-through to SSD, and with a promotion from SSD, each of so many pages a
second (of 2.25 MiB, 16 tokens of Qwen3-8B: 25,000 tokens a second by default). Devices answer at once and pages hold
few bytes, so that neither hashing nor copying is in it: what is measured is who holds the interpreter, which is told by
thread, too.

Then the same beside a process of its own that does all of that: what the loop takes longer there is for want of
cores and caches, and no process of its own could take that away.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numba  # type: ignore[import-untyped]
import numpy as np

from swift_tiers.radix_tiering.base.checksum import bytes_at
from swift_tiers.radix_tiering.base.compiled import compiled
from swift_tiers.radix_tiering.base.page import BLOCK_BYTES, ROOT_KEY, Namespace, PageGeometry
from swift_tiers.radix_tiering.base.read_config import parse_config
from swift_tiers.radix_tiering.stack import TierStack
from swift_tiers.radix_tiering.table.tier_copies import HOST
from swift_tiers.radix_tiering.tiers.host.host_tier import HostTier
from swift_tiers.radix_tiering.tiers.ssd.arrays.devices import (
    Completion,
    CompletionArrays,
    NewDevice,
    Operation,
    Request,
    RequestArrays,
)
from swift_tiers.radix_tiering.tiers.ssd.layout import first_slot_offset
from swift_tiers.radix_tiering.tiers.ssd.ssd_tier import SsdTier
from swift_tiers.radix_tiering.way.request_restore import Readiness

from ...commands.bench.report import Figure, finish, parser, ratio, take_turns

#: A turn of the loop may take so many times what it takes alone.
BOUND = 1.05
#: Requests of the batch, and tokens of each.
REQUESTS, PROMPT, ANSWER = 8, 32, 6000
#: Stripe units of a page, of 4 KiB here; devices, and units of each; pages that host memory has room for.
UNITS, DEVICES, DEVICE_UNITS, HOST_PAGES = 9, 4, 2304, 512
#: What goes on beside the loop: methods of `TierLoad`.
WORKS = ("writing", "promoting")
#: Pages of a chain, and those that are promoted again and again.
TOGETHER, PROMOTED = 64, 256


def main(argv: Sequence[str] | None = None) -> int:
    asked = parser("interpreter", __doc__, rounds=9)
    asked.add_argument("--steps", type=int, default=150, help="turns of the loop in a round (%(default)s)")
    asked.add_argument("--pages", type=int, default=1560, help="pages a second (%(default)s)")
    asked.add_argument("--load", action="store_true", help=argparse.SUPPRESS)  # be the process that writes, or promotes
    options = asked.parse_args(argv)
    if options.load:
        return be_told_what_to_do(options.pages)
    os.environ.update(
        dict.fromkeys(("SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY", "SGLANG_CHECK_KV_PAGE_INVARIANTS"), "0")
    )
    from ..torture.ranks.scheduler import StepScheduler

    with tempfile.TemporaryDirectory(prefix="swift-tiers-bench-") as folder:
        return measure(StepScheduler(arguments(Path(folder))), options)


def arguments(folder: Path) -> list[str]:
    """Of the scheduler."""
    from ...base.model import tiny_model

    return [
        "--model-path", str(tiny_model(folder / "model", layers=2)), "--dtype", "float32", "--page-size", "16",
        "--max-total-tokens", str(2 * REQUESTS * (PROMPT + ANSWER)), "--max-running-requests", str(REQUESTS),
        "--disable-overlap-schedule", "--disable-radix-cache",
    ]  # fmt: skip


def measure(steps: Any, options: argparse.Namespace) -> int:
    """With a `StepScheduler` of these `arguments`; the exit code."""
    load = TierLoad(options.pages)
    spent: dict[str, dict[str, float]] = {}

    def loop() -> list[float]:
        """Seconds of each turn."""
        keep_busy(steps)
        turns = []
        for _ in range(options.steps):
            started = time.perf_counter()
            steps.step()
            turns.append(time.perf_counter() - started)
        return turns

    def beside(there: TierLoad | LoadElsewhere, work: str, name: str) -> Callable[[], list[float]]:
        def both() -> list[float]:
            with there.running(work, spent.setdefault(name, {})):
                return loop()

        return both

    cases = {"alone": loop}
    try:
        with LoadElsewhere(options.pages) as elsewhere:
            for work in WORKS:
                cases[work] = beside(load, work, work)
                cases[f"{work} elsewhere"] = beside(elsewhere, work, f"{work} elsewhere")
            turns = take_turns(cases, options.rounds)
    finally:
        load.close()
    means = {name: [statistics.fmean(one) for one in rounds] for name, rounds in turns.items()}
    worst = {name: [max(one) for one in rounds] for name, rounds in turns.items()}
    print(
        f"{REQUESTS} requests decode beside {options.pages} pages a second; a turn of the loop, and the longest, in ms"
    )
    for name, values in means.items():
        print(
            f"  {name:<20} {1e3 * statistics.median(values):8.3f} ({1e3 * min(values):.3f} to {1e3 * max(values):.3f})"
            f"   longest {1e3 * statistics.median(worst[name]):.1f}"
        )
    for name, threads in spent.items():
        each = {one: 1e6 * cpu / max(threads["pages"], 1) for one, cpu in sorted(threads.items())}
        print(
            f"  {name}: {threads['pages'] / threads['seconds']:.0f} pages a second came; CPU of each thread, us a page:"
        )
        print("   ", "  ".join(f"{one} {took:.1f}" for one, took in each.items() if one not in ("pages", "seconds")))
    figures = [
        Figure(name, ratio(means[name], means["alone"]), " of alone", at_most=BOUND if name in WORKS else None)
        for name in list(means)[1:]
    ]
    return finish("interpreter", figures, {"turns": means, "longest": worst, "spent": spent}, options.json)


def keep_busy(steps: Any) -> None:
    """Have the whole batch decode, with more tokens to go than any round takes."""
    scheduler = steps.scheduler
    if scheduler.running_batch.batch_size() < REQUESTS:
        for number in range(REQUESTS):
            steps.add([(7 * number + at) % 250 for at in range(PROMPT)], max_new_tokens=ANSWER)
        while scheduler.running_batch.batch_size() < REQUESTS:
            steps.step()


class TierLoad:
    """A tier stack with a thread that writes through it, or promotes, at a pace."""

    def __init__(self, pages_per_second: int) -> None:
        self._pages_per_second = pages_per_second
        geometry = PageGeometry(layers=1, planes=2, tokens=16, row_bytes=UNITS * BLOCK_BYTES // 32)
        space = Namespace(
            model="m", weights="w", dtype="float32", geometry=geometry, first_layer=0, kv_heads=2, head_dim=32,
            rank="tp0/1",
        )  # fmt: skip
        array = HeaderArray(DEVICES, first_slot_offset(DEVICE_UNITS) + DEVICE_UNITS * 2 * BLOCK_BYTES)
        ssd = SsdTier(array, [f"device{number}" for number in range(DEVICES)], BLOCK_BYTES)
        config = parse_config({"policy": {"restore_deadline": "60s"}, "restore": {"strategy": "load"}})
        self._stack = TierStack(space, config, HostTier(geometry, HOST_PAGES * geometry.stride_bytes), [ssd])
        self._chains = 0
        self._known: list[list[bytes]] = []
        self._stop = threading.Event()

    def _put(self) -> list[bytes]:
        """Offer a chain of pages that nobody has had yet, whose bytes are all alike; their keys."""
        self._chains += 1
        keys = [(self._chains * TOGETHER + at).to_bytes(32, "little") for at in range(TOGETHER)]
        self._stack.intake.commit(self._stack.intake.begin(keys, ROOT_KEY, 1))
        return keys

    def writing(self) -> int:
        """Pages come in, and go on to ssd; how many."""
        return len(self._put())

    def promoting(self) -> int:
        """Pages that are on ssd alone come up, and leave memory again; how many."""
        stack = self._stack
        restores = [stack.restore(keys) for keys in self._known]
        while any(stack.restorer.poll(one) is Readiness.WAIT for one in restores) and not self._stop.is_set():
            time.sleep(0.001)
        for one in restores:
            stack.restorer.release(one)
        stack.restorer.wait_idle()
        self._forget_memory()
        return sum(one.pages for one in restores)

    def _forget_memory(self) -> None:
        with self._stack.table.lock:
            for page in self._stack.table.in_memory():
                if page.resident and not page.pins:
                    self._stack.table.lose(page, HOST)

    @contextmanager
    def running(self, work: str, spent: dict[str, float]) -> Iterator[None]:
        """Do one of WORKS again and again at the pace meanwhile; `spent` takes what each thread has computed for."""
        spent.update({"pages": spent.get("pages", 0.0), "seconds": spent.get("seconds", 0.0)})
        if work == "promoting":
            self._known = [self._put() for _ in range(PROMOTED // TOGETHER)]
            self._stack.wait_written(60)
            self._forget_memory()
        self._stop.clear()
        again = partial(self._keep_pace, getattr(self, work), spent)
        thread = threading.Thread(target=again, name="feeder", daemon=True)
        before, started = cpu_seconds(), time.perf_counter()
        thread.start()
        try:
            yield
        finally:
            for name, seconds in cpu_seconds().items():
                if name.startswith(("ssd-", "swift-", "feeder")):
                    spent[name] = spent.get(name, 0.0) + seconds - before.get(name, 0.0)
            spent["seconds"] += time.perf_counter() - started
            self._stop.set()
            thread.join()

    def _keep_pace(self, work: Callable[[], int], spent: dict[str, float]) -> None:
        due = time.perf_counter()
        while not self._stop.is_set():
            pages = work()
            spent["pages"] += pages
            due = max(due + pages / self._pages_per_second, time.perf_counter())
            self._stop.wait(due - time.perf_counter())

    def close(self) -> None:
        self._stack.close()


def be_told_what_to_do(pages_per_second: int) -> int:
    """In a process of its own: do what is named on a line, until the next line, and tell what it took."""
    load = TierLoad(pages_per_second)
    try:
        for line in sys.stdin:
            spent: dict[str, float] = {}
            with load.running(line.strip(), spent):
                print("running", flush=True)
                sys.stdin.readline()
            print(json.dumps(spent), flush=True)
    finally:
        load.close()
    return 0


class LoadElsewhere:
    """The same work in another process, whose interpreter nobody here waits for."""

    def __init__(self, pages_per_second: int) -> None:
        command = [sys.executable, "-m", __spec__.name, "--load", "--pages", str(pages_per_second)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> LoadElsewhere:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def _tell(self, line: str) -> str:
        """Its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(line, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"the other process ended with exit code {self._process.wait()}")
        return answer

    @contextmanager
    def running(self, work: str, spent: dict[str, float]) -> Iterator[None]:
        """See `TierLoad.running`."""
        self._tell(work)
        try:
            yield
        finally:
            for name, seconds in json.loads(self._tell("enough")).items():
                spent[name] = spent.get(name, 0.0) + seconds


@compiled("void(int64[::1], int64[::1], int64[::1])", nogil=True)
def exchange(headers, images, writing):  # type: ignore[no-untyped-def]
    """Copy headers at these addresses to devices, or back: what a device does, without the interpreter."""
    for at in range(len(headers)):
        source, target = (headers[at], images[at]) if writing[at] else (images[at], headers[at])
        numba.carray(bytes_at(target), (BLOCK_BYTES,))[:] = numba.carray(bytes_at(source), (BLOCK_BYTES,))


class HeaderArray:
    """Devices that answer at once and keep of every page nothing but headers: what they are asked for is all alike."""

    description = "a model"

    def __init__(self, devices: int, size: int) -> None:
        self._bytes = np.zeros((devices, size), np.uint8)
        self._done = CompletionArrays.of(())
        self.sizes = (size,) * devices

    @property
    def in_flight(self) -> int:
        return len(self._done)

    def append(self, device: NewDevice) -> None:
        raise TypeError("no device is added here")

    def submit(self, requests: Sequence[Request]) -> None:
        if isinstance(requests, RequestArrays):
            # Of a unit the header, which comes first.
            images = self._bytes.ctypes.data + requests.devices * self._bytes.shape[1] + requests.offsets
            exchange(np.ascontiguousarray(requests.addresses[:, 0]), images, requests.writing)
            come = CompletionArrays(requests.tags, requests.devices, np.zeros(len(requests), np.int64))
            self._done = self._done.followed_by(come)
            return
        done = []
        for tag, operation, device, offset, (buffer,) in requests:
            place = self._bytes[device, offset : offset + buffer.nbytes]
            if operation is Operation.WRITE:
                place[:] = buffer
            else:
                buffer[:] = place
            done.append(Completion(tag, device, 0))
        self._done = self._done.followed_by(CompletionArrays.of(done))

    def reap(self, at_least: int, timeout: float | None = None) -> CompletionArrays:
        done, self._done = self._done, CompletionArrays.of(())
        return done

    def sync(self, device: int) -> int:
        return 0

    def present(self, device: int) -> bool:
        return True

    def close(self) -> None:
        """Nothing is open."""


def cpu_seconds() -> dict[str, float]:
    """What each thread of this process has computed for, by name."""
    spent = {}
    for thread in threading.enumerate():
        if thread.native_id is not None:
            raw = Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text()
            spent[thread.name] = int(raw.split()[0]) / 1e9
    return spent


if __name__ == "__main__":
    raise SystemExit(main())
