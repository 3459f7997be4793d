"""The donor's side of the lease protocol: a state machine without I/O and without a clock of its own."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from random import Random

from .effects import (
    Back,
    BorrowerJoined,
    BorrowerLeft,
    DonorEffect,
    Fence,
    LeaseView,
    Reclaimed,
    Send,
)
from .messages import (
    MAX_EXTENTS,
    MAX_LEASES,
    DonorMessage,
    Expire,
    Extent,
    Extents,
    Grant,
    GrantedLease,
    Heartbeat,
    Hello,
    Letter,
    Offer,
    Party,
    Reason,
    Recall,
    Refuse,
    Renew,
    Renewed,
    Request,
    Return,
    Welcome,
    in_parts,
)
from .runs import HeldRun, LentRun, RunState, RunTable
from .sharing import Ask, elastic_unit, share
from .timing import RECALL_PART, Timing

Outputs = list[Send | DonorEffect]

#: The largest unit, bytes: pages whose least common multiple is beyond it do not fit together.
MAX_UNIT_BYTES = 2**32
#: More than all of them together can want, bytes: what ranks agree on has 63 bits.
MOST_WANTED = 2**60


class _Borrower:
    """A session with one life of a borrower."""

    def __init__(self, party: Party, page_bytes: int, unit_bytes: int, now: float) -> None:
        self.party = party
        self.page_bytes = page_bytes
        self.unit_bytes = unit_bytes
        self.heard = now
        self.wanted = 0
        self.request = 0  # nonce of the newest one
        self.offered = 0
        self.leases: dict[int, LentRun] = {}
        self.held = 0  # bytes of these


class Donor:
    """Lends runs of memory to borrowers.

    A run is in the machine from `stock` until the effect `Reclaimed`; in between its bytes are not the caller's to use.
    It goes to a borrower only after `fenced`, to one at a time, and comes back only after that borrower returned it,
    its process ended, or `Timing.donor_deadline` passed. A later use of the same memory is a new run.

    Not thread-safe. `now` is a reading of one monotonic clock, taken after what is told with it has happened. Readings
    may go back a little, as between threads.
    """

    def __init__(
        self,
        name: str,
        page_bytes: int,
        random: Random,
        *,
        timing: Timing | None = None,
        limit_bytes: int | None = None,
        max_borrowers: int = 64,
    ) -> None:
        """`page_bytes`: of the donor's own pages. `limit_bytes`: the most that is lent at any time; None: all there is.

        One machine serves the memory for as long as that exists. Another one for the same memory may stock only what is
        no longer lent by the first.
        """
        self.party = Party(name, random.getrandbits(62) + 1)
        self.timing = timing or Timing()
        self.limit_bytes = limit_bytes
        self._page_bytes = page_bytes
        self._max_borrowers = max_borrowers
        self._runs = RunTable()
        self._last_run = 0
        self._last_lease = 0
        self._leases: dict[int, LentRun] = {}
        self._borrowers: dict[Party, _Borrower] = {}
        self._offers_due = False
        #: When `tick` is to be called next, by the clock of `now`.
        self.wake = math.inf

    # What the owner of the memory does

    def stock(self, run: int, extents: Collection[Extent]) -> Outputs:
        """Put memory at the borrowers' disposal, whole pages in sum. Raises ValueError for what cannot be lent.

        `run` is chosen by the caller, larger than any before, so that a late `fenced` cannot mean another one.
        """
        new = LentRun(run, tuple(extents))
        if run <= self._last_run:
            raise ValueError(f"run {run}: numbers must grow, the last one was {self._last_run}")
        if not 0 < len(new.extents) <= MAX_EXTENTS:
            raise ValueError(f"run {run}: has {len(new.extents)} extents, not 1 to {MAX_EXTENTS}; lend longer extents")
        if new.bytes % self._page_bytes:
            raise ValueError(f"run {run}: {new.bytes} bytes are not whole pages of {self._page_bytes}")
        self._last_run = run
        self._runs.add(new)
        return [Fence(run)]

    def fenced(self, run: int) -> Outputs:
        """Nothing here uses the run's bytes any more: it may be offered."""
        found = self._runs.get(run, RunState.FENCING)
        if found is None:
            return []  # it was withdrawn meanwhile
        self._runs.move(found, RunState.FREE)
        self._news()
        return []

    def to_withdraw(self, wanted_bytes: int) -> list[int]:
        """The runs to withdraw for having so many bytes back, those counted that are already recalled; all if there are
        not so many. First what is not lent, then the youngest leases, of who holds most; those that are pinned only
        when no others are left."""
        short = wanted_bytes - self._runs.bytes_in(RunState.RECALLED)
        chosen: list[LentRun] = []
        for run in self._runs.all_in(RunState.FREE, RunState.FENCING):
            if short <= 0:
                break
            short -= run.bytes
            chosen.append(run)
        return [run.number for run in chosen + self._pick(short)]

    def withdraw_runs(self, runs: Iterable[int], now: float) -> Outputs:
        """Get these runs back: at once what is not lent, by a recall what is. Those that are not here are ignored."""
        outputs: Outputs = []
        lent: list[LentRun] = []
        for run in filter(None, map(self._runs.find, runs)):
            if run.state in (RunState.FREE, RunState.FENCING):
                self._runs.remove(run)
                outputs.append(Reclaimed(run.number, Back.UNUSED))
            elif run.state is RunState.LENT:
                lent.append(run)
        if outputs:
            self._news()
        return outputs + self._recall(lent, now)

    def withdraw(self, wanted_bytes: int, now: float) -> Outputs:
        """Get back at least so many bytes, as `to_withdraw` says: what is not lent comes back at once."""
        return self.withdraw_runs(self.to_withdraw(wanted_bytes), now)

    def unused(self) -> list[int]:
        """The runs that are not lent."""
        return [run.number for run in self._runs.all_in(RunState.FREE, RunState.FENCING)]

    def withdraw_unused(self) -> Outputs:
        """Get back all that is not lent."""
        return self.withdraw_runs(self.unused(), 0.0)  # nothing of it is recalled

    def recall(self, leases: Iterable[int], now: float) -> Outputs:
        """Recall these leases; those that are not lent are ignored."""
        found = (self._leases.get(lease) for lease in set(leases))
        return self._recall([run for run in found if run is not None and run.state is RunState.LENT], now)

    def set_limit(self, limit_bytes: int | None, now: float) -> Outputs:
        """Lend at most so many bytes from now on; recall what is beyond."""
        self.limit_bytes = limit_bytes
        self._news()
        beyond = 0 if limit_bytes is None else self._runs.bytes_in(RunState.LENT) - limit_bytes
        return self._recall(self._pick(beyond), now)

    def pin(self, lease: int, pinned: bool) -> bool:
        """Have a lease recalled last, or no longer. False if there is no such lease."""
        run = self._leases.get(lease)
        if run is not None:
            run.pinned = pinned
        return run is not None

    def gone(self, borrower: Party) -> Outputs:
        """The borrower's process has ended, for certain: what it held comes back at once."""
        session = self._borrowers.get(borrower)
        if session is None:
            return []
        outputs = self._end(list(session.leases.values()), Back.GONE)
        del self._borrowers[borrower]
        return [*outputs, BorrowerLeft(borrower)]

    def holds(self, borrower: Party, lease: int) -> bool:
        """Whether this life of a borrower holds the lease; to be asked before storing anything for it."""
        run = self._leases.get(lease)
        return run is not None and run.borrower == borrower

    def lent_to(self, borrower: Party, lease: int) -> HeldRun | None:
        """What this life of a borrower holds by the lease; None if it does not hold it."""
        if not self.holds(borrower, lease):
            return None
        run = self._leases[lease]
        return HeldRun(run.number, run.extents)

    def table(self, borrower: Party) -> dict[int, Extents]:
        """What this life of a borrower holds, by lease."""
        session = self._borrowers.get(borrower)
        return {lease: run.extents for lease, run in session.leases.items()} if session else {}

    def leases(self, now: float) -> list[LeaseView]:
        """All leases, as an operator sees them."""
        return [
            LeaseView(self.party, party, run.lease, run.bytes, run.state.value, run.deadline - now, run.pinned)
            for party, session in self._borrowers.items()
            for run in session.leases.values()
        ]

    @property
    def borrowers(self) -> list[Party]:
        """All sessions."""
        return list(self._borrowers)

    def wanted_bytes(self, run_bytes: int) -> int:
        """What all borrowers for whom a run of so many bytes would do would like more of this donor, as they last said.
        At most MOST_WANTED, whatever they say."""
        wanted = sum(session.wanted for session in self._borrowers.values() if run_bytes % session.page_bytes == 0)
        return min(wanted, MOST_WANTED)

    def bytes_in(self, *states: RunState) -> int:
        """Bytes of the runs in these states."""
        return self._runs.bytes_in(*states)

    # What the network and the clock do

    def receive(self, letter: Letter, now: float) -> Outputs:
        """A letter has come."""
        sender, body = letter.sender, letter.body
        if isinstance(body, Hello):
            return self._hello(sender, body, now)
        session = self._borrowers.get(sender)
        if letter.receiver_epoch != self.party.epoch:
            return [self._to(sender, Refuse(0, Reason.EPOCH))]
        if session is None:
            return [self._to(sender, Refuse(0, Reason.UNKNOWN))]
        session.heard = now
        match body:
            case Heartbeat():
                session.wanted = body.wanted_bytes
                return [self._offer(session)]
            case Request():
                return self._request(session, body, now)
            case Renew():
                return self._renew(session, body, now)
            case Return():
                returned = [session.leases[lease] for lease in set(body.leases) if lease in session.leases]
                return [*self._end(returned, Back.RETURNED), self._to(sender, Expire(body.leases))]
        return []  # what only donors say

    def tick(self, now: float) -> Outputs:
        """Time has passed. To be called at `wake`, or later."""
        outputs: Outputs = []
        over = [run for run in self._leases.values() if run.deadline <= now]
        for party in self._borrowers:
            ended = [run.lease for run in over if run.borrower == party]
            outputs += [self._to(party, Expire(part)) for part in in_parts(ended)]
        outputs += self._end(over, Back.EXPIRED)
        outputs += self._send_recalls([run for run in self._leases.values() if run.recall_again <= now], now)
        for session in list(self._borrowers.values()):
            if not session.leases and session.heard + self.timing.silence <= now:
                del self._borrowers[session.party]
                outputs.append(BorrowerLeft(session.party))
        outputs += self._offers() if self._offers_due else []
        times = [min(run.deadline, run.recall_again) for run in self._leases.values()]
        times += [session.heard + self.timing.silence for session in self._borrowers.values() if not session.leases]
        self.wake = min(times, default=math.inf)
        return outputs

    # Sessions

    def _hello(self, sender: Party, hello: Hello, now: float) -> Outputs:
        session = self._borrowers.get(sender)
        outputs: Outputs = []
        if session is None:
            unit = elastic_unit(self._page_bytes, hello.page_bytes)
            if unit > MAX_UNIT_BYTES:
                return [self._to(sender, Refuse(hello.nonce, Reason.PAGE))]
            if len(self._borrowers) >= self._max_borrowers:
                return [self._to(sender, Refuse(hello.nonce, Reason.FULL))]
            session = self._borrowers[sender] = _Borrower(sender, hello.page_bytes, unit, now)
            outputs.append(BorrowerJoined(sender, unit))
        session.heard = now
        self._wake_at(now + self.timing.silence)
        return [*outputs, self._to(sender, Welcome(hello.nonce, session.unit_bytes)), self._offer(session)]

    # Leases

    def _request(self, session: _Borrower, request: Request, now: float) -> Outputs:
        if request.nonce < session.request:
            return []  # late; the borrower has given it up
        if request.nonce > session.request:
            session.request = request.nonce
            session.wanted = max(session.wanted, request.wanted_bytes)
            granted = self._choose(session, request.wanted_bytes)
            for run in granted:
                self._lend(run, session, now)
            session.wanted = max(0, session.wanted - sum(run.bytes for run in granted))
        # Asked again, the answer is the same: the borrower counts from when it asked first.
        lent = [run for run in session.leases.values() if run.nonce == request.nonce and run.state is RunState.LENT]
        if not lent:
            return [self._to(session.party, Refuse(request.nonce, Reason.NOTHING))]
        leases = tuple(GrantedLease(run.lease, run.extents) for run in lent)
        return [self._to(session.party, Grant(request.nonce, self.timing.term, leases))]

    def _lend(self, run: LentRun, session: _Borrower, now: float) -> None:
        self._last_lease += 1
        run.borrower, run.lease, run.nonce = session.party, self._last_lease, session.request
        run.deadline = self.timing.donor_deadline(now, self.timing.term)
        self._runs.move(run, RunState.LENT)
        self._news()
        self._leases[run.lease] = session.leases[run.lease] = run
        session.held += run.bytes
        self._wake_at(run.deadline)

    def _renew(self, session: _Borrower, renew: Renew, now: float) -> Outputs:
        renewed, ended, recalled = [], [], []
        for lease in set(renew.leases):
            run = session.leases.get(lease)
            if run is None:
                ended.append(lease)
            elif run.state is RunState.RECALLED:
                recalled.append(run)
            else:
                run.nonce = 0
                run.deadline = max(run.deadline, self.timing.donor_deadline(now, self.timing.term))
                renewed.append(lease)
        outputs: Outputs = [self._to(session.party, Renewed(renew.nonce, self.timing.term, tuple(renewed)))]
        if ended:
            outputs.append(self._to(session.party, Expire(tuple(ended))))
        return outputs + self._send_recalls(recalled, now)

    def _recall(self, runs: list[LentRun], now: float) -> Outputs:
        for run in runs:
            self._runs.move(run, RunState.RECALLED)
            run.recall_until = now + self.timing.recall_bound * RECALL_PART
        return self._send_recalls(runs, now)

    def _send_recalls(self, runs: list[LentRun], now: float) -> Outputs:
        outputs: Outputs = []
        groups: dict[tuple[Party, float], list[int]] = {}
        for run in runs:
            assert run.borrower is not None
            run.recall_again = now + self.timing.recall_retry
            self._wake_at(run.recall_again)
            groups.setdefault((run.borrower, run.recall_until), []).append(run.lease)
        for (party, until), leases in groups.items():
            within = max(until - now, self.timing.recall_retry / 10)
            outputs += [self._to(party, Recall(part, within)) for part in in_parts(leases)]
        return outputs

    def _end(self, runs: Iterable[LentRun], back: Back) -> Outputs:
        """The only way by which lent memory comes back."""
        outputs: Outputs = []
        for run in runs:
            assert run.borrower is not None
            session = self._borrowers[run.borrower]
            del self._leases[run.lease], session.leases[run.lease]
            session.held -= run.bytes
            self._runs.remove(run)
            self._news()
            self._wake_at(session.heard + self.timing.silence)
            outputs.append(Reclaimed(run.number, back))
        return outputs

    # Choosing

    def _room(self) -> int | float:
        if self.limit_bytes is None:
            return math.inf
        return self.limit_bytes - self._runs.bytes_in(RunState.LENT, RunState.RECALLED)

    def _choose(self, session: _Borrower, wanted_bytes: int) -> list[LentRun]:
        """Runs for a request: the borrower's fair share of what is free, rounded up to a whole run."""
        room = self._room()
        asks = {
            other.party: Ask(other.held, other.wanted)
            for other in self._borrowers.values()
            if other is not session and other.wanted and self._runs.fitting_bytes(other.page_bytes)
        }
        asks[session.party] = Ask(session.held, wanted_bytes)
        fair = share(int(min(self._runs.bytes_in(RunState.FREE), max(0, room))), asks)[session.party]
        chosen: list[LentRun] = []
        extents = 0
        for run in self._runs.fitting(session.page_bytes):
            if fair <= 0 or len(chosen) == MAX_LEASES or extents + len(run.extents) > MAX_EXTENTS:
                break
            if run.bytes > room:
                continue
            chosen.append(run)
            extents += len(run.extents)
            fair -= run.bytes
            room -= run.bytes
        return chosen

    def _pick(self, wanted_bytes: int) -> list[LentRun]:
        """Leases of so many bytes to recall: the youngest of who holds most, by turns; those that are pinned last."""
        lent = {
            party: [run for run in session.leases.values() if run.state is RunState.LENT]
            for party, session in self._borrowers.items()
        }
        held = {party: sum(run.bytes for run in runs) for party, runs in lent.items()}
        picked: list[LentRun] = []
        for pinned in (False, True):
            left = {party: [run for run in runs if run.pinned is pinned] for party, runs in lent.items()}
            while wanted_bytes > 0 and any(left.values()):
                most = max((party for party in left if left[party]), key=lambda party: held[party])
                run = left[most].pop()
                held[most] -= run.bytes
                wanted_bytes -= run.bytes
                picked.append(run)
        return picked

    # Telling

    def _offer(self, session: _Borrower) -> Send:
        session.offered = self._free_for(session)
        return self._to(session.party, Offer(session.offered))

    def _free_for(self, session: _Borrower) -> int:
        return int(min(self._runs.fitting_bytes(session.page_bytes), max(0, self._room())))

    def _news(self) -> None:
        """What can be lent has changed. The next `tick` tells it, once for all changes until then."""
        self._offers_due = True
        self.wake = -math.inf

    def _offers(self) -> Outputs:
        """To every borrower that would like more and was told something else."""
        self._offers_due = False
        waiting = [session for session in self._borrowers.values() if session.wanted]
        return [self._offer(session) for session in waiting if session.offered != self._free_for(session)]

    def _to(self, party: Party, body: DonorMessage) -> Send:
        return Send(party, Letter(self.party, party.epoch, body))

    def _wake_at(self, time: float) -> None:
        self.wake = min(self.wake, time)
