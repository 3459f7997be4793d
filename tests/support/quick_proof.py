"""`gpu-proof` on the CPU: measurements of GPUs' sizes take minutes there, and tests want what becomes of them."""

from __future__ import annotations

import pytest

from swift_tiers.kernels import load_programs
from swift_tiers.ops.commands.gpu_proof import hidden, stopwatch


def make_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure little, and once."""
    monkeypatch.setattr(stopwatch, "_LONG", 0.0)
    monkeypatch.setattr(load_programs, "SAMPLE_BYTES", 2**20)
    monkeypatch.setattr(hidden, "CHUNK", 4)
    monkeypatch.setattr(hidden, "SMALL", (2, 4, 3))
    monkeypatch.setattr(hidden, "LARGE", (4, 2))
