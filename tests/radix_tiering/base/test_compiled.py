"""What is compiled is kept; where it cannot be, that is said."""

from __future__ import annotations

import logging

import pytest

from swift_tiers.radix_tiering.base import compiled


def test_where_nothing_can_be_kept_it_is_compiled_anew_and_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A package whose folder and whose user's home cannot be written."""
    compile_it = compiled.numba.njit

    def njit(signature: str, *, cache: bool = False, nogil: bool = False):
        if cache:
            raise RuntimeError("cannot cache function 'twice': no locator available for file 'kernels.py'")
        return compile_it(signature, nogil=nogil)

    monkeypatch.setattr(compiled.numba, "njit", njit)
    monkeypatch.setattr(compiled, "_told", [])

    def twice(number):
        return 2 * number

    with caplog.at_level(logging.INFO):
        made = [compiled.compiled("int64(int64)")(twice) for _ in range(2)]
    assert [one(21) for one in made] == [42, 42]
    assert caplog.text.count("compiling") == 1
    assert "set NUMBA_CACHE_DIR" in caplog.text
