"""Objects are known again, and nothing else passes for one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_tiers.radix_tiering.base.page import page_digest
from swift_tiers.radix_tiering.tiers.remote.objects import (
    HEADER_BYTES,
    MOST_NAMESPACES,
    MOST_PAGES,
    ObjectHeader,
    ObjectNames,
    ObjectShape,
    blank,
    parse_name,
    tails,
    unwrap,
    wrap,
)
from swift_tiers.radix_tiering.tiers.tier import ReadOutcome

from support.engine import chain
from support.examples import examples

SHAPE = ObjectShape(4096, 3, 6)
SPACE = bytes(range(16))
KEYS = chain("a", 1, 2)


def an_object() -> np.ndarray:
    memory = np.zeros(SHAPE.stride, np.uint8)
    memory[HEADER_BYTES:] = np.random.default_rng(1).integers(0, 256, SHAPE.stride - HEADER_BYTES, np.uint8)
    digests = tuple(page_digest(SHAPE.page(memory, index)) for index in range(3))
    wrap(memory, ObjectHeader(SPACE, 6, 4096, tuple(KEYS), digests))
    return memory


def test_what_was_wrapped_is_unwrapped() -> None:
    header = unwrap(an_object(), SHAPE, SPACE, KEYS[-1])
    assert isinstance(header, ObjectHeader)
    assert (header.depth, header.keys) == (6, tuple(KEYS))


@given(st.integers(0, 103 + 3 * 48))
@settings(max_examples=examples(200))
def test_no_bit_of_a_header_can_change(at: int) -> None:
    memory = an_object()
    length = len(ObjectHeader(SPACE, 6, 4096, tuple(KEYS), (bytes(16),) * 3).pack())
    memory[at % length] ^= 1 << at % 8
    assert isinstance(unwrap(memory, SHAPE, SPACE, KEYS[-1]), ReadOutcome)


@pytest.mark.parametrize(
    ("shape", "space", "key", "outcome"),
    [
        (SHAPE, bytes(16), KEYS[-1], ReadOutcome.NAMESPACE),
        (SHAPE, SPACE, KEYS[0], ReadOutcome.KEY),
        (SHAPE._replace(page_bytes=8192), SPACE, KEYS[-1], ReadOutcome.LENGTH),
        (SHAPE._replace(pages=2), SPACE, KEYS[-1], ReadOutcome.LENGTH),
    ],
)
def test_another_object_is_not_this_one(shape: ObjectShape, space: bytes, key: bytes, outcome: ReadOutcome) -> None:
    assert unwrap(an_object(), shape, space, key) is outcome


def test_what_is_blank_is_no_object() -> None:
    memory = an_object()
    blank(memory)
    assert unwrap(memory, SHAPE, SPACE, KEYS[-1]) is ReadOutcome.MAGIC


@given(st.integers(1, 1 << 24), st.sampled_from([1, 16, 64]), st.integers(1 << 16, 1 << 24))
@settings(max_examples=examples(200))
def test_objects_are_about_as_large_as_they_are_to_be(page_bytes: int, tokens: int, nbytes: int) -> None:
    shape = ObjectShape.of(page_bytes, tokens, nbytes, 512)
    assert 1 <= shape.pages <= MOST_PAGES
    assert shape.run % shape.pages == 0
    assert shape.pages == 1 or shape.pages * page_bytes <= nbytes
    assert shape.run * tokens <= max(512, shape.pages * tokens)
    assert len(ObjectHeader(SPACE, 1, 1, (bytes(32),) * shape.pages, (bytes(16),) * shape.pages).pack()) <= HEADER_BYTES


def test_only_the_last_pages_of_runs_are_asked_for() -> None:
    keys = chain(*range(20))
    assert tails(0, keys, SHAPE) == [5, 11, 17]
    assert tails(5, keys, SHAPE) == [0, 6, 12, 18]
    assert tails(6, keys[:5], SHAPE) == []


def test_a_name_says_what_it_is_of_to_those_who_have_the_secret_alone() -> None:
    open_names, secret = ObjectNames(SHAPE), ObjectNames(SHAPE, secret=b"a secret")
    space, key = parse_name(open_names.name(SPACE, KEYS[0]))
    assert key == KEYS[0]
    assert space == open_names.namespace(SPACE) != secret.namespace(SPACE)
    assert secret.name(SPACE, KEYS[0]) == ObjectNames(SHAPE, secret=b"a secret").name(SPACE, KEYS[0])
    assert KEYS[0].hex() not in secret.name(SPACE, KEYS[0])
    others = [ObjectNames(SHAPE, scope="H100"), ObjectNames(SHAPE._replace(run=3)), ObjectNames(SHAPE, secret=b"b")]
    assert len({names.name(SPACE, KEYS[0]) for names in [open_names, secret, *others]}) == 5


def test_namespaces_that_come_and_go_for_months_are_not_all_remembered() -> None:
    """Each update of the weights begins one."""
    names = ObjectNames(SHAPE, "here", b"")
    first = names.namespace(bytes(16))
    for number in range(2 * MOST_NAMESPACES):
        names.namespace(number.to_bytes(16, "big"))
        assert len(names._namespaces) <= MOST_NAMESPACES
    assert names.namespace(bytes(16)) == first
