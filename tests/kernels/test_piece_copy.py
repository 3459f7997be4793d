"""Pieces of one memory into another: kernel and plain torch, any lengths and alignments, against plain slicing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_tiers.kernels import launch, piece_copy_triton
from swift_tiers.kernels.piece_copy import copy_pieces, copy_pieces_plain
from swift_tiers.kernels.piece_copy_triton import CHUNK_BYTES, TILE_BYTES, copy_pieces_triton, cut

from support.deferred_accelerator import DeferredAccelerator
from support.device_pools import DEVICES, POISON, random_bytes
from support.examples import examples

FORMS = [*DEVICES, pytest.param("plain", id="plain")]
#: Around everything that is cut: a vector, a tile of bytes, a tile, a chunk.
LENGTHS = st.one_of(
    st.integers(0, 70),
    st.sampled_from([2047, 2048, 2049, 8176, 8192, 8193, 8208, 16384, 40_000]),
    st.sampled_from([CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 17]),
)


def copy(form: str, source: torch.Tensor, target: torch.Tensor, pieces: np.ndarray) -> None:
    if form == "plain":
        copy_pieces_plain(source, target, pieces)
    else:
        copy_pieces_triton(source, target, pieces, target.device)


def as_pieces(*pieces: tuple[int, int, int]) -> np.ndarray:
    return np.array(pieces, dtype=np.int64).reshape(-1, 3)


@st.composite
def lists(draw: st.DrawFn) -> tuple[np.ndarray, int, int]:
    """Pieces whose targets do not overlap, in any order, with gaps of any size; the bytes of source and target."""
    lengths = draw(st.lists(LENGTHS, min_size=0, max_size=6))
    step = draw(st.sampled_from([1, 2, 4, 8, 16]))
    gaps = st.integers(0, 3).map(lambda gap: gap * step)
    at, pieces = 0, []
    for length in lengths:
        at += draw(gaps)
        pieces.append((draw(gaps), at, length))  # sources may overlap
        at += length
    ordered = draw(st.permutations(pieces))
    return as_pieces(*ordered), 3 * step + max(lengths, default=0), at + draw(gaps)


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=examples(30), deadline=None)
@given(listed=lists(), begins=st.tuples(*[st.sampled_from([0, 1, 4, 16])] * 2), seed=st.integers(0, 99))
def test_pieces_are_copied_and_nothing_else_is_written(form, listed, begins, seed):
    pieces, source_bytes, target_bytes = listed
    device = "cpu" if form == "plain" else form
    source = random_bytes((begins[0] + source_bytes,), seed).to(device)
    memory = torch.full((begins[1] + target_bytes + 5,), POISON, dtype=torch.uint8, device=device)
    wanted = memory.cpu().numpy().copy()
    before = source.clone()
    for start, place, length in pieces.tolist():
        at = begins[1] + place
        wanted[at : at + length] = source.cpu().numpy()[begins[0] + start : begins[0] + start + length]
    copy(form, source[begins[0] :], memory[begins[1] :], pieces)
    assert np.array_equal(memory.cpu().numpy(), wanted)
    assert torch.equal(source, before)


@settings(max_examples=examples(200), deadline=None)
@given(listed=lists(), size=st.sampled_from([TILE_BYTES, 2 * TILE_BYTES, CHUNK_BYTES]))
def test_chunks_are_the_pieces_in_bounded_steps(listed, size):
    pieces, _, _ = listed
    chunks = cut(pieces, size)
    assert chunks.dtype == np.int64
    expected = [
        (start + step, place + step, min(size, length - step))
        for start, place, length in pieces.tolist()
        for step in range(0, length, size)
    ]
    assert [tuple(chunk) for chunk in chunks.tolist()] == expected


@pytest.mark.parametrize("device", DEVICES)
def test_more_chunks_than_programs_and_than_a_launch_counts(device, monkeypatch):
    monkeypatch.setattr(piece_copy_triton, "CHUNK_BYTES", TILE_BYTES)
    monkeypatch.setattr(piece_copy_triton, "COUNT_LIMIT", launch.INTERPRETED_PROGRAMS + 2)
    source = random_bytes((13 * TILE_BYTES + 3,), 5).to(device)
    target = torch.zeros_like(source)
    copy_pieces_triton(source, target, as_pieces((0, 0, len(source))), target.device)
    assert torch.equal(source, target)


@pytest.mark.parametrize("device", DEVICES)
def test_offsets_past_4_gib_are_reached(device):
    """What 32 bits would wrap lands elsewhere. Untouched host memory costs none."""
    far = 5 * 2**30 + 16
    source = torch.empty(far + 4096, dtype=torch.uint8, device=device)
    target = torch.empty(far + 4096, dtype=torch.uint8, device=device)
    source[far : far + 100] = torch.arange(100, dtype=torch.uint8)
    source[16:116] = 0
    target[:200] = target[far : far + 200] = POISON
    copy_pieces_triton(source, target, as_pieces((far, 32, 64), (far + 64, far + 32, 36)), target.device)
    assert target[32:96].tolist() == list(range(64))
    assert target[far + 32 : far + 68].tolist() == list(range(64, 100))
    assert target[:32].tolist() == target[far : far + 32].tolist() == [POISON] * 32


def test_a_short_list_is_shared_out_and_a_long_one_is_not_cut_small(monkeypatch):
    """All programs have some of one page; where there is much to copy the list stays short."""
    lists_seen: list[torch.Tensor] = []
    monkeypatch.setattr(
        piece_copy_triton,
        "launch",
        lambda kernel, device, programs, source, target, some, *_, **__: lists_seen.append(some),
    )
    memory = torch.empty(2**20, dtype=torch.uint8)
    copy_pieces_triton(memory, memory, as_pieces((0, 0, 6 * TILE_BYTES)), memory.device)
    huge = as_pieces(*[(0, 0, 2**20)] * 40)
    copy_pieces_triton(memory, memory, huge, memory.device)
    assert [len(seen) for seen in lists_seen] == [6, 40 * 2**20 // CHUNK_BYTES]


@pytest.mark.parametrize("device", DEVICES)
def test_the_door_copies(device):
    source = random_bytes((5000,), 1).to(device)
    target = torch.full((5000,), POISON, dtype=torch.uint8, device=device)
    copy_pieces(source, target, as_pieces((100, 0, 3000), (4999, 4000, 1), (5000, 17, 0)))
    assert torch.equal(target[:3000], source[100:3100])
    assert target[4000] == source[4999]
    assert set(target[3000:4000].tolist()) == {POISON}
    copy_pieces(source, target, as_pieces())


@pytest.mark.parametrize(
    ("piece", "message"),
    [
        ((-1, 0, 1), "1 bytes from byte -1 do not lie in the source's 64"),
        ((0, -1, 1), "1 bytes from byte -1 do not lie in the target's 32"),
        ((0, 0, -1), "-1 bytes from byte 0 do not lie in the source's 64"),
        ((60, 0, 5), "5 bytes from byte 60 do not lie in the source's 64"),
        ((0, 30, 3), "3 bytes from byte 30 do not lie in the target's 32"),
        ((2**63 - 1, 0, 2), "do not lie in the source"),
        ((0, 2**63 - 1, 2**62), "do not lie in the source"),
    ],
)
def test_pieces_that_reach_outside_are_refused_before_any_is_copied(piece, message):
    source, target = torch.ones(64, dtype=torch.uint8), torch.zeros(32, dtype=torch.uint8)
    with pytest.raises(ValueError, match=message):
        copy_pieces(source, target, as_pieces((0, 0, 4), piece))
    assert not target.any()


def test_what_is_no_memory_and_no_list_is_refused():
    memory = torch.zeros(64, dtype=torch.uint8)
    for source, target, pieces in (
        (memory.view(torch.int32), memory, as_pieces()),
        (memory.view(8, 8), memory, as_pieces()),
        (memory, memory[::2], as_pieces()),
        (memory, memory, np.zeros((1, 3), dtype=np.int32)),
        (memory, memory, np.zeros((1, 2), dtype=np.int64)),
        (memory, memory, np.zeros(3, dtype=np.int64)),
    ):
        with pytest.raises(ValueError, match="must be"):
            copy_pieces(source, target, pieces)


def test_a_queue_copies_pieces_in_its_turn():
    queue = DeferredAccelerator(3, locked=True).queue()
    source, target = torch.arange(64, dtype=torch.uint8), torch.zeros(64, dtype=torch.uint8)
    pieces = as_pieces((8, 0, 8))
    queue.pieces(source, target, pieces)
    pieces[:] = 0
    queue.pieces(target, target, as_pieces((0, 32, 8)))
    assert not target.any(), "nothing is done before somebody waits"
    queue.mark().synchronize()
    assert target.tolist() == [*range(8, 16), *[0] * 24, *range(8, 16), *[0] * 24]


@pytest.mark.gpu
def test_from_page_locked_host_memory_and_to_it():
    source = random_bytes((100_000,), 2).pin_memory()
    there = torch.zeros(100_000, dtype=torch.uint8, device="cuda")
    back = torch.zeros(100_000, dtype=torch.uint8).pin_memory()
    pieces = as_pieces((0, 50_000, 50_000), (50_000, 0, 50_000))
    copy_pieces(source, there, pieces)
    copy_pieces(there, back, pieces)
    torch.cuda.synchronize()
    assert torch.equal(source, back)
