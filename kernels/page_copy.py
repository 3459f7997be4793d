"""Copies between a device pool, which keeps each layer apart, and block-major pages, which keep each page together.

A pool is given as its planes: for every layer K and V (or one latent plane), each uint8 `[pool_pages, plane_bytes]`,
where a pool page is `page_size` neighbouring rows. Block-major pages are rows of a slab, uint8 `[slots, stride]`; the
planes of one page follow each other in it: `[layer][plane][token][kv_head][head_dim]`.

In numpy, for pools in host memory; `page_gather` does the same in memory of an accelerator.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np


def runs(left: np.ndarray, right: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """Split two equally long index vectors into runs in which both grow by one: (left start, right start, length)."""
    if not len(left):
        return
    breaks = np.flatnonzero((np.diff(left) != 1) | (np.diff(right) != 1)) + 1
    starts = [0, *breaks.tolist()]
    for start, end in zip(starts, [*starts[1:], len(left)], strict=True):
        yield int(left[start]), int(right[start]), end - start


def copy_out(planes: Sequence[np.ndarray], pool_pages: np.ndarray, slab: np.ndarray, slots: np.ndarray) -> None:
    """Gather: pool page `pool_pages[i]` of every plane into slab row `slots[i]`. Releases the interpreter lock."""
    pieces = list(runs(pool_pages, slots))
    offset = 0
    for plane in planes:
        width = plane.shape[1]
        for page, slot, count in pieces:
            slab[slot : slot + count, offset : offset + width] = plane[page : page + count]
        offset += width


def copy_in(
    planes: Sequence[np.ndarray], pool_pages: np.ndarray, slab: np.ndarray, slots: np.ndarray, offset: int
) -> None:
    """Scatter one layer: its bytes, at `offset` in slab rows `slots[i]`, into pool page `pool_pages[i]` of `planes`."""
    pieces = list(runs(pool_pages, slots))
    for plane in planes:
        width = plane.shape[1]
        for page, slot, count in pieces:
            plane[page : page + count] = slab[slot : slot + count, offset : offset + width]
        offset += width
