"""The borrower's side of the lease protocol: a state machine without I/O and without a clock of its own."""

from __future__ import annotations

import itertools
import math
from random import Random

from .effects import DonorLeft, LeaseKey, LeaseView
from .lease import Ticket, Use
from .link import Link, LinkState, Outputs
from .messages import Extents, Letter, Party
from .sharing import Ask, share
from .timing import Timing


class Borrower:
    """Borrows memory from donors, and says of every use whether it was covered by a lease.

    A use of lent bytes is: `check_before`, the copy, `check_after` with a clock reading taken when the copy is
    complete. Only if that returns True may what was copied be believed.

    Not thread-safe. `now` is a reading of one monotonic clock, taken after what is told with it has happened. Readings
    may go back a little, as between threads.
    """

    def __init__(self, name: str, page_bytes: int, random: Random, *, timing: Timing | None = None) -> None:
        """`page_bytes`: of the borrower's own pages; leases are whole pages of it."""
        self.party = Party(name, random.getrandbits(62) + 1)
        self.timing = timing or Timing()
        self._page_bytes = page_bytes
        self._nonces = itertools.count(1)
        self._links: dict[str, Link] = {}
        self._wanted = 0

    # What the borrower's server does

    def connect(self, donor: str, now: float) -> Outputs:
        """Begin a session with a donor. Raises ValueError if there is one."""
        if donor in self._links:
            raise ValueError(f"{donor}: is connected already")
        self._links[donor] = Link(donor, self.party, self._page_bytes, self.timing, self._nonces, now)
        return []

    def disconnect(self, donor: str, now: float) -> Outputs:
        """Return all that the donor has lent, then forget it: `DonorLeft` tells when."""
        link = self._links.get(donor)
        return [] if link is None else [*link.leave(now), *self._settle(link)]

    def want(self, wanted_bytes: int, now: float) -> Outputs:
        """How much is to be held, from all donors together. Holding more than that is not returned by itself."""
        self._wanted = wanted_bytes
        return self._ask(now)

    def release(self, key: LeaseKey, now: float) -> Outputs:
        """Begin no use of the lease any more; return it when those under way have ended.

        A recalled lease is returned at the recall's bound at the latest, except for stores under way.
        """
        link = self._link(key)
        return [] if link is None else [*link.release(key.lease, now), *self._settle(link)]

    def check_before(self, key: LeaseKey, now: float, use: Use = Use.READ) -> Ticket | None:
        """Begin a use of a lease; None if it does not allow it. Every ticket goes to `check_after`, exactly once."""
        link = self._link(key)
        return None if link is None else link.begin(key.lease, use, now)

    def check_after(self, ticket: Ticket, now: float) -> bool:
        """End a use. True if the lease has lasted until `now`, so that what was read is what was stored there.

        False: throw it away. Afterwards `wake` may say that `tick` is due. Raises ValueError for a ticket that has
        been ended.
        """
        link = self._links.get(ticket.lease.key.donor)
        if link is not None:
            return link.finish(ticket, now)
        ticket.close()
        return False

    def gone(self, donor: Party, now: float) -> Outputs:
        """This life of a donor has ended, or the connection to it is closed: its leases are lost at once."""
        link = self._links.get(donor.name)
        if link is None or link.epoch != donor.epoch:
            return []
        return [*link.gone(now), *self._settle(link)]

    def refused(self, donor: str, reason: str, now: float) -> Outputs:
        """The donor cannot be talked to, for a reason that was found outside of this machine."""
        link = self._links.get(donor)
        return [] if link is None else link.refused(reason, now)

    def table(self, donor: str) -> dict[int, Extents]:
        """The active leases of a donor."""
        link = self._links.get(donor)
        return {} if link is None else link.table()

    def leases(self, now: float) -> list[LeaseView]:
        """All leases that are not returned and forgotten, as an operator sees them."""
        return [
            LeaseView(Party(donor, link.epoch), self.party, number, lease.bytes, lease.state.value, lease.end - now)
            for donor, link in self._links.items()
            for number, lease in link.leases.items()
        ]

    def keys(self) -> list[LeaseKey]:
        """The leases that are not returned yet, of all donors."""
        return [lease.key for link in self._links.values() for lease in link.leases.values()]

    def usable(self, key: LeaseKey, now: float) -> bool:
        """Whether a use that ended now would be believed."""
        link = self._link(key)
        return link is not None and key.lease in link.leases and link.leases[key.lease].usable(now)

    @property
    def donors(self) -> dict[str, LinkState]:
        """All links."""
        return {donor: link.state for donor, link in self._links.items()}

    @property
    def held_bytes(self) -> int:
        """Bytes of all active leases."""
        return sum(link.held for link in self._links.values())

    @property
    def wake(self) -> float:
        """When `tick` is to be called next, by the clock of `now`."""
        return min((link.wake for link in self._links.values()), default=math.inf)

    # What the network and the clock do

    def receive(self, letter: Letter, now: float) -> Outputs:
        """A letter has come."""
        link = self._links.get(letter.sender.name)
        return [] if link is None else [*link.receive(letter, now), *self._settle(link), *self._ask(now)]

    def tick(self, now: float) -> Outputs:
        """Time has passed. To be called at `wake`, or later."""
        outputs: Outputs = []
        for link in list(self._links.values()):
            if link.wake <= now:
                outputs += [*link.tick(now), *self._settle(link)]
        return outputs + self._ask(now)

    def _link(self, key: LeaseKey) -> Link | None:
        link = self._links.get(key.donor)
        return link if link is not None and link.epoch == key.epoch else None

    def _settle(self, link: Link) -> Outputs:
        """Drop a link that was left, once nothing can come of it any more."""
        if not link.over or self._links.get(link.donor) is not link:
            return []
        del self._links[link.donor]
        return [DonorLeft(link.donor, link.epoch)] if link.epoch else []

    def _ask(self, now: float) -> Outputs:
        """Ask for what is missing, of those who offer; most of it of those who have lent least."""
        held = sum(link.held for link in self._links.values())
        missing = max(0, self._wanted - held - sum(link.asked for link in self._links.values()))
        wanted = self._split(missing, now) if missing else {}
        for link in self._links.values():
            link.want(wanted.get(link.donor, 0), now, enough=held >= self._wanted)
        offers = [link for link in self._links.values() if link.may_ask] if missing else []
        outputs: Outputs = []
        for donor, amount in share(missing, {link.donor: Ask(link.held, link.offered) for link in offers}).items():
            if amount:
                outputs += self._links[donor].ask(amount, now)
        return outputs

    def _split(self, missing: int, now: float) -> dict[str, int]:
        """What is wanted of each donor: all of it together once, since each makes room for what it is told. Of those
        that had nothing lately, as much as tells when they have something again."""
        joined = [link for link in self._links.values() if link.state is LinkState.JOINED]
        dry = {link.donor: min(link.unit_bytes, missing) for link in joined if link.dry(now)}
        parts = share(missing, {link.donor: Ask(link.held, missing) for link in joined if link.donor not in dry})
        return {**parts, **dry}
