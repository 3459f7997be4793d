"""Whether devices are there is asked beside serving: a system that does not answer holds nobody up but who asks."""

from __future__ import annotations

import threading

import pytest

from swift_tiers.radix_tiering.base.virtual import VirtualRunner
from swift_tiers.radix_tiering.tiers.ssd.arrays.devices import DeviceArray
from swift_tiers.radix_tiering.tiers.ssd.arrays.wrapping import WrappingArray
from swift_tiers.radix_tiering.tiers.ssd.device_state import Service
from swift_tiers.radix_tiering.tiers.ssd.lookout import Lookout
from swift_tiers.radix_tiering.tiers.testing.memory_array import MemoryArray
from swift_tiers.radix_tiering.tiers.tier import ReadOutcome

from support.engine import in_virtual_time
from support.silent import wait_for


class Mount(MemoryArray):
    """What the system says of devices: nothing of those that hang."""

    def __init__(self, runner: VirtualRunner) -> None:
        super().__init__([4096] * 3)
        self.runner = runner
        self.hanging: set[int] = set()
        self.missing: set[int] = set()
        self.asked: list[int] = []
        self.gone: list[int] = []
        self.lookout = Lookout(self, self.gone.append, runner)

    def present(self, device: int) -> bool:
        self.asked.append(device)
        while device in self.hanging:
            self.runner.sleep(0.1)
        return device not in self.missing

    def wait(self, seconds: float = 1.0) -> None:
        self.runner.sleep(seconds)


on_a_mount = in_virtual_time(Mount, lambda mount: mount.lookout.close(), seeds=3, most_seconds=60.0)


@on_a_mount
def test_each_is_asked_for_and_those_that_have_gone_are_told(mount: Mount) -> None:
    mount.missing.add(1)
    mount.lookout.ask([0, 1, 2])
    mount.wait()
    assert mount.asked == [0, 1, 2]
    assert mount.gone == [1]


@on_a_mount
def test_a_device_of_which_nothing_is_said_is_silent_and_others_are_not(mount: Mount) -> None:
    mount.hanging.add(1)
    mount.lookout.ask([0, 1, 2])
    mount.wait(5.0)
    now = mount.runner.monotonic()
    assert [mount.lookout.silent(device, now - 4.0) for device in range(3)] == [False, True, False]
    assert not mount.lookout.silent(1, now - 6.0), "it was not asked for so early"
    mount.hanging.clear()
    mount.wait()
    assert not mount.lookout.silent(1, mount.runner.monotonic())
    assert mount.asked == [0, 1, 2]


@on_a_mount
def test_others_are_asked_for_once_one_is_given_up(mount: Mount) -> None:
    mount.hanging.add(0)
    mount.lookout.ask([0, 1])
    mount.wait()
    mount.lookout.ask([0, 1])
    mount.wait()
    assert mount.asked == [0], "it may still answer"
    mount.missing |= {0, 1}
    mount.lookout.ask([1])
    mount.wait()
    assert mount.asked == [0, 1]
    assert mount.gone == [1]
    mount.hanging.clear()
    mount.wait()
    assert mount.gone == [1], "what is said of a device that was given up comes too late"


@on_a_mount
def test_closing_waits_for_no_answer_that_never_comes(mount: Mount) -> None:
    mount.hanging.add(0)
    mount.lookout.ask([0])
    mount.wait()
    before = mount.runner.monotonic()
    mount.lookout.close()
    assert mount.runner.monotonic() - before < 5.0
    mount.hanging.clear()


class HangingMount(WrappingArray):
    """The system answers nothing about one device from some time on; the device still does what it is asked."""

    def __init__(self, inner: DeviceArray, device: int) -> None:
        super().__init__(inner)
        self._device = device
        self.hangs = False
        self.asked = threading.Event()
        self.answers = threading.Event()

    def present(self, device: int) -> bool:
        if self.hangs and device == self._device:
            self.asked.set()
            self.answers.wait()
        return super().present(device)


@pytest.fixture
def mount(rig):
    array = HangingMount(rig.memory(devices=3, slots=16), 1)
    yield array
    array.answers.set()


def test_pages_of_other_devices_are_read_while_the_system_says_nothing_of_one(rig, mount: HangingMount) -> None:
    stripes = rig.open(mount)
    stripes.register_namespace(rig.NAMESPACE, "one")
    pages = [rig.put(stripes, number, length=8192) for number in range(6)]
    mount.hangs = True
    assert mount.asked.wait(60.0)
    assert all(rig.read(stripes, page)[0] is ReadOutcome.OK for page in pages)
    assert [state.service for state in stripes.status().devices] == [Service.IN] * 3


def test_a_device_of_which_the_system_says_nothing_for_long_goes_out(rig, mount: HangingMount) -> None:
    out: list[tuple[int, str]] = []
    stripes = rig.open(mount, on_device_out=lambda device, reason: out.append((device, reason)))
    stripes.register_namespace(rig.NAMESPACE, "one")
    pages = [rig.put(stripes, number, length=8192) for number in range(6)]
    stripes._io.patience.seconds = 0.2
    mount.hangs = True
    wait_for(lambda: out)
    assert out == [(1, "no answer for 0.2 seconds")]
    assert {page.placement[0][0]: rig.read(stripes, page)[0] for page in pages} == {
        0: ReadOutcome.OK,
        1: ReadOutcome.DEVICE_GONE,
        2: ReadOutcome.OK,
    }
