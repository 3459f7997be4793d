"""(d) How much of a load is hidden behind the forward that follows it layer by layer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from swift_tiers.kernels.copy_queue import Accelerator
from swift_tiers.kernels.page_gather import PageCopy
from swift_tiers.kernels.switch_over import measure_switch_over

from .figures import ProofFigure
from .layouts import DTYPE, PAGE_SIZE, Layout, layer_first, planes_of
from .stopwatch import Stopwatch

#: Tokens of the prefill chunk.
CHUNK = 512
#: Of a layer's load, at least.
HIDDEN_SHARE = 0.95
#: A load as long as this much of the chunk's computation can be hidden whole, with something to spare.
_LOAD_SHARE = 0.8


class LayerProducts:
    """The matrix products of a chunk in one layer: as much arithmetic, and as many bytes of weights, as a model's."""

    def __init__(self, layout: Layout, device: torch.device) -> None:
        shapes = (
            (layout.hidden, layout.hidden + 2 * layout.kv_heads * layout.head_dim),  # queries, keys and values
            (layout.hidden, layout.hidden),  # output
            (layout.hidden, 2 * layout.inner),
            (layout.inner, layout.hidden),
        )
        self.weights = [torch.randn(shape, dtype=DTYPE, device=device) / 64 for shape in shapes]
        self.wide = torch.randn((CHUNK, layout.hidden), dtype=DTYPE, device=device)
        self.inner = torch.randn((CHUNK, layout.inner), dtype=DTYPE, device=device)

    def layer(self) -> None:
        for weight in self.weights:
            (self.inner if weight.shape[0] == self.inner.shape[1] else self.wide) @ weight


def hidden(layout: Layout, accelerator: Accelerator, watch: Stopwatch, most_pages: int) -> Iterator[ProofFigure]:
    """Scattered pages, as many as arithmetic allows to hide, loaded by a kernel from page-locked memory, one layer
    after the other, while each layer's products wait for that layer's mark."""
    forward = LayerProducts(layout, accelerator.device)
    layers = range(layout.layers)

    def compute() -> None:
        for _ in layers:
            forward.layer()

    # By `device_seconds`: a server queues loads on one thread while another launches the forward; here one does both,
    # and must not be waited for between them.
    computing = watch.device_seconds(compute)
    planes = layer_first(layout, most_pages, accelerator.device)
    pool = planes_of(planes)
    slab = accelerator.host_memory(most_pages, layout.page_bytes)
    programs = measure_switch_over(accelerator, planes[0], PAGE_SIZE, layout.layers, slab).load_programs
    places = np.random.default_rng(3).permutation(most_pages).astype(np.int64)
    queue = accelerator.queue()

    copies = [PageCopy(pool, slab, range(layer, layer + 1), out=False) for layer in layers]

    def load(pages: int, *, beside: bool) -> None:
        begin = accelerator.mark_here()
        queue.after(begin)
        lists = queue.lists(pool, places[:pages], slab, np.arange(pages, dtype=np.int64))
        marks = []
        for copy in copies:
            queue.copy(copy, lists, programs)
            marks.append(queue.mark())
        for mark in marks:
            mark.wait()
            if beside:
                forward.layer()

    whole = watch.device_seconds(lambda: load(most_pages, beside=False))
    pages = max(1, min(most_pages, int(most_pages * _LOAD_SHARE * computing / whole)))
    loading = watch.device_seconds(lambda: load(pages, beside=False))
    both = watch.device_seconds(lambda: load(pages, beside=True))
    # The first layer's load has nothing to hide behind.
    behind = loading * (layout.layers - 1) / layout.layers
    share = (computing + loading - both) / behind
    allowed = loading <= computing
    yield ProofFigure(
        "streaming",
        f"{layout.name}: hidden of {pages * PAGE_SIZE} tokens' load behind a chunk of {CHUNK}",
        share,
        "",
        at_least=HIDDEN_SHARE if allowed else None,
        note=f"{computing * 1e3:.2f} ms computing, {loading * 1e3:.2f} ms loading, {both * 1e3:.2f} ms both"
        + ("" if allowed else ": more than can be hidden"),
    )
