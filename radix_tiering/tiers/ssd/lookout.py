"""The thread "ssd-look": asks the system whether devices are still there, so that nobody who serves waits for it.

Of a local device the system knows at once. Where a file lies on a server that has gone, as over NFS, whoever asks may
stand still for minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...base.runner import Runner
from .arrays.devices import DeviceArray

#: How long the end of a process waits for an answer that is due.
CLOSE_SECONDS = 1.0


class Lookout:
    """Asks for one device after the other. Any thread may call it; `gone` is called on its own threads."""

    def __init__(self, array: DeviceArray, gone: Callable[[int], None], runner: Runner) -> None:
        """`gone(device)` for one of which the system says so."""
        self._array, self._gone = array, gone
        self._runner = runner
        self._lock = runner.lock()
        self._wake = runner.condition(self._lock)
        self._waiting: list[int] = []  # devices to be asked for
        self._asked: tuple[int, float] | None = None  # the one that is, and since when
        self._watch = 0  # of threads that stood still and were left behind; each knows its own number
        self._ended = False
        self._begin()

    def _begin(self) -> None:
        number = self._watch
        self._thread = self._runner.thread(lambda: self._run(number), "ssd-look")
        self._thread.start()

    def ask(self, devices: Sequence[int]) -> None:
        """Ask for these next, and no more for others: a thread that waits for an answer about one is left behind."""
        with self._wake:
            self._waiting = list(devices)
            self._wake.notify_all()
            if self._asked is None or self._asked[0] in devices:
                return
            self._asked = None
            self._watch += 1
        self._begin()

    def silent(self, device: int, since: float) -> bool:
        """Whether the system was asked for it before `since`, and has not answered."""
        with self._lock:
            return self._asked is not None and self._asked[0] == device and self._asked[1] < since

    def _run(self, number: int) -> None:
        while (device := self._next(number)) is not None:
            there = self._array.present(device)
            with self._lock:
                if self._watch != number:
                    return  # it was given up meanwhile
                self._asked = None
            if not there:
                self._gone(device)

    def _next(self, number: int) -> int | None:
        """The next device to be asked for; None when there is an end."""
        with self._wake:
            while not self._waiting and not self._ended and self._watch == number:
                self._wake.wait()
            if self._ended or self._watch != number:
                return None
            self._asked = self._waiting.pop(0), self._runner.monotonic()
            return self._asked[0]

    def close(self) -> None:
        """Ask for nothing more, and wait for the answer that is due, unless the system stands still."""
        with self._wake:
            self._ended = True
            self._wake.notify_all()
        self._thread.join(CLOSE_SECONDS)
