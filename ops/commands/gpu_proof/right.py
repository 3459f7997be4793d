"""(a) That kernels and copies are right: fresh random inputs each run, against plain torch on the CPU and float64."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch

from swift_tiers.kernels.page_codec import Codec, EncodedLayout, decode_pages, encode_pages
from swift_tiers.kernels.page_digest import digest_bytes, host_page_digest, page_digests
from swift_tiers.kernels.page_gather import gather_pages, scatter_pages
from swift_tiers.kernels.piece_copy import copy_pieces, copy_pieces_plain
from swift_tiers.kernels.pool_planes import PoolPlanes

from .figures import ProofCheck

#: What outputs are filled with before: no byte of it may be left where something is to be written, and none may change
#: where nothing is.
POISON = 0xA5
#: Geometries to be tried: layers, planes of each, kv heads, head_dim, page size. Odd ones, so that no alignment is
#: taken for granted, and the latent rows of DeepSeek and Kimi.
_GEOMETRIES = (
    (1, 2, 1, 1, 1),
    (2, 2, 3, 5, 4),
    (3, 2, 8, 128, 16),
    (4, 2, 1, 64, 16),
    (3, 1, 1, 576, 64),
    (2, 2, 5, 80, 1),
    (1, 2, 32, 128, 64),
    (5, 2, 2, 7, 3),
    (3, 1, 1, 9, 4),
)
_PAGES = 37


class Case:
    """A pool of random values on the device, the same one on the CPU, and two lists of indices."""

    def __init__(self, seed: int, device: torch.device, dtype: torch.dtype, block_major: bool) -> None:
        self.random = np.random.default_rng(seed)
        layers, planes, heads, head_dim, self.page_size = _GEOMETRIES[seed % len(_GEOMETRIES)]
        generator = torch.Generator().manual_seed(seed)
        shape = (_PAGES * self.page_size, planes * layers, heads, head_dim)
        # Bits, not numbers: copies must keep NaN, infinities and whatever else a pool may hold.
        table = torch.randn(shape, generator=generator).to(dtype)
        self.on_host = self._layers(table, planes, block_major)
        self.on_device = self._layers(table.to(device, copy=True), planes, block_major)
        self.device = device
        self.reference = PoolPlanes(self.on_host, self.page_size)
        self.pool = PoolPlanes(self.on_device, self.page_size)
        count = int(self.random.integers(1, _PAGES + 1))
        self.pages = self.random.permutation(_PAGES)[:count].astype(np.int64)
        self.slots = self.random.permutation(_PAGES + 3)[:count].astype(np.int64)

    @staticmethod
    def _layers(table: torch.Tensor, planes: int, block_major: bool) -> list[list[torch.Tensor]]:
        views = list(table.unbind(1))
        if not block_major:
            views = [view.clone() for view in views]
        return [views[start : start + planes] for start in range(0, len(views), planes)]

    def slabs(self, row_bytes: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Poisoned, on the CPU and on the device; rows are longer than what is written to them."""
        host = torch.full((_PAGES + 3, row_bytes + 64), POISON, dtype=torch.uint8)
        return host, host.to(self.device, copy=True)


def _same(what: str, found: torch.Tensor, expected: torch.Tensor) -> str:
    found, expected = (one.cpu().contiguous().view(torch.uint8).flatten() for one in (found, expected))
    if torch.equal(found, expected):
        return ""
    first = int((found != expected).nonzero()[0])
    return f"{what} differs from byte {first} on"


def _gathers(case: Case) -> str:
    host, device = case.slabs(case.pool.page_bytes)
    gather_pages(case.reference, case.pages, host, case.slots)
    gather_pages(case.pool, case.pages, device, case.slots)
    layer = int(case.random.integers(case.pool.layers))
    failure = _same("a slab", device, host)
    gather_pages(case.pool, case.pages, device.fill_(POISON), case.slots, range(layer, layer + 1))
    gather_pages(case.reference, case.pages, host.fill_(POISON), case.slots, range(layer, layer + 1))
    return failure or _same(f"layer {layer} of a slab", device, host)


def _scatters(case: Case) -> str:
    host, device = case.slabs(case.pool.page_bytes)
    host.copy_(torch.from_numpy(case.random.integers(0, 256, host.shape, dtype=np.uint8)))
    device.copy_(host)
    scatter_pages(case.reference, case.pages, host, case.slots)
    scatter_pages(case.pool, case.pages, device, case.slots)
    for layer, planes in enumerate(case.on_device):
        for number, plane in enumerate(planes):
            if failure := _same(f"plane {number} of layer {layer}", plane, case.on_host[layer][number]):
                return failure
    return ""


