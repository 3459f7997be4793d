"""Devices of one set that were used without each other, each in turn, and then come together again."""

from __future__ import annotations

import pytest

from swift_tiers.radix_tiering.tiers.ssd import StripeSet
from swift_tiers.radix_tiering.tiers.ssd.blockio import Patience
from swift_tiers.radix_tiering.tiers.ssd.fsck import check, repair
from swift_tiers.radix_tiering.tiers.ssd.members import read_tables
from swift_tiers.radix_tiering.tiers.ssd.namespaces import MemberTable, NamespaceTable, reconcile
from swift_tiers.radix_tiering.tiers.testing.memory_array import MemoryArray

THIRD = b"namespace-three."


@pytest.fixture
def images(rig) -> list:
    """Two devices: pages 0 to 5 of NAMESPACE and 10 to 15 of OTHER, each of them on one device."""
    array = rig.memory(devices=2, slots=30)
    stripes = rig.open(array)
    for namespace in (rig.NAMESPACE, rig.OTHER):
        stripes.register_namespace(namespace, "test")
    stored = [rig.put(stripes, number, length=8192) for number in range(6)]
    stored += [rig.put(stripes, number, length=8192, namespace=rig.OTHER) for number in range(10, 16)]
    stripes.close(stored)
    return list(array.images)


def alone(rig, images: list, device: int, work) -> None:
    """A session with one of the devices, the other being away."""
    array = MemoryArray.from_images([images[device]])
    stripes = StripeSet.open(array)
    try:
        kept = work(stripes)
    finally:
        stripes.close(list(stripes.recovered) if kept is None else kept)
    images[device] = array.images[0]


def together(rig, images: list, *, repaired: bool) -> tuple[StripeSet, set[tuple[bytes, int]]]:
    """The set with both, and the pages that it finds and can read. Nothing else may be found."""
    array = MemoryArray.from_images(images)
    if repaired:
        assert not repair(array, check(array)).failed
        assert check(array).sound
    stripes = rig.open(array)
    found = set()
    for page in stripes.recovered:
        outcome, _ = rig.read(stripes, page)
        assert outcome.ok, f"{page.record.key[:3]!r} is found and is {outcome}"
        found.add((page.record.namespace, page.record.key[0]))
    tables = [table for device in range(2) for table in read_tables(array, device, Patience()) if table is not None]
    assert len({(table.sequence, table.entries) for table in tables}) == 1, "all devices have one table again"
    return stripes, found


BOTH = pytest.mark.parametrize("repaired", [False, True], ids=["opened", "repaired"])


@BOTH
@pytest.mark.parametrize("first", [0, 1])
def test_a_flush_that_one_device_alone_heard_of_is_not_forgotten(rig, images, first, repaired) -> None:
    alone(rig, images, first, lambda stripes: stripes.flush_namespace(rig.NAMESPACE) and [])
    # The other one's table becomes newer by changes that have nothing to do with it.
    alone(
        rig,
        images,
        1 - first,
        lambda stripes: [stripes.register_namespace(bytes([number]) * 16, "later") for number in range(3)] and None,
    )
    _, found = together(rig, images, repaired=repaired)
    assert not [name for name in found if name[0] == rig.NAMESPACE], "flushed pages came back"


@BOTH
def test_pages_that_were_written_beside_a_flush_do_not_outlive_it(rig, images, repaired) -> None:
    """Device 1 went on without hearing of the flush, with generations of its own that look later than it."""

    def write(stripes):
        return [*stripes.recovered, *(rig.put(stripes, number, length=8192) for number in range(20, 26))]

    alone(rig, images, 1, write)
    alone(rig, images, 0, lambda stripes: stripes.flush_namespace(rig.NAMESPACE) and [])
    _, found = together(rig, images, repaired=repaired)
    assert not [name for name in found if name[0] == rig.NAMESPACE], "they were written before the flush"


@BOTH
def test_an_id_that_was_given_twice_shows_no_page_under_another_namespace(rig, images, repaired) -> None:
    def new(namespace):
        def work(stripes):
            stripes.register_namespace(namespace, "new")
            return [
                *stripes.recovered,
                *(rig.put(stripes, number, length=8192, namespace=namespace) for number in range(30, 36)),
            ]

        return work

    third, fourth = THIRD, b"namespace-four.."
    alone(rig, images, 0, new(third))
    alone(rig, images, 1, new(fourth))
    stripes, found = together(rig, images, repaired=repaired)
    assert {name for name in found if name[0] in (rig.NAMESPACE, rig.OTHER)}, "those that agree are kept"
    assert not [name for name in found if name[0] in (third, fourth)]
    ids = {namespace: stripes.register_namespace(namespace, "again") for namespace in (third, fourth)}
    assert ids[third] != ids[fourth]
    for namespace in (third, fourth):
        rig.put(stripes, 40, length=8192, namespace=namespace)


@BOTH
def test_a_device_that_was_only_away_costs_nothing(rig, images, repaired) -> None:
    """The usual case: one device was missing for a while, and nothing was written to it."""
    alone(rig, images, 0, lambda stripes: stripes.register_namespace(THIRD, "new") and None)
    _, found = together(rig, images, repaired=repaired)
    assert found == {(rig.NAMESPACE, number) for number in range(6)} | {(rig.OTHER, number) for number in range(10, 16)}


@BOTH
def test_a_device_that_was_away_during_a_flush_loses_what_was_flushed_alone(rig, images, repaired) -> None:
    alone(
        rig,
        images,
        0,
        lambda stripes: (
            stripes.flush_namespace(rig.NAMESPACE)
            and [page for page in stripes.recovered if page.record.namespace == rig.OTHER]
        ),
    )
    _, found = together(rig, images, repaired=repaired)
    assert found == {(rig.OTHER, number) for number in range(10, 16)}


@BOTH
@pytest.mark.parametrize("first", [0, 1])
def test_a_flush_that_both_heard_of_apart_is_known_to_each_of_them_once_they_were_together(
    rig, images, first, repaired
) -> None:
    """Both tables have changed as often, and one of them flushes what the other has written since."""

    def later(stripes):
        for number in range(20, 30):
            rig.put(stripes, number, length=8192, namespace=rig.OTHER)
        stripes.flush_namespace(rig.NAMESPACE)
        return []

    def sooner(stripes):
        stripes.flush_namespace(rig.NAMESPACE)
        return [rig.put(stripes, number, length=8192) for number in range(40, 43)]

    alone(rig, images, first, later)
    alone(rig, images, 1 - first, sooner)
    array = MemoryArray.from_images(images)
    if repaired:
        assert not repair(array, check(array)).failed
    both = StripeSet.open(array)
    assert not [page for page in both.recovered if page.record.namespace == rig.NAMESPACE]
    both.close(None)  # as where the process is killed
    images[:] = list(array.images)
    found: list = []
    alone(rig, images, 1 - first, lambda stripes: found.extend(stripes.recovered))
    assert not [page for page in found if page.record.namespace == rig.NAMESPACE], "flushed pages came back"


def test_of_tables_that_agree_the_newest_is_taken_as_it_is() -> None:
    table = NamespaceTable()
    table.register(THIRD, "one", 5)
    older = NamespaceTable(table.entries, table.sequence - 1, 2)
    assert reconcile([MemberTable(older, 9), MemberTable(table, 9)], 9) is table
    table.register(b"namespace-four..", "two", 5)
    turned = NamespaceTable(table.entries[::-1], table.sequence, 3)
    assert reconcile([MemberTable(turned, 9), MemberTable(table, 9)], 9) is turned
    assert reconcile([], 1).entries == ()
