"""What a crash leaves, by a recording."""

from __future__ import annotations

import errno

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_tiers.radix_tiering.tiers.ssd.arrays.devices import Operation, Request
from swift_tiers.radix_tiering.tiers.testing.memory_array import MemoryArray

from support.examples import examples
from support.faulty_array import Fail, Fault, FaultPlan, FaultyArray
from support.recording_array import RecordingArray, TornPrefix, TornSubset

BLOCK = 4096
BLOCKS = 8
WRITE = Operation.WRITE


def make(devices: int = 1) -> RecordingArray:
    return RecordingArray(MemoryArray([BLOCKS * BLOCK] * devices))


def write(array: RecordingArray, first: int, count: int, fill: int, device: int = 0, *, reap: bool = True) -> None:
    array.submit([Request(fill, WRITE, device, first * BLOCK, [np.full(count * BLOCK, fill, np.uint8)])])
    if reap:
        assert [completion.tag for completion in array.reap(1)] == [fill]


def blocks(image: np.ndarray) -> list[int]:
    """The fill of each block, which must be uniform."""
    grid = image.reshape(BLOCKS, BLOCK)
    assert (grid == grid[:, :1]).all()
    return grid[:, 0].tolist()


def test_images_follow_the_writes_one_by_one() -> None:
    array = make(devices=2)
    write(array, 0, 2, 1)
    write(array, 1, 2, 2)
    write(array, 0, 1, 3, device=1)
    seen = [[blocks(image)[:3] for image in array.images_after(count)] for count in range(4)]
    assert seen == [
        [[0, 0, 0], [0, 0, 0]],
        [[1, 1, 0], [0, 0, 0]],
        [[1, 2, 2], [0, 0, 0]],
        [[1, 2, 2], [3, 0, 0]],
    ]
    inner = array.inner
    assert isinstance(inner, MemoryArray)
    for image, real in zip(array.images_after(3), inner.images, strict=True):
        assert image.tobytes() == real.tobytes()
    with pytest.raises(ValueError, match="3 were recorded"):
        array.images_after(4)


def test_the_bytes_are_those_at_submission_and_the_initial_image_is_kept() -> None:
    inner = MemoryArray.from_images([np.full(BLOCKS * BLOCK, 9, np.uint8)])
    array = RecordingArray(inner)
    data = np.full(BLOCK, 1, np.uint8)
    array.submit([Request(1, WRITE, 0, 0, [data])])
    array.reap(1)
    data[:] = 2
    assert blocks(array.images_after(0)[0]) == [9] * BLOCKS
    assert blocks(array.images_after(1)[0]) == [1] + [9] * (BLOCKS - 1)


def test_a_torn_write_arrives_by_whole_sectors() -> None:
    array = make()
    write(array, 0, 1, 1)
    write(array, 1, 6, 2)
    for sectors in range(7):
        image = array.images_after(1, torn=TornPrefix(sectors))[0]
        assert blocks(image) == [1] + [2] * sectors + [0] * (7 - sectors)
    shapes = {tuple(blocks(array.images_after(1, torn=TornSubset(seed))[0])) for seed in range(60)}
    assert len(shapes) > 20
    assert all(shape[0] == 1 and set(shape[1:7]) <= {0, 2} and shape[7] == 0 for shape in shapes)
    again = array.images_after(1, torn=TornSubset(3))[0]
    assert again.tobytes() == array.images_after(1, torn=TornSubset(3))[0].tobytes()
    with pytest.raises(ValueError, match="has 6 sectors"):
        array.images_after(1, torn=TornPrefix(7))
    with pytest.raises(ValueError, match="nothing can be torn"):
        array.images_after(2, torn=TornPrefix(0))


def test_only_what_a_sync_covered_survives_for_sure() -> None:
    array = make(devices=2)
    write(array, 0, 1, 1)
    assert array.sync(0) == 0
    write(array, 1, 1, 2)
    write(array, 0, 1, 3, device=1)
    array.sync(0)
    end = array.position
    assert end == 5
    images = [array.images_at(end, lose=seed) for seed in range(40)]
    assert {tuple(blocks(image[0])[:2]) for image in images} == {(1, 2)}
    assert {blocks(image[1])[0] for image in images} == {0, 3}  # the other device was never synced
    before = [array.images_after(3, lose=seed) for seed in range(40)]  # ... and the last sync is after the crash
    assert {tuple(blocks(image[0])[:2]) for image in before} == {(1, 0), (1, 2)}
    first = [array.images_after(1, lose=seed) for seed in range(40)]
    assert {blocks(image[0])[0] for image in first} == {0, 1}


def test_a_write_not_reaped_before_the_sync_is_not_durable() -> None:
    array = make()
    write(array, 0, 1, 1, reap=False)
    array.sync(0)
    array.reap(1)
    assert {blocks(array.images_at(array.position, lose=seed)[0])[0] for seed in range(40)} == {0, 1}
    array.sync(0)
    assert {blocks(array.images_at(array.position, lose=seed)[0])[0] for seed in range(40)} == {1}


def test_an_old_version_can_come_back_and_many_sectors_can_be_mixed() -> None:
    array = make()
    write(array, 0, 4, 1)
    array.sync(0)
    write(array, 0, 4, 2)
    write(array, 0, 4, 3)
    seen = {tuple(blocks(array.images_at(array.position, lose=seed)[0])[:4]) for seed in range(200)}
    assert {(1,) * 4, (2,) * 4, (3,) * 4} <= seen
    assert any(len(set(shape)) > 1 for shape in seen)
    assert all(set(shape) <= {1, 2, 3} for shape in seen)


def test_a_failed_write_or_sync_counts_for_nothing() -> None:
    plan = FaultPlan(
        (Fault(Fail(errno.EIO), operation=WRITE, nth=2), Fault(Fail(errno.EIO), operation="sync", nth=1)),
    )
    array = RecordingArray(FaultyArray(MemoryArray([BLOCKS * BLOCK]), plan))
    write(array, 0, 1, 1)
    write(array, 1, 1, 2)
    assert array.sync(0) == errno.EIO
    assert blocks(array.images_at(array.position)[0])[:2] == [1, 0]
    assert {blocks(array.images_at(array.position, lose=seed)[0])[0] for seed in range(40)} == {0, 1}


@settings(max_examples=examples(30), deadline=None)
@given(
    script=st.lists(
        st.one_of(st.none(), st.tuples(st.integers(0, 7), st.integers(1, 4), st.integers(1, 255))), max_size=10
    ),
    seed=st.integers(0, 1000),
)
def test_every_crash_point_holds_a_version_each_sector_may_have(
    script: list[tuple[int, int, int] | None], seed: int
) -> None:
    """Against a model that knows, for each sector, which versions are possible at each crash point."""
    array = make()
    possible: list[list[set[int]]] = []  # by writes issued, by sector: what may be there when that many were issued
    current = [{0} for _ in range(BLOCKS)]
    newest = [0] * BLOCKS
    possible.append([set(versions) for versions in current])
    for step in script:
        if step is None:
            array.sync(0)
            current = [{version} for version in newest]
            continue
        first, count, fill = step
        count = min(count, BLOCKS - first)
        write(array, first, count, fill)
        for sector in range(first, first + count):
            current[sector].add(fill)
            newest[sector] = fill
        possible.append([set(versions) for versions in current])
    points = list(array.crash_points(seed))
    assert {point.writes for point in points} == set(range(len(array.writes) + 1))
    for point in points:
        following = min(point.writes + 1, len(array.writes))
        for sector, fill in enumerate(blocks(point.images[0])):
            assert fill in possible[point.writes][sector] | possible[following][sector], point.label
