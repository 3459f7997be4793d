"""Letters as bytes: every one survives, and no bytes whatever do harm."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_tiers.radix_tiering.lending.leases.messages import (
    MAX_EXTENTS,
    MAX_LEASES,
    MAX_LETTER_BYTES,
    VERSION,
    Expire,
    Extent,
    GarbledError,
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
    VersionError,
    Welcome,
    decode,
    encode,
)

NUMBER = st.integers(1, 2**63 - 1)
NATURAL = st.integers(0, 2**63 - 1)
SECONDS = st.floats(0, 3600, exclude_min=True)
LEASES = st.lists(NUMBER, max_size=5).map(tuple)
EXTENTS = st.lists(st.builds(Extent, st.integers(0, 65535), NATURAL, NUMBER), min_size=1, max_size=3).map(tuple)
GRANTED = st.lists(st.builds(GrantedLease, NUMBER, EXTENTS), min_size=1, max_size=3).map(tuple)
BODIES = st.one_of(
    st.builds(Hello, NUMBER, NUMBER),
    st.builds(Heartbeat, NATURAL),
    st.builds(Request, NUMBER, NUMBER),
    st.builds(Renew, NUMBER, LEASES),
    st.builds(Return, LEASES),
    st.builds(Welcome, NUMBER, NUMBER),
    st.builds(Offer, NATURAL),
    st.builds(Grant, NUMBER, SECONDS, GRANTED),
    st.builds(Renewed, NUMBER, SECONDS, LEASES),
    st.builds(Recall, LEASES, SECONDS),
    st.builds(Expire, LEASES),
    st.builds(Refuse, NATURAL, st.sampled_from(Reason)),
)
LETTERS = st.builds(Letter, st.builds(Party, st.from_regex(r"\A[A-Za-z0-9._:-]{1,128}\Z"), NUMBER), NATURAL, BODIES)


@given(LETTERS)
def test_every_letter_survives(letter: Letter) -> None:
    assert decode(encode(letter)) == letter


def attempt(data: bytes) -> Letter | None:
    try:
        return decode(data)
    except (GarbledError, VersionError):
        return None


@given(st.binary(max_size=200))
def test_any_bytes_are_a_letter_or_refused(data: bytes) -> None:
    attempt(data)


@given(LETTERS, st.data())
def test_damaged_letters_are_letters_or_refused(letter: Letter, data: st.DataObject) -> None:
    encoded = bytearray(encode(letter))
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] ^= data.draw(st.integers(1, 255))
    found = attempt(bytes(encoded))
    if found is not None:
        assert decode(encode(found)) == found
    attempt(bytes(encoded[:at]))


def envelope(
    version: object = VERSION, name: object = "a", epoch: object = 1, to: object = 0, body: Any = None
) -> bytes:
    return msgspec.msgpack.encode([version, name, epoch, to, body or {"type": "heartbeat", "wanted_bytes": 0}])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x91" * 100_000,
        envelope(name=""),
        envelope(name="a\n"),
        envelope(name="a" * 129),
        envelope(epoch=0),
        envelope(epoch=2**64 - 1),
        envelope(version=-1),
        envelope(to=-1),
        envelope(body={"type": "shutdown"}),
        envelope(body={"type": "heartbeat"}),
        envelope(body={"type": "heartbeat", "wanted_bytes": -1}),
        envelope(body={"type": "heartbeat", "wanted_bytes": 0, "more": 1}),
        envelope(body={"type": "request", "nonce": 1, "wanted_bytes": 0}),
        envelope(body={"type": "recall", "leases": [1], "within": math.nan}),
        envelope(body={"type": "recall", "leases": [1], "within": math.inf}),
        envelope(body={"type": "return", "leases": list(range(1, MAX_LEASES + 2))}),
        envelope(body={"type": "grant", "nonce": 1, "term": 1.0, "leases": []}),
        envelope(body={"type": "grant", "nonce": 1, "term": 1.0, "leases": [[1, []]]}),
        envelope(body={"type": "grant", "nonce": 1, "term": 1.0, "leases": [[1, [[0, 0, 1]] * MAX_EXTENTS]] * 2}),
        envelope() + b"\0" * MAX_LETTER_BYTES,
    ],
)
def test_what_is_no_letter_is_refused(data: bytes) -> None:
    with pytest.raises(GarbledError):
        decode(data)


def test_another_version_is_named() -> None:
    with pytest.raises(VersionError, match="b speaks version 9 of the lease protocol, this server version 1") as caught:
        decode(envelope(version=9, name="b", epoch=5, body={"anything": True}))
    assert caught.value.sender == Party("b", 5)


def test_the_largest_messages_are_within_the_limit() -> None:
    most = Extent(65535, 2**63 - 1, 2**63 - 1)
    grant = Grant(2**63 - 1, 1.0, (GrantedLease(2**63 - 1, (most,) * MAX_EXTENTS),))
    leases = Return((2**63 - 1,) * MAX_LEASES)
    for body in (grant, leases):
        assert len(encode(Letter(Party("a" * 128, 2**63 - 1), 2**63 - 1, body))) < MAX_LETTER_BYTES // 2
