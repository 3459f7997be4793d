"""A lending or borrowing process for tests: `peer_child.py donor|borrower JSON`, then a command on each line.

It says what happens as JSON lines. A donor overwrites what it gets back at once, and remembers that it did; a borrower
knows what it has put where, and looks at every byte that it is served.
"""

from __future__ import annotations

import json
import os
import queue
import random
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

# Beside this file are modules that must not be taken for others.
sys.path[0] = str(Path(__file__).parent.parent)

import numpy as np  # noqa: E402

from swift_tiers.radix_tiering.base.page import page_digest  # noqa: E402
from swift_tiers.radix_tiering.lending.donation.pace import MovePace  # noqa: E402
from swift_tiers.radix_tiering.lending.leases import LeaseKey, Timing  # noqa: E402
from swift_tiers.radix_tiering.lending.leases.effects import Reclaimed  # noqa: E402
from swift_tiers.radix_tiering.tiers.peer.lent_memory import PeerPlace  # noqa: E402
from swift_tiers.radix_tiering.tiers.tier import ReadOutcome  # noqa: E402

from support.fake_device import FakeDeviceMemory  # noqa: E402
from support.peer_donor import LocalDonor  # noqa: E402
from support.peer_tier import Answer, Borrowing  # noqa: E402
from support.redis import wait_for  # noqa: E402

#: What the donor writes over memory that came back.
TAKEN_BACK = 0xAB
_saying = threading.Lock()


def say(what: str, **fields: Any) -> None:
    with _saying:
        print(json.dumps({"what": what, **fields}), flush=True)


class DonorChild:
    def __init__(self, options: dict[str, Any]) -> None:
        self.returns: queue.SimpleQueue[Reclaimed] = queue.SimpleQueue()
        self.taken_back: list[Any] = []
        timing = Timing(**options.pop("timing"))
        gpu = options.pop("gpu", None)
        device = FakeDeviceMemory(gpu) if gpu else None
        self.donor = LocalDonor(Path(options.pop("directory")), timing=timing, device=device, **options)
        self.donor.on_reclaimed = self.returns.put
        threading.Thread(target=self.take_back, daemon=True).start()

    def take_back(self) -> None:
        while True:
            reclaimed = self.returns.get()
            wait_for(lambda: not self.donor.server.copying())
            for extent in self.donor.extents_of(reclaimed.run):
                memory = self.donor.bytes_of(extent)
                memory[:] = TAKEN_BACK
                self.taken_back.append(memory)
            say("reclaimed", run=reclaimed.run, back=reclaimed.back.value)

    def intact(self) -> None:
        """Whether what came back is as the donor left it."""
        say("intact", runs=len(self.taken_back), value=all((memory == TAKEN_BACK).all() for memory in self.taken_back))

    def recall(self, amount: str) -> None:
        self.donor.recall(int(amount))

    def counters(self) -> None:
        say("counters", lent=self.donor.lent_bytes, **self.donor.server.counters)


class BorrowerChild:
    def __init__(self, options: dict[str, Any]) -> None:
        self.donors = options["donors"]
        self.device = FakeDeviceMemory(options["gpu"]) if options["gpu"] else None
        self.borrowing = Borrowing(options["name"], options["page_bytes"], device=self.device)
        self.borrowing.on_recall = self.on_recall
        self.answers: list[Answer] = []
        self.kept: dict[PeerPlace, int] = {}
        self.counts: Counter[str] = Counter()
        self.busy = threading.Event()
        self.idle = threading.Event()
        self.idle.set()

    def on_recall(self, key: LeaseKey) -> None:
        say("recalled", lease=key.lease)
        self.borrowing.tier.give_up(key)

    def borrow(self, pages: str) -> None:
        self.borrowing.tier.neighbours(self.donors)
        self.borrowing.tier.want(int(pages) * self.borrowing.page_bytes)

    def impolite(self) -> None:
        """Keep to no donor's bandwidth any more."""
        for one in self.borrowing.tier._worker.neighbours.values():
            one.pace = MovePace(None)
        say("impolite")

    def begin(self, pages: str) -> None:
        """Have so many pages written, and do not wait."""
        for seed in range(int(pages)):
            place = self.borrowing.reserve()
            self.answers.append(self.borrowing.begin_write(place, self.borrowing.page(seed)))
        say("begin")

    def answered(self) -> None:
        """What has become of them, when all are answered."""
        say("answered", **Counter("ok" if answer.wait()[0] else answer.wait()[1] for answer in self.answers))

    def churn(self) -> None:
        """Write, read and release pages at random, several at a time, until told otherwise."""
        self.busy.set()
        self.idle.clear()
        threading.Thread(target=self._churn, daemon=True).start()

    def rest(self) -> None:
        """End that, and say what it came to; `wrong`: pages that were served and are not what was put there."""
        self.busy.clear()
        self.idle.wait()
        say("rest", **self.counts)

    def _churn(self) -> None:
        chance, seed = random.Random(5), 0
        while self.busy.is_set():
            writes: list[tuple[PeerPlace, int, Answer]] = []
            while len(writes) < 4 and (places := self.borrowing.tier.reserve([self.borrowing.page_bytes])):
                (place,) = places
                seed += 1
                writes.append((place, seed, self.borrowing.begin_write(place, self.borrowing.page(seed))))
            reads = []
            for place in chance.sample(list(self.kept), min(4, len(self.kept))):
                page = self.borrowing.page(self.kept[place])
                reads.append((place, page, *self.borrowing.begin_read(place, page_digest(page))))
            for place, what, answer in writes:
                made, why = answer.wait()
                self.counts[f"write {why or 'ok'}"] += 1
                if made:
                    self.kept[place] = what
            for place, page, answer, into in reads:
                outcome = answer.wait()
                self.counts[f"read {outcome.value}"] += 1
                self.counts["wrong"] += outcome is ReadOutcome.OK and not (into == page).all()
                if outcome is not ReadOutcome.OK or len(self.kept) > 8:
                    del self.kept[place]
                    self.borrowing.tier.release([place])
            if not writes and not reads:
                threading.Event().wait(0.002)
        self.idle.set()

    def facts(self) -> None:
        """What this process has open and mapped, and what its tier says."""
        snapshot = self.borrowing.tier.snapshot()
        maps = Path("/proc/self/maps").read_text()
        say(
            "facts",
            capacity=snapshot.capacity_bytes,
            used=snapshot.used_bytes,
            faults=snapshot.faults,
            ended=len(self.borrowing.keys("ended")),
            reads=snapshot.reads,
            arenas=maps.count("/memfd:swift-tiers (deleted)") + (self.device.mapped if self.device is not None else 0),
            descriptors=len(os.listdir("/proc/self/fd")),
            threads=threading.active_count(),
        )

    def close(self) -> None:
        self.borrowing.close()
        say("close", threads=sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("swift")))


def main() -> None:
    np.random.default_rng(0)  # its import is slow, and must not be within a lease
    child: Any = {"donor": DonorChild, "borrower": BorrowerChild}[sys.argv[1]](json.loads(sys.argv[2]))
    say("ready", pid=os.getpid())
    for line in sys.stdin:
        command, *arguments = line.split()
        getattr(child, command)(*arguments)


if __name__ == "__main__":
    main()
