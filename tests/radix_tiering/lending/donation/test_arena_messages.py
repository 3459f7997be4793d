"""The arena socket's messages, and that docs/leases.md says the same of them as the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_tiers.radix_tiering.lending.donation.arena_messages import (
    MAX_PACKET_BYTES,
    MAX_STORES,
    ArenaMessage,
    Attach,
    Attached,
    OfferAnswered,
    OtherVersionError,
    OutgoingOffer,
    Paced,
    Refused,
    Store,
    Stored,
    Stores,
    StoresDone,
    decode_borrowers,
    decode_donors,
    encode,
    in_packets,
)
from swift_tiers.radix_tiering.lending.leases import Party
from swift_tiers.radix_tiering.lending.leases.messages import GarbledError

DOCUMENT = Path(__file__).parents[4] / "docs" / "leases.md"

numbers = st.integers(0, 2**63 - 1)
positive = st.integers(1, 2**63 - 1)
parties = st.builds(Party, st.from_regex(r"\A[A-Za-z0-9._:-]{1,128}\Z"), positive)
borrowers = st.one_of(
    st.builds(Attach, parties, positive, positive),
    st.builds(
        Stores,
        st.lists(st.builds(Store, numbers, positive, numbers, numbers, st.booleans()), min_size=1, max_size=9).map(
            tuple
        ),
    ),
    st.builds(OutgoingOffer, positive),
)
donors = st.one_of(
    st.builds(
        Attached,
        parties,
        positive,
        st.sampled_from(["host", "cuda"]),
        st.text(max_size=128),
        st.none() | st.floats(1e-3, 1e15),
    ),
    st.builds(StoresDone, st.lists(st.builds(Stored, numbers, st.booleans()), min_size=1, max_size=9).map(tuple)),
    st.builds(OfferAnswered, st.text(max_size=1024)),
    st.builds(Paced, st.none() | st.floats(1e-9, 1)),
    st.builds(Refused, st.text(max_size=1024)),
)


@given(message=borrowers)
def test_what_borrowers_say_is_understood(message: Any) -> None:
    assert decode_borrowers(encode(message)) == message
    with pytest.raises(GarbledError):
        decode_donors(encode(message))


@given(message=donors)
def test_what_donors_say_is_understood(message: Any) -> None:
    assert decode_donors(encode(message)) == message


@given(data=st.binary(max_size=200), cut=st.integers(0, 500), message=borrowers)
def test_anything_else_is_garbled_or_of_another_version(data: bytes, cut: int, message: Any) -> None:
    whole = encode(message)
    for packet in (data, whole[: min(cut, len(whole) - 1)], whole[:cut] + data + whole[cut:]):
        try:
            decoded = decode_borrowers(packet)
        except (GarbledError, OtherVersionError):
            continue
        assert isinstance(decoded, Attach | OutgoingOffer | Stores)
        assert len(packet) >= len(whole), "half a message was understood"


def test_the_longest_messages_fit_in_a_packet() -> None:
    most = 2**63 - 1
    stores = [Store(most, most, most, most, outgoing=True)] * (MAX_STORES + 1)
    packets = in_packets(stores)
    assert [len(packet.stores) for packet in packets] == [MAX_STORES, 1]
    assert len(encode(packets[0])) <= MAX_PACKET_BYTES
    assert len(encode(Refused("€" * 1024))) <= MAX_PACKET_BYTES


def test_the_document_names_all_messages_and_their_fields() -> None:
    section = DOCUMENT.read_text().split("## Arenas")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([^|]*) \|", section, re.MULTILINE)
    said = {name: (who, set(re.findall(r"`(\w+)`", fields))) for name, who, fields in rows}
    messages = dict.fromkeys((Attach, OutgoingOffer, Stores), "borrower")
    messages |= dict.fromkeys((Attached, OfferAnswered, StoresDone, Paced, Refused), "donor")
    assert set(ArenaMessage.__subclasses__()) == set(messages)
    assert said == {kind.__struct_config__.tag: (who, set(kind.__struct_fields__)) for kind, who in messages.items()}
    for entry in (Store, Stored):
        assert f"`[{', '.join(entry.__struct_fields__)}]`" in section
