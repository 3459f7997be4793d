"""(b) How fast kernels and transfers are, each beside the ceiling measured in the same run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from swift_tiers.kernels.copy_queue import Accelerator
from swift_tiers.kernels.page_codec import Codec, EncodedLayout, decode_pages, encode_pages
from swift_tiers.kernels.page_digest import page_digests
from swift_tiers.kernels.page_gather import gather_pages, scatter_pages

from .figures import ProofFigure
from .layouts import PAGE_SIZE, POOLS, Layout, planes_of
from .stopwatch import Stopwatch

#: Scattered pages that are moved at once.
PAGES = 2048
#: Of each ceiling: bytes copied.
CEILING_BYTES = 2**30
#: At least this share of a device copy, bytes read and written, or of a plain copy of page-locked memory.
GATHER_SHARE, CODEC_SHARE, LINK_SHARE = 0.85, 0.7, 0.9
_GB = 1e9


class Ceilings(NamedTuple):
    """What the machine does at best, bytes a second."""

    copy: float  # within the device, read and written
    read: float  # within the device
    to_device: float  # from page-locked host memory
    to_host: float


def ceilings(accelerator: Accelerator, watch: Stopwatch, nbytes: int = CEILING_BYTES) -> Ceilings:
    """Plain copies by torch of contiguous memory."""
    device = accelerator.device_memory(2, nbytes)
    host = accelerator.host_memory(1, nbytes)
    words = device[0].view(torch.int64)
    return Ceilings(
        copy=2 * nbytes / watch.device_seconds(lambda: device[1].copy_(device[0])),
        read=nbytes / watch.device_seconds(lambda: words.sum()),
        to_device=nbytes / watch.seconds(lambda: device[0].copy_(host[0], non_blocking=True)),
        to_host=nbytes / watch.seconds(lambda: host[0].copy_(device[0], non_blocking=True)),
    )


def ceiling_figures(best: Ceilings) -> Iterator[ProofFigure]:
    names = ("device copy (read + written)", "device read", "page-locked host to device", "device to page-locked host")
    for name, value in zip(names, best, strict=True):
        yield ProofFigure("ceilings", name, value / _GB, "GB/s")


class _Lists(NamedTuple):
    """Indices on the device, so that uploading them is no part of a kernel's time."""

    pages: torch.Tensor
    slots: torch.Tensor


def kernels(
    layout: Layout, accelerator: Accelerator, best: Ceilings, watch: Stopwatch, pages: int
) -> Iterator[ProofFigure]:
    """Gather, scatter, codec and digest of `pages` scattered pages; the pool has twice as many."""
    random = np.random.default_rng(1)
    device = accelerator.device
    lists = _Lists(
        torch.from_numpy(random.permutation(2 * pages)[:pages].astype(np.int64)).to(device),
        torch.from_numpy(random.permutation(pages).astype(np.int64)).to(device),
    )
    slab = accelerator.device_memory(pages, layout.page_bytes)
    around = lists.pages, slab, lists.slots
    middle = range(layout.layers // 2, layout.layers // 2 + 1)
    for kind, make in POOLS.items():
        pool = planes_of(make(layout, 2 * pages, device))

        def figure(
            name: str, nbytes: int, work: Callable[[], object], share: float, of: float = best.copy, kind: str = kind
        ) -> ProofFigure:
            # One layer takes a GPU less time than the host takes to launch it.
            rate = nbytes / watch.device_seconds(work) / _GB
            return ProofFigure("kernels", f"{layout.name}, {kind}: {name}", rate, "GB/s", of / _GB, share)

        for name, copy in (("gather", gather_pages), ("scatter", scatter_pages)):
            for what, layers in (("all layers", None), ("one layer", middle)):
                nbytes = 2 * pages * (layout.page_bytes if layers is None else layout.layer_bytes)
                yield figure(
                    f"{name}, {what}",
                    nbytes,
                    partial(copy, pool, *around, layers),
                    GATHER_SHARE,
                )
        if kind != "layer-first":
            continue
        for codec in Codec:
            encoded = EncodedLayout.of(pool, codec).page_bytes
            nbytes = pages * (layout.page_bytes + encoded)
            for name, code in (
                (f"encode {codec.name.lower()}", encode_pages),
                (f"decode {codec.name.lower()}", decode_pages),
            ):
                yield figure(
                    name,
                    nbytes,
                    partial(code, pool, *around, codec),
                    CODEC_SHARE,
                )
        yield figure(
            "digest",
            pages * layout.page_bytes,
            partial(page_digests, slab, lists.slots, layout.page_bytes),
            CODEC_SHARE,
            best.read,
        )
        del pool


def transfers(
    layout: Layout, accelerator: Accelerator, best: Ceilings, watch: Stopwatch, pages: int
) -> Iterator[ProofFigure]:
    """Loads and stores as a server makes them, neighbouring and scattered pages. Raises ImportError where what a server
    needs is not installed."""
    from swift_tiers.sglang_ext.pools.accelerator_pool import AcceleratorPool

    layers = POOLS["layer-first"](layout, 2 * pages, accelerator.device)
    pool = AcceleratorPool(layers, PAGE_SIZE, accelerator)
    slab = accelerator.host_memory(pages, pool.geometry.stride_bytes)
    pool.prepare(slab.numpy())
    if pool.load_programs is not None:
        yield ProofFigure("transfers", f"{layout.name}: programs of a load by kernel", pool.load_programs, "")
    random = np.random.default_rng(2)
    near = np.arange(pages, dtype=np.int64)
    far = random.permutation(2 * pages)[:pages].astype(np.int64)
    nbytes = pages * layout.page_bytes
    for name, chosen in (("neighbours", near), ("scattered", far)):
        work = {
            "load": lambda chosen=chosen: pool.copy_in(chosen, slab.numpy(), near, lambda layer, mark: None),
            "store": lambda chosen=chosen: pool.copy_out(chosen, slab.numpy(), near),
        }
        for direction, of in (("load", best.to_device), ("store", best.to_host)):
            yield ProofFigure(
                "transfers",
                f"{layout.name}: {direction}, {name}",
                # By the host's clock: both return only when everything has been copied.
                nbytes / watch.host_seconds(work[direction]) / _GB,
                "GB/s",
                of / _GB,
                LINK_SHARE,
            )
