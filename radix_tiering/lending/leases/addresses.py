"""Where donors listen: a socket in a directory of this user alone."""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path

from ...base.errors import ConfigError

#: sockaddr_un.sun_path is 108 bytes, the last of them zero.
_PATH_BYTES = 107


def ipc_address(directory: str | Path, name: str) -> str:
    """The address of the donor `name` in `directory`. Raises ConfigError where it cannot be one."""
    if not re.fullmatch(r"[A-Za-z0-9._:-]{1,128}", name):
        raise ConfigError(f"lease address: {name!r} cannot name a socket; use letters, digits and any of . _ : -")
    path = Path(directory).expanduser().absolute() / f"{name}.lease"
    length = len(os.fsencode(path))
    if length > _PATH_BYTES:
        raise ConfigError(
            f"lease address: {path} is too long for a socket, {length} bytes of at most {_PATH_BYTES}; "
            "name a shorter directory"
        )
    return f"ipc://{path}"


def ipc_path(address: str) -> Path:
    """The socket of an address. Raises ConfigError for what is none: leases stay on one machine."""
    if address.startswith("ipc:///"):
        return Path(address.removeprefix("ipc://"))
    raise ConfigError(f"lease address: {address!r} is not ipc:///PATH: memory is lent on one machine only")


def take_path(path: Path) -> int:
    """A locked descriptor that says that this process listens at `path`; closing it says the opposite.

    Needed since ZeroMQ takes a socket's path away from whoever listens there. Raises ConfigError if another does.
    """
    lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise ConfigError(f"lease address: another server listens at {path}; give this one another name") from None
    return lock
