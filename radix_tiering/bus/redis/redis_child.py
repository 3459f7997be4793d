"""Becomes the embedded Redis: `python -I -S redis_child.py OWNER_PID FILE_BYTES BINARY ARGUMENT...`

A program of its own, because what it does must happen in the new process, where one forked from a process with threads
may run no Python. It asks the kernel to kill it when its owner ends, then replaces itself by the server, for which the
request stays in force.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(owner: int, file_bytes: int, command: list[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        sys.exit(f"prctl(PR_SET_PDEATHSIG): {os.strerror(ctypes.get_errno())}")
    # An owner that ended before the request was made sends no signal any more.
    if os.getppid() != owner:
        sys.exit("the owner has ended")
    # Nothing that Redis writes here, be it its log or a dump that a client asks for, fills the file system: with the
    # signal ignored, a write beyond the limit just fails.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    os.execv(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
