"""The process that started this one, told from every other that there is or was on this machine.

A number of a process is not enough: numbers are used again, and in a container they are counted anew, so that the same
server has the same ones in its next container.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")


class Starter(NamedTuple):
    """A process that starts others, as all of those find it."""

    space: int  # the namespace in which processes are counted: two containers may count them alike
    process: int
    started: int  # clock ticks after the machine; 0: /proc does not show it

    @classmethod
    def of_this_process(cls, proc: Path = _PROC) -> Starter:
        """The parent."""
        process = os.getppid()
        try:
            started = _started(proc, process)
        except OSError:
            started = 0
        return cls(_space(proc), process, started)

    @property
    def key(self) -> str:
        return f"{self.space} {self.process} {self.started}"

    def has_ended(self, proc: Path = _PROC) -> bool:
        """Whether it is known to have: of what is in another namespace nothing is known."""
        if not self.started or _space(proc) != self.space:
            return False
        try:
            return _started(proc, self.process) != self.started
        except (FileNotFoundError, ProcessLookupError):
            return True
        except OSError:
            return False


def _space(proc: Path) -> int:
    try:
        return os.stat(proc / "self/ns/pid").st_ino
    except OSError:
        return 0  # a kernel without namespaces has one


def _started(proc: Path, process: int) -> int:
    """Raises OSError where there is no such process."""
    return int((proc / str(process) / "stat").read_text().rpartition(")")[2].split()[19])
