"""The page digest: one value from kernel, torch and numpy, and what must change it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_tiers.kernels import page_digest_triton
from swift_tiers.kernels.page_digest import (
    digest_bytes,
    digests_pools,
    host_page_digest,
    page_digests,
    page_digests_plain,
    pool_digests,
)
from swift_tiers.kernels.page_digest_triton import digest_constants, page_digests_triton, pool_digests_triton
from swift_tiers.kernels.page_gather import gather_pages

from support.device_pools import DEVICES, Geometry, make_pool, page_of, random_bytes
from support.examples import examples

RAMP = (np.arange(100_000) % 251).astype(np.uint8)

#: Committed, so that a page stored by one version is recognised by the next.
KNOWN = {
    0: "00000000000000000000000000000000",
    1: "6f7e194d2fdd06a742ec390f1f0c5a84",
    7: "b5488bce1a44293c906985bfe4827e5f",
    8: "b21efc3932c548e52241cb02c1140de2",
    4096: "15934457c32e1f75772023740c39b5ff",
    100_000: "a43cd220b40b7cb11c4b58fc61d7f5fd",
}


@pytest.mark.parametrize("length", KNOWN)
def test_known_answers(length):
    assert host_page_digest(RAMP[:length]).hex() == KNOWN[length]


def test_the_definition_step_by_step():
    """In Python's own integers, with nothing shared with the three implementations."""

    def mix(x: int) -> int:
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        return x ^ (x >> 31)

    page = RAMP[3:1000].tobytes()
    a = b = 0
    for index in range(math.ceil(len(page) / 8)):
        key = (index + 1) * 0x9E3779B97F4A7C15 % 2**64
        mixed = mix((int.from_bytes(page[index * 8 : index * 8 + 8], "little") + key) % 2**64)
        a, b = (a + mixed) % 2**64, (b + mixed * (key | 1)) % 2**64
    first = mix((a + len(page) * 0x9E3779B97F4A7C15) % 2**64)
    second = mix((b + first) % 2**64)
    assert host_page_digest(page) == first.to_bytes(8, "little") + second.to_bytes(8, "little")


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=examples(25), deadline=None)
@given(
    nbytes=st.one_of(st.integers(0, 300), st.sampled_from([8192, 65536, 131072, 131080, 300_001])),
    offset=st.sampled_from([0, 1, 4, 8, 16]),
    slots=st.lists(st.integers(0, 4), max_size=4),
    spare=st.integers(0, 9),
)
def test_kernel_torch_and_numpy_agree(device, nbytes, offset, slots, spare):
    slab = random_bytes((5, offset + nbytes + spare), seed=nbytes)
    wanted = [host_page_digest(slab[slot, offset : offset + nbytes].numpy()) for slot in slots]
    if slots:
        assert digest_bytes(page_digests_plain(slab, torch.tensor(slots), nbytes, offset)) == wanted
        there = slab.to(device)
        found = page_digests_triton(there, torch.tensor(slots).to(device), nbytes, offset)
        assert digest_bytes(found) == wanted
    assert digest_bytes(page_digests(slab.to(device), np.array(slots, dtype=np.int64), nbytes, offset)) == wanted


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=examples(20), deadline=None)
@given(
    layers=st.integers(1, 3),
    planes=st.integers(1, 2),
    heads=st.sampled_from([1, 2, 3]),
    head_dim=st.sampled_from([4, 8, 20, 576]),
    page_size=st.sampled_from([1, 2, 16]),
    block_major=st.booleans(),
    data=st.data(),
)
def test_a_page_has_its_digest_where_it_lies(device, layers, planes, heads, head_dim, page_size, block_major, data):
    """That of its bytes in a slab, whether its rows follow each other in the pool or not."""
    geometry = Geometry(layers, planes, heads, head_dim, page_size, 5, torch.bfloat16, block_major)
    pool, _ = make_pool(geometry, device)
    pages = np.array(data.draw(st.lists(st.integers(0, 4), max_size=4)), dtype=np.int64)
    slab = torch.zeros((max(1, len(pages)), pool.page_bytes), dtype=torch.uint8, device=device)
    gather_pages(pool, pages, slab, np.arange(len(pages)))
    wanted = [host_page_digest(row.cpu().numpy()) for row in slab[: len(pages)]]
    assert digest_bytes(pool_digests([pool], pages)) == wanted
    if len(pages):
        assert digest_bytes(pool_digests_triton([pool], torch.from_numpy(pages).to(device))) == wanted


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=examples(20), deadline=None)
@given(data=st.data())
def test_a_page_of_several_pools_has_its_digest_where_it_lies(device, data):
    """That of what each pool has of it, one after the other; their rows are of any length."""
    pools = [
        make_pool(
            Geometry(
                layers=data.draw(st.integers(1, 3)),
                planes=data.draw(st.integers(1, 2)),
                heads=1,
                head_dim=4 * data.draw(st.integers(1, 9)),
                page_size=data.draw(st.sampled_from([1, 4])),
                block_major=data.draw(st.booleans()),
            ),
            device,
            seed,
        )[0]
        for seed in range(data.draw(st.integers(1, 3)))
    ]
    pages = np.array(data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=4)), dtype=np.int64)
    wanted = [host_page_digest(b"".join(page_of(pool, page) for pool in pools)) for page in pages.tolist()]
    assert digest_bytes(pool_digests(pools, pages)) == wanted
    assert digest_bytes(pool_digests_triton(pools, torch.from_numpy(pages).to(device))) == wanted


