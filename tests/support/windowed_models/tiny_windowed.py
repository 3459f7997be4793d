"""A Gemma 3 under a name for which SGLang keeps the KV of its window layers in a pool of their own."""

from __future__ import annotations

from sglang.srt.models.gemma3_causal import Gemma3ForCausalLM


class TinyWindowedForCausalLM(Gemma3ForCausalLM):
    """As SGLang computes it."""


EntryClass = TinyWindowedForCausalLM
