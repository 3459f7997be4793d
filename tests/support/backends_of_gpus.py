"""Attention backends of SGLang's that are made for GPUs, on the portable CPU platform: what SGLang has them plan, and
what they read of the pool. Their kernels are interpreted, or stood in for."""

from __future__ import annotations

from typing import NamedTuple

from support import flash_attention_on_cpu, flashinfer_on_cpu
from support.scheduler_process import SchedulerProcess


class OfGpus(NamedTuple):
    """One of them, and how it runs here."""

    backend: str  # the name of its class
    arguments: list[str]
    environment: dict[str, str]
    prepare: str = ""
    #: Whether a prompt of some hundred tokens takes minutes.
    slow: bool = False
    #: Whether `prepare` changes what SGLang's modules take from each other when they are imported.
    fresh: bool = False

    def serving(self, arguments: list[str]) -> SchedulerProcess:
        """A server with these arguments, and this backend."""
        return SchedulerProcess([*arguments, *self.arguments], self.environment, self.prepare, fresh=self.fresh)


OF_GPUS = [
    OfGpus(
        "TritonAttnBackend",
        ["--attention-backend", "triton", "--triton-attention-num-kv-splits", "2"],
        {"TRITON_INTERPRET": "1"},
        slow=True,
    ),
    OfGpus(
        "FlashInferAttnBackend",
        flashinfer_on_cpu.ARGUMENTS,
        flashinfer_on_cpu.ENVIRONMENT,
        "support.flashinfer_on_cpu.install",
        fresh=True,
    ),
    OfGpus(
        "FlashAttentionBackend",
        flash_attention_on_cpu.ARGUMENTS,
        flash_attention_on_cpu.ENVIRONMENT,
        "support.flash_attention_on_cpu.install",
    ),
]
