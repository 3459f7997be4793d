"""What is compiled is kept; where it cannot be, that is said."""

from __future__ import annotations

import errno
import importlib
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from numba.core import config
from numba.core.caching import IndexDataCacheFile
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


@pytest.mark.parametrize("kind", ["nbi", "nbc"])
@pytest.mark.parametrize("cut", ["empty", "half"])
def test_what_a_crash_has_cut_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, cut: str
) -> None:
    made = _kept_in(tmp_path, monkeypatch)
    assert not made().stats.cache_hits
    assert made().stats.cache_hits
    (file,) = (path for path in (tmp_path / "cache").rglob(f"*.{kind}"))
    file.write_bytes(b"" if cut == "empty" else file.read_bytes()[: file.stat().st_size // 2])
    again = made()
    assert (again(21), bool(again.stats.cache_hits)) == (42, False)
    again = made()
    assert (again(21), bool(again.stats.cache_hits)) == (42, True), "the next start finds it"


def test_where_there_is_no_room_to_keep_it_it_is_compiled_at_every_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(IndexDataCacheFile, "save", fails)
    monkeypatch.setattr(compiled, "_told", [])
    made = _kept_in(tmp_path, monkeypatch)
    with caplog.at_level(logging.INFO):
        assert [made()(21) for _ in range(2)] == [42, 42]
    assert [str(tmp_path / "cache") in record.getMessage() for record in caplog.records] == [True]
    assert "No space left" in caplog.text


@pytest.mark.parametrize("which", ["above", "below", "group", "another's"])
def test_what_others_may_have_kept_there_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, which: str
) -> None:
    """Numba unpickles its index, and runs the code beside it: whoever writes there is this process."""
    monkeypatch.setattr(compiled, "_told", [])
    made = _kept_in(tmp_path, monkeypatch)
    made()
    assert made().stats.cache_hits
    above = tmp_path / "cache"
    (below,) = above.iterdir()
    loaded: list[str] = []
    monkeypatch.setattr(IndexDataCacheFile, "load", lambda self, key: loaded.append(key))
    if which == "another's":
        user = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: user + 1)
        monkeypatch.setattr(compiled, "_ROOT", user + 2)
    else:
        above.chmod(0o777 if which == "above" else 0o755)
        below.chmod({"above": 0o755, "below": 0o777, "group": 0o2775}[which])
    compiled._told.clear()
    caplog.clear()
    assert [made()(21) for _ in range(2)] == [42, 42]
    assert not loaded
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert str(above if which in ("above", "another's") else below) in record.getMessage()
    assert "set NUMBA_CACHE_DIR to a directory of this user alone" in record.getMessage()


@pytest.mark.parametrize(("above", "below"), [(0o700, 0o775), (0o1777, 0o755), (0o755, 0o755)])
def test_what_nobody_else_can_write_to_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, above: int, below: int
) -> None:
    made = _kept_in(tmp_path, monkeypatch)
    made()
    (place,) = (tmp_path / "cache").iterdir()
    place.chmod(below)
    (tmp_path / "cache").chmod(above)
    assert made().stats.cache_hits


def _kept_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """Imports a kernel, kept in a folder of its own, as a process does."""
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir(mode=0o700)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "kept_kernel.py").write_text(
        "from swift_tiers.radix_tiering.base.compiled import compiled\n"
        "@compiled('int64(int64)')\ndef twice(x):\n    return 2 * x\n"
    )

    def made() -> Any:
        sys.modules.pop("kept_kernel", None)
        importlib.invalidate_caches()
        return importlib.import_module("kept_kernel").twice

    return made
