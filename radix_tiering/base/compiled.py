"""Compiling what is done to many things at once."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba  # type: ignore[import-untyped]
import xxhash

logger = logging.getLogger(__name__)

#: Numbers from here on may be addresses, which are others in every process, and which code is told when it is called.
_ADDRESSES = 1 << 40

#: Who may write everywhere, and need not be told from this user.
_ROOT = 0

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

_told: list[str] = []


def compiled(signature: str, *, nogil: bool = False) -> Callable[[Kernel], Kernel]:
    """A function that Python calls, compiled for these types when its module is first imported on a machine, and loaded
    later: what is kept on disk is compared with all that it was made of. `nogil`: it runs without the interpreter
    lock."""

    def compile_it(function: Kernel) -> Kernel:
        made: Any = _with_cache(function, signature, nogil)
        if made is None:
            made = numba.njit(nogil=nogil)(function)
            made.compile(signature)
        made.disable_compile()
        kernel: Kernel = made
        return kernel

    return compile_it


def _with_cache(function: Kernel, signature: str, nogil: bool) -> Any:
    """Compiled or loaded, and kept; None: it can be neither loaded nor kept."""
    for is_last in (False, True):
        made: Any = numba.njit(nogil=nogil)(function)
        try:
            made.enable_caching()
        except RuntimeError as error:  # neither beside its file nor in the user's home
            if "cannot cache" not in str(error):
                raise
            _tell("swift-tiers: compiling, at every start: %s; set NUMBA_CACHE_DIR", error)
            return None
        place = Path(made._cache.cache_path)
        # What lies beside the file is loaded by Python itself, whoever may write there.
        if place.parent != Path(function.__code__.co_filename).parent and (why := open_to_others(place)):
            remedy = "set NUMBA_CACHE_DIR to a directory of this user alone (mode 0700)"
            _tell("swift-tiers: compiling, at every start: %s; %s", why, remedy, level=logging.WARNING)
            return None
        # Numba compares the function's own file alone, with its size and time. What the code takes from others, numbers
        # above all, is in the machine code as well.
        kept = made._cache._cache_file
        kept._source_stamp = stamp(function.__module__)
        try:
            made.compile(signature)
        except Exception as error:  # noqa: BLE001 - a file that a crash has cut, a full disk; what else it is comes again
            if not is_last and not made.signatures:
                with contextlib.suppress(OSError):
                    os.unlink(kept._index_path)
                continue
            where = made._cache.cache_path
            _tell("swift-tiers: compiling, at every start: %s cannot be used: %r; make room there", where, error)
            return made if made.signatures else None  # it may have been compiled, and cannot be kept
        if not made.stats.cache_hits:
            _tell("swift-tiers: compiling for half a minute, as on every machine once")
        return made
    return None


def open_to_others(place: Path, *, own_group: int | None = None) -> str:
    """Why what is kept in `place` may be another user's, and is not to be loaded: it is unpickled, or run. Empty: it
    is this user's, or root's, alone. `own_group`: members of this one count as the user."""
    try:
        above, below = os.stat(place.parent), os.lstat(place)
    except OSError as error:
        return f"{place} cannot be looked at ({error.strerror})"
    for path, details, is_safe in (
        (place.parent, above, above.st_mode & stat.S_ISVTX),  # what lies there is moved by its owner alone
        (place, below, not above.st_mode & (stat.S_IXGRP | stat.S_IXOTH)),  # nobody else gets at it
    ):
        if details.st_uid not in (os.geteuid(), _ROOT):
            return f"{path} belongs to uid {details.st_uid}"
        writers = stat.S_IWOTH | (0 if details.st_gid == own_group else stat.S_IWGRP)
        if details.st_mode & writers and not is_safe:
            return f"{path} may be written by other users (mode {stat.S_IMODE(details.st_mode):04o})"
    return ""


def stamp(module: str) -> str:
    """Differs wherever code of a module, of those that it has functions of, or a number that they know does."""
    digest = xxhash.xxh3_128()
    for part in _parts(module, set()):
        digest.update(part.encode())
    return digest.hexdigest()


def _parts(module: str, seen: set[str]) -> Iterator[str]:
    if module in seen or module.partition(".")[0] != __name__.partition(".")[0]:
        return
    seen.add(module)
    known = dict(vars(sys.modules[module]))
    file = known.get("__file__")
    yield f"{module} {_content(file) if file else ''}\n"
    for name, value in known.items():
        if isinstance(value, int) and abs(value) < _ADDRESSES:
            yield f"{name} {value}\n"
        elif callable(value) and (home := getattr(value, "__module__", None)) in sys.modules:
            yield from _parts(home, seen)


@cache
def _content(file: str) -> str:
    return xxhash.xxh3_128_hexdigest(Path(file).read_bytes())


def _tell(text: str, *facts: object, level: int = logging.INFO) -> None:
    """Log it, once."""
    if not _told:
        _told.append(text)
        logger.log(level, text, *facts)
