"""Qwen 3, which normalises the queries and keys of each head."""

from __future__ import annotations

from sglang.srt.models.qwen3 import Qwen3ForCausalLM

from ..swiftkv import SwiftKV


class Qwen3SwiftKVForCausalLM(SwiftKV, Qwen3ForCausalLM):
    """As the others."""


EntryClass = Qwen3SwiftKVForCausalLM
