"""Prove and measure, on a machine with an NVIDIA GPU, what swift-tiers does there: kernels against references on fresh
inputs, kernels and transfers against the ceilings of the same run, loads hidden behind a forward."""

from __future__ import annotations

import argparse

from ..base.errors import CommandError
from .gpu_proof.options import ProofError, add_arguments

__all__ = ["SUMMARY", "add_arguments", "run"]

SUMMARY = "prove and measure everything that needs a GPU, on one"


def run(options: argparse.Namespace) -> int:
    from .gpu_proof.proof import prove

    try:
        return prove(options)
    except ProofError as error:
        raise CommandError(f"gpu-proof: {error}") from None