def test_rows_that_are_no_whole_words_have_no_digest_where_they_lie():
    pool, _ = make_pool(Geometry(1, 2, 1, 3, 4), "cpu")
    assert not digests_pools([pool])
    with pytest.raises(ValueError, match="gather them"):
        pool_digests([pool], np.array([0]))


@pytest.mark.parametrize("device", DEVICES)
def test_pages_of_many_parts_and_more_pages_than_a_program_finishes(device, monkeypatch):
    monkeypatch.setattr(page_digest_triton, "TILE_WORDS", 16)
    monkeypatch.setattr(page_digest_triton, "PART_TILES", 2)
    monkeypatch.setattr(page_digest_triton, "FINISH_PAGES", 2)
    monkeypatch.setattr(page_digest_triton, "COUNT_LIMIT", 20)
    slab = random_bytes((5, 1504), seed=3)
    summing, finishing = digest_constants(1504, 1504, 0)
    assert (summing["PARTS"], finishing["PAGES"], finishing["COLUMNS"]) == (6, 2, 8)
    found = page_digests_triton(slab.to(device), torch.arange(5).to(device), 1504, 0)
    assert digest_bytes(found) == [host_page_digest(row.numpy()) for row in slab]


@pytest.mark.parametrize("device", DEVICES)
def test_however_many_pages_there_are_their_sums_take_as_much_memory(device, monkeypatch):
    """It is taken while a server serves."""
    sizes, empty = [], torch.empty

    def recording(shape, **options):
        sizes.append(int(np.prod(shape)) * 8)
        return empty(shape, **options)

    pool, _ = make_pool(Geometry(layers=2, planes=2, heads=1, page_size=1), device)
    pages = np.arange(40) % 5
    wanted = [host_page_digest(page_of(pool, page)) for page in pages.tolist()]
    monkeypatch.setattr(page_digest_triton, "SUMS_BYTES", 16 * 4 * 7)
    monkeypatch.setattr(torch, "empty", recording)
    found = pool_digests_triton([pool], torch.from_numpy(pages).to(device))
    monkeypatch.undo()
    assert digest_bytes(found) == wanted
    assert sorted(sizes) == [16 * 4 * 7, 16 * 40]