def _pieces(case: Case) -> str:
    """Of lengths around all that they are cut at, with gaps between, at places of any alignment or of one of 16."""
    count, step = len(case.pages), int(case.random.choice([1, 16]))
    lengths = case.random.choice([0, 1, 15, 16, 4096, 8192, 8209, 131072, 200_000], count) // step * step
    gaps = case.random.choice([0, 1, 2, 4, 8, 16], (2, count)) * step
    places = np.cumsum(gaps[1] + lengths) - lengths
    pieces = np.stack([gaps[0], places, lengths], axis=1).astype(np.int64)[case.random.permutation(count)]
    source = torch.from_numpy(case.random.integers(0, 256, int(pieces[:, [0, 2]].sum(axis=1).max()), dtype=np.uint8))
    host = torch.full((int(places[-1] + lengths[-1]) + 64,), POISON, dtype=torch.uint8)
    device = host.to(case.device, copy=True)
    copy_pieces_plain(source, host, pieces)
    copy_pieces(source.to(case.device, copy=True), device, pieces)
    return _same("the target", device, host)


def _codes(codec: Codec) -> Callable[[Case], str]:
    def coded(case: Case) -> str:
        layout = EncodedLayout.of(case.pool, codec)
        host, device = case.slabs(layout.page_bytes)
        encode_pages(case.reference, case.pages, host, case.slots, codec)
        encode_pages(case.pool, case.pages, device, case.slots, codec)
        if failure := _same("an encoded slab", device, host):
            return failure
        before = [[plane.double().cpu() for plane in planes] for planes in case.on_device]
        decode_pages(case.pool, case.pages, device, case.slots, codec)
        return _as_close_as_promised(case, codec, before)

    return coded


def _as_close_as_promised(case: Case, codec: Codec, before: list[list[torch.Tensor]]) -> str:
    """Against float64: no value is further off than `page_codec` says."""
    rows = torch.from_numpy((case.pages[:, None] * case.page_size + np.arange(case.page_size)).ravel())
    for planes, were in zip(case.on_device, before, strict=True):
        for plane, was in zip(planes, were, strict=True):
            exact, found = was[rows], plane.cpu()[rows].double()
            peak = exact.abs().amax(-1, keepdim=True)
            error = {Codec.INT8: peak / 254, Codec.INT4: peak / 14}.get(
                codec, torch.maximum(exact.abs() / 16, peak / 448 * 2.0**-10)
            )
            # Scaling is rounded too, in float32, and the result to the pool's dtype.
            error = error + peak * 2.0**-20 + (exact.abs() + error) * torch.finfo(plane.dtype).eps / 2
            worst = ((found - exact).abs() - error).max()
            if not worst <= 0:
                return f"a value is off by {float(worst):.3g} more than its code allows"
    return ""


def _digests(case: Case) -> str:
    _, device = case.slabs(case.pool.page_bytes)
    nbytes = case.pool.page_bytes
    gather_pages(case.pool, case.pages, device, case.slots)
    found = digest_bytes(page_digests(device, case.slots, nbytes))
    expected = [host_page_digest(device[slot, :nbytes].cpu().numpy()) for slot in case.slots.tolist()]
    return "" if found == expected else "a digest is not the host's"


#: What is checked, by name.
CHECKS: dict[str, Callable[[Case], str]] = {
    "gather": _gathers,
    "scatter": _scatters,
    "pieces": _pieces,
    "digest": _digests,
    **{f"codec {codec.name.lower()}": _codes(codec) for codec in Codec},
}


def checks(
    device: torch.device,
    seed: int,
    cases: int,
    seconds: float = math.inf,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[ProofCheck]:
    """Every kernel; see `check`. Of `seconds`, each may take an equal share and what those before it have left over: a
    GPU's first look at a geometry is the time that it takes to compile."""
    began = clock()
    for number, name in enumerate(CHECKS, 1):
        yield check(name, device, seed, cases, began + seconds * number / len(CHECKS), clock)


def check(
    name: str,
    device: torch.device,
    seed: int,
    cases: int,
    until: float = math.inf,
    clock: Callable[[], float] = time.monotonic,
) -> ProofCheck:
    """One of CHECKS, over up to `cases` fresh inputs, both pool layouts and every dtype by turns; after the first none
    is begun later than `until`."""
    dtypes = (torch.bfloat16, torch.float16, torch.float32)
    for number in range(cases):
        if number and clock() >= until:
            return ProofCheck(name, number)
        case = Case(seed + number, device, dtypes[number % len(dtypes)], number % 2 == 1)
        if failure := CHECKS[name](case):
            return ProofCheck(name, number + 1, f"{failure} (seed {seed + number}, {case.pool.dtype})")
    return ProofCheck(name, cases)
