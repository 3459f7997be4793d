"""The device pool as the tiers see it: planes of pages, whatever SGLang calls them.

`HostMemoryPool` serves pools in host memory (the portable CPU platform), `BlockMajorPool` those of them in which a page
lies together, `encoded_pool.EncodedPool` both where pages are kept in a codec; `accelerator_pool.AcceleratorPool` the
others.
"""

from __future__ import annotations

import itertools
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from msgspec import structs

from swift_tiers.kernels.copy_queue import Accelerator, QueueMark
from swift_tiers.kernels.page_codec_layout import Codec, EncodedLayout
from swift_tiers.kernels.page_copy import copy_in, copy_out
from swift_tiers.kernels.pool_planes import VECTOR_BYTES, PoolPlanes, whole_pages
from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.base.page import PageGeometry
from swift_tiers.radix_tiering.tiers.peer.outgoing import OutgoingMemory

from .states import StatePool

#: Told of a layer that may be read: at once where there is no mark, else by whatever begins after the mark.
LayerDone = Callable[[int, QueueMark | None], None]
#: Told of pages that are in the slab, by their positions in what was asked for, int64 [n], while others are on their
#: way. Of each once at most; of none where all come at once.
Came = Callable[[np.ndarray], None]


def pool_geometry(
    layers: Sequence[Sequence[torch.Tensor]],
    page_size: int,
    codec: str = "",
    front: Sequence[PoolPlanes] = (),
    rows: int = 0,
) -> PageGeometry:
    """The geometry of a page of this pool, kept in `codec` below the device. `front`: what lies in front of its layers,
    which is not coded; `rows`: that a page has of a plane, 0: one for each of its tokens. Raises ConfigError if
    layers or planes differ in size, or have values that are not to be coded."""
    row_bytes = {plane[0].numel() * plane.element_size() for planes in layers for plane in planes}
    if len(row_bytes) != 1 or len({len(planes) for planes in layers}) != 1:
        raise ConfigError(
            "--enable-swift-tiers: the model's layers keep KV rows of different sizes, which is not supported: "
            "remove the flag"
        )
    plain = PageGeometry(
        layers=len(layers),
        planes=len(layers[0]),
        tokens=page_size,
        row_bytes=row_bytes.pop(),
        front_bytes=sum(planes.page_bytes for planes in front),
        # Latent rows and index keys are one tensor a layer, and every rank's; K and V are a rank's heads.
        front_split=any(planes.planes > 1 for planes in front),
        rows=rows,
    )
    if not codec:
        return plain
    try:
        if plain.front_bytes % VECTOR_BYTES:
            raise ValueError(f"what lies in front of a page's layers is no multiple of {VECTOR_BYTES} bytes")
        coded = EncodedLayout.of(PoolPlanes(layers, page_size), Codec.named(codec))
    except ValueError as error:
        raise ConfigError(f"host.codec: {error}; remove it, or choose another --kv-cache-dtype") from None
    return structs.replace(plain, codec=codec, coded_layer_bytes=coded.layer_bytes)


