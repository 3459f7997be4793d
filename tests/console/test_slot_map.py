"""Runs of cells, against the same told cell by cell."""

from __future__ import annotations

import itertools
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from swift_tiers.console.model.sieve import Sieve
from swift_tiers.console.model.table import Cell, Column, Row, Table
from swift_tiers.console.views.blocks.block_holders import HeldCells, Holders
from swift_tiers.console.views.blocks.slot_map import FEW, RARE, STATES, SlotCells
from swift_tiers.console.views.blocks.slot_rows import SlotRows
from swift_tiers.radix_tiering.base.slot_map import MapPiece, SlotState, TierMap, write_cells
from swift_tiers.radix_tiering.bus.contract.records import map_record
from swift_tiers.radix_tiering.bus.contract.view_reading import read_view
from swift_tiers.radix_tiering.bus.contract.views import MapPart, MapView, RequestView

from support.console_answers import map_view

RUNS = st.lists(st.tuples(st.sampled_from((*STATES, "unheard-of")), st.integers(1, 9)), min_size=1, max_size=30)


def told(runs: list[tuple[str, int]]) -> list[str]:
    return [state for state, length in runs for _ in range(length)]


@given(RUNS, st.lists(st.integers(0, 400), min_size=2, max_size=12))
def test_a_stretch_has_the_state_of_most_of_its_cells_or_a_rare_one(runs: list[tuple[str, int]], at: list[int]) -> None:
    cells = told(runs)
    slots = SlotCells(map_view("alpha", "host", tuple(runs)))
    edges = np.minimum(np.array(sorted(at)), len(cells))
    found = slots.strongest(edges).tolist()
    groups = [cells[first:end] for first, end in pairwise(edges)]
    few = {state for state in RARE if sum(state in group for group in groups) <= max(1.0, FEW * len(groups))}
    for group, code in zip(groups, found, strict=True):
        if not group:
            assert code == -1
            continue
        state = slots.states[code]
        rare = [one for one in RARE if one in few and one in group]
        assert state == rare[-1] if rare else group.count(state) == max(map(group.count, group))


def test_a_burst_of_loading_does_not_hide_what_else_there_is() -> None:
    slots = SlotCells(map_view("alpha", "device", (("cached", 9), ("loading", 1)) * 100))
    assert {slots.states[code] for code in slots.strongest(np.arange(0, 1001, 10))} == {"cached"}
    calm = SlotCells(map_view("alpha", "device", (("cached", 900), ("loading", 1), ("cached", 99))))
    assert [slots.states[code] for code in calm.strongest(np.arange(0, 1001, 100))].count("loading") == 1


@given(RUNS, st.integers(0, 5))
def test_each_cell_and_each_slot_is_found(runs: list[tuple[str, int]], base: int) -> None:
    cells = told(runs)
    slots = SlotCells(map_view("alpha", "device", tuple(runs), first_slot=base))
    assert [slots.state(cell) for cell in range(slots.cells)] == cells
    assert all(slots.cell_of(base + cell) == cell for cell in range(len(cells)))
    assert slots.cell_of(base - 1) is None
    assert slots.cell_of(base + len(cells)) is None
    assert slots.counts == {state: cells.count(state) for state in slots.counts}
    assert sum(slots.counts.values()) == len(cells)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.integers(1, 7))
