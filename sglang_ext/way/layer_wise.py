"""Chunks of one request that are computed layer by layer, until their upper layers have been loaded (CacheFlow, 3.1).

Nobody uses what the forward of a middle chunk answers; it is run for the KV that it leaves behind. So a forward over
all that a request lacks may end where the layers above it have been copied into the request's own slots. SGLang
computes layers one by one for PD multiplexing (`ForwardMode.SPLIT_PREFILL`), without CUDA graphs; so is it done here.
After each layer all ranks agree on how far to go: as far as the one needs that has copied least.

The scheduler's thread, but for the copies, which "swift-load" makes.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.runtime_context import get_parallel
from sglang.srt.utils import get_device_module

from swift_tiers.radix_tiering.restore.layers import LayerCourse

from ..tell.on_the_way import OnTheWay
from ..tell.request_facts import shown_rid
from .loads import LayerLoad
from .request import TieredRequest

if TYPE_CHECKING:
    from .linker import SwiftLinker

logger = logging.getLogger(__name__)


#: Models whose layers, computed one by one, leave what a whole forward leaves. SGLang made that for another purpose,
#: and where it differs (Gemma 3 loses its residual, TeleFLM the scale of its embeddings) wrong KV would be kept. See
#: `tests/sglang_ext/test_layers_of_models.py`.
COMPARED = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


class Expected(NamedTuple):
    """A forward that is to come: pages `[front, request.pages)` of a restore, behind `start` tokens."""

    request: TieredRequest
    start: int
    front: int
    tokens: int


def why_never(scheduler: Any, runner: Any, layers: int) -> str:
    """Why this server can never compute a request layer by layer; empty if it can. `layers`: of its KV pool."""
    if reason := getattr(runner.model, "whole_forwards_only", ""):
        return str(reason)
    if not hasattr(runner.model, "forward_split_prefill"):
        return f"{type(runner.model).__name__} cannot compute single layers in SGLang"
    if type(runner.model).__name__ not in COMPARED:
        return f"single layers of {type(runner.model).__name__} were not compared with its whole forward"
    if runner.model_config.num_hidden_layers != layers:
        return "some layers of the model keep no KV"
    if not runner.is_generation:
        return "the model generates nothing"
    if scheduler.is_mixed_chunk:
        return "--enable-mixed-chunk lets others join its forward"
    if not scheduler.spec_algorithm.is_none():
        return "speculative decoding needs its whole forward"
    # What SGLang has resolved: its arguments have two spellings of it, of which one leaves the other's field alone.
    if get_parallel().attn_dp_enabled:
        return "attention is split over data"
    return ""


class LayerWise:
    """One rank's, for one forward at a time."""

    def __init__(self, scheduler: Any, runner: Any, linker: SwiftLinker) -> None:
        self._cache = scheduler.tree_cache
        self._runner = runner
        self.linker = linker
        self._layers = linker.pool.geometry.layers
        self._expected: Expected | None = None
        self.refused = why_never(scheduler, runner, self._layers)
        linker.stack.planner.forward_tokens = scheduler.chunked_prefill_size

    def why_not(self, req: Any) -> str:
        """Why `req` is not computed layer by layer; empty if it may be."""
        if self.refused:
            return self.refused
        if self.linker.offloader.device_alone:
            return "the device verifies its pages, and needs them whole"
        if req.return_logprob or req.return_hidden_states:
            return "it wants to see more of its forward than tokens"
        return ""

    def expect(self, request: TieredRequest, start: int, front: int) -> None:
        """The next forward is of this request alone: its pages behind the `front` that the device has, which are
        `start` tokens of its prompt."""
        self._expected = Expected(request, start, front, (request.pages - front) * self.linker.pool.page_size)

    def expects(self, batch: Any) -> bool:
        """Whether a `ForwardBatch` is the one that was announced; if another one comes, that one is forgotten, and
        computed whole."""
        expected, what = self._expected, batch.forward_mode
        if expected is None:
            return False
        if (
            what == ForwardMode.EXTEND
            and batch.rids == [expected.request.rid]
            and batch.extend_prefix_lens_cpu == [expected.start]
            and batch.extend_seq_lens_cpu == [expected.tokens]
        ):
            return True
        self._expected = None
        return False

    def forward(self, original: Any, batch: Any) -> Any:
        """Run it. `original`: `ModelRunner._forward_raw`. The answer's logits mean nothing if it ended early."""
        expected, self._expected = self._expected, None
        assert expected is not None
        self.linker.partly_computed()
        layers = LayerCourse(self._layers, lambda: self.linker.loader.alive, self.linker.stack.runner)
        copying, pace = Copying(self.linker, expected, layers, batch.out_cache_loc), Pace()
        batch.forward_mode, output = ForwardMode.SPLIT_PREFILL, None
        try:
            while layers.computed < self._agree(copying):
                layers.compute()
                output = original(self._runner, batch, None, False, 1)
                pace.one_layer()
        finally:
            batch.forward_mode, batch.split_index = ForwardMode.EXTEND, 0
            copying.end()
        if layers.computed == self._layers:
            return output
        return self._ended_early(batch)

    def _agree(self, copying: Copying) -> int:
        """How many layers every rank has to compute, since some rank has to; the same number of calls on each."""
        most = torch.tensor([copying.to_compute()], dtype=torch.int)
        self._cache._all_reduce_attn_groups(most, torch.distributed.ReduceOp.MAX)
        return int(most)

    def _ended_early(self, batch: Any) -> Any:
        from sglang.srt.layers.layer_boundary.residual import batch as residual_batch
        from sglang.srt.layers.logits_processor import LogitsProcessorOutput
        from sglang.srt.model_executor.model_runner import ModelRunnerOutput

        residual_batch.clear(batch)
        batch.hidden_states = None
        # SGLang samples from them, and throws that away.
        logits = torch.zeros((1, self._runner.model_config.vocab_size), device=batch.input_ids.device)
        return ModelRunnerOutput(logits_output=LogitsProcessorOutput(next_token_logits=logits), can_run_graph=False)


