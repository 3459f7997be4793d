"""The servers around the one that a world is about, and what becomes of them."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import numpy as np

from swift_tiers.radix_tiering.base.config import PeerConfig
from swift_tiers.radix_tiering.base.virtual import VirtualRunner
from swift_tiers.radix_tiering.lending.donation import arena
from swift_tiers.radix_tiering.tiers.peer import PeerTier
from swift_tiers.radix_tiering.tiers.peer.outgoing import OutgoingMemory
from swift_tiers.radix_tiering.tiers.testing.network import Network
from swift_tiers.radix_tiering.tiers.tier import ReadOutcome

from .device import Fabric, ModelDevice, TriedLanding
from .donor import DonorServer
from .ranked_donor import RankedDonor
from .rival import Rival

#: What the server that a world is about is called there.
OWN_NAME = "own"
#: Within which donors have back what their requests need, where nothing is wrong, seconds: the recall's bound, and a
#: look of the lender's on either side.
RECALL_SECONDS = 0.3
#: Within which a read or write of a page is answered, where nothing is wrong.
ANSWER_SECONDS = 0.9
#: How long the copy of a page takes at most, seconds; nearly always much less.
COPY_SECONDS = 0.1
#: How long a device hangs at most, seconds: a borrower's store waits for that, and `rival.LONGEST_SECONDS` holds.
HANG_SECONDS = 3.0


@contextmanager
def slow_memory(runner: VirtualRunner, draw: random.Random) -> Iterator[None]:
    """Copies between servers take time, and a process may be stopped in the middle of one."""

    def copy_pieces(source: np.ndarray, target: np.ndarray, pieces: np.ndarray) -> None:
        pauses = [0.0] * len(pieces)
        pauses[draw.randrange(len(pieces))] = draw.random() ** 12 * COPY_SECONDS
        for (start, at, length), pause in zip(pieces.tolist(), pauses, strict=True):
            half = length // 2
            target[at : at + half] = source[start : start + half]
            if pause:
                runner.sleep(pause)
            target[at + half : at + length] = source[start + half : start + length]

    with patch.object(arena, "copy_pieces", copy_pieces):
        yield


class Neighbourhood:
    """Donors, rivals and the network, and the tier by which the own server borrows."""

    def __init__(
        self,
        runner: VirtualRunner,
        draw: random.Random,
        happened: Counter[str],
        fingerprint: Callable[[np.ndarray], bytes],
        page_bytes: int,
        *,
        ranked: random.Random | None = None,
        devices: random.Random | None = None,
    ) -> None:
        """`ranked`: donors have several ranks, of which this draws how many. `devices`: servers have devices, whose
        memory some of them lend, and this draws what there is of it."""
        self._directory = tempfile.TemporaryDirectory(prefix="swift-torture-")
        self.network = Network(runner, draw, happened)
        directory = Path(self._directory.name)
        fabric = Fabric() if devices is not None else None
        self.donors: list[DonorServer | RankedDonor] = [
            DonorServer(f"donor-{number}", directory, self.network, draw, happened, self._some(fabric, devices))
            if ranked is None
            else RankedDonor(f"donor-{number}", directory, self.network, draw, happened, ranked.choice((2, 2, 3)))
            for number in range(draw.choice((1, 1, 2)))
        ]
        #: Lease name -> lease address, as the bus says.
        self.addresses = {name: address for donor in self.donors for name, address in donor.addresses.items()}
        self.rivals = [
            Rival(f"rival-{number}", self.network, draw, self.addresses, fabric)
            for number in range(draw.choice((0, 1, 1)))
        ]
        #: Where pages come from donors' devices, and from where they go there; None: through host memory.
        self.landing: TriedLanding | None = None
        self.outgoing: OutgoingMemory | None = None
        device = ModelDevice(OWN_NAME, fabric) if fabric is not None else None
        if devices is not None and device is not None:
            if devices.random() < 0.6:
                self.landing = TriedLanding(page_bytes, devices.choice((1, 4)), runner)
            rows = devices.choice((0, 1, 3, 12))
            if rows:
                self.outgoing = OutgoingMemory(device, page_bytes, rows * page_bytes, runner)
        self.tier = PeerTier(
            OWN_NAME,
            page_bytes,
            PeerConfig(borrow=True),
            fingerprint=fingerprint,
            runner=runner,
            wire=self.network.wire(OWN_NAME),
            device=device,
            landing=self.landing,
            outgoing=self.outgoing,
        )
        self.tier.neighbours(self.addresses)
        #: Whether anything has gone wrong yet.
        self.troubled = False
        self._happened = happened

    @staticmethod
    def _some(fabric: Fabric | None, devices: random.Random | None) -> Fabric | None:
        """For most donors, where there are devices."""
        return fabric if devices is not None and devices.random() < 0.8 else None

    @property
    def servers(self) -> list[DonorServer | RankedDonor | Rival]:
        """All but the own one; those that borrow first."""
        return [*self.rivals, *self.donors]

    def heal(self) -> None:
        """The network works, no device hangs, and whoever was killed lives again."""
        self.network.heal()
        for server in self.servers:
            if not server.alive:
                server.begin()
        for donor in self.donors:
            donor.unhang()
        self.tier.neighbours(self.addresses)

    def close(self, *, damaged: bool) -> None:
        """End all servers but the own one, whose tier is closed. `damaged`: whether bytes of its host memory were
        damaged, which may then have been stored."""
        told = self.tier.snapshot()
        self._happened["pages lent"] += told.writes.get("ok", 0)
        for way in ("device-peer", "peer-device"):
            self._happened[f"pages {way}"] += self.tier.links[way].pages if way in self.tier.links else 0
        assert self.outgoing is None or not self.outgoing.used_rows, "outgoing memory leaked"
        self._happened["pages from lent memory"] += told.reads.get(ReadOutcome.OK.value, 0)
        assert not told.faults, f"{told.faults} errors of ours"
        assert damaged or not told.reads.get(ReadOutcome.CHECKSUM.value), "bytes of another's were read"
        for server in self.servers:
            server.close()
        if not self.troubled and not self._happened["starve"]:
            recalls = max((seconds for donor in self.donors for seconds in donor.waited), default=0.0)
            assert recalls < RECALL_SECONDS, f"a recall took {recalls:.3f} s"
            answers = max((rival.longest for rival in self.rivals), default=0.0)
            assert answers < ANSWER_SECONDS, f"a page waited for {answers:.3f} s"
        self._directory.cleanup()


class Tormentor:
    """The actions of `plan.TORMENTS`, by their names."""

    def __init__(self, neighbourhood: Neighbourhood, tell: Callable[[str], None], happened: Counter[str]) -> None:
        self._all = neighbourhood
        self._network = neighbourhood.network
        self._tell = tell
        self._happened = happened

    def request(self, draw: random.Random) -> None:
        """A donor needs memory for a request of its own."""
        donor, pages, seconds = draw.choice(self._all.donors), draw.randint(1, 120), draw.random() * 0.5
        if donor.alive:
            self._tell(f"{donor.name} needs {pages} pages for {seconds:.3f} s")
            donor.ask(pages, seconds)
            self._count("request")

    def stop(self, draw: random.Random) -> None:
        """A process is stopped for a while, which may be longer than any lease."""
        server, seconds = self._somebody(draw), draw.random() ** 2 * 6.0
        if server.alive:
            self._tell(f"{server.name} is stopped for {seconds:.3f} s")
            server.stop(seconds)
            self._wrong("stop")

    def kill(self, draw: random.Random) -> None:
        """A process ends; another life of it may begin."""
        server = self._somebody(draw)
        if server.alive:
            self._tell(f"{server.name} is killed")
            server.kill()
            self._wrong("kill")
        if draw.random() < 0.7:
            self._network.runner.sleep(draw.random() * 0.2)
            if not server.alive:
                self._tell(f"{server.name} begins again")
                server.begin()

    def hang(self, draw: random.Random) -> None:
        """The device of a donor does not end what it copies for a while, which may be longer than a lease."""
        donor, seconds = draw.choice(self._all.donors), draw.random() ** 2 * HANG_SECONDS
        if donor.alive:
            self._tell(f"copies to {donor.name} hang for {seconds:.3f} s")
            donor.hang(seconds)
            self._wrong("hang")

    def cut(self, draw: random.Random) -> None:
        """No letter comes to a server, or from it."""
        name, seconds = draw.choice([OWN_NAME, *self._names]), draw.random() ** 2 * 5.0
        self._tell(f"{name} is cut off for {seconds:.3f} s")
        self._network.cut(name, seconds)
        self._wrong("cut")

    def letters(self, draw: random.Random) -> None:
        """Letters are lost, come twice, or late, from now on, or no longer."""
        what, often = draw.choice(("lossy", "twice", "late")), draw.choice((0.0, 0.1, 0.5))
        self._tell(f"letters are {what}, {often:.0%} of them")
        setattr(self._network, what, often)
        self._wrong("letters")

    def unnamed(self, draw: random.Random) -> None:
        """The bus names a donor no more, for a while."""
        donor = draw.choice(self._all.donors)
        self._tell(f"{donor.name} is said to lend no more")
        addresses = {name: address for name, address in self._all.addresses.items() if name not in donor.addresses}
        self._all.tier.neighbours(addresses)
        self._network.runner.sleep(draw.random() * 0.1)
        self._all.tier.neighbours(self._all.addresses)
        self._count("unnamed")

    def stumble(self, draw: random.Random) -> None:
        """Something of ours fails once, on one rank of a donor alone."""
        donors = [donor for donor in self._all.donors if isinstance(donor, RankedDonor) and donor.alive]
        if donors:
            self._tell(draw.choice(donors).stumble(draw))
            self._wrong("stumble")

    @property
    def _names(self) -> list[str]:
        """Of all ways that letters go by."""
        return [name for one in self._all.servers for name in ([one.name] if isinstance(one, Rival) else one.addresses)]

    def _somebody(self, draw: random.Random) -> DonorServer | RankedDonor | Rival:
        return draw.choice(self._all.servers)

    def _wrong(self, name: str) -> None:
        self._all.troubled = True
        self._count(name)

    def _count(self, name: str) -> None:
        self._happened[f"neighbour: {name}"] += 1
