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
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from . import pool_planes
from .page_codec_layout import Codec, EncodedLayout
from .page_codec_plain import code_pages_plain
from .page_gather import Indices, PageLists, page_lists
from .pool_planes import VECTOR_BYTES, PoolPlanes, check_slab

if TYPE_CHECKING:
    from .page_codec_triton import TritonPageCode


class PageCode:
    """One kind of coding between a pool and a slab, to be done of any lists and any number of times, as a `PageCopy`:
    which codec, which layers, from which byte of a row, and which way."""

    def __init__(
        self,
        pool: PoolPlanes,
        slab: torch.Tensor,
        codec: Codec,
        layers: range | None = None,
        offset: int | None = None,
        *,
        out: bool,
    ) -> None:
        """`layers` and `offset` as of `encode_pages`; `out`: of the pool, or into it. Keeps the slab alive. Raises
        ValueError for a slab without room or aligned otherwise, and for a pool whose values cannot be encoded."""
        self.pool = pool
        self.slab = slab
        self.codec = codec
        self.layers = pool.range_of(layers)
        self.out = out
        layout = EncodedLayout.of(pool, codec)
        self.offset = self.layers.start * layout.layer_bytes if offset is None else offset
        check_slab(slab, self.offset, len(self.layers) * layout.layer_bytes)
        if (slab.data_ptr() + self.offset) % VECTOR_BYTES or slab.stride(0) % VECTOR_BYTES:
            raise ValueError(
                f"encoded pages must begin at multiples of {VECTOR_BYTES} bytes; align the slab or its stride"
            )
        self._kernel: TritonPageCode | None = None
        if pool_planes.by_kernel(pool.device):
            from .page_codec_triton import TritonPageCode

            self._kernel = TritonPageCode(pool, slab, codec, self.layers, self.offset, out)

    def prepare(self) -> None:
        """Compile and load what `run` launches, on the pool's current stream; nothing is coded."""
        if self._kernel is not None:
            self._kernel.prepare()

    def run(self, lists: PageLists, most_programs: int | None = None) -> None:
        """On the pool's current stream. `lists`: of these two, see `page_lists`."""
        if not len(lists.pages) or not len(self.layers):
            return
        if self._kernel is not None:
            self._kernel.run(*lists, most_programs)
        else:
            code_pages_plain(
                self.pool, lists.pages, self.slab, lists.slots, self.codec, self.layers, self.offset, self.out
            )


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
    PageCode(pool, slab, codec, layers, offset, out=True).run(page_lists(pool, pages, slab, slots))


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
    PageCode(pool, slab, codec, layers, offset, out=False).run(page_lists(pool, pages, slab, slots))
