"""Llama 2 and 3, and what is built as they are (SmolLM2, TinyLlama, ...)."""

from __future__ import annotations

from sglang.srt.models.llama import LlamaForCausalLM

from ..swiftkv import SwiftKV


class LlamaSwiftKVForCausalLM(SwiftKV, LlamaForCausalLM):
    """The architecture of `Snowflake/Llama-3.1-SwiftKV-8B-Instruct`."""


EntryClass = LlamaSwiftKVForCausalLM
