"""The pool in shared memory and its allocator, against SGLang's own."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.lending.donation.extents import Span

from support.examples import examples
from support.fake_device import FakeDeviceMemory

SIZE, PAGE, LAYERS, HEADS, DIM = 160, 4, 3, 2, 8


@pytest.fixture(scope="module", autouse=True)
def sglang() -> None:
    """SGLang's pools ask for its configuration."""
    import sglang.srt.managers.scheduler  # noqa: F401 - before its parts, which import each other


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeDeviceMemory:
    """The memory that a `DeviceKVPool` is of."""
    from swift_tiers.sglang_ext.pools import shared_pool

    found = FakeDeviceMemory()
    monkeypatch.setattr(shared_pool, "gpu_memory", lambda device: found)
    return found


def pool(kind: str, **options: Any) -> Any:
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    from swift_tiers.sglang_ext.pools.shared_pool import BlockMajorKVPool, DeviceKVPool, SharedKVPool

    kinds = {
        "own": MHATokenToKVPool,
        "layer-major": SharedKVPool,
        "block-major": BlockMajorKVPool,
        "device": DeviceKVPool,
    }
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
    return kinds[kind](fields.pop("size", SIZE), **fields)


def fill(kvcache: Any, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for buffer in [*kvcache.k_buffer, *kvcache.v_buffer]:
        buffer.copy_(torch.randn(buffer.shape, generator=generator))


@pytest.mark.parametrize("layout", ["layer-major", "block-major", "device"])
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


@pytest.mark.parametrize("layout", ["layer-major", "block-major", "device"])
def test_a_pages_extents_are_the_bytes_of_its_rows_and_of_no_others(layout: str) -> None:
    shared = pool(layout)
    fill(shared)
    assert shared.layout.page_bytes == 2 * LAYERS * PAGE * HEADS * DIM * 4
    before = [buffer.clone() for buffer in [*shared.k_buffer, *shared.v_buffer]]
    whole = shared.arena.memory if layout == "device" else shared.arena.array
    for extent in shared.layout.extents([Span(3, 2), Span(8, 1)]):
        assert extent.buffer == 0
        whole[extent.offset : extent.offset + extent.length] = 0
    lent = torch.zeros(SIZE + PAGE, dtype=torch.bool)
    lent[3 * PAGE : 5 * PAGE] = lent[8 * PAGE : 9 * PAGE] = True
    for buffer, old in zip([*shared.k_buffer, *shared.v_buffer], before, strict=True):
        assert not buffer[lent].any()
        assert torch.equal(buffer[~lent], old[~lent])


@given(st.lists(st.integers(0, SIZE // PAGE), min_size=1, max_size=12, unique=True), st.randoms())
@settings(max_examples=examples(40), deadline=None)
def test_pages_are_copied_out_and_in_alike_from_both_layouts(pages: list[int], random: Any) -> None:
    from swift_tiers.sglang_ext.pools.opening import open_device_pool

    slots = random.sample(range(20), len(pages))
    slabs = []
    for layout in ("own", "layer-major", "block-major", "device"):
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
    assert (slabs[0] == slabs[3]).all()


@pytest.mark.parametrize("layout", ["layer-major", "device"])
@pytest.mark.parametrize(("heads", "size"), [(2, 160), (1, 36), (3, 4)])
def test_values_lie_whole_pages_behind_the_keys_of_their_layer_as_in_sglangs_own(
    layout: str, heads: int, size: int
) -> None:
    """Attention kernels that are given one base reach V by an offset in pages."""
    own, shared = pool("own", head_num=heads, size=size), pool(layout, head_num=heads, size=size)
    for layer in range(LAYERS):
        apart = [one.v_buffer[layer].data_ptr() - one.k_buffer[layer].data_ptr() for one in (own, shared)]
        assert apart[0] == apart[1]
        assert apart[1] % (PAGE * heads * DIM * 4) == 0
        assert shared.k_buffer[layer].data_ptr() % 4096 == 0
        assert shared.k_buffer[layer].stride() == own.k_buffer[layer].stride()
        assert shared.k_buffer[layer].is_contiguous()


def test_a_pool_on_a_gpu_is_one_allocation_that_others_can_map(gpu: FakeDeviceMemory) -> None:
    shared = pool("device")
    fill(shared)
    assert gpu.calls == {"export": 1}
    assert (shared.arena.kind, shared.arena.device) == ("cuda", "GPU-a")
    other = FakeDeviceMemory("GPU-b")
    mapped = other.attach(shared.arena.fd, shared.arena.size)
    (extent, *_) = shared.layout.extents([Span(7, 1)])
    page = mapped[extent.offset : extent.offset + extent.length].view(torch.float32).view(PAGE, HEADS, DIM)
    assert torch.equal(page, shared.k_buffer[0][7 * PAGE : 8 * PAGE])
    other.release(mapped)


def test_it_is_chosen_where_memory_of_a_gpu_is_lent_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt import platforms
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool

    from swift_tiers.radix_tiering.base.read_config import parse_config
    from swift_tiers.sglang_ext import hook_functions
    from swift_tiers.sglang_ext.platform import cpu_platform
    from swift_tiers.sglang_ext.pools.lending_allocator import PagedLendingAllocator
    from swift_tiers.sglang_ext.pools.shared_pool import DeviceKVPool

    class PageMajor(MHATokenToKVPool):
        pass

    class Other(MHATokenToKVPool):
        pass

    def chosen(kind: str = "mha", default: type = MHATokenToKVPool, by_platform: type | None = None) -> type:
        return hook_functions.around_kv_pool_class(
            lambda self, *, kind, default: by_platform or default, None, kind=kind, default=default
        )

    def allocator(by_platform: type | None = None) -> type | None:
        return hook_functions.around_paged_allocator_class(lambda self: by_platform, None)

    for donate, is_cuda in ((False, True), (True, False), (None, True)):
        peer = None if donate is None else parse_config({"peer": {"donate": donate}}).peer
        monkeypatch.setattr(cpu_platform, "peer_config", lambda peer=peer: peer)
        monkeypatch.setattr(platforms, "current_platform", SimpleNamespace(is_cuda=lambda is_cuda=is_cuda: is_cuda))
        assert chosen() is MHATokenToKVPool
        assert chosen(default=PageMajor) is PageMajor
        assert allocator() is None
    monkeypatch.setattr(cpu_platform, "peer_config", lambda: parse_config({"peer": {"donate": "0..50%"}}).peer)
    monkeypatch.setattr(platforms, "current_platform", SimpleNamespace(is_cuda=lambda: True))
    assert chosen() is DeviceKVPool
    assert allocator() is PagedLendingAllocator
    assert chosen("mla", MLATokenToKVPool) is MLATokenToKVPool
    assert chosen(by_platform=Other) is Other
    assert allocator(Other) is Other
    with pytest.raises(ConfigError, match=r"peer\.donate: a PageMajor cannot be lent"):
        chosen(default=PageMajor)


def test_its_hooks_are_on_sglang_as_it_is() -> None:
    from swift_tiers.sglang_ext import hook_functions
    from swift_tiers.sglang_ext.hooks import check_hook, donor_hooks

    functions = (
        hook_functions.around_kv_pool_class,
        hook_functions.around_paged_allocator_class,
        hook_functions.after_pool_allocator,
    )
    ours = [hook for hook in donor_hooks() if hook.function in functions]
    assert len(ours) == 3
    for hook in ours:
        check_hook(hook)


@pytest.mark.parametrize(
    ("platform", "refused"),
    [
        ({}, None),
        ({"layout": "block-major"}, "peer.pool_layout: block-major is supported on the portable CPU platform only"),
        ({"saver": True}, "peer.donate: cannot be combined with --enable-memory-saver"),
        ({"cuda": False}, "peer.donate: is supported on NVIDIA GPUs and the portable CPU platform only"),
    ],
)
def test_what_a_server_on_a_gpu_cannot_lend_is_told_before_anything_is_loaded(
    platform: dict[str, Any], refused: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang.srt import platforms

    from swift_tiers.radix_tiering.base.read_config import parse_config
    from swift_tiers.sglang_ext.build.assembly import check_donor

    here = SimpleNamespace(is_cuda=lambda: platform.get("cuda", True))
    monkeypatch.setattr(platforms, "current_platform", here)
    config = parse_config({"peer": {"donate": True, "pool_layout": platform.get("layout", "layer-major")}})

    def check() -> None:
        check_donor(config, memory_saver=platform.get("saver", False))

    if refused is None:
        check()
    else:
        with pytest.raises(ConfigError, match=re.escape(refused)):
            check()
    check_donor(parse_config({}), memory_saver=True)


@pytest.mark.parametrize("layout", ["layer-major", "device"])
def test_what_cannot_be_lent_is_refused(layout: str) -> None:
    with pytest.raises(ConfigError, match=r"peer\.donate: .* different sizes"):
        pool(layout, v_head_dim=4)
    with pytest.raises(ConfigError, match=r"peer\.donate: .* sized after graphs"):
        pool(layout, post_capture_active=True)


class Allocating(RuleBasedStateMachine):
    """The allocator beside SGLang's own, which gets the same requests and never lends."""

    page = PAGE
    size = SIZE
    need_sort = False

    def __init__(self) -> None:
        super().__init__()
        self.ours, self.theirs = self.make()
        self.used: list[torch.Tensor] = []
        self.others: list[torch.Tensor] = []
        self.lent: list[Span] = []
        self.span_pages = 0

    def make(self) -> tuple[Any, Any]:
        from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator

        from swift_tiers.sglang_ext.pools.lending_allocator import PagedLendingAllocator

        fields = {"page_size": PAGE, "dtype": torch.float32, "device": "cpu", "kvcache": None}
        fields["need_sort"] = self.need_sort
        return PagedLendingAllocator(SIZE, **fields), PagedTokenToKVPoolAllocator(SIZE, **fields)

    @rule(pages=st.integers(1, 15))
    def alloc(self, pages: int) -> None:
        before = self.ours.available_size()
        got = self.ours.alloc(pages * self.page)
        assert (got is not None) == (pages * self.page <= before)
        if got is not None:
            self.used.append(got)
            self.others.append(self.theirs.alloc(pages * self.page))

    @precondition(lambda self: self.page > 1)
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

    @precondition(lambda self: self.page > 1)
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
            set(range(first, first + self.span_pages)) <= free
            for first in range(0, self.size // self.page + 1, self.span_pages)
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
        used = {page for rows in self.used for page in (rows // self.page).tolist()}
        assert sorted([*free, *lent, *used]) == list(range(1, self.size // self.page + 1))
        assert self.ours.available_size() == len(free) * self.page
        assert self.ours.lent_tokens == len(lent) * self.page
        assert self.ours.available_size() + self.ours.lent_tokens == self.theirs.available_size()


class SortedPages(Allocating):
    """The same where SGLang keeps what was freed apart until it is needed."""

    need_sort = True


class AllocatingTokens(Allocating):
    """The same for pages of one token; SGLang may keep what was freed apart until it is needed."""

    page = 1
    size = 60

    def make(self) -> tuple[Any, Any]:
        from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator

        from swift_tiers.sglang_ext.pools.lending_allocator import TokenLendingAllocator

        fields = {"dtype": torch.float32, "device": "cpu", "kvcache": None, "need_sort": self.need_sort}
        return TokenLendingAllocator(self.size, **fields), TokenToKVPoolAllocator(self.size, **fields)


class SortedTokens(AllocatingTokens):
    need_sort = True


TestAllocating = Allocating.TestCase
TestSortedPages = SortedPages.TestCase
TestAllocatingTokens = AllocatingTokens.TestCase
TestSortedTokens = SortedTokens.TestCase
TestAllocating.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestAllocatingTokens.settings = TestSortedTokens.settings = TestSortedPages.settings = TestAllocating.settings


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


class Sides(TorchFunctionMode):
    """Tells tensors of a device from those of the host where there is no device: what is made with `device="cpu"`, and
    what comes of it, is the device's; what comes from numpy is the host's. No operation takes both, and numpy sees none
    of the device."""

    def __init__(self) -> None:
        super().__init__()
        self._of_device = WeakSet()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        operands = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        on_device = [any(one is other for other in self._of_device) for one in operands]
        moved = func is torch.Tensor.to
        assert moved or not any(on_device) or all(on_device), f"{func.__name__} of tensors of both sides"
        assert func is not torch.Tensor.numpy or not any(on_device), "numpy was given a tensor of the device"
        result = func(*args, **kwargs)
        if func is torch.Tensor.cpu:
            return result.clone()
        if moved or any(on_device) or kwargs.get("device") is not None:
            for one in tree_leaves(result):
                if isinstance(one, torch.Tensor):
                    self._of_device.add(one)
        return result


def lend_and_take_back(allocator: Any) -> list[list[int]]:
    """Every way through the allocator; what was free after each step."""
    found = []

    def note() -> None:
        found.append(allocator.get_all_free_pages().cpu().tolist())

    used = allocator.alloc(5 * PAGE)
    allocator.arrange(4)
    note()
    spans = allocator.take(3)
    more = allocator.alloc(20 * PAGE)  # breaks spans up
    note()
    allocator.free(used)
    spans += allocator.take(20)  # gathers anew
    note()
    allocator.put_back(spans[:2])
    allocator.arrange(0)
    note()
    allocator.free(more)
    allocator.clear()
    note()
    allocator.put_back(spans[2:])
    note()
    return found


def test_its_list_may_be_on_a_device() -> None:
    from swift_tiers.sglang_ext.pools.lending_allocator import PagedLendingAllocator

    fields = {"page_size": PAGE, "dtype": torch.float32, "device": "cpu", "kvcache": None, "need_sort": False}
    plain = lend_and_take_back(PagedLendingAllocator(SIZE, **fields))
    assert len({len(step) for step in plain}) > 3
    with Sides():
        assert lend_and_take_back(PagedLendingAllocator(SIZE, **fields)) == plain
        with pytest.raises(AssertionError, match="both sides"):
            torch.cat((torch.zeros(1, device="cpu"), torch.from_numpy(np.zeros(1, np.float32))))
        with pytest.raises(AssertionError, match="numpy was given"):
            torch.zeros(1, device="cpu")[:].numpy()


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no CUDA GPU here: a list on a device is played by one that is not"
)
def test_its_list_may_be_on_a_gpu() -> None:
    from swift_tiers.sglang_ext.pools.lending_allocator import PagedLendingAllocator

    fields = {"page_size": PAGE, "dtype": torch.float32, "kvcache": None, "need_sort": False}
    here, there = (
        lend_and_take_back(PagedLendingAllocator(SIZE, device=device, **fields)) for device in ("cpu", "cuda")
    )
    assert here == there
