"""The tier stack against a dictionary: any order of puts, restores, pins, flushes, device losses, damage and restarts.

What the model knows is which pages were ever put. The stack may have forgotten any of them, but what it gives must be
right, whole prefixes, and within its capacity; and when all is quiet nothing may be pinned or leaked.
"""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from swift_tiers.radix_tiering.held_page import HostState
from swift_tiers.radix_tiering.page import ROOT_KEY
from swift_tiers.radix_tiering.ssd.memory_array import MemoryArray

from support.engine import chain, check, close, content, crash, make_stack, memory_ssd, put, settle

PATHS = st.lists(st.integers(0, 2), min_size=1, max_size=7)


class StackMachine(RuleBasedStateMachine):
    held = Bundle("held")

    @initialize(
        host_pages=st.integers(2, 12),
        device_pages=st.integers(3, 20),
        devices=st.integers(1, 3),
        write=st.sampled_from(["through", "back"]),
        admission=st.sampled_from(["always", "reuse", "size"]),
        eviction=st.sampled_from(["lru", "lfu"]),
        with_ssd=st.booleans(),
    )
    def start(self, host_pages, device_pages, devices, write, admission, eviction, with_ssd):
        self.host_pages = host_pages
        self.policy = {
            "write": write, "ssd_admission": admission, "admission_tokens": 8, "eviction": eviction,
        }  # fmt: skip
        self.put_once: set[bytes] = set()
        self.lost_devices: set[int] = set()
        self.array = None
        if with_ssd:
            # Unit 4096 and header 4096: about 2 blocks for each page, besides the tables at the beginning.
            self.array = MemoryArray([262_144 + device_pages * 8192] * devices, seed=7)
        self.open()

    def open(self):
        ssd = memory_ssd(array=self.array) if self.array is not None else None
        self.stack = make_stack(host_pages=self.host_pages, ssd=ssd, policy=self.policy)
        self.restores = []

    @rule(path=PATHS)
    def put(self, path):
        keys = chain(*path)
        put(self.stack, keys)
        self.put_once.update(keys)

    @rule(path=PATHS, cut=st.integers(1, 6))
    def put_tail(self, path, cut):
        """As SGLang offers it: only what follows a node that is on the device."""
        keys = chain(*path)
        cut = min(cut, len(keys) - 1)
        if not cut:
            return
        put(self.stack, keys[cut:], parent=keys[cut - 1], depth=cut + 1)
        self.put_once.update(keys)

    @rule(path=PATHS, fill=st.booleans())
    def abort_put(self, path, fill):
        offered = self.stack.begin_put(chain(*path), ROOT_KEY, 1)
        if fill:
            for slot in offered.slots:
                self.stack.host.page(slot)[:] = 0xFF
        self.stack.abort_put(offered)

    @rule(path=PATHS, target=held)
    def restore(self, path):
        keys = chain(*path)
        restore = settle(self.stack, self.stack.restore(keys))
        assert restore.pages <= len(keys)
        assert set(keys[: restore.pages]) <= self.put_once, "a page that nobody put"
        self.restores.append((restore, keys))
        return restore, keys

    @rule(path=PATHS)
    def cancel(self, path):
        self.stack.restorer.release(self.stack.restore(chain(*path)))

    @rule(one=consumes(held))
    def release(self, one):
        restore, _ = one
        self.stack.restorer.release(restore)
        self.restores = [other for other in self.restores if other[0] is not restore]

    @rule(path=PATHS)
    def damage_host(self, path):
        """A byte of an unpinned page changes in host memory."""
        page = self.stack.table.find(self.stack.namespace.digest(), chain(*path)[-1])
        with self.stack.table.lock:
            if page is not None and page.host is HostState.RESIDENT and not page.pins and page.digest is not None:
                self.stack.host.page(page.slot)[3] ^= 0x40

    @rule(host=st.booleans(), ssd=st.booleans())
    def flush(self, host, ssd):
        self.stack.flush(host=host, ssd=ssd)

    @rule(device=st.integers(0, 2))
    def lose_device(self, device):
        if self.array is not None and device < len(self.array.sizes) and len(self.lost_devices) < 2:
            self.lost_devices.add(device)
            present = self.array.present
            lost = frozenset(self.lost_devices)
            self.array.present = lambda index: index not in lost and present(index)  # type: ignore[method-assign]

    @rule(clean=st.booleans())
    def restart(self, clean):
        for restore, _ in self.restores:
            self.stack.restorer.release(restore)
        if clean or self.array is None:
            check(self.stack)
            close(self.stack)
        else:
            crash(self.stack)  # what is on the devices has to be found
        if self.array is not None:
            # Devices that were lost come back blank, as new ones.
            images = [
                np.zeros_like(image) if device in self.lost_devices else image.copy()
                for device, image in enumerate(self.array.images)
            ]
            if len(self.lost_devices) == len(images):
                self.put_once.clear()
            self.lost_devices = set()
            self.array = MemoryArray.from_images(images, seed=11)
        self.open()

    @invariant()
    def rules_hold(self):
        if not hasattr(self, "stack"):
            return
        with self.stack.table.lock:
            self.stack.table.check()
            assert self.stack.host.used_slots <= self.host_pages
        for restore, keys in self.restores:
            for key, slot in zip(keys, restore.slots, strict=False):
                assert np.array_equal(self.stack.host.page(int(slot)), content(key)), "a promised page changed"

    def teardown(self):
        if hasattr(self, "stack"):
            for restore, _ in self.restores:
                self.stack.restorer.release(restore)
            check(self.stack)
            close(self.stack)
            assert not self.stack.restorer.alive


StackMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestStack = StackMachine.TestCase
