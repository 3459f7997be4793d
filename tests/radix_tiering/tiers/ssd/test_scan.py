"""Units that are put together to pages again: against the plainest way to do that, over records that hardly differ."""

from __future__ import annotations

from collections import defaultdict
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_tiers.radix_tiering.tiers.ssd import scan
from swift_tiers.radix_tiering.tiers.ssd.layout import RECORD_DTYPE
from swift_tiers.radix_tiering.tiers.ssd.namespaces import NamespaceEntry
from swift_tiers.radix_tiering.tiers.ssd.scan import assemble

from support.examples import examples

UNIT = 4096
NAMESPACES = {1: NamespaceEntry(1, b"a" * 16, 3, "one"), 2: NamespaceEntry(2, b"b" * 16, 0, "other")}

#: generation, namespace, key, digest, units: what the units of one write have in common.
writes = st.tuples(
    st.sampled_from([1, 2, 3, 4, 5, 2**63]), st.integers(1, 3), st.integers(0, 3), st.integers(0, 1), st.integers(1, 3)
)


def record(write: tuple[int, int, int, int, int], unit: int, slot: int) -> np.ndarray:
    generation, namespace, key, digest, units = write
    made = np.zeros(1, RECORD_DTYPE)
    made[0] = (
        slot, unit, 0, generation, units * UNIT, namespace, 1, units, 0,
        key.to_bytes(32, "big"), bytes(32), digest.to_bytes(16, "big"),
    )  # fmt: skip
    return made


@settings(max_examples=examples(400), deadline=None)
@given(
    found=st.lists(st.tuples(writes, st.sampled_from([None, None, None, 0, 1]), st.integers(0, 2)), max_size=12),
    shuffled=st.randoms(use_true_random=False),
    collide=st.booleans(),
)
def test_pages_are_made_of_units_that_agree_in_everything(
    found: list[tuple[tuple[int, int, int, int, int], int | None, int]], shuffled: Random, collide: bool
) -> None:
    """Generations that several writes share, units that are missing or there twice, and keys that come again."""
    there = [
        (write, unit, (first + unit) % 3)
        for write, missing, first in found
        for unit in range(write[4])
        if unit != missing
    ]
    shuffled.shuffle(there)
    by_device: dict[int, list[np.ndarray]] = defaultdict(list)
    units: dict[tuple[int, int, int, int, int], list[tuple[int, int, int]]] = defaultdict(list)
    for slot, (write, unit, device) in enumerate(there):
        by_device[device].append(record(write, unit, slot))
        units[write].append((unit, device, slot))
    before = scan._ODD
    if collide:  # any two names may have the same sum
        scan._ODD = np.zeros(5, np.uint64)
    try:
        made = assemble(
            {device: np.concatenate(records) for device, records in by_device.items()},
            NAMESPACES,
            UNIT,
        )
    finally:
        scan._ODD = before

    newest: dict[tuple[int, int], tuple[int, set[tuple[tuple[int, int], ...]]]] = {}
    for (generation, namespace, key, _, count), parts in units.items():
        known = namespace in NAMESPACES and generation >= NAMESPACES[namespace].minimum_generation
        if not known or sorted(unit for unit, _, _ in parts) != list(range(count)):
            continue
        places = tuple((device, slot) for _, device, slot in sorted(parts))
        last, versions = newest.get((namespace, key), (-1, set()))
        if generation > last:
            newest[namespace, key] = (generation, {places})
        elif generation == last:
            versions.add(places)
    assert len(made.pages) == len(newest)
    for page in made.pages:
        namespace = next(number for number, entry in NAMESPACES.items() if entry.digest == page.record.namespace)
        generation, versions = newest[namespace, int.from_bytes(page.record.key, "big")]
        assert page.generation == generation
        assert page.placement in versions
