"""What donors and borrowers say to each other. docs/leases.md is this module in words; a test holds both together.

A letter is `[version, sender's name, sender's epoch, receiver's epoch, body]` in msgpack; the body is an object whose
key `type` names the message. Version and sender stay where they are in every version, so that a letter of another one
can be answered. What exceeds the limits below is not a message: it is counted and ignored.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Annotated

import msgspec
from msgspec import Meta

#: Changes with anything that a reader of the former version would misread.
VERSION = 1
#: Leases that one message names.
MAX_LEASES = 1024
#: Extents in one message; a run with more cannot be lent.
MAX_EXTENTS = 16384
#: Bytes of one letter. The longest that keeps the limits above is below half of it.
MAX_LETTER_BYTES = 2**20

_POSITIVE = Meta(gt=0, le=2**63 - 1)
Epoch = Annotated[int, _POSITIVE]
Nonce = Annotated[int, _POSITIVE]
LeaseId = Annotated[int, _POSITIVE]
Offset = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Length = Annotated[int, _POSITIVE]
Seconds = Annotated[float, Meta(gt=0, le=3600)]
LeaseIds = Annotated[tuple[LeaseId, ...], Meta(max_length=MAX_LEASES)]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._:-]{1,128}\Z")]


class Party(msgspec.Struct, frozen=True, array_like=True):
    """One life of a server's lease protocol: its name, and the epoch it drew at random when it began."""

    name: Name
    epoch: Epoch


class Extent(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Bytes `[offset, offset + length)` of one of the buffers that a donor exports, numbered from 0."""

    buffer: Annotated[int, Meta(ge=0, lt=2**16)]
    offset: Offset
    length: Length


Extents = Annotated[tuple[Extent, ...], Meta(min_length=1, max_length=MAX_EXTENTS)]


class GrantedLease(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One lease of a grant."""

    lease: LeaseId
    extents: Extents


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type"):
    """Base of all messages."""


# Borrower to donor


class Hello(Message, frozen=True, tag="hello"):
    """Begins a session, or begins it anew: the borrower knows the donor's epoch from no other message than its answer.

    Extents that it is lent shall be whole pages of `page_bytes` each, in sum.
    """

    nonce: Nonce
    page_bytes: Length


class Heartbeat(Message, frozen=True, tag="heartbeat"):
    """The borrower lives, and would like this much more from somebody. Answered by an offer."""

    wanted_bytes: Offset


class Request(Message, frozen=True, tag="request"):
    """Asks for leases of so many bytes. Answered by grant or refuse; sent again with the same nonce until then."""

    nonce: Nonce
    wanted_bytes: Length


class Renew(Message, frozen=True, tag="renew"):
    """Asks for another term of these leases."""

    nonce: Nonce
    leases: LeaseIds


class Return(Message, frozen=True, tag="return"):
    """Of these leases nothing is read or written any more, and nothing will be. Sent again until answered by expire."""

    leases: LeaseIds


# Donor to borrower


class Welcome(Message, frozen=True, tag="welcome"):
    """Answers the hello with this nonce. `unit_bytes` is the smallest amount that is whole pages of both sides."""

    nonce: Nonce
    unit_bytes: Length


class Offer(Message, frozen=True, tag="offer"):
    """So many bytes could be lent to this borrower now. A hint: others get the same."""

    free_bytes: Offset


class Grant(Message, frozen=True, tag="grant"):
    """Lends, for `term` seconds after the borrower first sent the request with this nonce."""

    nonce: Nonce
    term: Seconds
    leases: Annotated[tuple[GrantedLease, ...], Meta(min_length=1, max_length=MAX_LEASES)]


class Renewed(Message, frozen=True, tag="renewed"):
    """These leases run for `term` seconds after the borrower sent the renew with this nonce."""

    nonce: Nonce
    term: Seconds
    leases: LeaseIds


class Recall(Message, frozen=True, tag="recall"):
    """Return these leases within so many seconds. Sent again until they are returned or have ended."""

    leases: LeaseIds
    within: Seconds


class Expire(Message, frozen=True, tag="expire"):
    """These leases have ended for the donor, by a return or by time."""

    leases: LeaseIds


class Reason(Enum):
    """Why a donor refuses."""

    VERSION = "version"  # it speaks another version of this protocol
    EPOCH = "epoch"  # the message was for a former life of the donor
    UNKNOWN = "unknown"  # there is no session with this borrower
    FULL = "full"  # it has as many borrowers as it takes
    PAGE = "page"  # the two sides' pages have no unit of a sensible size
    NOTHING = "nothing"  # it has nothing to lend to this borrower now


class Refuse(Message, frozen=True, tag="refuse"):
    """No, and why. `nonce` is of the hello or request that is refused, or 0."""

    nonce: Offset
    reason: Reason


BorrowerMessage = Hello | Heartbeat | Request | Renew | Return
DonorMessage = Welcome | Offer | Grant | Renewed | Recall | Expire | Refuse
AnyMessage = BorrowerMessage | DonorMessage


def in_parts(leases: Iterable[int]) -> list[tuple[int, ...]]:
    """As many as one message takes, then the next."""
    listed = tuple(leases)
    return [listed[start : start + MAX_LEASES] for start in range(0, len(listed), MAX_LEASES)]


class Letter(msgspec.Struct, frozen=True):
    """A message with who sends it and for which life of the receiver; `receiver_epoch` is 0 where it is not known."""

    sender: Party
    receiver_epoch: int
    body: AnyMessage


class GarbledError(ValueError):
    """Bytes that are no letter."""


class VersionError(ValueError):
    """A letter of another version of the protocol."""

    def __init__(self, version: int, sender: Party) -> None:
        super().__init__(
            f"{sender.name} speaks version {version} of the lease protocol, this server version {VERSION}; "
            "run the same release of swift-tiers on both"
        )
        self.version = version
        self.sender = sender


class _Envelope(msgspec.Struct, frozen=True, array_like=True):
    version: Annotated[int, Meta(ge=0, lt=2**31)]
    name: Name
    epoch: Epoch
    receiver_epoch: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    body: msgspec.Raw


_encoder = msgspec.msgpack.Encoder()
_envelopes = msgspec.msgpack.Decoder(_Envelope)
_bodies = msgspec.msgpack.Decoder(AnyMessage)


def encode(letter: Letter) -> bytes:
    """A letter as bytes."""
    body = msgspec.Raw(_encoder.encode(letter.body))
    sender = letter.sender
    return _encoder.encode(_Envelope(VERSION, sender.name, sender.epoch, letter.receiver_epoch, body))


def decode(data: bytes | memoryview) -> Letter:
    """The letter in `data`. Raises GarbledError, or VersionError where only the envelope could be understood."""
    if len(data) > MAX_LETTER_BYTES:
        raise GarbledError(f"{len(data)} bytes are more than a letter may have")
    try:
        envelope = _envelopes.decode(data)
        sender = Party(envelope.name, envelope.epoch)
        if envelope.version != VERSION:
            raise VersionError(envelope.version, sender)
        body = _bodies.decode(envelope.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise GarbledError(str(error)) from None
    if isinstance(body, Grant) and sum(len(granted.extents) for granted in body.leases) > MAX_EXTENTS:
        raise GarbledError("a grant with too many extents")
    return Letter(sender, envelope.receiver_epoch, body)
