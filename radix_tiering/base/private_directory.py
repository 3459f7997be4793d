"""A directory of this user alone, where sockets and locks can lie that nobody else can put there or reach."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from .errors import ConfigError

#: How messages call the directory of leases, of arenas and of ranks that share a remote engine: by the setting that
#: names it, and by the one that does where that is unset.
LEASE_DIRECTORY = "peer.directory (unset: bus.directory)"
#: The longest path of a socket: sockaddr_un.sun_path is 108 bytes, the last of them zero.
SOCKET_PATH_BYTES = 107


def open_private_directory(directory: Path, called: str, *, create: bool, narrows: bool = False) -> int:
    """An O_PATH descriptor of `directory`, of which everything below was checked: what it names cannot be changed.

    `called`: what messages call it. `narrows`: one of this user's that its own groups may use is made this user's
    alone; Kubernetes opens all of a volume to `fsGroup` whenever it is mounted. Raises ConfigError unless it is a
    directory of this user alone, made here if `create` and it is not there.
    """
    try:
        if create:
            try:
                os.mkdir(directory, 0o700)
            except FileExistsError:
                pass
        opened = os.open(directory, os.O_PATH | os.O_NOFOLLOW)
    except OSError as error:
        raise ConfigError(
            f"{called}: {directory} cannot be used ({error.strerror}); name one that this user can make"
        ) from None
    details = os.fstat(opened)
    if narrows and stat.S_ISDIR(details.st_mode) and _of_our_groups(details):
        with contextlib.suppress(OSError):
            os.chmod(f"/proc/self/fd/{opened}", 0o700)
        details = os.fstat(opened)
    trouble = ""
    if stat.S_ISLNK(details.st_mode):
        trouble = "is not a directory but a symbolic link; name the directory itself"
    elif not stat.S_ISDIR(details.st_mode):
        trouble = "is not a directory; remove it, or name another"
    elif details.st_uid != os.geteuid():
        trouble = f"belongs to uid {details.st_uid}, not to {os.geteuid()} who runs this; name another directory"
    elif details.st_mode & stat.S_ISVTX or os.path.ismount(directory):
        trouble = "is everybody's, or a file system's top; make a directory of its own below it, and name that"
    elif details.st_mode & 0o077:
        trouble = f"is open to others (mode {stat.S_IMODE(details.st_mode):04o}); run `chmod 700` on it"
    if trouble:
        os.close(opened)
        raise ConfigError(f"{called}: {directory} {trouble}")
    return opened


def _of_our_groups(details: os.stat_result) -> bool:
    """Whether it is this user's, and handed to one of its own groups (setgid), and to nobody else."""
    is_ours = details.st_uid == os.geteuid() and details.st_gid in {os.getegid(), *os.getgroups()}
    return is_ours and bool(details.st_mode & stat.S_ISGID) and not details.st_mode & (0o007 | stat.S_ISVTX)
