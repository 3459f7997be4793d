"""What a borrower and a donor say on the arena socket (docs/leases.md, "Arenas").

One message is one packet, `[version, body]` in msgpack; the body is a map whose key `type` names the message. With
`attach`, `attached` and `offer` travels one file descriptor, with the others none. What exceeds the limits below is not
a message: it is counted and ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from ..leases.messages import GarbledError, LeaseId, Length, Offset, Party
from .arena import ArenaKind

#: Changes with anything that a reader of the former version would misread.
VERSION = 3
#: Bytes of one packet: below what a unix socket's buffer takes (208 KiB by default).
MAX_PACKET_BYTES = 2**17
#: Stores that one message asks for, or answers.
MAX_STORES = 256


class ArenaMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type"):
    """Base of all messages."""


class Store(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One page to be copied from memory of the borrower's into a slot of a lent run."""

    number: Annotated[int, Meta(ge=0, le=2**63 - 1)]  # chosen by the borrower; comes back in the answer
    lease: LeaseId
    slot: Offset
    at: Offset  # bytes from the start of the borrower's memory
    outgoing: bool = False  # of what it has offered, not of the staging arena


class Stored(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The answer to one store."""

    number: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    ok: bool


# Borrower to donor


class Attach(ArenaMessage, frozen=True, tag="attach"):
    """The first message of a connection, with the descriptor of the borrower's staging arena."""

    party: Party  # as in the lease protocol
    page_bytes: Length
    staging_bytes: Length


class OutgoingOffer(ArenaMessage, frozen=True, tag="offer"):
    """To a donor on a device, once, with the descriptor of the borrower's outgoing memory there."""

    size: Length


class Stores(ArenaMessage, frozen=True, tag="stores"):
    """Pages to be stored; each is answered once, unless the connection ends."""

    stores: Annotated[tuple[Store, ...], Meta(min_length=1, max_length=MAX_STORES)]


# Donor to borrower


class Attached(ArenaMessage, frozen=True, tag="attached"):
    """Answers `attach`, with the descriptor of the donor's arena: buffer 0 of the extents it lends."""

    party: Party  # as in the lease protocol: whose leases lie in this arena
    size: Length
    kind: ArenaKind
    device: Annotated[str, Meta(max_length=128)]  # the name of the device that it is part of; empty for the host
    bandwidth: Annotated[float, Meta(gt=0)] | None  # bytes per second that this borrower may move; None: no limit


class OfferAnswered(ArenaMessage, frozen=True, tag="offered"):
    """Answers `offer`: from now on stores may name it, or not."""

    refusal: Annotated[str, Meta(max_length=1024)]  # empty: it is mapped


class StoresDone(ArenaMessage, frozen=True, tag="stored"):
    """What became of stores."""

    stored: Annotated[tuple[Stored, ...], Meta(min_length=1, max_length=MAX_STORES)]


class Paced(ArenaMessage, frozen=True, tag="paced"):
    """From now on: how much of its time the borrower may spend on what it moves. Nothing is said while that is all."""

    share: Annotated[float, Meta(gt=0, le=1)] | None  # of a processor core's time; None: as much as it likes


class Refused(ArenaMessage, frozen=True, tag="refused"):
    """There will be no `attached`; the connection ends."""

    reason: Annotated[str, Meta(max_length=1024)]


BorrowerMessage = Attach | OutgoingOffer | Stores
DonorMessage = Attached | OfferAnswered | StoresDone | Paced | Refused


class OtherVersionError(ValueError):
    """A message of another version of the protocol."""

    def __init__(self, version: int) -> None:
        super().__init__(
            f"the other side speaks version {version} of the arena protocol, this server version {VERSION}; "
            "run the same release of swift-tiers on both"
        )


class _ArenaEnvelope(msgspec.Struct, frozen=True, array_like=True):
    version: Annotated[int, Meta(ge=0, lt=2**31)]
    body: msgspec.Raw


_T = TypeVar("_T")

_encoder = msgspec.msgpack.Encoder()
_envelopes = msgspec.msgpack.Decoder(_ArenaEnvelope)
_from_borrowers = msgspec.msgpack.Decoder(BorrowerMessage)
_from_donors = msgspec.msgpack.Decoder(DonorMessage)


def encode(message: BorrowerMessage | DonorMessage) -> bytes:
    """A message as a packet."""
    return _encoder.encode(_ArenaEnvelope(VERSION, msgspec.Raw(_encoder.encode(message))))


def decode_borrowers(packet: bytes) -> BorrowerMessage:
    """What a borrower says. Raises GarbledError or OtherVersionError."""
    return _decode(packet, _from_borrowers)


def decode_donors(packet: bytes) -> DonorMessage:
    """What a donor says. Raises GarbledError or OtherVersionError."""
    return _decode(packet, _from_donors)


def in_packets(stores: Sequence[Store]) -> list[Stores]:
    """As many as one message takes, then the next."""
    return [Stores(tuple(stores[start : start + MAX_STORES])) for start in range(0, len(stores), MAX_STORES)]


def _decode(packet: bytes, decoder: msgspec.msgpack.Decoder[_T]) -> _T:
    try:
        envelope = _envelopes.decode(packet)
        if envelope.version != VERSION:
            raise OtherVersionError(envelope.version)
        return decoder.decode(envelope.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise GarbledError(str(error)) from None
