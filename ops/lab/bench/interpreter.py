"""What the tiers' threads take of the interpreter: SGLang's scheduler loop over a small batch, alone and beside them.

A real scheduler decodes a small batch of a tiny model, so nearly all of a turn of its loop is Python. By turns it has
the process to itself, shares it with a write-through to SSD, and with a promotion from SSD, each of so many pages a
second (of 2.25 MiB, 16 tokens of Qwen3-8B: 25,000 tokens a second by default). Devices answer at once and pages hold
few bytes, so that neither hashing nor copying is in it: what is measured is who holds the interpreter, which is told by
thread, too.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from swift_tiers.radix_tiering.base.config import parse_config
from swift_tiers.radix_tiering.base.page import BLOCK_BYTES, ROOT_KEY, Namespace, PageGeometry
from swift_tiers.radix_tiering.stack import TierStack
from swift_tiers.radix_tiering.table.held_page import HOST
from swift_tiers.radix_tiering.tiers.host.host_tier import HostTier
from swift_tiers.radix_tiering.tiers.ssd.arrays.devices import Completion, NewDevice, Operation, Request
from swift_tiers.radix_tiering.tiers.ssd.ssd_tier import SsdTier
from swift_tiers.radix_tiering.way import sweeps
from swift_tiers.radix_tiering.way.request_restore import Readiness

from ...commands.bench.report import Figure, finish, parser, ratio, take_turns

#: A turn of the loop may take so many times what it takes alone.
BOUND = 1.05
#: Requests of the batch, and tokens of each.
REQUESTS, PROMPT, ANSWER = 8, 32, 6000
#: Stripe units of a page, of 4 KiB here; devices; pages that host memory has room for, and each device.
UNITS, DEVICES, HOST_PAGES, DEVICE_PAGES = 9, 4, 512, 256
#: Pages that are offered, or asked for, together.
TOGETHER = 64


def main(argv: Sequence[str] | None = None) -> int:
    asked = parser("interpreter", __doc__, rounds=9)
    asked.add_argument("--steps", type=int, default=150, help="turns of the loop in a round (%(default)s)")
    asked.add_argument("--pages", type=int, default=1560, help="pages a second (%(default)s)")
    options = asked.parse_args(argv)
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
    load = Load(options.pages)
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

    def beside(work: Callable[[], None]) -> Callable[[], list[float]]:
        def both() -> list[float]:
            with load.running(work, spent):
                return loop()

        return both

    cases = {"alone": loop, "writing": beside(load.write), "promoting": beside(load.promote)}
    try:
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
            f"  {name:<10} {1e3 * statistics.median(values):8.3f} ({1e3 * min(values):.3f} to {1e3 * max(values):.3f})"
            f"   longest {1e3 * statistics.median(worst[name]):.1f}"
        )
    for name, threads in spent.items():
        pages = threads.pop("pages")
        seconds = threads.pop("seconds")
        print(f"  {name}: {pages / seconds:.0f} pages a second came; CPU of each thread, us a page:")
        print("   ", "  ".join(f"{thread} {1e6 * cpu / max(pages, 1):.1f}" for thread, cpu in sorted(threads.items())))
    figures = [
        Figure(name, ratio(means[name], means["alone"]), " of alone", at_most=BOUND)
        for name in ("writing", "promoting")
    ]
    return finish("interpreter", figures, {"turns": means, "longest": worst}, options.json)


def keep_busy(steps: Any) -> None:
    """Have the whole batch decode, with more tokens to go than any round takes."""
    scheduler = steps.scheduler
    if scheduler.running_batch.batch_size() < REQUESTS:
        for number in range(REQUESTS):
            steps.add([(7 * number + at) % 250 for at in range(PROMPT)], max_new_tokens=ANSWER)
        while scheduler.running_batch.batch_size() < REQUESTS:
            steps.step()


class Load:
    """A tier stack with a thread that writes through it, or promotes, at a pace."""

    def __init__(self, pages_per_second: int) -> None:
        self._pace = TOGETHER / pages_per_second
        geometry = PageGeometry(layers=1, planes=2, tokens=16, row_bytes=UNITS * BLOCK_BYTES // 32)
        space = Namespace(
            model="m", weights="w", dtype="float32", geometry=geometry, first_layer=0, kv_heads=2, head_dim=32,
            rank="tp0/1",
        )  # fmt: skip
        array = HeaderArray(DEVICES, (DEVICE_PAGES + 16) * (UNITS + 1) * 2 * BLOCK_BYTES)
        ssd = SsdTier(array, [f"device{number}" for number in range(DEVICES)], BLOCK_BYTES)
        config = parse_config({"policy": {"restore_deadline": "60s"}, "restore": {"strategy": "load"}})
        self._stack = TierStack(space, config, HostTier(geometry, HOST_PAGES * geometry.stride_bytes), [ssd])
        self._chains = 0
        self._pages = 0
        self._stop = threading.Event()
        self._known = [self._put(DEVICES * DEVICE_PAGES // (4 * TOGETHER)) for _ in range(1)]

    def _put(self, batches: int) -> list[bytes]:
        """Offer a new chain of so many batches of pages, which are all alike; their keys."""
        keys: list[bytes] = []
        self._chains += 1
        for _ in range(batches):
            first = len(keys)
            keys += [(self._chains * 2**20 + at).to_bytes(32, "little") for at in range(first, first + TOGETHER)]
            put = self._stack.intake.begin(keys[first:], keys[first - 1] if first else ROOT_KEY, first + 1)
            self._stack.intake.commit(put)
        return keys

    def write(self) -> None:
        """A batch of pages that nobody has had yet."""
        self._put(1)
        self._pages += TOGETHER

    def promote(self) -> None:
        """A batch of pages that are on ssd alone, which leave memory again."""
        stack, keys = self._stack, self._known[0][:TOGETHER]
        restore = stack.restore(keys)
        while stack.restorer.poll(restore) is Readiness.WAIT and not self._stop.is_set():
            time.sleep(0.001)
        self._pages += restore.pages
        stack.restorer.release(restore)
        stack.restorer.flush()
        with stack.table.lock:
            for key in keys:
                page = stack.table.find(stack.digest, key)
                if page is not None and page.resident and not page.pins:
                    stack.table.lose(page, HOST)

    @contextmanager
    def running(self, work: Callable[[], None], spent: dict[str, dict[str, float]]) -> Iterator[None]:
        """Do so again and again at the pace meanwhile; `spent` takes what its threads computed for."""
        stack = self._stack
        if work == self.promote:
            stack.wait_written(60)
            sweeps.run(sweeps.clean(stack.table))
            stack.flush(memory=True, durable=False)
        self._stop.clear()
        self._pages, before, started = 0, cpu_seconds(), time.perf_counter()
        thread = threading.Thread(target=self._keep_pace, args=(work,), name="feeder", daemon=True)
        thread.start()
        try:
            yield
        finally:
            taken = spent.setdefault(work.__name__, {"pages": 0.0, "seconds": 0.0})
            for name, seconds in cpu_seconds().items():
                if name.startswith(("ssd-", "swift-", "feeder")):
                    taken[name] = taken.get(name, 0.0) + seconds - before.get(name, 0.0)
            taken["pages"] += self._pages
            taken["seconds"] += time.perf_counter() - started
            self._stop.set()
            thread.join()

    def _keep_pace(self, work: Callable[[], None]) -> None:
        due = time.perf_counter()
        while not self._stop.is_set():
            work()
            due = max(due + self._pace, time.perf_counter() - self._pace)
            self._stop.wait(max(0.0, due - time.perf_counter()))

    def close(self) -> None:
        self._stack.close()


class HeaderArray:
    """Devices that answer at once and keep of every page nothing but headers: what they are asked for is all alike."""

    description = "a model"

    def __init__(self, devices: int, size: int) -> None:
        self._blocks: list[dict[int, bytes]] = [{} for _ in range(devices)]
        self._done: list[Completion] = []
        self.sizes = (size,) * devices

    @property
    def in_flight(self) -> int:
        return len(self._done)

    def append(self, device: NewDevice) -> None:
        raise TypeError("no device is added here")

    def submit(self, requests: Sequence[Request]) -> None:
        for tag, operation, device, offset, buffers in requests:
            blocks, buffer = self._blocks[device], buffers[0]
            at = offset if len(buffers) > 1 else None  # a unit: its header is first; else a block of the set's own
            for start in range(0, BLOCK_BYTES if at is not None else buffer.nbytes, BLOCK_BYTES):
                part = buffer[start : start + BLOCK_BYTES]
                if operation is Operation.WRITE:
                    blocks[offset + start] = part.tobytes()
                else:
                    part[:] = np.frombuffer(blocks.get(offset + start, bytes(BLOCK_BYTES)), np.uint8)
            self._done.append(Completion(tag, device, 0))

    def reap(self, at_least: int, timeout: float | None = None) -> list[Completion]:
        done, self._done = self._done, []
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
