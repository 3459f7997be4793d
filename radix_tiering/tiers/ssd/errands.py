"""What goes to the I/O thread besides transfers, and what comes back from it besides their ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ...base.runner import Flag


class IoErrand:
    """A function to run on the I/O thread, and what became of it."""

    def __init__(self, function: Callable[[], Any], ended: Flag) -> None:
        self._function = function
        self.ended = ended
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self._function()
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that asked
            self.error = error
        self.ended.set()


class DeviceNews(NamedTuple):
    """What a device does no more."""

    device: int
    reason: str
    is_out: bool  # it serves nothing any more; else it takes nothing new, and serves what it has
