"""The page hash in Python equals SGLang's compiled one, to the bit.

What that one said of forty prompts lies beside, in `page_hashes.json`: here there may be no compiler.
"""

from __future__ import annotations

import json
import os
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from swift_tiers.sglang_ext.build import page_hash

from support.examples import examples

RECORDED = json.loads(Path(__file__).with_name("page_hashes.json").read_text())
NARROW = st.integers(0, 2**32 - 1)
WIDE = st.integers(0, 2**62)


@pytest.fixture(scope="module")
def compiled() -> Any:
    """SGLang's own, which is compiled when it is first asked for."""
    from sglang.srt.mem_cache.cpp_utils.native_hash import _load_native_hash_module

    try:
        return _load_native_hash_module()
    except RuntimeError as error:
        pytest.skip(
            f"SGLang's own hash cannot be compiled here ({error.__cause__ or error}); recorded ones are compared"
        )


@pytest.mark.parametrize("case", RECORDED, ids=range(len(RECORDED)))
def test_equal_to_what_was_recorded(case: dict[str, Any]) -> None:
    prior = None if case["prior"] is None else bytes.fromhex(case["prior"])
    raw = array("q", case["tokens"])
    found = page_hash.page_hashes(raw, case["length"], case["width"], case["bigram"], prior, case["page"])
    assert found == case["hashes"]


@settings(max_examples=examples(150), deadline=None)
@given(
    tokens=st.lists(st.one_of(NARROW, st.integers(0, 1000), WIDE), min_size=0, max_size=40),
    page_size=st.one_of(st.none(), st.integers(1, 9)),
    prior=st.one_of(st.none(), st.binary(min_size=32, max_size=32)),
    is_bigram=st.booleans(),
)
@example(tokens=[2**32], page_size=None, prior=None, is_bigram=True)  # no pair at all, and a token that is wide
def test_equal_to_the_compiled_one(compiled, tokens, page_size, prior, is_bigram):
    raw = array("q", tokens)
    length = max(0, len(tokens) - 1) if is_bigram else len(tokens)
    width = 2 if is_bigram else 1
    expected = compiled.get_hash(raw, length, width, is_bigram, prior, page_size)
    assert page_hash.page_hashes(raw, length, width, is_bigram, prior, page_size) == expected


@settings(max_examples=examples(30), deadline=None)
@given(tokens=st.lists(NARROW, min_size=2, max_size=24).filter(lambda tokens: len(tokens) % 2 == 0))
def test_tokens_of_two_words(compiled, tokens):
    raw = array("q", tokens)
    expected = compiled.get_hash(raw, len(tokens) // 2, 2, False, None, 3)
    assert page_hash.page_hashes(raw, len(tokens) // 2, 2, False, None, 3) == expected


@given(tokens=st.lists(st.integers(-(2**63), 2**62), min_size=1, max_size=24), place=st.integers(0, 23))
@settings(max_examples=examples(100), deadline=None)
def test_prompts_that_differ_in_a_negative_id_have_other_hashes(tokens, place):
    """SGLang's raises for these, which would end the server: a client may send any numbers."""
    place %= len(tokens)

    def hashes(tokens: list[int]) -> list[str]:
        def original(*_: Any) -> Any:
            raise IndexError("token id must be a non-negative int64")

        return page_hash.around_native_hash(original, array("q", tokens), None, 3)

    others = [*tokens[:place], -1 if tokens[place] != -1 else 2**32 - 1, *tokens[place + 1 :]]
    page = place // 3
    assert hashes(tokens)[:page] == hashes(others)[:page]
    assert not set(hashes(tokens)[page:]) & set(hashes(others)[page:])


def test_a_machine_without_a_compiler_hashes_in_python(monkeypatch):
    from sglang.srt.mem_cache.cpp_utils import native_hash

    def no_compiler():
        raise RuntimeError("Failed to load HiCache native hash extension")

    tokens = array("q", range(100))
    expected = page_hash.page_hashes(tokens, len(tokens), 1, False, None, 16)
    monkeypatch.setattr(native_hash, "_load_native_hash_module", no_compiler)
    monkeypatch.setattr(page_hash, "_compiled", None)

    def original(*_):
        pytest.fail("the compiled one was asked")

    assert page_hash.around_native_hash(original, tokens, None, 16) == expected


@pytest.mark.parametrize(
    ("mode", "group", "is_loaded"),
    [(0o755, None, True), (0o777, None, False), (0o775, None, True), (0o775, 12345, False)],
)
def test_what_others_could_have_built_is_not_loaded(monkeypatch, tmp_path, caplog, mode, group, is_loaded):
    """It would run in the server. A directory of the user's own group is what a umask of 002 makes."""
    from sglang.srt.mem_cache.cpp_utils import native_hash

    tmp_path.chmod(0o755)
    built = tmp_path / "hicache_hash_cpp"
    built.mkdir()
    built.chmod(mode)
    monkeypatch.setattr(os, "getegid", lambda: built.stat().st_gid if group is None else group)
    loaded: list[bool] = []
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setattr(native_hash, "_load_native_hash_module", lambda: loaded.append(True))
    monkeypatch.setattr(page_hash, "_compiled", None)
    assert page_hash.prepare_page_hash() == bool(loaded) == is_loaded
    assert ("TORCH_EXTENSIONS_DIR" in caplog.text) != is_loaded