class Copying:
    """The copies of one forward: none until every page has come, then from the top layer downwards. Where that goes
    wrong, the layers are computed."""

    def __init__(self, linker: SwiftLinker, expected: Expected, layers: LayerCourse, rows: torch.Tensor) -> None:
        self._linker = linker
        self._request, self._front = expected.request, expected.front
        self._layers = layers
        self._rows = rows  # of the device pool, for each token
        # Whoever used the rows before this forward has to be done with them; the forward itself does not matter.
        self._ready = linker.record_offload_ready()
        self._waiting = True  # for pages

    def to_compute(self) -> int:
        """As `LayerCourse.to_compute`; begins to copy as soon as that can be."""
        if self._waiting:
            try:
                self._begin_if_arrived()
            except Exception as error:
                logger.exception("swift-tiers: the layers of request %s are computed", shown_rid(self._request.rid))
                self._linker.stack.events.emit("linker.error", where="layers", error=repr(error))
                self._waiting = False
        return self._layers.to_compute()

    def _begin_if_arrived(self) -> None:
        restore, end = self._request.restore, self._request.pages
        if restore is None:
            self._waiting = False
            return
        arrived = self._linker.stack.restorer.layers_arrived(restore, self._front, end)
        if arrived is False:
            return
        self._waiting = False
        if arrived:
            rows = OnTheWay(self._rows)
            places = self._linker.stack.restorer.places(restore, self._front, end)
            if len(rows) != len(places) * self._linker.pool.page_size:
                raise RuntimeError(f"{len(places)} pages have come for {len(rows)} tokens of the device")
            self._linker.loader.start_layers(LayerLoad(self._layers, places, rows, self._ready))

    def end(self) -> None:
        """Both have met, or the forward has failed. Nothing is copied any more when this returns."""
        self._layers.close()
        request, layers = self._request, self._layers
        if request.restore is not None:
            self._linker.stack.restorer.count_layers(
                request.restore, request.pages - self._front, layers.computed, layers.layers
            )


class Pace:
    """Keeps the thread that launches layers at most one ahead of a device that computes them by itself: how far it has
    come decides where both meet."""

    def __init__(self) -> None:
        self._module = get_device_module()
        self._before: Any = None

    def one_layer(self) -> None:
        """A layer has been launched."""
        before, self._before = self._before, self._module.Event()
        self._before.record()
        if before is not None:
            before.synchronize()
