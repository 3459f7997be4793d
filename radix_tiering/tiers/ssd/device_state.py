"""One device of a stripe set, as the engine sees it: in service or not, and why.

    OPENING --index read--> IN --drain, no room--> DRAINING --fault--> OUT        IN --fault--> OUT
                             ^------- again --------'                  |
                             ^------- again, if it answers ------------'

A device that had no room is written to again after a while, which shows whether there is some. One that is OUT is asked
for its superblock after a while, and is in service again, with nothing on it, once it has answered and could be
written, unless it has gone for good. One that an operator drains gets nothing until an operator takes that back, also
when it has been out meanwhile. The stripe set's lock guards all of this.
"""

from __future__ import annotations

import errno
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from ...base.rest import Rest
from ...figures.counters import DeviceCounters
from .layout import Geometry
from .slots import SlotMap

if TYPE_CHECKING:
    from .units import Units

#: So many reads in a row that end in an I/O error take a device out of service.
READ_ERROR_LIMIT = 3
#: Errors after which nothing more is to be expected of a device.
GONE = frozenset({errno.ENODEV, errno.ENXIO, errno.ESTALE, errno.EBADF})
#: Errors of writes after which nothing new is to be written there, and what is there can be read: file systems without
#: room, as where blocks are shared with a copy, and those that are for reading alone by now.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
#: Errors that are this machine's, and not the device's: one page is not written, or not read now.
PASSING = frozenset({errno.ENOMEM, errno.EAGAIN, errno.EINTR})

#: How long a device is left alone that had no room, or went out, seconds: doubled up to the most where that was too
#: short.
FIRST_REST, MOST_REST = 60.0, 3600.0


#: The reason of a device that an operator drains.
DRAINED = "draining"


class Service(Enum):
    OPENING = "opening"  # what it has is not known yet: it is neither read nor written
    IN = "in service"
    DRAINING = "draining"  # serves its pages, gets no new ones
    OUT = "out"


class DeviceStatus(NamedTuple):
    """A snapshot of one device, for operators."""

    device: int  # position in the array
    service: Service
    reason: str  # why it is not in service; empty if it is
    capacity_units: int
    free_units: int  # 0 unless it is in service
    used_units: int  # reserved or holding pages
    in_flight: int
    counted: DeviceCounters  # a copy


def write_failed(error: int) -> str:
    """For people."""
    return f"write failed: {errno.errorcode.get(error, error)}"


class DeviceState:
    """Condition of one device; what it has done is counted in `Units`."""

    def __init__(self, device: int, device_index: int, geometry: Geometry | None, slots: SlotMap | None) -> None:
        self.device = device
        self.device_index = device_index
        self.geometry = geometry
        self.slots = slots
        self.service = Service.IN
        self.reason = ""
        #: Of one that is OUT: nobody has a page on it any more.
        self.is_let_go = False
        #: An operator wants nothing new there.
        self.is_drained = False
        self._for_good = False
        self._is_asked = False
        self._without_room, self._out = Rest(FIRST_REST, MOST_REST), Rest(FIRST_REST, MOST_REST)
        self._tried_at = self._back_at = float("-inf")

    def shut(self, reason: str, now: float) -> bool:
        """-> DRAINING: since it has no room, or is `DRAINED`, which one without room may become, too. Whether it was
        IN."""
        was, by_command = self.service, reason == DRAINED
        self.is_drained = self.is_drained or by_command
        if was is Service.IN or (was is Service.DRAINING and by_command):
            self.service, self.reason = Service.DRAINING, reason
        if was is Service.IN and not by_command:
            if now - self._tried_at > self._without_room.seconds:
                self._without_room.went_well()
            self._without_room.failed(now)
        return was is Service.IN

    def lose(self, reason: str, now: float, *, for_good: bool = False) -> None:
        """-> OUT. `for_good`: nothing is to be expected of it any more; of one that is OUT, that."""
        self._for_good = self._for_good or for_good
        if self.service is Service.OUT:
            return
        self.service, self.reason, self.is_let_go = Service.OUT, reason, False
        if now - self._back_at > MOST_REST:
            self._out.went_well()
        self._out.failed(now)

    def tries(self, now: float) -> bool:
        """Whether it had no room, and it is time to try."""
        return self.service is Service.DRAINING and not self.is_drained and self._without_room.is_over(now)

    def serve(self, now: float) -> None:
        """-> IN, once more."""
        if self.service is Service.OUT:
            self._back_at = now
        self.service, self.reason, self._tried_at = Service.IN, "", now
        self._is_asked = self.is_drained = False

    def asks(self, now: float) -> bool:
        """Whether it is OUT, may come back by itself, and it is time to ask it. It is asked then, and not again until
        that `has_answered`."""
        if self.service is not Service.OUT or self.kept_out or self.is_drained or not self._out.is_over(now):
            return False
        was_asked, self._is_asked = self._is_asked, True
        return not was_asked

    def has_answered(self, now: float) -> None:
        """What it was asked. If it is OUT still, it is asked again later."""
        if self._is_asked and self.service is Service.OUT:
            self._out.failed(now)
        self._is_asked = False

    @property
    def kept_out(self) -> str:
        """Why a device that is OUT cannot come back to an open stripe set, or not yet; empty if it may, or is not
        OUT."""
        if self.service is not Service.OUT:
            return ""
        if self.slots is None:
            return "it was not in service since the server was started"
        if self._for_good:
            return "it has gone for good"
        return "" if self.is_let_go else "pages that were on it are still being given up"

    def failed(self, units: Units, writing: bool, error: int) -> tuple[str, bool]:
        """Count a request that failed. Why the device has to go out of service, or an empty string; and whether nothing
        new is to come there, though it serves what it has."""
        in_a_row = units.count_error(self.device, writing, in_a_row=error not in PASSING)
        if error in PASSING:
            return "", False
        if writing:
            return "" if error in FULL else write_failed(error), error in FULL
        if error in GONE or in_a_row >= READ_ERROR_LIMIT:
            return f"{in_a_row} reads in a row failed: {errno.errorcode.get(error, error)}", False
        return "", False

    @property
    def slot_count(self) -> int:
        """Slots it has; 0 of one that never was in service."""
        if self.service is Service.OPENING and self.geometry is not None:
            return self.geometry.slot_count
        return self.slots.count if self.slots is not None else 0

    def status(self, units: Units) -> DeviceStatus:
        return DeviceStatus(
            self.device,
            self.service,
            self.reason,
            self.slot_count,
            self.slots.free if self.slots is not None and self.service is Service.IN else 0,
            self.slots.count - self.slots.free if self.slots is not None else 0,
            units.in_flight(self.device),
            units.counters(self.device),
        )
