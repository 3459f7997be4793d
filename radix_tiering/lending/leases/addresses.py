"""Where donors listen: a socket in a directory of this user alone."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from pathlib import Path

from ...base.errors import ConfigError
from ...base.private_directory import LEASE_DIRECTORY, SOCKET_PATH_BYTES
from ...base.runner import THREADS

#: Beside each other: the sockets of a donor's leases and of its memory, and the lock of whoever listens there.
_LEASES, ARENA, _LOCK = ".lease", ".arena", ".lock"
#: A lock may be another rank's for a moment, which removes what it takes for a killed server's: so long is that waited
#: for, and so often looked at, seconds.
_SWEEP_SECONDS, _LOOK_SECONDS = 1.0, 0.01


def ipc_address(directory: str | Path, name: str) -> str:
    """The address of the donor `name` in `directory`. Raises ConfigError where it cannot be one."""
    if not re.fullmatch(r"[A-Za-z0-9._:-]{1,128}", name):
        raise ConfigError(f"bus.server: {name!r} cannot name a socket; use letters, digits and any of . _ : -")
    path = Path(directory).expanduser().absolute() / f"{name}{_LEASES}"
    length = len(os.fsencode(path))
    if length > SOCKET_PATH_BYTES:
        raise ConfigError(
            f"{LEASE_DIRECTORY}: {path} is too long for a socket, {length} bytes of at most {SOCKET_PATH_BYTES}; "
            "name a shorter one"
        )
    return f"ipc://{path}"


def ipc_path(address: str) -> Path:
    """The socket of an address. Raises ConfigError for what is none: leases stay on one machine."""
    if address.startswith("ipc:///"):
        return Path(address.removeprefix("ipc://"))
    raise ConfigError(f"lease address: {address!r} is not ipc:///PATH: memory is lent on one machine only")


def take_path(path: Path) -> int:
    """A locked descriptor that says that this process listens at `path`; closing it says the opposite.

    Needed since ZeroMQ takes a socket's path away from whoever listens there. What servers have left that were killed
    is removed. Raises ConfigError if another listens there.
    """
    _remove_left(path.parent)
    until = THREADS.monotonic() + _SWEEP_SECONDS
    while (lock := _locked(path.with_suffix(_LOCK), os.O_CREAT)) is None:
        if THREADS.monotonic() >= until:
            raise ConfigError(f"bus.server: another server listens at {path}; give this one another name")
        THREADS.sleep(_LOOK_SECONDS)
    return lock


def leave_path(lock: int, path: Path) -> None:
    """Take `take_path` back, and leave nothing there: while it is held, since what lies there afterwards is another
    life's."""
    try:
        # The lock last: who opens it then sees that it is not the one.
        for left in (path, path.with_suffix(ARENA), path.with_suffix(_LOCK)):
            left.unlink(missing_ok=True)
    finally:
        os.close(lock)


def _remove_left(directory: Path) -> None:
    """What servers have left there that were killed: their names have numbers of processes, which nobody uses again."""
    for socket in directory.glob(f"*{_LEASES}"):
        with contextlib.suppress(OSError):  # it is gone by now, or another user's
            lock = _locked(socket.with_suffix(_LOCK))
            if lock is not None:
                leave_path(lock, socket)


def _locked(path: Path, how: int = 0) -> int | None:
    """A descriptor of the file at `path`, locked; None where somebody else has it locked, or has just removed it.
    Raises OSError where it cannot be opened (`how`: with these flags besides)."""
    lock = os.open(path, os.O_RDWR | os.O_NOFOLLOW | how, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.stat(path), os.fstat(lock)):
            return lock
    except OSError:
        pass
    os.close(lock)
    return None
