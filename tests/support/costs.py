"""Costs of any device and any sources, for property tests of plans."""

from __future__ import annotations

from hypothesis import strategies as st

from swift_tiers.radix_tiering.restore.cost import ComputeCost, CostModel, SourceCost

computes = st.builds(
    ComputeCost,
    fixed_seconds=st.floats(0, 0.05),
    token_seconds=st.floats(1e-6, 1e-3),
    pair_seconds=st.floats(0, 1e-7),
)
sources = st.builds(SourceCost, latency_seconds=st.floats(0, 0.05), bytes_per_second=st.floats(1e5, 1e11))
models = st.builds(CostModel, compute=computes, sources=st.fixed_dictionaries({"host": sources, "ssd": sources}))
