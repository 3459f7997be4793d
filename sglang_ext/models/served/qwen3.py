"""Qwen 3, which normalises the queries and keys of each head."""

from __future__ import annotations

from sglang.srt.models.qwen3 import Qwen3ForCausalLM

from ..swiftkv import QWEN_FLASHINFER_BYTES, SwiftKV


class Qwen3SwiftKVForCausalLM(SwiftKV, Qwen3ForCausalLM):
    """As the others."""

    flashinfer_bytes = QWEN_FLASHINFER_BYTES


EntryClass = Qwen3SwiftKVForCausalLM
