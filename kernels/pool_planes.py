"""A device pool as kernels see it: the address of every plane, and the distance between two tokens' rows in it.

Two layouts of SGLang's pools are one here. Layer-first, K and V of every layer are allocations of their own and a row
follows its neighbour at once. Block-major (page-major), there is one buffer, a token's rows of all layers lie together,
and a row's neighbour in its plane is a whole token away. Either way a plane is an address and a stride.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

#: What a GPU reads or writes at once, bytes; addresses that are multiples of more gain nothing.
VECTOR_BYTES = 16
#: A wide program has so many times as many threads and bytes of a tile as another: a few of them have enough under way
#: to fill a link, on as few multiprocessors.
WIDER = 8


def alignment_of(*positions: int) -> int:
    """The largest of 16, 8, 4, 2, 1 that divides every address, length or stride given."""
    common = VECTOR_BYTES
    for position in positions:
        common = min(common, position & -position) if position else common
    return common


def pieces_of(page_size: int, row_bytes: int, row_stride: int) -> tuple[int, int]:
    """In how many runs of bytes a page lies in a plane, and how long each is: one where its rows follow each other."""
    return (1, page_size * row_bytes) if row_stride == row_bytes else (page_size, row_bytes)


class PoolPlanes:
    """The planes of a pool, and their addresses in a table on its device. Keeps the planes alive.

    `layers`: for every layer its planes (K and V, or one latent), each `[rows, ...]` with contiguous rows: SGLang's
    `k_buffer[i]` and `v_buffer[i]`. A pool page is `page_size` neighbouring rows; rows beyond the last whole page are
    not reached. Raises ValueError for planes of different shapes, strides, dtypes or devices.
    """

    def __init__(self, layers: Sequence[Sequence[torch.Tensor]], page_size: int) -> None:
        flat = [plane for planes in layers for plane in planes]
        if page_size < 1 or not flat or len({len(planes) for planes in layers}) != 1:
            raise ValueError("a pool needs a page size of at least 1, and layers of equally many planes")
        first = flat[0]
        kinds = {(plane.shape, plane.stride(), plane.dtype, plane.device) for plane in flat}
        if len(kinds) != 1:
            raise ValueError("the planes of a pool must be of one shape, stride, dtype and device")
        if first.dim() < 2 or first[:1].numel() == 0 or not first[:1].is_contiguous():
            raise ValueError(f"each row of a plane must be contiguous; got strides {first.stride()} of {first.shape}")
        self.layers = len(layers)
        self.planes = len(layers[0])
        self.page_size = page_size
        self.dtype = first.dtype
        self.device = first.device
        #: A row without heads is one head.
        self.heads: int = first.shape[1] if first.dim() > 2 else 1
        self.head_dim: int = first[0].numel() // self.heads
        self.row_bytes = first[0].numel() * first.element_size()
        #: Bytes from a token's row to the next token's.
        self.row_stride = first.stride(0) * first.element_size()
        self.pool_pages = first.shape[0] // page_size
        self.flat = flat
        addresses = [plane.data_ptr() for plane in flat]
        #: int64 [layers * planes], on the device: the address of each plane's first row.
        self.table = torch.tensor(addresses, dtype=torch.int64).to(self.device)
        #: The largest of 16, 8, 4, 2, 1 that divides every row's address.
        self.alignment = alignment_of(*addresses, self.row_stride)

    @property
    def layer_bytes(self) -> int:
        """Bytes of one layer of a block-major page."""
        return self.planes * self.page_size * self.row_bytes

    @property
    def page_bytes(self) -> int:
        return self.layers * self.layer_bytes

    def range_of(self, layers: range | None) -> range:
        """`layers`, or all. Raises ValueError unless they are neighbours of this pool."""
        chosen = range(self.layers) if layers is None else layers
        if chosen.step != 1 or not 0 <= chosen.start <= chosen.stop <= self.layers:
            raise ValueError(f"layers {chosen} are not neighbouring ones of the pool's {self.layers}")
        return chosen

    def plane_pages(self, plane: int) -> torch.Tensor:
        """Plane `plane`, `[layer][plane]` counted through, as pages: `[pool_pages, page_size, elements]`, no copy."""
        whole = self.pool_pages * self.page_size
        return self.flat[plane][:whole].view(self.pool_pages, self.page_size, -1)


def whole_pages(rows: np.ndarray, page_size: int) -> np.ndarray | None:
    """The page that each `page_size` of a pool's `rows` are, int64; None where these are not whole, aligned pages."""
    if len(rows) % page_size:
        return None
    table = rows.astype(np.int64, copy=False).reshape(-1, page_size)
    first = table[:, 0]
    if (first % page_size).any() or (table != first[:, None] + np.arange(page_size)).any():
        return None
    return np.ascontiguousarray(first // page_size)


def by_kernel(device: torch.device) -> bool:
    """Whether memory of `device` is copied by kernels; else by plain torch."""
    return device.type == "cuda"


def as_indices(
    indices: np.ndarray | torch.Tensor, limit: int, device: torch.device, what: str, *, upload: bool = True
) -> torch.Tensor:
    """`indices` as contiguous int64 on `device`; unless `upload`, those from the host stay there.

    Those that come from the host are checked: raises ValueError if one lies outside `[0, limit)`. A tensor that is on
    `device` already is trusted, since looking at it would wait for the device.
    """
    if isinstance(indices, torch.Tensor) and indices.device == device and device.type != "cpu":
        if indices.dtype != torch.int64 or indices.dim() != 1:
            raise ValueError(f"{what} must be int64 [n]; got {indices.dtype} {tuple(indices.shape)}")
        return indices.contiguous()
    found = torch.as_tensor(indices)
    if found.dim() != 1 or (found.numel() and (found.dtype.is_floating_point or found.dtype == torch.bool)):
        raise ValueError(f"{what} must be int64 [n]; got {found.dtype} {tuple(found.shape)}")
    found = found.to(torch.int64).contiguous()
    if found.numel() and (int(found.min()) < 0 or int(found.max()) >= limit):
        raise ValueError(f"{what} must lie in [0, {limit}); got {int(found.min())} to {int(found.max())}")
    return uploaded(found, device) if upload else found


def uploaded(numbers: torch.Tensor, device: torch.device) -> torch.Tensor:
    """`numbers` on `device`, in the order of the current stream; nothing is waited for."""
    if device.type == "cuda" and numbers.device.type == "cpu":
        # Pageable memory would be copied with a wait for all that the stream has to do before.
        return numbers.pin_memory().to(device, non_blocking=True)
    return numbers.to(device)


def check_slab(slab: torch.Tensor, offset: int, nbytes: int) -> None:
    """Raise ValueError unless `slab` is uint8 `[slots, stride]` with room for `nbytes` from `offset` in every row."""
    if slab.dtype != torch.uint8 or slab.dim() != 2 or (slab.shape[1] > 1 and slab.stride(1) != 1):
        raise ValueError(f"a slab must be uint8 [slots, stride], rows contiguous; got {slab.dtype} {slab.shape}")
    if offset < 0 or offset + nbytes > slab.shape[1]:
        raise ValueError(f"{nbytes} bytes from byte {offset} do not fit into slab rows of {slab.shape[1]}")
