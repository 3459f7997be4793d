"""Where a next token is sure already, the later layers are not computed for it (paper, B.4).

A second output matrix reads what the keys and values of the later layers are projected from. If it gives a token more
than `swiftkv_exit_threshold`, its logits are what the next token is sampled from. KV of the later layers is projected
for such a token as for any other, so what follows finds nothing missing, and pages are the same with and without.

Whether it is sure is decided for each request by itself, in every batch that a next token is sampled from, also where
the later layers are computed for other reasons: an answer does not depend on how it was batched.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from sglang.srt.distributed import get_tp_group
from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardMode
from torch import nn

#: What a batch has for each request, beyond what `swiftkv.only` narrows: tensors, and lists.
_OF_REQUESTS = ("req_pool_indices", "seq_lens", "orig_seq_lens", "seq_lens_cpu", "req_pool_indices_cpu")
_LISTS = ("top_logprobs_nums", "token_ids_logprobs", "lora_ids", "rids")


class Exits(NamedTuple):
    """What the second output matrix says of the R requests of a batch."""

    ends: torch.Tensor  # int64 [R]: the last token of each in the batch
    logits: torch.Tensor  # [R, vocabulary]
    stay: torch.Tensor  # int64: the requests for which it is not sure

    def merged(self, later: torch.Tensor) -> torch.Tensor:
        """`[R, vocabulary]`, of `later`, the logits of the last layer: of all requests, or of those that `stay`."""
        self.logits[self.stay] = later if len(later) == len(self.stay) else later[self.stay]
        return self.logits


class EarlyExit(nn.Module):
    """The second output matrix, and when it is believed."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.threshold: float = config.swiftkv_exit_threshold
        self.head = ParallelLMHead(config.vocab_size, config.hidden_size, prefix="early_exit.head")

    def forward(self, normed: torch.Tensor, ends: torch.Tensor, batch: Any, processor: Any) -> Exits:
        """`normed`: `[R, hidden_size]`, what later keys and values are projected from, of tokens `ends`; `batch`: of
        these alone; `processor`: SGLang's, of the model."""
        alone = copy.copy(batch)
        alone.capture_hidden_mode, alone.next_token_logits_buffer = CaptureHiddenMode.NULL, None
        logits = processor(alone.input_ids, normed, self.head, alone).next_token_logits
        wide = logits.float()
        sure = (wide.amax(-1) - wide.logsumexp(-1)).exp() > self.threshold
        group = get_tp_group()
        if group.world_size > 1:
            # How many collectives follow hangs on it: all ranks take what the first one finds.
            sure = group.broadcast(sure.to(torch.int32)).bool()
        return Exits(ends, logits, (~sure).nonzero().flatten())


def ends_of_requests(batch: Any) -> torch.Tensor | None:
    """Of a `ForwardBatch`'s tokens, those after which a next one is sampled, int64 `[R]`; None where that is not one a
    request."""
    if batch.forward_mode == ForwardMode.DECODE:
        return torch.arange(len(batch.positions), device=batch.positions.device)
    if batch.forward_mode not in (ForwardMode.EXTEND, ForwardMode.MIXED) or batch.extend_seq_lens is None:
        return None
    if batch.multi_item_delimiter_indices is not None or batch.token_indices_to_pool is not None:
        return None
    return batch.extend_seq_lens.cumsum(0) - 1


def of_requests(batch: Any, chosen: torch.Tensor) -> Any:
    """A batch of one token a request, of whose requests only `chosen` are left; its tokens have been narrowed."""
    few = copy.copy(batch)
    on_host = chosen.cpu()
    for name in _OF_REQUESTS:
        values = getattr(batch, name)
        if values is not None:
            setattr(few, name, values[on_host if values.device.type == "cpu" else chosen])
    for name in _LISTS:
        values = getattr(batch, name)
        if values is not None:
            setattr(few, name, [values[number] for number in on_host.tolist()])
    few.batch_size = len(on_host)
    lengths = few.seq_lens_cpu if few.seq_lens_cpu is not None else few.seq_lens
    few.seq_lens_sum = int(lengths.sum())
    return few
