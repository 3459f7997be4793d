"""Any sequence of calls, faults, closings and crashes, compared with a dictionary."""

from __future__ import annotations

import errno

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from swift_tiers.radix_tiering.tiers.ssd import Operation, Service, StoredPage
from swift_tiers.radix_tiering.tiers.testing.memory_array import MemoryArray
from swift_tiers.radix_tiering.tiers.tier import ReadOutcome

from support.examples import examples
from support.faulty_array import Fail, Fault, FaultyArray
from support.silent import wait_for

SLOTS = 6
LENGTHS = (1, 8192, 12_000, 24_577, 30_000)


class Model(RuleBasedStateMachine):
    """`pages`: what must be readable. `past`: every version ever written, which a crash may bring back."""

    rig = None  # set by the test, once

    @initialize(devices=st.integers(1, 4), seed=st.integers(0, 100), verifiers=st.integers(0, 2), codes=st.booleans())
    def start(self, devices: int, seed: int, verifiers: int, codes: bool) -> None:
        self.verifiers, self.codes = verifiers, codes
        self.memory = self.rig.memory(devices, SLOTS, seed=seed)
        self.pages: dict[tuple[bytes, int], tuple[StoredPage, int]] = {}
        self.past: dict[tuple[bytes, int], dict[int, int]] = {}  # name -> generation -> version
        self.least: dict[bytes, int] = {}  # namespace -> first generation that a flush did not touch
        self.version = 0
        self.open()

    def open(self) -> None:
        self.array = FaultyArray(self.memory)
        self.lost: list[int] = []  # devices
        self.failing: set[int] = set()
        self.stripes = self.rig.open(
            self.array,
            verifiers=self.verifiers,
            codes=self.codes,
            on_device_out=lambda device, reason: self.lost.append(device),
        )
        for namespace in (self.rig.NAMESPACE, self.rig.OTHER):
            self.stripes.register_namespace(namespace, "model")
        self.reserved: list = []

    def out(self) -> set[int]:
        return {state.device for state in self.stripes.status().devices if state.service is Service.OUT}

    def settle(self) -> None:
        """Wait until what was under way has ended; drop what a lost device took along, as a user of the stripe set
        does."""
        self.stripes._io.call(lambda: None)  # whatever was to be told before that has been told
        wait_for(lambda: not any(state.slots.held for state in self.stripes._devices if state.slots is not None))
        while self.lost:
            device = self.lost.pop()
            for name in [name for name, (page, _) in self.pages.items() if page.uses(device)]:
                self.stripes.release(self.pages.pop(name)[0].placement)

    namespaces = st.booleans()

    @rule(other=namespaces, number=st.integers(0, 4), length=st.sampled_from(LENGTHS))
    def put(self, other: bool, number: int, length: int) -> None:
        namespace = self.rig.OTHER if other else self.rig.NAMESPACE
        name = (namespace, number)
        self.version += 1
        free, generation = self.stripes.free_units, self.stripes._next_generation
        stored, reason = self.rig.write(
            self.stripes, self.rig.record(number, length, namespace), self.rig.content(number, self.version, length)
        )
        self.settle()
        if stored is None:
            assert reason != "full" or free < self.stripes.units(length)
            if reason != "full":
                self.past.setdefault(name, {})[generation] = self.version
            return
        assert stored.generation == generation
        units = self.stripes.units(length)
        is_coded = self.codes and self.version % 3 and not length % 2
        # Half of it as it is, and a hundred bytes that say that the other half is always the same.
        assert len(stored.placement) == (min(units, self.stripes.units(length // 2 + 100)) if is_coded else units)
        self.past.setdefault(name, {})[generation] = self.version
        if name in self.pages:
            self.stripes.release(self.pages[name][0].placement)
        self.pages[name] = (stored, self.version)

    @precondition(lambda self: self.pages)
    @rule(data=st.data())
    def read(self, data) -> None:
        name = data.draw(st.sampled_from(sorted(self.pages)))
        stored, version = self.pages[name]
        outcome, got = self.rig.read(self.stripes, stored)
        assert outcome is ReadOutcome.OK
        assert (got == self.rig.content(name[1], version, stored.record.length)).all()

    @precondition(lambda self: self.pages)
    @rule(data=st.data())
    def release(self, data) -> None:
        name = data.draw(st.sampled_from(sorted(self.pages)))
        self.stripes.release(self.pages.pop(name)[0].placement)

    @rule(length=st.sampled_from(LENGTHS))
    def reserve(self, length: int) -> None:
        placement = self.stripes.reserve(length)
        if placement is not None:
            self.reserved.append(placement)

    @precondition(lambda self: self.reserved)
    @rule()
    def give_up(self) -> None:
        self.stripes.release(self.reserved.pop())

    @rule(other=namespaces)
    def flush(self, other: bool) -> None:
        namespace = self.rig.OTHER if other else self.rig.NAMESPACE
        generation = self.stripes._next_generation
        if not self.stripes.flush_namespace(namespace):
            return
        self.least[namespace] = generation
        for name in [name for name in self.pages if name[0] == namespace]:
            stored, _ = self.pages.pop(name)
            assert self.rig.read(self.stripes, stored)[0] in (ReadOutcome.FLUSHED, ReadOutcome.DEVICE_GONE)
            self.stripes.release(stored.placement)

    @precondition(lambda self: len(self.out()) + 1 < len(self.memory.images))
    @rule(data=st.data())
    def fail_a_device(self, data) -> None:
        device = data.draw(st.integers(0, len(self.memory.images) - 1))
        self.array.add(Fault(Fail(errno.EIO), device=device, operation=Operation.WRITE))
        self.failing.add(device)

    @precondition(lambda self: self.out())
    @rule(well=st.booleans())
    def take_a_device_back(self, well: bool) -> None:
        """One that is out and let go of: where it is well, it is in service, with nothing on it but reservations."""
        self.settle()
        device = min(self.out())
        self.stripes.let_go(device)
        if well:
            self.array.clear()
            self.failing.clear()
        reason = self.stripes.readmit(device)
        assert bool(reason) == (device in self.out()) == (device in self.failing), reason

    @rule(clean=st.booleans(), codes=st.booleans())
    def close_and_open(self, clean: bool, codes: bool) -> None:
        self.codes = codes  # which says how pages are written, and not which can be read
        self.settle()
        before, failed = dict(self.pages), self.array.struck
        self.stripes.close([stored for stored, _ in self.pages.values()] if clean else None)
        complete = clean and not any(self.array.struck) and not failed and not self.out()
        self.memory = MemoryArray.from_images(self.memory.images, seed=self.version)
        self.open()
        self.pages = {}
        for page in self.stripes.recovered:
            name = (page.record.namespace, page.record.key[0])
            assert name not in self.pages
            assert page.generation >= self.least.get(name[0], 0), "flushed, and yet recovered"
            self.pages[name] = (page, self.past[name][page.generation])
        if complete:
            assert {name: version for name, (_, version) in self.pages.items()} == {
                name: version for name, (_, version) in before.items()
            }
        elif not failed:
            for name, (stored, version) in before.items():
                assert name in self.pages, "a crash lost a page that had been written"
                assert self.pages[name][1] == version or not clean
                assert self.pages[name][0].generation >= stored.generation

    @invariant()
    def space_is_exact(self) -> None:
        if not hasattr(self, "stripes"):
            return
        self.settle()
        gone = self.out()
        held = [stored.placement for stored, _ in self.pages.values()] + self.reserved
        used = sum(device not in gone for placement in held for device, _ in placement)
        status = self.stripes.status()
        assert status.capacity_units == SLOTS * (len(self.memory.images) - len(gone))
        assert status.free_units == status.capacity_units - used
        assert status.free_units == sum(device.free_units for device in status.devices)

    def teardown(self) -> None:
        if hasattr(self, "stripes"):
            self.settle()
            for stored, _ in self.pages.values():
                assert self.rig.read(self.stripes, stored)[0] is ReadOutcome.OK
            self.stripes.close(None)
            assert all(state.slots is None or not state.slots.held for state in self.stripes._devices)


@pytest.fixture(autouse=True)
def _rig_of_the_model(rig) -> None:
    Model.rig = rig


class TestModel(Model.TestCase):  # type: ignore[name-defined]
    settings = settings(max_examples=examples(80), stateful_step_count=30, deadline=None, derandomize=True)
