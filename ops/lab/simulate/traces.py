"""Recorded requests to replay: when they came, how long they were, which blocks they shared (Mooncake's format)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from ...base.errors import CommandError

#: Tokens of a block of Mooncake's traces.
BLOCK_TOKENS = 512
MOONCAKE = "mooncake/conversation_trace.jsonl"
#: Names the directory of the traces; without it they are looked for beside the checkout.
VARIABLE = "SWIFT_TIERS_TRACES"


class Record(msgspec.Struct, frozen=True):
    """One request. Blocks of equal number have equal content and an equal prefix before them."""

    timestamp: int  # ms
    input_length: int
    output_length: int
    hash_ids: list[int]


def directory() -> Path:
    beside = Path(__file__).resolve().parents[4] / "shared" / "data"
    return Path(os.environ.get(VARIABLE) or beside).expanduser()


def read(name: str = MOONCAKE) -> list[Record]:
    """A trace, in order of time. Raises CommandError where there is none, or it is damaged."""
    path = directory() / name
    decoder = msgspec.json.Decoder(Record)
    try:
        with path.open("rb") as lines:
            records = [decoder.decode(line) for line in lines if line.strip()]
    except OSError as error:
        raise CommandError(
            f"simulate: no trace: {error}; get FAST25-release/traces of kvcache-ai/Mooncake and set {VARIABLE} to the "
            f"directory that holds {name}"
        ) from None
    except msgspec.DecodeError as error:
        raise CommandError(f"simulate: {path}: {error}; get the trace anew") from None
    return sorted(records, key=lambda one: one.timestamp)


def seen_before(records: Sequence[Record]) -> Iterator[int]:
    """For each request, so many blocks from its start were in requests that came earlier: what a cache that forgets
    nothing would hit."""
    seen: set[int] = set()
    waiting: list[Record] = []
    for record in records:
        # Those of the same millisecond know nothing of each other.
        if waiting and waiting[0].timestamp < record.timestamp:
            for one in waiting:
                seen.update(one.hash_ids)
            waiting.clear()
        waiting.append(record)
        hits = 0
        for block in record.hash_ids[: record.input_length // BLOCK_TOKENS]:
            if block not in seen:
                break
            hits += 1
        yield hits
