"""Secrets in files that no others may read."""

from __future__ import annotations

import os
import stat

from .errors import ConfigError

#: Of a file that holds one line.
_MOST_BYTES = 4096


def read_secret(field: str, name: str, called: str) -> str:
    """The one line of text that a file holds, which `field` of the configuration names; `called`: what it is, as in "a
    password". Raises ConfigError, also for a file that others may read: anybody but its owner, or of a file of root's,
    as secrets mounted into a container are, anybody but root and its group."""
    field = f"{field}: {name}"
    try:
        # Opening a pipe would wait for its other end.
        opened = os.open(os.path.expanduser(name), os.O_RDONLY | os.O_NONBLOCK)
        try:
            details = os.fstat(opened)
            content = os.read(opened, _MOST_BYTES + 1) if stat.S_ISREG(details.st_mode) else b""
        finally:
            os.close(opened)
    except OSError as error:
        raise ConfigError(f"{field} cannot be read ({error.strerror}); name a file that this user may read") from None
    if not stat.S_ISREG(details.st_mode):
        raise ConfigError(f"{field} is not a regular file; name one that holds {called.replace('a ', 'the ', 1)}")
    others = 0o027 if details.st_uid == 0 else 0o077
    if details.st_mode & others:
        mode = stat.S_IMODE(details.st_mode)
        remedy = "run `chmod 600` on it, or where Kubernetes mounts it, set defaultMode: 0440"
        raise ConfigError(f"{field} may be read by others (mode {mode:04o}); {remedy}")
    try:
        secret = content.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        secret = ""
    if not secret or len(content) > _MOST_BYTES or "\n" in secret:
        raise ConfigError(f"{field} does not hold {called}; write it into the file as one line of text")
    return secret
