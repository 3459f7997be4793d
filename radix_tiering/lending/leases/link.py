"""A borrower's dealings with one donor."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import NamedTuple

from .effects import (
    BorrowerEffect,
    DonorJoined,
    DonorLeft,
    DonorRefused,
    Ended,
    LeaseBegan,
    LeaseEnded,
    LeaseKey,
    LeaseRecalled,
    Send,
)
from .lease import Lease, LeaseState, Ticket, Use
from .messages import (
    BorrowerMessage,
    Expire,
    Extents,
    Grant,
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
from .timing import HEARTBEATS_TO_OFFER, RENEWALS_PER_TERM, Timing, borrower_end

Outputs = list[Send | BorrowerEffect]


class LinkState(Enum):
    """How a borrower stands with one donor. Leases do not depend on it: they end by themselves."""

    SEEKING = "seeking"  # a hello is sent until it is answered
    JOINED = "joined"  # the donor's epoch is known
    LEAVING = "leaving"  # everything is being returned


class _Pending(NamedTuple):
    """The request that is not answered yet."""

    nonce: int
    wanted_bytes: int
    sent: float  # for the first time: whichever sending the donor answers, it was not before


class Link:
    """The state machine behind `Borrower`; same rules about `now` and threads."""

    def __init__(
        self, donor: str, borrower: Party, page_bytes: int, timing: Timing, nonces: Iterator[int], now: float
    ) -> None:
        self.donor = donor
        self.state = LinkState.SEEKING
        self.epoch = 0  # the donor's; 0 while none is known
        self.unit_bytes = 0
        self.offered = 0
        self.wanted = 0  # of this donor
        self.heard = -math.inf
        self.leases: dict[int, Lease] = {}
        self.wake = now
        self._borrower = borrower
        self._page_bytes = page_bytes
        self._timing = timing
        self._nonces = nonces
        self._term = timing.term
        self._hello = next(nonces)
        self._hello_again = now
        self._refused: str | None = None
        self._heartbeat_at = math.inf
        self._said = 0  # what the donor takes for wanted, as far as is known here
        self._offers_until = math.inf  # when it is dry, if it has offered nothing by then
        self._request: _Pending | None = None
        self._request_again = math.inf
        self._renew_at = math.inf
        self._renewals: dict[int, float] = {}  # nonce -> when it was sent
        self._last_lease = 0  # of this epoch

    # What the borrower's server does

    def want(self, wanted_bytes: int, now: float, *, enough: bool = False) -> None:
        """What is wanted of this donor beyond what it has lent. Where it is much more than it knows, or nothing more,
        it is told at once: to make room for it, or none. `enough`: no other donor is asked for it just now, either."""
        self.wanted = wanted_bytes
        news = self._said > 0 if enough else wanted_bytes >= 2 * self._said and wanted_bytes > 0
        if news and self.state is LinkState.JOINED:
            self._heartbeat_at = now
            self._wake_at(now)

    def dry(self, now: float) -> bool:
        """Whether it was told that something is wanted, and has had none of it for as long as it may take."""
        return self._said > 0 and now >= self._offers_until

    @property
    def may_ask(self) -> bool:
        """Whether there is an offer, and no request under way."""
        return self.state is LinkState.JOINED and self._request is None and self.offered > 0

    @property
    def asked(self) -> int:
        """Bytes of the request under way, if its grant would begin leases."""
        return self._request.wanted_bytes if self._request and self.state is not LinkState.LEAVING else 0

    @property
    def over(self) -> bool:
        """Whether it was left, and nothing is to be returned any more, nor might be granted."""
        return self.state is LinkState.LEAVING and not self.leases and self._request is None

    @property
    def held(self) -> int:
        """Bytes of the active leases."""
        return sum(lease.bytes for lease in self.leases.values() if lease.state is LeaseState.ACTIVE)

    def table(self) -> dict[int, Extents]:
        """The active leases."""
        return {number: x.extents for number, x in self.leases.items() if x.state is LeaseState.ACTIVE}

    def ask(self, wanted_bytes: int, now: float) -> Outputs:
        self._request = _Pending(next(self._nonces), wanted_bytes, now)
        self.offered -= wanted_bytes
        self._said = max(self._said, wanted_bytes)
        return [self._send_request(now)]

    def release(self, lease: int, now: float) -> Outputs:
        found = self.leases.get(lease)
        if found is None or found.state not in (LeaseState.ACTIVE, LeaseState.RECALLED):
            return []
        found.closing = Ended.RELEASED if found.state is LeaseState.ACTIVE else Ended.RECALLED
        found.state = LeaseState.CLOSING
        return self._advance([found], now)

    def begin(self, lease: int, use: Use, now: float) -> Ticket | None:
        found = self.leases.get(lease)
        return found.begin(use, now) if found else None

    def finish(self, ticket: Ticket, now: float) -> bool:
        valid = ticket.lease.usable(now)
        ticket.close()
        if ticket.lease.state in (LeaseState.CLOSING, LeaseState.DRAINING):
            self._wake_at(now)
        return valid

    def leave(self, now: float) -> Outputs:
        """Return everything; the link is over when no lease is left, and the request under way is answered."""
        self.state = LinkState.LEAVING
        self._request_again = math.inf  # a donor that has not heard it grants nothing
        self._heartbeat_at = self._hello_again = self._renew_at = math.inf
        self._wake_at(now)
        return [output for lease in list(self.leases) for output in self.release(lease, now)]

    def gone(self, now: float) -> Outputs:
        """The donor's process has ended, or no connection to it is left: its memory may be anyone's."""
        outputs = self._lose()
        if self.state is not LinkState.LEAVING:
            self._seek(now)
        return outputs

    def refused(self, reason: str, now: float) -> Outputs:
        """The donor will not have us; it is asked again later."""
        self._hello_again = now + self._timing.silence
        self._wake_at(self._hello_again)
        if self._refused == reason:
            return []
        self._refused = reason
        return [DonorRefused(self.donor, reason)]

    # What the network and the clock do

    def receive(self, letter: Letter, now: float) -> Outputs:
        if letter.receiver_epoch != self._borrower.epoch:
            return []  # for a former life of this server
        epoch, body = letter.sender.epoch, letter.body
        self.heard = now
        if isinstance(body, Welcome):
            return self._welcome(epoch, body, now)
        if isinstance(body, Refuse):
            return self._refuse(epoch, body, now)
        if epoch != self.epoch:
            return []  # of a former life of the donor, or of one that is not known yet
        match body:
            case Offer():
                self.offered = body.free_bytes
                if self.offered:
                    self._has_some(now)
            case Grant():
                return self._grant(body, now)
            case Renewed():
                self._renewed(body)
            case Recall():
                return self._recall(body, now)
            case Expire():
                return self._expire(body)
        return []

    def tick(self, now: float) -> Outputs:
        outputs = self._advance(list(self.leases.values()), now)
        if now >= self._hello_again and self.state is LinkState.SEEKING:
            self._hello_again = now + self._timing.retry
            outputs.append(self._to(Hello(self._hello, self._page_bytes), epoch=0))
        if now >= self._heartbeat_at and self.state is LinkState.JOINED:
            self._heartbeat_at = now + self._timing.heartbeat
            if self.wanted and not self._said:
                self._has_some(now)  # as long as nothing else is known
            self._said = self.wanted
            outputs.append(self._to(Heartbeat(self.wanted)))
        if self._request is not None and now >= self._request.sent + self._term / 2:
            self._request = None  # too little of the term would be left; a late grant is returned
        elif self._request is not None and now >= self._request_again:
            outputs.append(self._send_request(now))
        if now >= self._renew_at:
            outputs += self._send_renewals(now)
        times = [lease.wake for lease in self.leases.values()]
        times += [self._hello_again, self._heartbeat_at, self._renew_at]
        times += [min(self._request_again, self._request.sent + self._term / 2)] if self._request else []
        self.wake = min(times)
        return outputs

    # Sessions

    def _seek(self, now: float) -> None:
        self.state = LinkState.SEEKING
        self._hello = next(self._nonces)
        self._hello_again = now
        self._heartbeat_at = math.inf
        self._request = None
        self.offered = self._said = 0
        self._wake_at(now)

    def _has_some(self, now: float) -> None:
        """The donor has something to lend, or might have."""
        self._offers_until = now + HEARTBEATS_TO_OFFER * self._timing.heartbeat

    def _welcome(self, epoch: int, welcome: Welcome, now: float) -> Outputs:
        if self.state is not LinkState.SEEKING or welcome.nonce != self._hello:
            return []
        outputs: Outputs = []
        if epoch != self.epoch:
            outputs += self._lose()
            self.epoch, self._last_lease = epoch, 0
            outputs.append(DonorJoined(self.donor, epoch, welcome.unit_bytes))
        self.state = LinkState.JOINED
        self.unit_bytes = welcome.unit_bytes
        self._refused = None
        self._hello_again = math.inf
        self._heartbeat_at = now + (0 if self.wanted else self._timing.heartbeat)
        self._wake_at(self._heartbeat_at)
        return outputs

    def _refuse(self, epoch: int, refuse: Refuse, now: float) -> Outputs:
        if refuse.reason is Reason.NOTHING:
            if self._request is not None and refuse.nonce == self._request.nonce:
                self._request = None
                self.offered = 0
        elif refuse.reason in (Reason.EPOCH, Reason.UNKNOWN):
            # Perhaps an old letter: nothing is believed but the answer to a new hello.
            if self.state is LinkState.JOINED and (epoch == self.epoch) == (refuse.reason is Reason.UNKNOWN):
                self._seek(now)
        elif self.state is LinkState.SEEKING and refuse.nonce == self._hello:
            return self.refused(refuse.reason.value, now)
        return []

    def _lose(self) -> Outputs:
        """All leases of the donor's epoch are over, and there is nobody to return them to."""
        if not self.epoch:
            return []
        outputs: Outputs = []
        for lease in self.leases.values():
            outputs += self._over(lease, Ended.LOST)
            lease.state = LeaseState.RETURNED
        self.leases.clear()
        self._renewals.clear()
        self._request = None
        outputs.append(DonorLeft(self.donor, self.epoch))
        self.epoch = 0
        return outputs

    # Leases

    def _send_request(self, now: float) -> Send:
        assert self._request is not None
        self._request_again = now + self._timing.retry
        self._wake_at(self._request_again)
        return self._to(Request(self._request.nonce, self._request.wanted_bytes))

    def _grant(self, grant: Grant, now: float) -> Outputs:
        request, refused = self._request, []
        if request is None or request.nonce != grant.nonce:
            # Of a request that was given up, or a letter that comes twice.
            refused = [granted.lease for granted in grant.leases if granted.lease not in self.leases]
            return self._returns(refused)
        self._request = None
        self._term = grant.term
        self._has_some(now)
        granted_bytes = sum(extent.length for granted in grant.leases for extent in granted.extents)
        self._said = max(0, self._said - granted_bytes)
        if self.state is LinkState.LEAVING:
            return self._give_back(grant, now)
        end = borrower_end(request.sent, grant.term)
        outputs: Outputs = []
        for granted in grant.leases:
            if granted.lease <= self._last_lease:
                continue  # leases are numbered upwards: this is no new one, and no donor that works says so
            self._last_lease = granted.lease
            lease = Lease(LeaseKey(self.donor, self.epoch, granted.lease), granted.extents, end)
            if now >= end or lease.bytes % self._page_bytes:
                refused.append(granted.lease)
                continue
            self.leases[granted.lease] = lease
            outputs.append(LeaseBegan(lease.key, lease.extents))
            self._wake_at(end)
        self._renew_at = min(self._renew_at, now + self._term / RENEWALS_PER_TERM)
        self._wake_at(self._renew_at)
        return outputs + self._returns(refused)

    def _give_back(self, grant: Grant, now: float) -> Outputs:
        """Return what was granted, before it has begun for anybody here, until the donor knows."""
        for granted in grant.leases:
            lease = Lease(LeaseKey(self.donor, self.epoch, granted.lease), granted.extents, now)
            lease.state = LeaseState.RETURNED
            lease.return_again, lease.forget_at = now, now + 2 * self._term
            self.leases[granted.lease] = lease
        return self._advance(list(self.leases.values()), now)

    def _send_renewals(self, now: float) -> Outputs:
        self._renewals = {nonce: sent for nonce, sent in self._renewals.items() if sent + self._term > now}
        active = [number for number, lease in self.leases.items() if lease.state is LeaseState.ACTIVE]
        self._renew_at = now + self._term / RENEWALS_PER_TERM if active else math.inf
        outputs: Outputs = []
        for part in in_parts(active):
            nonce = next(self._nonces)
            self._renewals[nonce] = now
            outputs.append(self._to(Renew(nonce, part)))
        return outputs

    def _renewed(self, renewed: Renewed) -> None:
        sent = self._renewals.pop(renewed.nonce, None)
        if sent is None:
            return
        self._term = renewed.term
        for number in renewed.leases:
            lease = self.leases.get(number)
            if lease is not None and lease.state is LeaseState.ACTIVE:
                lease.end = max(lease.end, borrower_end(sent, renewed.term))

    def _recall(self, recall: Recall, now: float) -> Outputs:
        outputs: Outputs = []
        unknown = []
        for number in recall.leases:
            lease = self.leases.get(number)
            if lease is None:
                unknown.append(number)
            elif lease.state is LeaseState.RETURNED:
                lease.return_again = now
            else:
                lease.until = min(lease.until, now + recall.within)
                if lease.state is LeaseState.ACTIVE:
                    lease.state = LeaseState.RECALLED
                    outputs.append(LeaseRecalled(lease.key, lease.until))
            self._wake_at(lease.wake if lease else now)
        if unknown and self.state is not LinkState.LEAVING:
            # Their grant may be under way. It must not begin a lease that has been returned, so it is given up.
            self._request = None
        return outputs + self._returns(unknown)

    def _expire(self, expire: Expire) -> Outputs:
        outputs: Outputs = []
        for number in expire.leases:
            lease = self.leases.pop(number, None)
            if lease is not None:
                outputs += self._over(lease, Ended.EXPIRED)
                lease.state = LeaseState.RETURNED
        return outputs

    def _advance(self, leases: list[Lease], now: float) -> Outputs:
        """Let these leases end that have to."""
        outputs: Outputs = []
        returned = []
        for lease in leases:
            if lease.state is LeaseState.RETURNED:
                if now >= lease.forget_at:
                    del self.leases[lease.key.lease]
                elif now >= lease.return_again:
                    returned.append(lease)
                continue
            if lease.state is not LeaseState.DRAINING:
                ended = _end_of(lease, now)
                if ended is None:
                    self._wake_at(lease.wake)
                    continue
                outputs += self._over(lease, ended)
            lease.state = LeaseState.DRAINING if lease.stores else LeaseState.RETURNED
            if lease.state is LeaseState.RETURNED:
                # By then it has ended for the donor as well, whether or not it hears of this.
                lease.forget_at = now + 2 * self._term
                returned.append(lease)
        for lease in returned:
            lease.return_again = now + self._timing.retry
            self._wake_at(lease.return_again)
        return outputs + self._returns([lease.key.lease for lease in returned])

    def _over(self, lease: Lease, ended: Ended) -> Outputs:
        """Tell the end of a lease, unless it has been told."""
        told = lease.state in (LeaseState.DRAINING, LeaseState.RETURNED)
        return [] if told else [LeaseEnded(lease.key, ended)]

    def _returns(self, leases: Iterable[int]) -> Outputs:
        return [self._to(Return(part)) for part in in_parts(leases)]

    def _to(self, body: BorrowerMessage, epoch: int | None = None) -> Send:
        return Send(self.donor, Letter(self._borrower, self.epoch if epoch is None else epoch, body))

    def _wake_at(self, time: float) -> None:
        self.wake = min(self.wake, time)


def _end_of(lease: Lease, now: float) -> Ended | None:
    """Whether a usable lease is over now, and why."""
    if now >= lease.end:
        return Ended.EXPIRED
    if now >= lease.until:
        return lease.closing or Ended.RECALLED
    if lease.state is LeaseState.CLOSING and not lease.reads and not lease.stores:
        return lease.closing
    return None
