"""Which ranks of a server are on the same Redis, and which machines take orders."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from swift_tiers.radix_tiering.base.config import BusConfig
from swift_tiers.sglang_ext.build.assembly import Rank
from swift_tiers.sglang_ext.build.bus import hears_orders, ranks_here


@pytest.mark.parametrize(
    ("tensor_size", "data_size", "nodes", "node", "shared", "expected"),
    [
        (1, 1, 1, 0, False, ["dp0-tp0"]),
        (2, 1, 1, 0, False, ["dp0-tp0", "dp0-tp1"]),
        (2, 2, 1, 0, False, ["dp0-tp0", "dp0-tp1", "dp1-tp0", "dp1-tp1"]),
        # Two machines: with a Redis for both, with one on each.
        (4, 1, 2, 1, True, ["dp0-tp0", "dp0-tp1", "dp0-tp2", "dp0-tp3"]),
        (4, 1, 2, 0, False, ["dp0-tp0", "dp0-tp1"]),
        (4, 1, 2, 1, False, ["dp0-tp2", "dp0-tp3"]),
    ],
)
def test_ranks_on_one_redis(tensor_size, data_size, nodes, node, shared, expected):
    rank = Rank(0, tensor_size, 0, data_size)
    assert list(ranks_here(rank, nodes, node, shared=shared)) == expected


@pytest.mark.parametrize(("node", "url", "hears"), [(0, None, True), (1, None, False), (1, "redis://10.0.0.1", True)])
def test_machines_that_take_orders(node, url, hears):
    assert hears_orders(SimpleNamespace(node_rank=node), BusConfig(url=url)) == hears
