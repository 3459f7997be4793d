"""Beyond the papers: a recorded conversation trace on a machine of 8 GPUs by tier sizes, and on 64 such machines."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import msgspec

from swift_tiers.radix_tiering.base.config import RestoreConfig

from ....base.devices.curve import Curve
from ....base.devices.hardware import GB, GIGABIT, GPUS, SSDS, USAGE
from ....base.devices.models import MODELS
from ..machine import PLACES, Call, Machine, Replay, replay
from ..tables import Cell, Table, table
from ..traces import BLOCK_TOKENS, Record, read, seen_before
from .scenario import Scenario

GPU, GPU_COUNT, MODEL = "H100", 8, "Qwen3-14B"
TB = 1e12
MACHINES = 64
#: Into which they are divided, where a store is one of each.
CELLS = 8
#: Requests of the trace that these are played with.
FEWER = 500
#: Requests of the short version, which a test repeats.
FEW = 1000


def machine(host: float = 0, ssd: float = 0, remote_gigabits: float = 0) -> Machine:
    """8 GPUs side by side; host memory and 8 SSDs of so many bytes together."""
    gpu, model = GPUS[GPU], MODELS[MODEL]
    return Machine(
        curve=Curve(model=model, gpu=gpu, gpus=GPU_COUNT),
        page_tokens=BLOCK_TOKENS,
        device_bytes=GPU_COUNT * gpu.memory_bytes * 0.9 - model.weight_bytes,
        host_bytes=host,
        ssd=SSDS["PM9A3"],
        ssds=8 if ssd else 0,
        ssd_bytes=ssd,
        remote_bytes_per_second=remote_gigabits * GIGABIT,
        copy_bytes_per_second=GPU_COUNT * gpu.pcie_bytes_per_second * USAGE.link,
    )


def calls(records: Sequence[Record]) -> Iterator[Call]:
    for record in records:
        yield Call(record.timestamp / 1000, record.input_length, tuple(record.hash_ids))


SIZES: tuple[tuple[str, Machine], ...] = (
    ("device only", machine()),
    ("host 0.5 TB", machine(0.5 * TB)),
    ("host 1 TB", machine(1 * TB)),
    ("host 2 TB", machine(2 * TB)),
    ("host 1 TB, ssd 4 TB", machine(1 * TB, 4 * TB)),
    ("host 1 TB, ssd 30 TB", machine(1 * TB, 30 * TB)),
)
COLUMNS = (*(f"{name} (%)" for name in PLACES.values()), "all hits (%)")
SECONDS = ("mean (ms)", "P50", "P90", "P99", "device busy (%)")


def row(name: str, result: Replay) -> list[Cell]:
    shares = [round(100 * result.share(place), 1) for place in PLACES]
    seconds = [result.mean, *(result.percentile(share) for share in (0.5, 0.9, 0.99))]
    total = round(100 * sum(result.share(place) for place in PLACES), 1)
    return [name, *shares, total, *(round(1000 * one) for one in seconds), round(100 * result.device_busy)]


def by_size(records: Sequence[Record], sizes: Sequence[tuple[str, Machine]]) -> list[list[Cell]]:
    return [row(name, replay(one, calls(records))) for name, one in sizes]


ASSUMED = (
    f"{MODEL} on {GPU_COUNT} {GPU} side by side (tensor parallel, what they say to each other within the assumed "
    f"usage); KV pool: 0.9 of all memory less the weights, {SIZES[0][1].device_bytes / GB:.0f} GB; 8 PM9A3; pages are "
    "the trace's blocks of 512 tokens. Prefill only: decoding happens elsewhere, as with Mooncake's own "
    "disaggregation, and what is generated is not kept, since the trace does not say which later block it became."
)


def sizes() -> list[Table]:
    records = read()
    rows = by_size(records, SIZES)
    best = sum(
        min(hits, (one.input_length - 1) // BLOCK_TOKENS)
        for hits, one in zip(seen_before(records), records, strict=True)
    )
    ceiling = 100 * best * BLOCK_TOKENS / sum(one.input_length for one in records)
    by_need = row("the same, loads by need", replay(SIZES[-1][1], calls(records), RestoreConfig(loads="by-need")))
    recompute = row(
        "the same, but hits recomputed", replay(SIZES[-1][1], calls(records), RestoreConfig(strategy="recompute"))
    )
    return [
        table(
            "mooncake-sizes",
            "Mooncake's conversation trace on one machine of 8 GPUs: prompt tokens by where they came from, and time "
            "to first token",
            ["tiers", *COLUMNS, *SECONDS],
            [*rows, by_need, recompute],
            [
                f"{len(records):,} requests in {records[-1].timestamp / 1000:.0f} s, at their own times. A cache that "
                f"forgets nothing would hit {ceiling:.1f} % of the tokens.",
                ASSUMED,
                "Host memory no larger than the KV pool adds nothing: every page is copied down as soon as it is "
                "there, so it holds what the device holds. The last row looks for nothing below the device.",
            ],
        )
    ]


def beginning() -> list[Table]:
    rows = by_size(read()[:FEW], SIZES[:3])
    return [
        table(
            "mooncake-beginning",
            f"The same, its first {FEW:,} requests only",
            ["tiers", *COLUMNS, *SECONDS],
            rows,
        )
    ]


# ---- 64 machines ----


def one_of_many(records: Sequence[Record], machines: int, *, shared: bool, seed: int, cells: int = 1) -> Iterator[Call]:
    """What one of `machines` gets where each has as much traffic as the trace, and any request goes anywhere.

    There are as many copies of the trace as machines, of different users; of every request of every copy, one machine
    in `machines` gets it. All machines are alike, so one of them stands for all. With a shared store, what any machine
    of its cell has computed of that copy before is there; `cells`: that the machines are of, each with a store.
    """
    source = random.Random(seed)
    known = set[int]()  # of several cells, what the store of this one has
    for record, hits in zip(records, seen_before(records), strict=True):
        for copy in range(machines):
            drawn = source.random()
            if drawn >= 1 / (machines if cells == 1 else cells):
                continue
            blocks = tuple(copy * (1 << 32) + block for block in record.hash_ids)
            if cells > 1:
                hits = next((at for at, block in enumerate(blocks) if block not in known), len(blocks))
                known.update(blocks)
            if drawn < 1 / machines:
                yield Call(record.timestamp / 1000, record.input_length, blocks, hits if shared else 0)


def _forgetful(asked: Iterator[Call]) -> Iterator[Call]:
    """The same requests without a block that anybody could find again."""
    return (one._replace(blocks=(), remote=0) for one in asked)


def nothing_kept(records: Sequence[Record]) -> list[Cell]:
    """The row of machines that keep nothing, to which conversations come back."""
    return row("nothing is kept, conversations stay", replay(machine(1 * TB, 30 * TB), _forgetful(calls(records))))


def cluster() -> list[Table]:
    records = read()
    tiers = machine(1 * TB, 30 * TB)
    rows = [
        nothing_kept(records),
        row(
            "nothing is kept, requests go anywhere",
            replay(tiers, _forgetful(one_of_many(records, MACHINES, shared=False, seed=3))),
        ),
        row("each conversation stays at its machine", replay(tiers, calls(records))),
    ]
    rows.append(
        row(
            "requests go anywhere, tiers of their own",
            replay(tiers, one_of_many(records, MACHINES, shared=False, seed=3)),
        )
    )
    return [
        table(
            "mooncake-cluster",
            f"{MACHINES} machines of 8 GPUs on paper: one of them, host 1 TB and ssd 30 TB each",
            ["routing", *COLUMNS, *SECONDS],
            rows,
            [
                f"Every machine has as much traffic as the whole trace: {MACHINES} copies of it, of different users. "
                "Machines are alike, so one is simulated.",
                "Routing at random costs more than hits: a trace's own conversations come at an even pace, requests "
                "that go anywhere come in bursts. The two rows where nothing is kept show what that alone does to "
                "P99.",
            ],
        )
    ]


def cells_rows(ways: Sequence[str] | None = None) -> list[list[Cell]]:
    """A row for each way to have a store, or for some of them."""
    records = read()[:FEWER]
    tiers = machine(1 * TB, 30 * TB)
    with_store = msgspec.structs.replace(tiers, remote_bytes_per_second=100 * GIGABIT)
    each = MACHINES // CELLS
    found = {
        "requests go anywhere, tiers of their own": (tiers, one_of_many(records, MACHINES, shared=False, seed=3)),
        "requests go anywhere, one store": (with_store, one_of_many(records, MACHINES, shared=True, seed=3)),
        f"{CELLS} cells, conversations stay in theirs": (with_store, one_of_many(records, each, shared=True, seed=3)),
        f"{CELLS} cells, requests go anywhere": (
            with_store,
            one_of_many(records, MACHINES, shared=True, seed=3, cells=CELLS),
        ),
    }
    return [row(name, replay(*found[name])) for name in ways or found]


def cells() -> list[Table]:
    return [
        table(
            "mooncake-cells",
            f"{MACHINES} such machines with stores that they share, at 100 Gb/s: the trace's first {FEWER:,} requests",
            ["routing", *COLUMNS, *SECONDS],
            cells_rows(),
            [
                "The remote tier is the product's, in virtual time: it asks for what no other tier has within its "
                "deadline of 20 ms, reads through its arrival memory, verifies, and writes everything "
                "(`remote.admission` `always`). Other machines are there only through what they have put into the "
                "store. Assumed: a store that has room for all and keeps each page from the moment its request has "
                "arrived; one network port per machine, both ways, 100 µs away; objects of one page of 512 tokens; a "
                "network in which ports are the narrowest place. Not counted: other machines' reads of this one's "
                "pages, and keys that a master answers.",
                f"Cells are {CELLS} stores of {MACHINES // CELLS} machines each. Where the router keeps a conversation "
                "in its cell, a cell finds what one store of all would, with an eighth of the keys, and a failure "
                "reaches an eighth of the machines. Where it does not, a store has what its own machines happened to "
                "compute. Which requests come to this machine is drawn anew for each number of machines, so times of "
                "the third row differ from the others' by more than hits.",
            ],
        )
    ]


SCENARIOS = {
    "mooncake-sizes": Scenario("a conversation trace on one machine of 8 GPUs, by tier sizes", sizes),
    "mooncake-beginning": Scenario("the same, its first thousand requests", beginning),
    "mooncake-cluster": Scenario("the trace on 64 machines, by where requests go", cluster),
    "mooncake-cells": Scenario("the same with stores that they share, one or in cells", cells),
}
