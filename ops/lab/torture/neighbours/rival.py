"""Another server that borrows, of whatever pages: it gets memory that was somebody's before, and will be again."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from swift_tiers.radix_tiering.base.config import PeerConfig
from swift_tiers.radix_tiering.base.page import ROOT_KEY, PageRecord, page_digest
from swift_tiers.radix_tiering.base.virtual import VirtualProcess
from swift_tiers.radix_tiering.table.tier_copies import Copy
from swift_tiers.radix_tiering.tiers.peer import PeerPlace, PeerTier
from swift_tiers.radix_tiering.tiers.testing.network import Network
from swift_tiers.radix_tiering.tiers.tier import Read, ReadOutcome, Write, Written

from .device import Fabric, ModelDevice

#: Between two things that it does, at most, seconds.
PAUSE_SECONDS = 0.05
#: Within which everything is answered whatever happens, but that this process itself is stopped: a lease that is not
#: renewed ends by then.
LONGEST_SECONDS = 4.0


class Rival:
    """Puts pages into whatever it is lent, and reads them again. One after the other its lives."""

    def __init__(
        self,
        name: str,
        network: Network,
        draw: random.Random,
        addresses: Mapping[str, str],
        fabric: Fabric | None = None,
    ) -> None:
        """`fabric`: between its device and others'; None: it has none."""
        self.name = name
        self._fabric = fabric
        self._network = network
        self._draw = draw
        self._addresses = addresses
        self.page_bytes = draw.choice((2048, 4096, 8192))
        self.alive = False
        #: How long a read or write has waited for its answer at most, seconds.
        self.longest = 0.0
        self.begin()

    def begin(self) -> None:
        """A life begins."""
        self.process = VirtualProcess(self._network.runner, begin=self._draw.random() * 1e5)
        wire = self._network.wire(self.name)
        config = PeerConfig(borrow=True)
        device = ModelDevice(self.name, self._fabric) if self._fabric is not None else None
        self.tier = PeerTier(self.name, self.page_bytes, config, runner=self.process, wire=wire, device=device)
        self.tier.watch(self)
        self.tier.neighbours(self._addresses)
        self.tier.want(self._draw.randint(1, 20) * self.page_bytes)
        self._lock = self.process.lock()
        self._held: dict[PeerPlace, np.ndarray] = {}
        self._stopped_until = 0.0
        self.alive, self._ending = True, False
        self._thread = self.process.thread(self._live, self.name)
        self._thread.start()

    def stop(self, seconds: float) -> None:
        """The process does nothing for so long."""
        self.process.stop(seconds)
        self._stopped_until = max(self._stopped_until, self._network.runner.now + seconds)

    def kill(self) -> None:
        """The process ends at once."""
        self.alive = False
        self.process.kill()
        self._network.ended(self.name)

    def close(self) -> None:
        """End in order."""
        self._ending = True
        self._thread.join()
        self.tier.close()
        told = self.tier.snapshot()
        assert not told.faults, f"{self.name}: {told.faults} errors of ours"
        assert not told.reads.get(ReadOutcome.CHECKSUM.value), f"{self.name}: bytes of another's were read"
        self.alive = False

    # ---- what its tier tells ----

    def room(self) -> None:
        """It looks again soon."""

    def full(self, part: Any, reason: str) -> None:
        """A lease never is."""

    def leaving(self, part: Any, until: float) -> Iterator[None]:
        self._forget(part)
        self.tier.give_up(part)
        return iter(())

    def gone(self, part: Any, reason: str) -> None:
        self._forget(part)

    def back(self, part: Any) -> None:
        """A lease that has ended does not come back."""

    def _forget(self, part: Any) -> None:
        with self._lock:
            gone = [place for place in self._held if place.key == part]
            for place in gone:
                del self._held[place]
            self.tier.release(gone)

    # ---- its scheduler ----

    def _live(self) -> None:
        while not self._ending:
            self.process.sleep(self._draw.random() * PAUSE_SECONDS)
            places = self.tier.reserve([self.page_bytes]) if self._draw.random() < 0.6 else ()
            if places:
                self._write(places[0])
            with self._lock:
                if not places and self._held:
                    self._read(self._draw.choice(list(self._held)))

    def _write(self, place: PeerPlace) -> None:
        data = np.frombuffer(self._draw.randbytes(self.page_bytes), np.uint8)
        asked = self._network.runner.now

        def done(written: Written | None, why: str) -> None:
            self._answered(asked)
            if written is not None:
                with self._lock:
                    self._held[place] = data

        self.tier.write([Write(_record(data), place, data, page_digest(data), done)])

    def _read(self, place: PeerPlace) -> None:
        data, into = self._held[place], np.zeros(self.page_bytes, np.uint8)
        asked = self._network.runner.now

        def done(outcome: ReadOutcome) -> None:
            self._answered(asked)
            assert outcome is not ReadOutcome.OK or np.array_equal(into, data), "another page was served"
            with self._lock:
                if place in self._held and self._draw.random() < 0.2:
                    del self._held[place]
                    self.tier.release([place])

        self.tier.read([Read(_record(data), Copy(place, page_digest(data), 0, whole=True), into, done)])

    def _answered(self, asked: float) -> None:
        now = self._network.runner.now
        self.longest = max(self.longest, now - asked)
        assert now - max(asked, self._stopped_until) < LONGEST_SECONDS, f"a page waited for {now - asked:.3f} s"


def _record(data: np.ndarray) -> PageRecord:
    return PageRecord(data[:32].tobytes(), ROOT_KEY, b"n" * 32, 1, data.nbytes)
