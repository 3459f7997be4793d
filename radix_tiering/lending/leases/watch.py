"""Notices the end of other processes at once, by the kernel's word."""

from __future__ import annotations

import os

import zmq


class ProcessWatch:
    """Has a poller wake when a process has ended, with all its threads and open files.

    Not for processes in another PID namespace, which have no number here: their leases end by time.
    """

    def __init__(self, poller: zmq.Poller) -> None:
        self._poller = poller
        self._descriptors: dict[int, int] = {}  # by process

    def add(self, process: int) -> None:
        """Watch a process, if that can be done. Raises ProcessLookupError if it has ended already."""
        if process <= 0 or process in self._descriptors:
            return
        try:
            descriptor = os.pidfd_open(process)
        except ProcessLookupError:
            raise
        except OSError:
            return  # a sandbox does not allow it
        self._descriptors[process] = descriptor
        self._poller.register(descriptor, zmq.POLLIN)

    def ended(self, ready: dict[object, int]) -> list[int]:
        """The processes that have ended, by what the poller says is ready. They are watched no more."""
        processes = [process for process, descriptor in self._descriptors.items() if descriptor in ready]
        for process in processes:
            self.drop(process)
        return processes

    def drop(self, process: int) -> None:
        descriptor = self._descriptors.pop(process, None)
        if descriptor is not None:
            self._poller.unregister(descriptor)
            os.close(descriptor)

    def close(self) -> None:
        for process in list(self._descriptors):
            self.drop(process)
