"""Pages of fewer bits: `encode_pages` out of a pool, `decode_pages` into it, each in one pass over the values.

Every head of every token has a scale of its own, float32, by which its largest magnitude becomes the largest code:

| codec | codes | largest | error of a value, at most |
|---|---|---|---|
| E4M3 | 8-bit floats | 448 | 1/16 of it; below 2^-6 scales, 2^-10 of a scale |
| INT8 | whole numbers, one a byte | 127 | half a scale |
| INT4 | whole numbers, two a byte | 7 | half a scale |

and beside these the rounding of the pool's own dtype. Codes round to nearest, ties to even. A head whose largest
magnitude is below 2^-96 is stored as zeros. One with an infinity or NaN in it comes back as NaN throughout: nothing
that was wrong before passes for right.

An encoded page, as a block-major one, is a run of layers, so that a layer is a slice. In a layer the codes come first,
`[plane][token][kv_head][code bytes]`, then the scales, `[plane][token][kv_head]`, little-endian. Both begin at
multiples of 16 bytes from the page's begin, and what lies between is zero. INT4 keeps an even element in the low half
of a byte, the next one in the high half; after an odd head_dim the last high half is zero.

Mixed precision: a window of recent tokens is kept exact. What attends most to a token is what follows it soon, and the
window is a small part of a long sequence. Pages are exact or encoded as a whole, so the window ends at a page's edge;
an exact page is a plain block-major one (`page_gather`).
"""

from __future__ import annotations

import numpy as np
import torch

from .page_codec_layout import Codec, EncodedLayout
from .page_gather import Indices, gather_pages, scatter_pages
from .pool_planes import VECTOR_BYTES, PoolPlanes, as_indices, check_slab


def encode_pages(
    pool: PoolPlanes,
    pages: Indices,
    slab: torch.Tensor,
    slots: Indices,
    codec: Codec,
    layers: range | None = None,
    offset: int | None = None,
) -> None:
    """Pool page `pages[i]`, encoded, into slab row `slots[i]`. Everything else is as with `gather_pages`.

    A slab row, and `offset` in it, begins at a multiple of 16 bytes. Raises ValueError if not, or if the pool's values
    cannot be encoded.
    """
    _code(pool, pages, slab, slots, codec, layers, offset, out=True)


def decode_pages(
    pool: PoolPlanes,
    pages: Indices,
    slab: torch.Tensor,
    slots: Indices,
    codec: Codec,
    layers: range | None = None,
    offset: int | None = None,
) -> None:
    """Slab row `slots[i]`, which `encode_pages` wrote, into pool page `pages[i]`."""
    _code(pool, pages, slab, slots, codec, layers, offset, out=False)


def _code(
    pool: PoolPlanes,
    pages: Indices,
    slab: torch.Tensor,
    slots: Indices,
    codec: Codec,
    layers: range | None,
    offset: int | None,
    out: bool,
) -> None:
    layout, chosen = EncodedLayout.of(pool, codec), pool.range_of(layers)
    start = chosen.start * layout.layer_bytes if offset is None else offset
    check_slab(slab, start, len(chosen) * layout.layer_bytes)
    if (slab.data_ptr() + start) % VECTOR_BYTES or slab.stride(0) % VECTOR_BYTES:
        raise ValueError(f"encoded pages must begin at multiples of {VECTOR_BYTES} bytes; align the slab or its stride")
    pool_pages = as_indices(pages, pool.pool_pages, pool.device, "pool pages")
    slab_slots = as_indices(slots, slab.shape[0], pool.device, "slots")
    if len(pool_pages) != len(slab_slots):
        raise ValueError(f"{len(pool_pages)} pool pages and {len(slab_slots)} slots: as many of both are needed")
    if not len(pool_pages) or not len(chosen):
        return
    if pool.device.type == "cuda":
        from .page_codec_triton import code_pages_triton

        code_pages_triton(pool, pool_pages, slab, slab_slots, codec, chosen, start, out)
    else:
        from .page_codec_plain import code_pages_plain

        code_pages_plain(pool, pool_pages, slab, slab_slots, codec, chosen, start, out)


def exact_pages(first_tokens: np.ndarray, page_size: int, exact_from: int) -> np.ndarray:
    """Which pages are kept exact, bool: those that hold a token at or after position `exact_from` of their sequence.

    `first_tokens`: the position of each page's first token.
    """
    return np.asarray(first_tokens) + page_size > exact_from


def encode_mixed(
    pool: PoolPlanes,
    pages: np.ndarray,
    slab: torch.Tensor,
    slots: np.ndarray,
    codec: Codec,
    exact: np.ndarray,
    layers: range | None = None,
) -> None:
    """As `encode_pages`, but page `pages[i]` goes as it is where `exact[i]`; slab rows must hold a plain page too."""
    gather_pages(pool, pages[exact], slab, slots[exact], layers)
    encode_pages(pool, pages[~exact], slab, slots[~exact], codec, layers)


def decode_mixed(
    pool: PoolPlanes,
    pages: np.ndarray,
    slab: torch.Tensor,
    slots: np.ndarray,
    codec: Codec,
    exact: np.ndarray,
    layers: range | None = None,
) -> None:
    """The way back from `encode_mixed`, with the same `exact`."""
    scatter_pages(pool, pages[exact], slab, slots[exact], layers)
    decode_pages(pool, pages[~exact], slab, slots[~exact], codec, layers)
