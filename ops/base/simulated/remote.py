"""A store that other machines fill: a tier that is read, and never written, over one line of a network."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from swift_tiers.radix_tiering.base.page import KEY_BYTES, ROOT_KEY, HeldPages
from swift_tiers.radix_tiering.base.runner import Runner
from swift_tiers.radix_tiering.table.page_table import PageTable
from swift_tiers.radix_tiering.tiers.tier import Read, ReadOutcome, Tier, Write

#: Of a key, in words of eight bytes.
KEY_WORDS = KEY_BYTES // 8


class StoreModel(Tier):
    """Whatever it is told to hold it holds for ever; a place is a number that nobody asks for. Its pages are blank."""

    name = "remote"
    durable = True
    numbered = True

    def __init__(self, runner: Runner, bytes_per_second: float, latency_seconds: float, blank: bytes) -> None:
        """`latency_seconds`: until a page begins to come; what is asked for meanwhile comes right behind it. `blank`:
        the checksum of every page."""
        self._runner = runner
        self._speed = bytes_per_second
        self._latency = latency_seconds
        self._blank = blank
        self._pages = 0
        self._asked: deque[tuple[float, Read]] = deque()
        self._wake = runner.condition()
        runner.thread(self._run, "remote").start()

    def hold(self, table: PageTable, keys: Sequence[bytes], length: int) -> None:
        """From now on it has this sequence of pages, from its beginning on, of `length` bytes each."""
        links = bytearray().join(one for pair in zip(keys, (ROOT_KEY, *keys), strict=False) for one in pair)
        held = HeldPages(
            namespace=table.serving,
            length=length,
            keys=np.frombuffer(links, np.int64).reshape(-1, 2 * KEY_WORDS),
            depths=np.arange(1, len(keys) + 1),
            places=np.arange(self._pages, self._pages + len(keys)),
            order=np.zeros(len(keys), np.int64),
        )
        self._pages += len(keys)
        with table.lock:
            times = np.full(len(keys), table.tick(), np.int64)
            table.recover(held, table.named(self.name).number, times)

    @property
    def capacity_bytes(self) -> int:
        return 0

    def takes(self, length: int) -> bool:
        return False

    def reserve(self, lengths: Sequence[int]) -> list[int]:
        return []

    def release(self, places: Sequence[int]) -> None:
        """Others need its pages."""

    def digest_at(self, place: int) -> bytes:
        return self._blank

    def write(self, writes: Sequence[Write]) -> None:
        raise RuntimeError("nothing is written to it")

    def read(self, reads: Sequence[Read]) -> None:
        now = self._runner.monotonic()
        with self._wake:
            self._asked.extend((now, one) for one in reads)
            self._wake.notify_all()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._asked)
                asked, read = self._asked.popleft()
            begins = max(self._runner.monotonic(), asked + self._latency)
            self._runner.sleep(begins + read.into.nbytes / self._speed - self._runner.monotonic())
            with self.answers:
                read.done(ReadOutcome.OK)
