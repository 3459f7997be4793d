"""A device pool in host memory whose pages are kept in fewer bits below it; see `kernels.page_codec`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from swift_tiers.kernels.page_codec import Codec, decode_pages, encode_pages
from swift_tiers.kernels.page_copy import copy_in, copy_out
from swift_tiers.kernels.pool_planes import PoolPlanes

from .device_pool import Came, DevicePool, LayerDone, arrays_of, wait_for

#: Pages coded at a time: what lies between the two ends stays in a core's cache.
CODED_TOGETHER = 8


class EncodedPool(DevicePool):
    """Of either layout. In plain torch, on the thread that copies."""

    def __init__(
        self,
        layers: Sequence[Sequence[torch.Tensor]],
        page_size: int,
        codec: str,
        front: Sequence[PoolPlanes] = (),
    ) -> None:
        super().__init__(layers, page_size, codec, front)
        self._codec = Codec.named(codec)
        self._fronts = arrays_of(front)
        self._planes = PoolPlanes(layers, page_size)

    def _copy_out(
        self, pages: np.ndarray, slab: np.ndarray, slots: np.ndarray, after: Sequence[Any], came: Came
    ) -> None:
        wait_for(after)
        whole = torch.from_numpy(slab)
        copy_out(self._fronts, pages, slab, slots)
        for start in range(0, len(pages), CODED_TOGETHER):
            some = slice(start, start + CODED_TOGETHER)
            encode_pages(self._planes, pages[some], whole, slots[some], self._codec, offset=self.geometry.front_bytes)

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
        if layer == 0:
            copy_in(self._fronts, pages, slab, slots, 0)
        some, offset = range(layer, layer + 1), self.geometry.front_bytes + layer * self.geometry.layer_bytes
        decode_pages(self._planes, pages, torch.from_numpy(slab), slots, self._codec, some, offset)
