"""Files that a command is told to write. What is there already may be anybody's, a device of a stripe set too."""

from __future__ import annotations

import os
from pathlib import Path

from .errors import FAILURE, USAGE, CommandError


def check_new_file(option: str, path: Path | None) -> None:
    """Before any work whose result goes there, or nowhere (None): that it can be written, and overwrites nothing.

    Raises CommandError. The file is made and taken away again, so that work that fails leaves nothing behind.
    """
    if path is None:
        return
    if path.suffix == ".stripe":
        raise CommandError(f"{option}: {path} is a name of device files; give another one", USAGE)
    os.close(_make(option, path, USAGE))
    path.unlink(missing_ok=True)


def write_new_file(option: str, path: Path, content: bytes) -> None:
    """Raises CommandError, also for a file that has come there since `check_new_file`."""
    with os.fdopen(_make(option, path, FAILURE), "wb") as file:
        try:
            file.write(content)
            file.flush()
        except OSError as error:
            raise CommandError(f"{option}: {path}: cannot be written ({error.strerror}); name another file") from None


def _make(option: str, path: Path, code: int) -> int:
    """The descriptor of a new file. Raises CommandError."""
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except FileExistsError:
        raise CommandError(f"{option}: {path} is there already; give another name", code) from None
    except OSError as error:
        raise CommandError(f"{option}: {path}: cannot be made ({error.strerror}); name another file", code) from None
