"""What makes a SwiftKV model of one of SGLang's: a forward in two parts, fewer layers of KV, weights by their names.

Of a prompt's tokens only those go on past layer `first - 1` whose output somebody wants: the last of each request, from
which the next token is sampled. All tokens go on where more is wanted of them (log probabilities of the prompt, hidden
states), and where the forward is no prompt's (decoding, drafts that are verified).
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from sglang.srt.environ import envs
from sglang.srt.layers.layer_boundary.residual import batch as residual_batch
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.model_executor.forward_context import get_attn_backend
from sglang.srt.model_loader.weight_utils import default_weight_loader

from .early_exit import EarlyExit, Exits, ends_of_requests, of_requests
from .later_layers import LaterLayers
from .projection import LaterAttention, LaterProjection, NewRows, expected_names

#: What describes the prompt part of a batch; one query a request needs none of it.
_OF_PROMPTS = (
    "extend_num_tokens", "extend_seq_lens", "extend_prefix_lens", "extend_start_loc", "extend_prefix_lens_cpu",
    "extend_seq_lens_cpu", "extend_logprob_start_lens_cpu", "extend_input_logprob_token_ids_gpu", "spec_info",
    "global_num_token_non_padded_cpu", "residual_stream",
)  # fmt: skip
#: What SGLang gives FlashInfer's plans of Qwen models.
QWEN_FLASHINFER_BYTES = 512 << 20
#: The second output matrix, by its name in a checkpoint.
EXIT_HEAD = "exit_head_swiftkv.weight"
_LAYER = re.compile(r"model\.layers\.(\d+)\.self_attn\.(.+)")
#: Of a later layer; replaced by tensors of the same name with `_swiftkv` in it.
_UNUSED = re.compile(r"[qkv]_(proj|norm)\.")
_OF_PROJECTION = re.compile(r"([kv])_(proj|norm)_swiftkv\.(weight|bias)")


def rows_that_go_on(batch: Any) -> torch.Tensor | None:
    """Of a `ForwardBatch`'s tokens, those that later layers have to compute, int64 [requests]; None: all of them."""
    if batch.forward_mode not in (ForwardMode.EXTEND, ForwardMode.MIXED) or batch.extend_seq_lens is None:
        return None
    if batch.capture_hidden_mode is not None and batch.capture_hidden_mode.need_capture():
        return None
    if batch.multi_item_delimiter_indices is not None or batch.token_indices_to_pool is not None:
        return None  # logits at several places of a prompt
    if batch.return_logprob and any(
        length > start
        for length, start in zip(batch.extend_seq_lens_cpu, batch.extend_logprob_start_lens_cpu, strict=True)
    ):
        return None
    if len(batch.positions) <= len(batch.extend_seq_lens):
        return None
    return batch.extend_seq_lens.cumsum(0) - 1


def has_one_row_a_request(batch: Any) -> bool:
    """Whether a `ForwardBatch` is of answers alone, of which nothing but the next tokens is wanted."""
    captures = batch.capture_hidden_mode is not None and batch.capture_hidden_mode.need_capture()
    return batch.forward_mode == ForwardMode.DECODE and not captures


def only(batch: Any, rows: torch.Tensor) -> Any:
    """The batch of one token a request, at its end: what decoding is, whatever came before it."""
    tail = copy.copy(batch)
    for name in _OF_PROMPTS:
        setattr(tail, name, None)
    tail.forward_mode = ForwardMode.DECODE
    tail.input_ids = None if batch.input_ids is None else batch.input_ids[rows]
    tail.positions, tail.out_cache_loc = batch.positions[rows], batch.out_cache_loc[rows]
    return tail


