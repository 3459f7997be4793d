"""The pool in shared memory and its allocator, against SGLang's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from swift_tiers.radix_tiering.donation.extents import Span
from swift_tiers.radix_tiering.errors import ConfigError

SIZE, PAGE, LAYERS, HEADS, DIM = 160, 4, 3, 2, 8


@pytest.fixture(scope="module", autouse=True)
def sglang() -> None:
    """SGLang's pools ask for its configuration."""
    import sglang.srt.managers.scheduler  # noqa: F401 - before its parts, which import each other


def pool(kind: str, **options: Any) -> Any:
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    from swift_tiers.sglang_ext.shared_pool import BlockMajorKVPool, SharedKVPool

    kinds = {"own": MHATokenToKVPool, "layer-major": SharedKVPool, "block-major": BlockMajorKVPool}
    fields = {
        "page_size": PAGE,
        "dtype": torch.float32,
        "head_num": HEADS,
        "head_dim": DIM,
        "layer_num": LAYERS,
        "device": "cpu",
        "enable_memory_saver": False,
        **options,
    }
    return kinds[kind](SIZE, **fields)


def fill(kvcache: Any, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for buffer in [*kvcache.k_buffer, *kvcache.v_buffer]:
        buffer.copy_(torch.randn(buffer.shape, generator=generator))


@pytest.mark.parametrize("layout", ["layer-major", "block-major"])
def test_it_reads_and_writes_as_sglangs_own(layout: str) -> None:
    own, shared = pool("own"), pool(layout)
    assert all(not buffer.any() for buffer in [*shared.k_buffer, *shared.v_buffer])
    rows = torch.randperm(SIZE)[:50] + PAGE
    key, value = torch.randn(2, 50, HEADS, DIM)
    for layer in range(LAYERS):
        for kvcache in (own, shared):
            assert kvcache.get_key_buffer(layer).shape == (SIZE + PAGE, HEADS, DIM)
            kvcache._store_kv_layer(layer, rows, key + layer, value - layer)
    for layer in range(LAYERS):
        for one, other in zip(own.get_kv_buffer(layer), shared.get_kv_buffer(layer), strict=True):
            assert torch.equal(one, other)
    assert own.get_kv_size_bytes() == shared.get_kv_size_bytes()


@pytest.mark.parametrize("layout", ["layer-major", "block-major"])
def test_a_pages_extents_are_the_bytes_of_its_rows_and_of_no_others(layout: str) -> None:
    shared = pool(layout)
    fill(shared)
    assert shared.layout.page_bytes == 2 * LAYERS * PAGE * HEADS * DIM * 4
    before = [buffer.clone() for buffer in [*shared.k_buffer, *shared.v_buffer]]
    for extent in shared.layout.extents([Span(3, 2), Span(8, 1)]):
        assert extent.buffer == 0
        shared.arena.array[extent.offset : extent.offset + extent.length] = 0
    lent = torch.zeros(SIZE + PAGE, dtype=torch.bool)
    lent[3 * PAGE : 5 * PAGE] = lent[8 * PAGE : 9 * PAGE] = True
    for buffer, old in zip([*shared.k_buffer, *shared.v_buffer], before, strict=True):
        assert not buffer[lent].any()
        assert torch.equal(buffer[~lent], old[~lent])


@given(st.lists(st.integers(0, SIZE // PAGE), min_size=1, max_size=12, unique=True), st.randoms())
@settings(max_examples=40, deadline=None)
def test_pages_are_copied_out_and_in_alike_from_both_layouts(pages: list[int], random: Any) -> None:
    from swift_tiers.sglang_ext.device_pool import open_device_pool

    slots = random.sample(range(20), len(pages))
    slabs = []
    for layout in ("own", "layer-major", "block-major"):
        kvcache = pool(layout)
        fill(kvcache)
        device = open_device_pool(kvcache, PAGE)
        slab = np.zeros((20, device.geometry.stride_bytes), np.uint8)
        device.copy_out(np.array(pages), slab, np.array(slots))
        slabs.append(slab)
        old = [buffer.clone() for buffer in [*kvcache.k_buffer, *kvcache.v_buffer]]
        fill(kvcache, seed=1)
        new = [buffer.clone() for buffer in [*kvcache.k_buffer, *kvcache.v_buffer]]
        layers: list[tuple[int, None]] = []
        device.copy_in(np.array(pages), slab, np.array(slots), lambda *told, layers=layers: layers.append(told))
        assert layers == [(layer, None) for layer in range(LAYERS)]
        back = torch.zeros(SIZE + PAGE, dtype=torch.bool)
        for page in pages:
            back[page * PAGE : (page + 1) * PAGE] = True
        for buffer, before, meanwhile in zip([*kvcache.k_buffer, *kvcache.v_buffer], old, new, strict=True):
            assert torch.equal(buffer[back], before[back])
            assert torch.equal(buffer[~back], meanwhile[~back])
        fill(kvcache, seed=1)
        device.copy_layer(np.array(pages), slab, np.array(slots), 1)
        for layer, buffers in enumerate(zip(kvcache.k_buffer, kvcache.v_buffer, strict=True)):
            for buffer, before, meanwhile in zip(buffers, old[layer::LAYERS], new[layer::LAYERS], strict=True):
                assert torch.equal(buffer[back], (before if layer == 1 else meanwhile)[back])
                assert torch.equal(buffer[~back], meanwhile[~back])
    assert (slabs[0] == slabs[1]).all()
    assert (slabs[0] == slabs[2]).all()


def test_what_cannot_be_lent_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"peer\.donate: .* different sizes"):
        pool("layer-major", v_head_dim=4)
    with pytest.raises(ConfigError, match=r"peer\.donate: .* sized after graphs"):
        pool("layer-major", post_capture_active=True)


class Allocating(RuleBasedStateMachine):
    """The allocator beside SGLang's own, which gets the same requests and never lends."""

    def __init__(self) -> None:
        super().__init__()
        from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator

        from swift_tiers.sglang_ext.lending_allocator import LendingAllocator

        fields = {"page_size": PAGE, "dtype": torch.float32, "device": "cpu", "kvcache": None}
        self.ours = LendingAllocator(SIZE, need_sort=False, **fields)
        self.theirs = PagedTokenToKVPoolAllocator(SIZE, need_sort=False, **fields)
        self.used: list[torch.Tensor] = []
        self.others: list[torch.Tensor] = []
        self.lent: list[Span] = []
        self.span_pages = 0

    @rule(pages=st.integers(1, 15))
    def alloc(self, pages: int) -> None:
        before = self.ours.available_size()
        got = self.ours.alloc(pages * PAGE)
        assert (got is not None) == (pages * PAGE <= before)
        if got is not None:
            self.used.append(got)
            self.others.append(self.theirs.alloc(pages * PAGE))

    @rule(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=4))
    def extend(self, lengths: list[int]) -> None:
        pages = sum(-(-length // PAGE) for length in lengths)
        before = self.ours.available_size()
        ends, zeros = torch.tensor(lengths), torch.zeros(len(lengths), dtype=torch.int64)
        last = torch.full((len(lengths),), -1)
        arguments = (zeros, zeros, ends, ends, last, sum(lengths))
        got = self.ours.alloc_extend(*arguments)
        assert (got is not None) == (pages * PAGE <= before)
        if got is not None:
            self.used.append(got)
            self.others.append(self.theirs.alloc_extend(*arguments))

    @rule(sequences=st.integers(1, 6))
    def decode(self, sequences: int) -> None:
        """Each begins a page."""
        before = self.ours.available_size()
        ends, last = torch.ones(sequences, dtype=torch.int64), torch.full((sequences,), -1)
        got = self.ours.alloc_decode(ends, ends, last)
        assert (got is not None) == (sequences * PAGE <= before)
        if got is not None:
            self.used.append(got)
            self.others.append(self.theirs.alloc_decode(ends, ends, last))

    @precondition(lambda self: self.used)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        which = data.draw(st.integers(0, len(self.used) - 1))
        self.ours.free(self.used.pop(which))
        self.theirs.free(self.others.pop(which))

    @rule(pages=st.sampled_from([0, 1, 2, 3, 5]))
    def arrange(self, pages: int) -> None:
        self.span_pages = pages
        self.ours.arrange(pages)

    @rule(spans=st.integers(0, 20))
    def lend(self, spans: int) -> None:
        free = set(self.ours.get_all_free_pages().tolist())
        whole = self.span_pages and sum(
            set(range(first, first + self.span_pages)) <= free for first in range(0, SIZE, self.span_pages)
        )
        taken = self.ours.take(spans)
        assert len(taken) == min(spans, whole), "there were more whole spans"
        self.lent += taken

    @precondition(lambda self: self.lent)
    @rule(data=st.data())
    def put_back(self, data: st.DataObject) -> None:
        spans = data.draw(st.lists(st.sampled_from(self.lent), unique=True))
        self.ours.put_back(spans)
        self.lent = [span for span in self.lent if span not in spans]

    @rule()
    def clear(self) -> None:
        self.ours.clear()
        self.theirs.clear()
        self.used, self.others = [], []

    @invariant()
    def every_page_is_in_one_place(self) -> None:
        free = self.ours.get_all_free_pages().tolist()
        lent = [page for span in self.lent for page in range(span.first, span.first + span.pages)]
        used = {page for rows in self.used for page in (rows // PAGE).tolist()}
        assert sorted([*free, *lent, *used]) == list(range(1, SIZE // PAGE + 1))
        assert self.ours.available_size() == len(free) * PAGE
        assert self.ours.lent_tokens == len(lent) * PAGE
        assert self.ours.available_size() + self.ours.lent_tokens == self.theirs.available_size()


TestAllocating = Allocating.TestCase
TestAllocating.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_it_is_sglangs_own_while_nothing_is_lent() -> None:
    """Page for page, in the same order."""
    machine = Allocating()
    for pages in (3, 5, 2, 7):
        machine.alloc(pages)
    for which in (1, 0):
        machine.ours.free(machine.used.pop(which))
        machine.theirs.free(machine.others.pop(which))
    machine.alloc(9)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(machine.used, machine.others, strict=True))
    assert torch.equal(machine.ours.free_pages, machine.theirs.free_pages)
