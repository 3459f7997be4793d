"""Standard output: whether there is one, and who reads it. A pipe's reader may leave when it likes, as `head` does."""

from __future__ import annotations

import errno
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

#: What a file system says that takes nothing more.
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


def has_no_reader(stream: TextIO) -> bool:
    """Whether it is a pipe whose other end is closed; a pipe to a child of ours may have broken instead."""
    try:
        number = stream.fileno()
    except (OSError, ValueError):
        return False
    poll = select.poll()
    poll.register(number, 0)
    return any(state & (select.POLLERR | select.POLLHUP) for _, state in poll.poll(0))


def cannot_write(stream: TextIO, error: Exception) -> bool:
    """Whether the error was that nothing more can be written there, as on a disk that is full, and not elsewhere."""
    if not isinstance(error, OSError) or error.errno not in _NO_ROOM or error.filename is not None:
        return False
    try:
        stream.write("\n")  # what could not be written is no longer in the stream, and flushing it alone may succeed
        stream.flush()
    except OSError:
        return True
    return False


def open_streams() -> None:
    """What is printed to a stream that was closed before the start (`>&-`) goes nowhere. Python has None there; and the
    next file that is opened would get the stream's number, and with it what others print."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - open until the end


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """Around what is printed of a verdict that is known: a reader that has seen enough of it does not change it."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        if not has_no_reader(sys.stdout):
            raise