class SwiftKV:
    """In front of a model class of SGLang's (`LlamaForCausalLM`, ...), whose attributes it uses."""

    #: Why `way.layer_wise` cannot compute it one layer after the other.
    whole_forwards_only = "SwiftKV projects the KV of its later layers at once, and no prompt token passes them"

    #: What FlashInfer's plans need, in bytes, if that is more than what is usual.
    flashinfer_bytes = 0

    def __init__(self, config: Any, quant_config: Any = None, prefix: str = "") -> None:
        super().__init__(config, quant_config, prefix)  # type: ignore[call-arg]  # SGLang's model
        # Read when the backend is made, which is after the model. SGLang does so for models that it knows by name.
        if envs.SGLANG_FLASHINFER_WORKSPACE_SIZE.get() < self.flashinfer_bytes:
            envs.SGLANG_FLASHINFER_WORKSPACE_SIZE.set(self.flashinfer_bytes)
        self.later = LaterLayers.of(config)
        self.new_rows = NewRows()
        layers, later = self.model.layers, self.later  # type: ignore[attr-defined]
        bias = self._has_bias(config)
        for index, layer in enumerate(layers):
            if index >= later.first:
                layer.self_attn = LaterAttention(
                    layer.self_attn,
                    config.hidden_size,
                    bias,
                    config.rms_norm_eps,
                    later.leader_of(index),
                    self.new_rows,
                )
                # It would keep the projection that is gone.
                layer.input_layernorm.fuse_input_quant(layer.self_attn.q_proj_swiftkv)
            layer.self_attn.attn.layer_id = later.stored_as(index)
        leaders = [layers[index].self_attn for index in later.leaders]
        self.later_projection = LaterProjection(config, later, leaders, bias)
        self.early_exit = None if config.swiftkv_exit_threshold is None else EarlyExit(config)
        self._missing = set(expected_names(later, bias, leaders[0].q_norm is not None))
        if self.early_exit is not None:
            self._missing.add(EXIT_HEAD)

    @staticmethod
    def _has_bias(config: Any) -> bool:
        """Whether queries, keys and values have one, as SGLang's model of this kind says."""
        return bool(getattr(config, "attention_bias", False) or getattr(config, "bias", False))

    @property
    def end_layer(self) -> int:
        """SGLang makes the KV pool of `start_layer` to this."""
        return self.later.stored

    @torch.no_grad()
    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        forward_batch: Any,
        input_embeds: torch.Tensor | None = None,
        get_embedding: bool = False,
        pp_proxy_tensors: Any = None,
    ) -> Any:
        """As SGLang's. Embeddings and pipeline stages are refused at the start (`supported`)."""
        model: Any = self.model  # type: ignore[attr-defined]
        hidden = model.embed_tokens(input_ids) if input_embeds is None else input_embeds
        residual_batch.start(forward_batch)
        for layer in model.layers[: self.later.first]:
            hidden = layer(positions, hidden, forward_batch)
        hidden = residual_batch.fold(hidden, forward_batch)
        pairs = self.later_projection(hidden, positions, forward_batch)
        batch, rows = forward_batch, rows_that_go_on(forward_batch)
        exits = self._exits(hidden, forward_batch)
        may_skip = rows is not None or has_one_row_a_request(forward_batch)
        if exits is not None and may_skip and len(exits.stay) < len(exits.ends):
            rows, batch = exits.ends[exits.stay], of_requests(forward_batch, exits.stay)
            if not len(rows):
                residual_batch.clear(forward_batch)
                return LogitsProcessorOutput(next_token_logits=exits.logits)
        if rows is None:
            self.new_rows.keep(pairs)
        else:
            batch = only(batch, rows)
            residual_batch.clear(forward_batch)
            hidden = residual_batch.set_written(hidden[rows], batch)
            get_attn_backend().init_forward_metadata(batch)
        del pairs
        try:
            for layer in model.layers[self.later.first :]:
                hidden = layer(batch.positions if rows is not None else positions, hidden, batch)
        finally:
            self.new_rows.forget()
        hidden = residual_batch.final_norm(hidden, batch, model.norm)
        output = self.logits_processor(batch.input_ids, hidden, self.lm_head, batch)  # type: ignore[attr-defined]
        if exits is not None:
            output.next_token_logits = exits.merged(output.next_token_logits)
        return output

    def _exits(self, hidden: torch.Tensor, forward_batch: Any) -> Exits | None:
        """What an early exit would be, by what leaves layer `first - 1`; None where there is none."""
        ends = None if self.early_exit is None else ends_of_requests(forward_batch)
        if self.early_exit is None or ends is None or not len(ends):
            return None
        normed = self.later_projection.norm(hidden[ends])
        processor = self.logits_processor  # type: ignore[attr-defined]
        exits: Exits = self.early_exit(normed, ends, only(forward_batch, ends), processor)
        return exits

    def forward_split_prefill(self, *_: Any, **__: Any) -> Any:
        """SGLang's way to compute single layers (--enable-pdmux), which is refused at the start."""
        raise NotImplementedError(self.whole_forwards_only)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Any:
        """Weights by the names of the published checkpoints. Raises ValueError if some are missing or make no sense."""
        result = super().load_weights(self._others(weights))  # type: ignore[misc]
        if self._missing:
            raise ValueError(
                f"the checkpoint lacks {len(self._missing)} tensors of a SwiftKV model, {min(self._missing)} among "
                "them: load the whole of it, or make it anew"
            )
        return result

    def _others(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Load what is SwiftKV's; hand on what is the original model's and is still used."""
        parameters = dict(self.named_parameters())  # type: ignore[attr-defined]
        for name, tensor in weights:
            if "_swiftkv" in name:
                self._load(name, tensor, parameters)
                self._missing.discard(name)
            elif not self._is_unused(name):
                yield name, tensor

    def _is_unused(self, name: str) -> bool:
        place = _LAYER.fullmatch(name)
        return place is not None and int(place[1]) >= self.later.first and _UNUSED.match(place[2]) is not None

    def _load(self, name: str, tensor: torch.Tensor, parameters: dict[str, Any]) -> None:
        projection, place = self.later_projection, _LAYER.fullmatch(name)
        if name == "model.norm_swiftkv.weight":
            default_weight_loader(projection.norm.weight, tensor)
            return
        if name == EXIT_HEAD:
            if self.early_exit is not None:
                parameter = self.early_exit.head.weight
                parameter.weight_loader(parameter, tensor)
            return
        part = _OF_PROJECTION.fullmatch(place[2]) if place is not None else None
        if place is None or part is None:
            if name not in parameters:
                raise ValueError(f"the checkpoint has {name}, which this model has no place for")
            parameter = parameters[name]
            getattr(parameter, "weight_loader", default_weight_loader)(parameter, tensor)
            return
        layer = int(place[1])
        if layer not in self.later.leaders:
            raise ValueError(
                f"the checkpoint has {name}, but by num_key_value_layers and key_value_group_size of its config.json "
                "that layer has no keys and values of its own"
            )
        if part[2] == "norm":
            if projection.k_norm is None:
                raise ValueError(f"the checkpoint has {name}, which this model has no place for")
            projection.k_norm.data[self.later.leader_of(layer)].copy_(tensor)
            return
        parameter = getattr(projection.proj, part[3])
        parameter.weight_loader(parameter, tensor, projection.shard_of(layer, part[1]))
