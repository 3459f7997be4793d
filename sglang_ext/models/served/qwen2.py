"""Qwen 2 and 2.5."""

from __future__ import annotations

from typing import Any

from sglang.srt.models.qwen2 import Qwen2ForCausalLM

from ..swiftkv import QWEN_FLASHINFER_BYTES, SwiftKV


class Qwen2SwiftKVForCausalLM(SwiftKV, Qwen2ForCausalLM):
    """Queries, keys and values have a bias, whatever the configuration says."""

    flashinfer_bytes = QWEN_FLASHINFER_BYTES

    @staticmethod
    def _has_bias(config: Any) -> bool:
        return True


EntryClass = Qwen2SwiftKVForCausalLM
