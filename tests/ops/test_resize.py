"""The cache that `bench resize` compares with does move its planes, and loses nothing."""

from __future__ import annotations

import numpy as np

from swift_tiers.ops.lab.bench.resize import COPIED_PLANE_BYTES, PLANES, UNIT, CopyingCache


def test_planes_follow_one_another_after_a_resize_and_are_whole_after_it_is_undone() -> None:
    blocks = 20
    cache = CopyingCache(blocks)
    planes = cache._memory.reshape(PLANES, blocks, COPIED_PLANE_BYTES)
    planes[:] = np.arange(PLANES)[:, None, None] * blocks + np.arange(blocks)[None, :, None]
    before = planes.copy()
    fewer = blocks - UNIT
    for plane in range(1, PLANES):
        cache._move(plane, blocks, fewer, fewer)
    shrunk = cache._memory[: PLANES * fewer * COPIED_PLANE_BYTES].reshape(PLANES, fewer, COPIED_PLANE_BYTES)
    assert (shrunk == before[:, :fewer]).all()
    for plane in reversed(range(1, PLANES)):
        cache._move(plane, fewer, blocks, fewer)
    assert (planes[:, :fewer] == before[:, :fewer]).all()
