"""The page hash in Python equals SGLang's compiled one, to the bit."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from swift_tiers.sglang_ext.build import page_hash

from support.examples import examples

NARROW = st.integers(0, 2**32 - 1)
WIDE = st.integers(0, 2**62)


@settings(max_examples=examples(150), deadline=None)
@given(
    tokens=st.lists(st.one_of(NARROW, st.integers(0, 1000), WIDE), min_size=0, max_size=40),
    page_size=st.one_of(st.none(), st.integers(1, 9)),
    prior=st.one_of(st.none(), st.binary(min_size=32, max_size=32)),
    is_bigram=st.booleans(),
)
@example(tokens=[2**32], page_size=None, prior=None, is_bigram=True)  # no pair at all, and a token that is wide
def test_equal_to_the_compiled_one(tokens, page_size, prior, is_bigram):
    from sglang.srt.mem_cache.cpp_utils.native_hash import _load_native_hash_module

    raw = array("q", tokens)
    length = max(0, len(tokens) - 1) if is_bigram else len(tokens)
    width = 2 if is_bigram else 1
    expected = _load_native_hash_module().get_hash(raw, length, width, is_bigram, prior, page_size)
    assert page_hash.page_hashes(raw, length, width, is_bigram, prior, page_size) == expected


@settings(max_examples=examples(30), deadline=None)
@given(tokens=st.lists(NARROW, min_size=2, max_size=24).filter(lambda tokens: len(tokens) % 2 == 0))
def test_tokens_of_two_words(tokens):
    from sglang.srt.mem_cache.cpp_utils.native_hash import _load_native_hash_module

    raw = array("q", tokens)
    expected = _load_native_hash_module().get_hash(raw, len(tokens) // 2, 2, False, None, 3)
    assert page_hash.page_hashes(raw, len(tokens) // 2, 2, False, None, 3) == expected


def test_a_machine_without_a_compiler_hashes_in_python(monkeypatch):
    from sglang.srt.mem_cache.cpp_utils import native_hash

    def no_compiler():
        raise RuntimeError("Failed to load HiCache native hash extension")

    tokens = array("q", range(100))
    expected = native_hash.get_native_hash(tokens, None, 16)
    monkeypatch.setattr(native_hash, "_load_native_hash_module", no_compiler)
    monkeypatch.setattr(page_hash, "_compiled", None)

    def original(*_):
        pytest.fail("the compiled one was asked")

    assert page_hash.around_native_hash(original, tokens, None, 16) == expected
