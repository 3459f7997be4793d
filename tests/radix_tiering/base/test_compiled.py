"""What is compiled is kept; where it cannot be, that is said."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from pathlib import Path

import pytest
from numba.core.dispatcher import Dispatcher

from swift_tiers.radix_tiering.base import compiled


def test_where_nothing_can_be_kept_it_is_compiled_anew_and_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A package whose folder and whose user's home cannot be written."""

    def enable_caching(self: object) -> None:
        raise RuntimeError("cannot cache function 'twice': no locator available for file 'kernels.py'")

    monkeypatch.setattr(Dispatcher, "enable_caching", enable_caching)
    monkeypatch.setattr(compiled, "_told", [])

    def twice(number):
        return 2 * number

    with caplog.at_level(logging.INFO):
        made = [compiled.compiled("int64(int64)")(twice) for _ in range(2)]
    assert [one(21) for one in made] == [42, 42]
    assert caplog.text.count("compiling") == 1
    assert "set NUMBA_CACHE_DIR" in caplog.text


def test_what_is_kept_is_compared_with_numbers_and_code_of_other_files_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of the same size and time, as images have them."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(compiled, "__name__", "ours.compiled")
    package = tmp_path / "ours"
    package.mkdir()
    (package / "__init__.py").touch()

    def write(name: str, text: str) -> None:
        (package / name).write_text(text)
        os.utime(package / name, (1, 1))

    def answer() -> tuple[int, bool]:
        for name in [name for name in sys.modules if name.partition(".")[0] == "ours"]:
            del sys.modules[name]
        importlib.invalidate_caches()
        compiled._content.cache_clear()
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        made = importlib.import_module("ours.kernel").made
        return made(1), bool(made.stats.cache_hits)

    write("kernel.py", (
        "from swift_tiers.radix_tiering.base.compiled import compiled\n"
        "from .numbers import FACTOR\nfrom .helper import plus\n"
        "@compiled('int64(int64)')\ndef made(x):\n    return FACTOR * x + plus(x)\n"
    ))  # fmt: skip
    write("numbers.py", "FACTOR = 3\n")
    write("helper.py", "import numba\n@numba.njit\ndef plus(x):\n    return x + 1\n")
    assert answer() == (5, False)
    assert answer() == (5, True)
    write("numbers.py", "FACTOR = 4\n")
    assert answer() == (6, False)
    write("helper.py", "import numba\n@numba.njit\ndef plus(x):\n    return x + 2\n")
    assert answer() == (7, False)
    assert answer() == (7, True)
