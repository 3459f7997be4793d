"""One restore under way: computed from the front and loaded from the back until both meet (CacheFlow, section 3.1).

A flight is made of units: pages of a prefix if it is restored token-wise, layers if layer-wise. A unit is

    ABSENT --take--> COMPUTING --computed--> DONE
    ABSENT --take_load--> LOADING --arrived--> PRESENT --take--> DONE
                          LOADING --failed, abandon--> ABSENT, and never loaded again

PRESENT is where a unit can be copied to the device at once, DONE where it has been given to the request for good. A
plan says where the two pointers are expected to meet; here they meet where they do. No unit is both computed and waited
for: one that is being loaded when the compute pointer reaches it is waited for until it is there, has failed, or is
abandoned.

Until the request begins (its first `take`, or `begin`), nothing on the device is its own: what the device has of its
units is what others left there, and goes when the device needs the room. So that is no state of a unit, but a remark
(`observe`), of which the last one counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

import numpy as np


class Unit(IntEnum):
    """The state of a unit."""

    ABSENT = 0
    LOADING = 1
    PRESENT = 2
    COMPUTING = 3
    DONE = 4


class Step(NamedTuple):
    """What the device does next: units `[front, jump)` are copied in, and `[jump, end)` computed behind them.

    Without anything to compute (`end == jump`) the restore holds, unless `jump` is its end.
    """

    jump: int
    end: int


class Flight:
    """The units of one request. Pure; not thread-safe."""

    def __init__(self, sources: Iterable[str | None] = (), *, lead: int = 0, island: int = 1) -> None:
        """`sources[i]`: where unit `i` can be loaded from; None: nowhere. `lead`, `island`: see `steer`."""
        self._sources: list[str | None] = []
        self._state = bytearray()
        #: By source: 1 where a unit is absent and can be loaded from it; what lies behind its end cannot.
        self._wanted: dict[str, bytearray] = {}
        self._reserved = 0
        self._begun = False  # the request has device memory of its own
        self._observed = 0  # units from the start that the device has, until it begins
        for source in sources:
            self.append(source)
        self.steer(lead, island)

    def append(self, source: str | None) -> int:
        """One more unit at the end; its number."""
        unit = len(self._state)
        self._state.append(Unit.ABSENT)
        self._sources.append(source)
        if source is not None:
            wanted = self._wanted.setdefault(source, bytearray())
            wanted.extend(bytes(unit - len(wanted)))
            wanted.append(1)
        return unit

    def append_all(self, source: str, count: int, state: Unit) -> None:
        """So many more units at the end, of this source: to be loaded from it (ABSENT), on their way, or PRESENT."""
        first = len(self._state)
        self._state.extend(bytes([state]) * count)
        self._sources.extend([source] * count)
        wanted = self._wanted.setdefault(source, bytearray())
        wanted.extend(bytes(first - len(wanted)) + bytes([state == Unit.ABSENT]) * count)

    def redirect(self, units: range, source: str, state: Unit) -> None:
        """They come from another source instead: to be loaded from it (ABSENT), or there at once (PRESENT). Raises
        ValueError where one of them is computed, or with the device."""
        first, end = units.start, units.stop
        if self._state[first:end].strip(_ABSENT_LOADING_OR_PRESENT):
            raise ValueError(f"not all units of [{first}, {end}) can still come from anywhere")
        self._set(first, end, state)
        self._sources[first:end] = [source] * (end - first)
        wanted = self._wanted.setdefault(source, bytearray())
        wanted.extend(bytes(max(0, end - len(wanted))))
        wanted[first:end] = bytes([state == Unit.ABSENT]) * (end - first)

    def steer(self, lead: int, island: int = 1) -> None:
        """The first `lead` units are loaded first, front to back, and computed only where that fails. Fewer than
        `island` units that have arrived between two absent ones are computed with them: a jump would cost more than it
        saves. May be changed at any time."""
        if not 0 <= lead <= len(self):
            raise ValueError(f"a lead of {lead} in a flight of {len(self)} units")
        self._lead = lead
        self._island = island

    def __len__(self) -> int:
        return len(self._state)

    def __getitem__(self, unit: int) -> Unit:
        return Unit(self._state[unit])

    @property
    def lead(self) -> int:
        """Units from the start that are loaded, not computed."""
        return self._lead

    @property
    def island(self) -> int:
        """Fewer units than these between two absent ones are computed with them, not jumped over."""
        return self._island

    @property
    def front(self) -> int:
        """Units from the start that the device has, or computes now. It may lose them until the request begins."""
        return max(self._observed, len(self) - len(self._state.lstrip(_DONE_OR_COMPUTING)))

    @property
    def next_state(self) -> Unit | None:
        """The state of the first unit that the device has not got; None: it has them all."""
        front = self.front
        return self[front] if front < len(self) else None

    @property
    def done(self) -> bool:
        """Nothing is left to be computed or loaded; what is PRESENT has yet to be copied in."""
        return not self._state[self._observed :].strip(_DONE_OR_PRESENT)

    @property
    def absent(self) -> int:
        """Units that are neither there nor on their way."""
        return self._state.count(Unit.ABSENT, self._observed)

    @property
    def loading(self) -> int:
        return self._state.count(Unit.LOADING)

    @property
    def computing(self) -> int:
        return self._state.count(Unit.COMPUTING)

    @property
    def present(self) -> int:
        """Units that can be copied to the device, and have not been."""
        return self._state.count(Unit.PRESENT)

    def states(self) -> bytes:
        """The `Unit` that each is, a copy."""
        return bytes(self._state)

    @property
    def absent_span(self) -> tuple[int, int]:
        """From the first absent unit to behind the last one; (0, 0) without any."""
        first = self._state.find(Unit.ABSENT, self._observed)
        return (first, self._state.rfind(Unit.ABSENT) + 1) if first >= 0 else (0, 0)

    @property
    def missing_end(self) -> int:
        """Behind the last unit that the device has not got, and that has not arrived."""
        return len(self._state.rstrip(_DONE_OR_PRESENT))

    def source(self, unit: int) -> str | None:
        """Where it can still be loaded from, or is being or was loaded from."""
        return self._sources[unit]

    def whereabouts(self, start: int, here: str) -> list[str | None]:
        """Where each unit from `start` on comes from; `here` for what has arrived, None for what has to be computed."""
        found, arrived = self._sources[start:], self._state[start:].translate(_IS_PRESENT)
        first = arrived.find(1)
        while first >= 0:
            end = arrived.find(0, first)
            end = len(arrived) if end < 0 else end
            found[first:end] = [here] * (end - first)
            first = arrived.find(1, end)
        return found

    def arrived_from(self, start: int) -> int:
        """How many units from `start` on can be copied to the device, one after the other."""
        return self._run(start, Unit.PRESENT)

    def arrived_all(self, start: int, end: int) -> bool:
        """Whether every one of these units can be copied to the device."""
        return not self._state[start:end].strip(_PRESENT)

    def to_compute(self, start: int, end: int) -> bool:
        """Whether one of these units is to be computed, since it cannot be loaded from anywhere."""
        return any(
            state == Unit.ABSENT and source is None
            for state, source in zip(self._state[start:end], self._sources[start:end], strict=True)
        )

    def units(self, state: Unit, start: int = 0, end: int | None = None) -> Iterator[int]:
        """Those of units `[start, end)`, or to the last one, in this state, from the first on; for a state that few are
        in."""
        end = len(self) if end is None else end
        unit = self._state.find(state, start, end)
        while unit >= 0:
            yield unit
            unit = self._state.find(state, unit + 1, end)

    def awaited(self, start: int, end: int) -> set[str]:
        """The sources that are bringing some of units `[start, end)`."""
        return {source for unit in self.units(Unit.LOADING, start, end) if (source := self._sources[unit]) is not None}

    def sources(self) -> Iterator[str]:
        """Those that have something to load still."""
        return (source for source, wanted in self._wanted.items() if 1 in wanted)

    def absent_from(self, source: str, start: int = 0) -> int:
        """Absent units from `start` on that this source can bring."""
        return self._wanted.get(source, b"").count(1, max(start, self._observed))

    def lacks(self, source: str) -> bool:
        """Whether this source can bring an absent unit."""
        return self._wanted.get(source, b"").find(1, self._observed) >= 0

    def wanted(self, source: str, start: int, end: int) -> np.ndarray:
        """Which of units `[start, end)`, that may lie behind the last one, are absent and can come from this source:
        bool [units]."""
        part = self._wanted.get(source, b"")[start:end]
        return np.frombuffer(part + bytes(end - start - len(part)), bool)

    def computed_before(self, start: int, end: int) -> int:
        """Behind the last of units `[start, end)` that can be loaded from nowhere; `start` if there is none."""
        backwards = self._sources[start:end][::-1]
        return end - backwards.index(None) if None in backwards else start

    # ---- the compute pointer ----

    def step(self, most: int) -> Step:
        """What the device should do next; at most `most` units are computed."""
        jump = self.front
        if self.computing:
            return Step(jump, jump)
        jump += self._run(jump, Unit.PRESENT)
        if jump < self._lead and self._sources[jump] is not None:
            return Step(jump, jump)
        return Step(jump, self._compute_end(jump, min(jump + most, len(self))))

    def reserve(self, end: int) -> None:
        """Leave the units before `end` to the compute pointer, which is about to take some of them: nothing more of
        them is loaded, but of the lead. The last word counts; 0 ends it."""
        self._reserved = end

    def take(self, step: Step) -> None:
        """Begin it. A step may reach less far than `step()` said, as where other ranks have got less.

        Raises ValueError if it copies what has not arrived, or computes what is being loaded.
        """
        front = self.front
        if not front <= step.jump <= step.end <= len(self) or self.computing:
            raise ValueError(f"{step} cannot be taken from {front} of {len(self)}")
        if self._state[front : step.jump].strip(_PRESENT):
            raise ValueError(f"not all units of [{front}, {step.jump}) have arrived")
        if self._state[step.jump : step.end].strip(_ABSENT_OR_PRESENT):
            raise ValueError(f"not all units of [{step.jump}, {step.end}) can be computed")
        self.begin(step.jump)
        self._set(step.jump, step.end, Unit.COMPUTING)
        self._reserved = 0

    def computed(self) -> None:
        """What was being computed is done."""
        self._state = self._state.replace(_COMPUTING, _DONE)

    def observe(self, front: int) -> None:
        """The device has the first `front` units now, wherever they came from: they are neither computed nor loaded
        while that is so. It may lose them again until the request begins: then the next remark says so, and they are
        what they were. Raises ValueError where there are not so many."""
        if not 0 <= front <= len(self):
            raise ValueError(f"{front} of {len(self)} units")
        if self._begun:
            self._set(0, front, Unit.DONE)
        else:
            self._observed = front

    def begin(self, front: int) -> None:
        """The request has device memory of its own from now on, and in it the first `front` units."""
        self._begun, self._observed = True, 0
        self.observe(front)

    # ---- the I/O pointer ----

    def next_load(self, source: str, most: int = 1) -> range:
        """What this source should load next, at most `most` units: of the lead from the front, then the last of the
        rest; neighbours all of them. Empty if there is nothing."""
        wanted = self._wanted.get(source)
        if wanted is None:
            return range(0)
        first = wanted.find(1, self._observed, self._lead)
        if first >= 0:
            end = min(first + most, self._lead)
            return range(first, first + len(wanted[first:end]) - len(wanted[first:end].lstrip(b"\1")))
        least = max(self._reserved, self._observed)
        end = wanted.rfind(1, least) + 1
        part = wanted[max(least, end - most) : end]
        return range(end - (len(part) - len(part.rstrip(b"\1"))), end)

    def take_load(self, units: range) -> None:
        """-> LOADING. Raises ValueError unless all are absent and have a source."""
        for unit in units:
            self._move(unit, Unit.ABSENT, Unit.LOADING)
            source = self._sources[unit]
            if source is None:
                raise ValueError(f"unit {unit} cannot be loaded from anywhere")
            self._wanted[source][unit] = 0

    def arrived(self, unit: int) -> None:
        """It can be copied to the device. Too late if it was abandoned: then nothing changes."""
        if self._state[unit] == Unit.LOADING:
            self._state[unit] = Unit.PRESENT

    def failed(self, unit: int) -> None:
        """It will not come, or no longer can be copied: it is to be computed, unless the device has it already."""
        if self._state[unit] in (Unit.LOADING, Unit.PRESENT):
            self._state[unit] = Unit.ABSENT
        self._forsake(unit)

    def fail_from(self, start: int) -> None:
        """`failed`, for every unit from this one on."""
        gone = bytes([Unit.LOADING, Unit.PRESENT])
        self._state[start:] = self._state[start:].translate(bytes.maketrans(gone, bytes([Unit.ABSENT]) * len(gone)))
        self._sources[start:] = [None] * (len(self) - start)
        for wanted in self._wanted.values():
            wanted[start:] = bytes(max(0, len(wanted) - start))

    def abandon_loading(self, start: int = 0, end: int | None = None) -> int:
        """What is on its way of units `[start, end)`, or to the last one, is waited for no longer; how many that
        were."""
        end = len(self) if end is None else end
        loading = list(self.units(Unit.LOADING, start, end))
        for unit in loading:
            self.failed(unit)
        return len(loading)

    def abandon_source(self, source: str) -> int:
        """Nothing more is expected of a source: what it has not delivered is to be computed; how many units."""
        mine = [
            unit
            for unit, state in enumerate(self._state)
            if self._sources[unit] == source and state in (Unit.ABSENT, Unit.LOADING)
        ]
        for unit in mine:
            self.failed(unit)
        return len(mine)

    # ---- inside ----

    def _compute_end(self, start: int, limit: int) -> int:
        """How far computing can go from `start`: to the first unit that is on its way, or to units enough to jump."""
        end = start
        while end < limit:
            end += self._run(end, Unit.ABSENT)
            arrived = self._run(end, Unit.PRESENT)
            behind = end + arrived
            if not 0 < arrived < self._island or behind == len(self) or self._state[behind] != Unit.ABSENT:
                break
            end = behind
        # A step that would end with an island ends before it: the next one jumps.
        return start + len(self._state[start : min(end, limit)].rstrip(_PRESENT))

    def _run(self, start: int, state: Unit) -> int:
        """Units in `state` from `start` on."""
        rest = self._state[start:]
        return len(rest) - len(rest.lstrip(bytes([state])))

    def _forsake(self, unit: int) -> None:
        source = self._sources[unit]
        if source is not None:
            self._wanted[source][unit] = 0
            self._sources[unit] = None

    def _set(self, start: int, end: int, state: Unit) -> None:
        self._state[start:end] = bytes([state]) * (end - start)
        for wanted in self._wanted.values():
            end_here = min(end, len(wanted))
            wanted[start:end_here] = bytes(max(0, end_here - start))

    def _move(self, unit: int, before: Unit, after: Unit) -> None:
        if self._state[unit] != before:
            raise ValueError(f"unit {unit} is {self[unit].name}, not {before.name}")
        self._state[unit] = after


_IS_PRESENT = bytes(state == Unit.PRESENT for state in range(256))
_COMPUTING = bytes([Unit.COMPUTING])
_DONE = bytes([Unit.DONE])
_PRESENT = bytes([Unit.PRESENT])
_DONE_OR_COMPUTING = bytes([Unit.DONE, Unit.COMPUTING])
_DONE_OR_PRESENT = bytes([Unit.DONE, Unit.PRESENT])
_ABSENT_OR_PRESENT = bytes([Unit.ABSENT, Unit.PRESENT])
_ABSENT_LOADING_OR_PRESENT = bytes([Unit.ABSENT, Unit.LOADING, Unit.PRESENT])
