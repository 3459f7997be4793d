"""Standard output, and who reads it: a pipe's reader may leave whenever it likes, as `head` does."""

from __future__ import annotations

import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


def has_no_reader(stream: TextIO) -> bool:
    """Whether it is a pipe whose other end is closed; a pipe to a child of ours may have broken instead."""
    try:
        number = stream.fileno()
    except (OSError, ValueError):
        return False
    poll = select.poll()
    poll.register(number, 0)
    return any(state & (select.POLLERR | select.POLLHUP) for _, state in poll.poll(0))


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """Around what is printed of a verdict that is known: a reader that has seen enough of it does not change it."""
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        if not has_no_reader(sys.stdout):
            raise