def test_every_flipped_bit_changes_the_digest():
    page = random_bytes((1024,), seed=4).numpy()
    pages = np.repeat(page[None], 8 * 1024 + 1, axis=0)
    for bit in range(8 * 1024):
        pages[bit, bit // 8] ^= 1 << (bit % 8)
    digests = [host_page_digest(row) for row in pages]
    assert len(set(digests)) == 8 * 1024 + 1


def test_swaps_tails_lengths_and_pairs_of_flips_change_the_digest():
    page = random_bytes((4096,), seed=5).numpy()
    words = page.view(np.uint64)
    changed = [page]
    for left in range(0, 512, 37):
        for right in range(left + 1, 512, 41):
            swapped = words.copy()
            swapped[[left, right]] = swapped[[right, left]]
            # The two highest bits: a sum of plain products would lose them both.
            flipped = words.copy()
            flipped[[left, right]] ^= np.uint64(1 << 63)
            changed += [swapped.view(np.uint8), flipped.view(np.uint8)]
    layers = page.reshape(8, 512)
    changed.append(layers[[1, 0, *range(2, 8)]].ravel())
    changed.append(layers[::-1].ravel())
    changed.append(np.roll(page, 8))
    for tail in range(1, 4096, 97):
        zeroed = page.copy()
        zeroed[-tail:] = 0
        changed += [zeroed, page[:-tail], np.concatenate([page, np.zeros(tail, dtype=np.uint8)])]
    changed += [np.zeros(length, dtype=np.uint8) for length in range(4200)]
    changed += [np.full(4096, value, dtype=np.uint8) for value in range(1, 256)]
    assert len({host_page_digest(data) for data in changed}) == len(changed)


@settings(max_examples=examples(20), deadline=None)
@given(seed=st.integers(0, 2**32), length=st.integers(1, 600))
def test_a_flipped_bit_flips_half_of_the_digest(seed, length):
    """Over 200 flips: each of the 128 bits flips in about half of them, and about half of them in each flip."""
    generator = np.random.default_rng(seed)
    page = generator.integers(0, 256, length, dtype=np.uint8)
    base = np.unpackbits(np.frombuffer(host_page_digest(page), dtype=np.uint8))
    flips = np.empty((200, 128), dtype=bool)
    for trial in range(200):
        other = page.copy()
        other[generator.integers(length)] ^= 1 << generator.integers(8)
        flips[trial] = np.unpackbits(np.frombuffer(host_page_digest(other), dtype=np.uint8)) != base
    # Ten standard deviations of what chance alone gives; short pages repeat their few flips, hence the lower limit.
    distinct = min(200, 8 * length)
    assert abs(flips.mean() - 0.5) < 5 / math.sqrt(distinct * 128)
    assert np.abs(flips.mean(axis=0) - 0.5).max() < 5 / math.sqrt(distinct)
    assert np.abs(flips.mean(axis=1) - 0.5).max() < 5 / math.sqrt(128)


def test_host_bytes_of_any_kind_are_the_same_page():
    page = RAMP[:999]
    wanted = host_page_digest(page)
    assert {host_page_digest(form) for form in (page.tobytes(), bytearray(page), memoryview(page.tobytes()))} == {
        wanted
    }
    assert host_page_digest(np.repeat(page, 2)[::2]) == wanted
    assert host_page_digest(np.arange(10, dtype=np.int32)) == host_page_digest(np.arange(10, dtype=np.int32).tobytes())


def test_a_slab_without_room_is_refused():
    slab = random_bytes((2, 64), seed=6)
    with pytest.raises(ValueError, match="do not fit"):
        page_digests(slab, np.array([0]), 64, offset=1)
    with pytest.raises(ValueError, match="slots must lie"):
        page_digests(slab, np.array([2]), 64)


@pytest.mark.gpu
def test_page_locked_host_memory_is_read_across_the_link():
    slab = random_bytes((3, 65536), seed=7).pin_memory()
    found = page_digests(slab, torch.tensor([2, 0], device="cuda"), 65536)
    assert digest_bytes(found) == [host_page_digest(slab[slot].numpy()) for slot in (2, 0)]