def test_parts_begin_with_a_cell_of_their_own(sizes: list[int], per_cell: int) -> None:
    in_parts = [-(-size // per_cell) for size in sizes]
    parts = tuple(MapPart(f"lease-{number}", size) for number, size in enumerate(sizes))
    runs = tuple(("cached" if number % 2 else "free", cells) for number, cells in enumerate(in_parts))
    slots = SlotCells(map_view("alpha", "peer", runs, parts=parts, slots=sum(sizes), slots_per_cell=per_cell))
    assert not slots.one_piece
    for number, size in enumerate(sizes):
        covered = [slots.slots_of(cell) for cell in range(slots.cells) if slots.part(cell) == number]
        assert covered[0][0] == 0
        assert covered[-1][1] == size - 1
        assert all(after[0] == before[1] + 1 for before, after in itertools.pairwise(covered))
        assert all(slots.part(slots.cell_of(slot, f"lease-{number}") or 0) == number for slot in range(size))
    assert sum(slots.counts.values()) == sum(sizes)


def test_parts_that_do_not_fit_the_cells_are_not_believed() -> None:
    slots = SlotCells(map_view("alpha", "ssd", (("free", 10),), parts=(MapPart("0", 4), MapPart("1", 4))))
    assert slots.one_piece
    assert slots.slots_of(9) == (9, 9)


@pytest.mark.parametrize("cells", [(), (("free", 0),)])
def test_a_tier_without_slots_has_none(cells: tuple[tuple[str, int], ...]) -> None:
    slots = SlotCells(map_view("alpha", "host", cells))
    assert slots.cells == 0
    assert slots.cell_of(0) is None
    assert slots.counts == {}
    assert slots.strongest(np.array([0, 5])).tolist() in ([0], [-1])


def held_by(requests: list[list[tuple[int, int]]]) -> HeldCells:
    """As if these were their block tables, of cells."""
    return Holders([RequestView(server="a", rank="r", rid="", block_table=tuple(runs)) for runs in requests]).held


def rows_of(runs: list[tuple[str, int]], requests: list[list[tuple[int, int]]]) -> SlotRows:
    slots = SlotCells(map_view("alpha", "device", tuple(runs)))
    return SlotRows(slots, lambda cell: Row(str(cell), (Cell(slots.state(cell)),)), held=lambda: held_by(requests))


@given(RUNS, st.sampled_from(["slot", "state", "request"]), st.booleans())
def test_every_order_has_every_slot_once_and_knows_where(runs: list[tuple[str, int]], column: str, down: bool) -> None:
    cells = told(runs)
    held = [[(1, 3)], [(2, 6)]] if len(cells) > 7 else []
    rows = rows_of(runs, held).ordered(column, down)
    keys = [row.key for row in rows]
    assert sorted(map(int, keys)) == list(range(len(cells)))
    assert all(rows.index_of(key) == at for at, key in enumerate(keys))
    if column == "slot":
        assert keys == sorted(keys, key=int, reverse=down)
    elif column == "state":
        states = [row.cells[0].text for row in rows]
        assert states == sorted(states, reverse=down)
    elif held:
        assert keys[:6] == (["4", "5", "6", "1", "2", "3"] if down else ["1", "2", "3", "4", "5", "6"])


def test_a_slice_makes_only_its_rows() -> None:
    made: list[int] = []
    slots = SlotCells(map_view("alpha", "device", (("free", 10_000_000), ("cached", 5))))

    def make(cell: int) -> Row:
        made.append(cell)
        return Row(str(cell), ())

    rows = SlotRows(slots, make)
    assert len(rows) == 10_000_005
    assert [row.key for row in rows[9_999_999:10_000_001]] == ["9999999", "10000000"]
    assert rows[-1].key == "10000004"
    assert len(made) == 3
    assert rows.index_of("10000004") == 10_000_004
    assert rows.index_of("10000005") is None
    assert rows.index_of("x") is None
    with pytest.raises(IndexError):
        rows[10_000_005]


@given(
    RUNS,
    st.sampled_from(
        ["cach", "!free", "1", "slot:2", "slot>7", "slot<4", "request:abc", "its:3", "/^1/", "state:/ed$/", "x-y", "-"]
    ),
    st.sampled_from(["", "out", "!slot>3", "3"]), st.sampled_from(["", "slot", "state", "request"]), st.booleans(),
)  # fmt: skip
def test_a_filter_keeps_what_it_would_of_rows_that_are_made(
    runs: list[tuple[str, int]], first: str, second: str, column: str, down: bool
) -> None:
    slots = SlotCells(map_view("alpha", "device", tuple(runs)))
    names = ("slot", "state", "request", "its page")
    held = held_by([[(2, 4), (9, 9)], [(3, 5)]] if slots.cells > 12 else [])
    said = {cell: tuple(alike[at] for alike in held.alike.values()) for at, cell in enumerate(held.cells.tolist())}

    def make(cell: int) -> Row:
        number = slots.slots_of(cell)[0]
        of = ("abc" if said[cell][0] == 0 else "bcd", str(said[cell][1])) if cell in said else ("-", "-")
        return Row(str(cell), (Cell(str(number), number), Cell(slots.state(cell)), Cell(of[0]), Cell(of[1])))

    rows: Any = SlotRows(slots, make, names, lambda: held)
    if column:
        rows = rows.ordered(column, down)
    table = Table(tuple(map(Column, names)), rows)
    sieve = Sieve(f"{first} {second}")
    assert [row.key for row in sieve.sift(table)] == [row.key for row in sieve.sift(table, list(rows))]


@given(
    st.lists(st.integers(1, 30), min_size=2, max_size=5),
    st.integers(1, 4),
    st.sampled_from(["slot>9", "slot<5", "7", "part:1"]),
)
def test_a_filter_of_several_parts(sizes: list[int], per_cell: int, words: str) -> None:
    parts = tuple(MapPart(str(number), size) for number, size in enumerate(sizes))
    runs = tuple(("cached" if number % 2 else "free", -(-size // per_cell)) for number, size in enumerate(sizes))
    slots = SlotCells(map_view("alpha", "ssd", runs, parts=parts, slots=sum(sizes), slots_per_cell=per_cell))

    def make(cell: int) -> Row:
        first, last = slots.slots_of(cell)
        number = Cell(str(first) if first == last else f"{first}-{last}", first)
        return Row(str(cell), (number, Cell(slots.state(cell)), Cell(slots.name(slots.part(cell)))))

    names = ("slot", "state", "part")
    rows = SlotRows(slots, make, names)
    table = Table(tuple(map(Column, names)), rows)
    found = Sieve(words).sift(table)
    assert [row.key for row in found] == [row.key for row in Sieve(words).sift(table, list(rows))]


def test_of_very_many_slots_one_is_found_by_its_whole_number() -> None:
    slots = SlotCells(map_view("alpha", "host", (("free", 5_000_000), ("loading", 3))))
    made: list[int] = []

    def make(cell: int) -> Row:
        made.append(cell)
        return Row(str(cell), (Cell(str(cell), cell), Cell(slots.state(cell))))

    table = Table((Column("slot"), Column("state")), SlotRows(slots, make))
    assert [row.key for row in Sieve("slot:4321").sift(table)] == ["4321"]
    assert [row.key for row in Sieve("loading").sift(table)] == ["5000000", "5000001", "5000002"]
    assert len(Sieve("slot>4999000 free").sift(table)) == 999
    assert len(made) < 20


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=5), st.randoms(use_true_random=False), st.sampled_from([40, 4096])
)
def test_what_servers_write_is_what_is_shown(sizes: list[int], chance: Random, most_bytes: int) -> None:
    """From the state of every slot through the text on the bus, shortened or not, to cells."""
    states = np.array([chance.choice(list(SlotState)) for _ in range(sum(sizes))], np.uint8)
    pieces = tuple(MapPiece(f"alpha.dp0-tp0/{number}", size) for number, size in enumerate(sizes))
    record = map_record(TierMap(time=5.0, slot_bytes=4096, states=states, pieces=pieces))
    if most_bytes < len(record["cells"]):
        assume(len(pieces) < 3)
        cells = write_cells(TierMap(time=5.0, slot_bytes=4096, states=states, pieces=pieces), most_bytes)
        record = {**record, "cells": cells.text, "slots_per_cell": str(cells.slots_per_cell)}
    slots = SlotCells(read_view(MapView, record, server="alpha", rank="dp0-tp0", tier="peer"))
    assert not slots.one_piece
    at = 0
    for piece in pieces:
        for slot in range(piece.slots):
            cell = slots.cell_of(slot, piece.name)
            assert cell is not None
            first, last = slots.slots_of(cell)
            within = [SlotState(state).word for state in states[at + first : at + last + 1]]
            assert within.count(slots.state(cell)) == max(map(within.count, within))
        at += piece.slots


def test_who_holds_a_slot_and_which_page_it_is() -> None:
    """Two requests share slots 10 and 11; the first is named, and that there is another."""
    held = held_by([[(10, 12), (3, 4)], [(10, 11), (20, 20)]])
    assert held.cells.tolist() == [3, 4, 10, 11, 12, 20]
    assert held.alike["request"].tolist() == [0, 0, 0, 0, 0, 1]
    assert held.alike["its page"].tolist() == [4, 5, 1, 2, 3, 3]
    assert held.alike["others"].tolist() == [0, 0, 1, 1, 0, 0]
    requests = [RequestView(server="a", rank="r", rid=rid, block_table=table) for rid, table in (
        ("x", ((10, 12), (3, 4))), ("y", ((10, 11), (20, 20))),
    )]  # fmt: skip
    assert [(one.request.rid, one.page) for one in Holders(requests).of(11)] == [("x", 2), ("y", 2)]
    assert [(one.request.rid, one.page) for one in Holders(requests).of(4)] == [("x", 5)]
    assert Holders(requests).of(13) == Holders([]).of(0) == []


def test_slots_of_a_map_whose_cells_stand_for_several() -> None:
    """Each state's slots, to the last one of each part."""
    view = MapView(
        server="a",
        rank="r",
        tier="ssd",
        slots=20,
        slots_per_cell=2,
        parts=(MapPart("0", 9), MapPart("1", 11)),
        cells=(("cached", 4), ("free", 2), ("out", 5)),
    )
    assert SlotCells(view).counts == {"cached": 8, "free": 3, "out": 9}