def as_pages(buffer: torch.Tensor, page_size: int) -> torch.Tensor:
    """`[rows, ...]` as uint8 `[rows // page_size, page_size * row_bytes]`, sharing memory."""
    whole = buffer.shape[0] // page_size * page_size
    return buffer[:whole].reshape(whole, -1).view(torch.uint8).view(whole // page_size, -1)


def arrays_of(groups: Sequence[PoolPlanes]) -> list[np.ndarray]:
    """All planes of pools in host memory, one after the other: uint8 [pages, bytes of a page], sharing memory."""
    return [as_pages(plane, group.page_size).numpy() for group in groups for plane in group.flat]


def wait_for(events: Sequence[Any]) -> None:
    """Until the device has come to each."""
    for event in events:
        event.synchronize()


def reached(events: Sequence[Any]) -> bool:
    """Whether the device has come to each."""
    return all(event.query() for event in events)


class DevicePool(ABC):
    """Base: where a request's pages lie in the pool, and copies from and to a slab of block-major pages."""

    #: What copies beside the forward; None where the pool is in host memory.
    accelerator: Accelerator | None = None
    #: uint8 [slots, stride], on the device: `copy_in` takes slots beyond the slab's from here. See
    #: `radix_tiering.landing`.
    landing: torch.Tensor | None = None
    #: Where pages wait for donors' devices to store them; None where nothing is stored so.
    outgoing: OutgoingMemory | None = None
    #: Whether a model drafts, whose KV lies in front of the layers.
    drafts: bool = False
    #: Of layers that keep a state in place of KV, or KV of the last tokens alone; None where the model has none.
    states: StatePool | None = None

    def __init__(
        self,
        layers: Sequence[Sequence[torch.Tensor]],
        page_size: int,
        codec: str = "",
        front: Sequence[PoolPlanes] = (),
        rows: int = 0,
    ) -> None:
        """`codec`: in which pages are kept below the device; empty: as they are. `front`: what lies in front of a
        page's layers (`kept.front_of`); it is copied with the first of them. `rows`: that a page has of a plane; 0: one
        for each of its `page_size` tokens."""
        self.geometry = pool_geometry(layers, page_size, codec, front, rows)
        self.page_size = page_size
        whole = layers[0][0].shape[0] // self.geometry.plane_rows
        self.pool_pages = min(whole, *(planes.pool_pages for planes in front), sys.maxsize)
        self.device = layers[0][0].device
        self.front = tuple(front)
        #: By layers of KV: those of the model that may begin once it has come. `begin_with`: once all states have.
        self.releases: list[range] = [range(layer, layer + 1) for layer in range(self.geometry.layers)]
        self.begin_with = range(0)

    def keep_states(self, states: StatePool, layers: Sequence[int], of_model: int) -> None:
        """Of the model's `of_model` layers `layers` keep KV of all tokens, and others, or the same ones, `states`. To
        be called before anything is copied."""
        self.states = states
        self.geometry = structs.replace(self.geometry, state_bytes=self.states.nbytes)
        bounds = [*layers, of_model]
        self.releases = [range(first, end) for first, end in itertools.pairwise(bounds)]
        self.begin_with = range(bounds[0])

    @property
    def model_layers(self) -> int:
        """How many layers a forward waits for one by one."""
        return self.releases[-1].stop

    def page_indices(self, rows: torch.Tensor) -> np.ndarray:
        """The pool page of each `page_size` rows: int64 [pages].

        Raises ValueError if the rows are not whole, aligned, existing pages.
        """
        slots = rows.detach().to(device="cpu", dtype=torch.int64).flatten().numpy()
        if len(slots) % self.page_size:
            raise ValueError(f"{len(slots)} rows are not whole pages of {self.page_size}")
        pages = whole_pages(slots, self.page_size)
        if pages is None:
            raise ValueError("rows are not aligned pages")
        if len(pages) and (pages.min() < 0 or pages.max() >= self.pool_pages):
            raise ValueError(f"rows lie outside the pool of {self.pool_pages} pages")
        return pages

    def prepare(self, slab: np.ndarray) -> None:  # noqa: B027 - nothing to do for a pool in host memory
        """Do now what the first copies would wait for. To be called once, before anything is served, when landing
        memory is there and `slab`, the host tier's, which is only read. Raises ConfigError, with a remedy."""

    def adopt_thread(self) -> None:  # noqa: B027 - nothing to do for a pool in host memory
        """What the calling thread asks of CUDA is asked of this pool's device from now on. To be called first by a
        thread that copies: one that waits for an event takes a part of GPU 0 otherwise, whichever it is of."""

    def copy_out(
        self,
        pages: np.ndarray,
        slab: np.ndarray,
        slots: np.ndarray,
        after: Sequence[Any] = (),
        came: Came = lambda some: None,
    ) -> None:
        """Pool pages to slab rows, once the device's events `after` have come; complete when it returns or raises.
        `came` may be told of some of them before. Raises IndexError, and copies nothing, if a page or a slot is none.
        Not on the scheduler's thread."""
        self._require(pages, slots, len(slab))
        self._copy_out(pages, slab, slots, after, came)

    def copy_aside(self, pages: np.ndarray, rows: Sequence[int], after: Sequence[Any] = ()) -> None:
        """Pool pages to rows of outgoing memory, which the caller has taken, once the device's events `after` have
        come; complete when it returns or raises. Raises IndexError, and copies nothing, if a page or a row is none."""
        assert self.outgoing is not None, "there is no outgoing memory"
        slots = np.asarray(rows, dtype=np.int64)
        self._require(pages, slots, self.outgoing.rows)
        self._copy_aside(pages, slots, after)

    def copy_in(
        self, pages: np.ndarray, slab: np.ndarray, slots: np.ndarray, layer_done: LayerDone, after: Sequence[Any] = ()
    ) -> None:
        """Slab rows to pool pages, once the device's events `after` have come; `layer_done` for each layer, from 0.
        Where the pool has landing memory, `slots` go on there after the slab's. Nothing is written any more when it
        returns or raises. Raises IndexError, and copies nothing, if a page or a slot is none. Not on the scheduler's
        thread."""
        self._require(pages, slots, len(slab) + (0 if self.landing is None else len(self.landing)))
        self._copy_in(pages, slab, slots, layer_done, after)

    @property
    def has_digests(self) -> bool:
        """Whether the device says `digests` at next to no cost."""
        return False

    def digests(self, pages: np.ndarray) -> np.ndarray:
        """Of these pages where they lie, int64 [n, 2] (`kernels.page_digest`), after the copies that this thread has
        asked for. Only of a pool that `has_digests`, and not on the scheduler's thread."""
        raise NotImplementedError("this pool has no digests")

    def copy_layer(
        self, pages: np.ndarray, slab: np.ndarray, slots: np.ndarray, layer: int, after: Sequence[Any] = ()
    ) -> None:
        """One layer of slab rows to pool pages; it may be read when this returns, and is not written any more when
        this raises. Raises IndexError, and copies nothing, if a page or a slot is none. Not on the scheduler's thread.
        """
        self._require(pages, slots, len(slab) + (0 if self.landing is None else len(self.landing)))
        self._copy_layer(pages, slab, slots, layer, after)

    def _require(self, pages: np.ndarray, slots: np.ndarray, slots_end: int) -> None:
        """Once for each copy: what numpy takes for the last row, and a kernel for memory of others, is an error."""
        for what, numbers, end in (("pool page", pages, self.pool_pages), ("slot", slots, slots_end)):
            if len(numbers) and not (numbers.min() >= 0 and numbers.max() < end):
                raise IndexError(f"a {what} of {int(numbers.min())} to {int(numbers.max())} is none of {end}")

    @abstractmethod
    def _copy_out(
        self, pages: np.ndarray, slab: np.ndarray, slots: np.ndarray, after: Sequence[Any], came: Came
    ) -> None:
        """`copy_out` of pages and slots that there are."""

    def _copy_aside(self, pages: np.ndarray, rows: np.ndarray, after: Sequence[Any]) -> None:
        """`copy_aside` of pages and rows that there are."""
        raise NotImplementedError("pools in host memory have no outgoing memory")

    @abstractmethod
    def _copy_in(
        self, pages: np.ndarray, slab: np.ndarray, slots: np.ndarray, layer_done: LayerDone, after: Sequence[Any]
    ) -> None:
        """`copy_in` of pages and slots that there are."""

    @abstractmethod
    def _copy_layer(
        self, pages: np.ndarray, slab: np.ndarray, slots: np.ndarray, layer: int, after: Sequence[Any]
    ) -> None:
        """`copy_layer` of pages and slots that there are."""


class HostMemoryPool(DevicePool):
    """A pool in host memory: plain copies, one layer after the other."""

    def __init__(
        self,
        layers: Sequence[Sequence[torch.Tensor]],
        page_size: int,
        front: Sequence[PoolPlanes] = (),
        rows: int = 0,
    ) -> None:
        super().__init__(layers, page_size, front=front, rows=rows)
        page_rows = self.geometry.plane_rows
        self._arrays = [[as_pages(plane, page_rows).numpy() for plane in planes] for planes in layers]
        self._fronts = arrays_of(front)
        self._flat = [*self._fronts, *(plane for planes in self._arrays for plane in planes)]

    def _copy_out(
        self, pages: np.ndarray, slab: np.ndarray, slots: np.ndarray, after: Sequence[Any], came: Came
    ) -> None:
        wait_for(after)
        copy_out(self._flat, pages, slab, slots)

    def _copy_in(
        self, pages: np.ndarray, slab: np.ndarray, slots: np.ndarray, layer_done: LayerDone, after: Sequence[Any]
    ) -> None:
        wait_for(after)
        for layer in range(self.geometry.layers):
            self._copy_layer(pages, slab, slots, layer, ())
            layer_done(layer, None)

    def _copy_layer(
        self, pages: np.ndarray, slab: np.ndarray, slots: np.ndarray, layer: int, after: Sequence[Any]
    ) -> None:
        wait_for(after)
        planes = self._arrays[layer] if layer else [*self._fronts, *self._arrays[0]]
        copy_in(planes, pages, slab, slots, self.geometry.span(range(layer, layer + 1)).start)


class BlockMajorPool(DevicePool):
    """A pool in host memory in which a token's rows of all layers lie together: page by page, rows put in order."""

    def __init__(self, layers: Sequence[Sequence[torch.Tensor]], page_size: int, table: torch.Tensor) -> None:
        """`table`: the pool as uint8 `[pages, page_size, layers * planes, row_bytes]`."""
        super().__init__(layers, page_size)
        # A row as one element: numpy then copies it in one go.
        self._table = table.numpy().view(f"V{self.geometry.row_bytes}")[..., 0]

    def _copy_out(
        self, pages: np.ndarray, slab: np.ndarray, slots: np.ndarray, after: Sequence[Any], came: Came
    ) -> None:
        wait_for(after)
        for page, slot in zip(pages.tolist(), slots.tolist(), strict=True):
            self._rows_of(slab[slot])[...] = self._table[page].T

    def _copy_in(
        self, pages: np.ndarray, slab: np.ndarray, slots: np.ndarray, layer_done: LayerDone, after: Sequence[Any]
    ) -> None:
        wait_for(after)
        pairs = self._pairs(pages, slab, slots)
        for layer in range(self.geometry.layers):
            self._copy_rows(pairs, layer)
            layer_done(layer, None)

    def _copy_layer(
        self, pages: np.ndarray, slab: np.ndarray, slots: np.ndarray, layer: int, after: Sequence[Any]
    ) -> None:
        wait_for(after)
        self._copy_rows(self._pairs(pages, slab, slots), layer)

    def _copy_rows(self, pairs: Sequence[tuple[np.ndarray, np.ndarray]], layer: int) -> None:
        part = slice(layer * self.geometry.planes, (layer + 1) * self.geometry.planes)
        for page, rows in pairs:
            page[part] = rows[part]

    def _pairs(self, pages: np.ndarray, slab: np.ndarray, slots: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """The rows of each page in the pool, and in the slab."""
        return [
            (self._table[page].T, self._rows_of(slab[slot]))
            for page, slot in zip(pages.tolist(), slots.tolist(), strict=True)
        ]

    def _rows_of(self, row: np.ndarray) -> np.ndarray:
        """A slab row as rows `[layers * planes, page_size]`."""
        shape = (self.geometry.layers * self.geometry.planes, self.page_size)
        return row[: self.geometry.page_bytes].view(f"V{self.geometry.row_bytes}").reshape(shape)
