"""What goes wrong in a world, what operators do, and what becomes of leases."""

from __future__ import annotations

import random

from swift_tiers.radix_tiering.bus.contract.commands import CapTier, Drop, Pin, ReadmitDevice, Unpin
from swift_tiers.radix_tiering.lending.leases import LeaseKey
from swift_tiers.radix_tiering.tiers.ssd.device_state import FIRST_REST
from swift_tiers.radix_tiering.tiers.ssd.ssd_tier import SsdTier
from swift_tiers.radix_tiering.way import sweeps

from .stacks import obey
from .state import WorldState

#: Sets of devices of the model that a device is put into. Those that end by themselves, with the device out of
#: service or full, are drawn more often.
DEVICE_FAULTS = ("lost", "silent", "failing", "failing", "failing", "full", "full", "lying")


class Troublemaker:
    """The actions of `plan.TROUBLE`, by their names."""

    def __init__(self, state: WorldState) -> None:
        self._state = state

    def flush(self, draw: random.Random) -> None:
        state = self._state
        everything, began = draw.random() < 0.5, state.moment
        state.tell("flushes everything" if everything else "flushes memory")
        flushed = sweeps.run(state.stack.flush_steps("all" if everything else "memory"))
        if state.store is not None:
            return  # it has what others use, and is never emptied
        if everything or state.array is None:  # without devices, memory is everything
            state.flushed_at = max(state.flushed_at, began)
            if flushed.durable:
                state.flushed_for_good_at = max(state.flushed_for_good_at, began)

    def device(self, draw: random.Random) -> None:
        """One gets into trouble, and out of it a while later, perhaps; or one that does not serve, or takes nothing, is
        taken back."""
        array, ssd = self._state.array, self._state.stack.tiers.get("ssd")
        if array is None or len(array.sizes) < 2 or not isinstance(ssd, SsdTier):
            return
        idle = [number for number, device in enumerate(ssd.snapshot()[1]) if not device.takes_pages]
        if idle and draw.random() < 0.5:
            self._take_back(draw, ssd, draw.choice(idle))
            return
        name = draw.choice(DEVICE_FAULTS)
        number = draw.randrange(len(array.sizes))
        getattr(array, name).add(number)
        self._state.tell(f"device {number} is {name}")
        self._state.happened[f"device {name}"] += 1
        if draw.random() < 0.4:
            self._state.runner.sleep(draw.random() * 0.1)
            if not ssd.snapshot()[1][number].takes_pages:
                self._take_back(draw, ssd, number)

    def _take_back(self, draw: random.Random, ssd: SsdTier, number: int) -> None:
        """It is mended, mostly, and readmitted, or left alone until it is asked again."""
        state = self._state
        if state.array is not None and draw.random() < 0.8:
            state.array.mend(number)
        if draw.random() < 0.5:
            state.tell(f"device {number} is left alone until it is asked again")
            state.runner.sleep(FIRST_REST + 3.0)
            state.happened["device comes back"] += ssd.snapshot()[1][number].takes_pages
        else:
            told = obey(state.stack, ReadmitDevice(device=number))
            state.tell(f"device {number} is readmitted: {told}")
            state.happened["device readmitted"] += isinstance(told, str)

    def damage_memory(self, draw: random.Random) -> None:
        stack = self._state.stack
        with stack.table.lock:
            for page in stack.table.listed():
                if page.resident and not page.pins and page.digest is not None:
                    self._state.tell(f"damages the page in slot {page.slot} of host memory")
                    stack.host.page(page.slot)[3] ^= 0x40
                    return

    def damage_disk(self, draw: random.Random) -> None:
        if self._state.array is not None:
            image = draw.choice(self._state.array.images)
            at = draw.randrange(131_072, image.nbytes)
            self._state.tell(f"flips a bit of byte {at} of a device")
            image[at] ^= 1

    def drop(self, draw: random.Random) -> None:
        keys = self._state.prompt(draw)
        self._state.tell(f"drops {self._state.words(keys)}")
        obey(self._state.stack, Drop(page=keys[-1].hex()))

    def pin(self, draw: random.Random) -> None:
        state = self._state
        keys = state.prompt(draw)
        key = keys[-1].hex()
        state.tell(f"pins {state.words(keys)}")
        if isinstance(obey(state.stack, Pin(page=key)), str) and draw.random() < 0.8:
            obey(state.stack, Unpin(page=key))

    def empty_attic(self, draw: random.Random) -> None:
        if self._state.attic is not None:
            self._state.tell("empties the attic")
            self._state.attic.lose_all()

    def cap(self, draw: random.Random) -> None:
        tier, limit = draw.choice(("host", "attic")), draw.choice((None, 4096 * draw.randint(1, 8)))
        self._state.tell(f"caps {tier} to {limit} bytes")
        obey(self._state.stack, CapTier(tier=tier, limit=limit))

    def clock(self, draw: random.Random) -> None:
        """The time of day jumps, either way."""
        seconds = draw.choice((-1, 1)) * draw.choice((0.1, 60.0, 86_400.0))
        self._state.tell(f"the time of day jumps by {seconds} s")
        self._state.runner.clock_off += seconds

    def starve(self, draw: random.Random) -> None:
        """A thread that could go on gets no turn."""
        if name := self._state.runner.starve(seconds := draw.random() * 0.5):
            self._state.tell(f"{name} gets no turn for {seconds:.3f} s")


class Lenders:
    """The actions of `plan.NEIGHBOURS`, by their names. None of them happens where there is no lent memory."""

    def __init__(self, state: WorldState) -> None:
        self._state = state

    def lend(self, draw: random.Random) -> None:
        if (peer := self._state.peer) is not None:
            slots, donor = draw.randint(1, 8), draw.choice(("d1", "d2"))
            self._state.tell(f"{donor} lends {slots} slots")
            self._state.leases.append(peer.lend(slots, donor))
            self._count("lend")

    def recall(self, draw: random.Random) -> None:
        self._recall(draw, in_time=True)

    def late(self, draw: random.Random) -> None:
        """A lease is over before anything could be saved."""
        self._recall(draw, in_time=False)

    def _recall(self, draw: random.Random, *, in_time: bool) -> None:
        if (peer := self._state.peer) is not None and self._state.leases:
            lease = self._leave(draw)
            self._state.tell(f"lease {lease.lease} is recalled {'in time' if in_time else 'too late'}")
            peer.recall(lease, in_time=in_time)
            self._count("recall" if in_time else "late")

    def end(self, draw: random.Random) -> None:
        if (peer := self._state.peer) is not None and self._state.leases:
            lease = self._leave(draw)
            self._state.tell(f"lease {lease.lease} ends")
            peer.end(lease)
            self._count("end")

    def hold(self, draw: random.Random) -> None:
        """The lent memory does nothing for a while."""
        if (peer := self._state.peer) is not None:
            self._state.tell("lent memory does nothing for a while")
            peer.hold(True)
            self._state.runner.sleep(draw.random() * 0.01)
            peer.hold(False)
            self._count("hold")

    def _leave(self, draw: random.Random) -> LeaseKey:
        leases = self._state.leases
        return leases.pop(draw.randrange(len(leases)))

    def _count(self, name: str) -> None:
        self._state.happened[f"lease {name}"] += 1
