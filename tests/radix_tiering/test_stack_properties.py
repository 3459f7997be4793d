"""The tier stack against a dictionary: any order of puts, restores, flushes, device losses, damage, restarts, and of
what operators command.

What the model knows is which pages were ever put. The stack may have forgotten any of them, but what it gives must be
right, whole prefixes, and within its capacity and the limits set; when all is quiet nothing may be pinned for a request
or leaked; and as long as nothing breaks, what an operator pinned stays where it was.
"""

from __future__ import annotations

import errno

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from swift_tiers.ops.lab.torture.direct_files import PlainLanding, direct_reads
from swift_tiers.ops.lab.torture.model_peer import ModelPeer
from swift_tiers.radix_tiering.base.page import ROOT_KEY, page_digest
from swift_tiers.radix_tiering.bus.contract.commands import (
    AddDevice,
    CapTier,
    CommandRefusedError,
    DrainDevice,
    Drop,
    Pin,
    ReadmitDevice,
    SetPolicy,
    Unpin,
)
from swift_tiers.radix_tiering.restore.cost import ComputeCost, CostModel, SourceCost
from swift_tiers.radix_tiering.restore.live import LiveCosts
from swift_tiers.radix_tiering.table.held_page import Page
from swift_tiers.radix_tiering.table.rules import check_rules
from swift_tiers.radix_tiering.tiers.ssd import Operation
from swift_tiers.radix_tiering.tiers.ssd.device_files import MadeDevice
from swift_tiers.radix_tiering.tiers.testing.memory_array import MemoryArray
from swift_tiers.radix_tiering.way.sweeps import prefix_of

from support.engine import (
    chain,
    check,
    close,
    content,
    copy_of,
    crash,
    make_stack,
    memory_ssd,
    obey,
    page_at,
    put,
    settle,
)
from support.examples import examples

NUMBERS = st.integers(0, 999)
PATHS = st.lists(st.integers(0, 2), min_size=1, max_size=7)

#: With this, it is known that a page takes ssd 1 ms.
KNOWN = LiveCosts(
    CostModel(
        compute=ComputeCost(fixed_seconds=0, token_seconds=1, pair_seconds=0),
        sources={"ssd": SourceCost(latency_seconds=0, bytes_per_second=4096 / 1e-3)},
    )
)


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
        with_peer=st.booleans(),
        landing=st.sampled_from([0, 0, 1, 3, 20]),
        with_direct=st.booleans(),
    )
    def start(
        self, host_pages, device_pages, devices, write, admission, eviction, with_ssd, with_peer, landing, with_direct
    ):
        self.host_pages = host_pages
        self.with_peer = with_peer
        self.landing = landing
        self.with_direct = with_ssd and landing and with_direct
        self.policy = {
            "write": write, "ssd_admission": admission, "admission_tokens": 8, "eviction": eviction,
        }  # fmt: skip
        self.put_once: set[bytes] = set()
        self.lost_devices: set[int] = set()
        self.failing: set[int] = set()
        self.failed = False  # a device has, and may be out
        self.array = None
        if with_ssd:
            # Unit 4096 and header 4096: about 2 blocks for each page, besides the tables at the beginning.
            self.array = MemoryArray([262_144 + device_pages * 8192] * devices, seed=7)
        self.open()

    def open(self):
        ssd = memory_ssd(array=self.array, make_device=self.new_device) if self.array is not None else None
        fingerprint = ssd.fingerprint if ssd is not None else page_digest
        slots = 0 if self.with_direct else self.landing
        self.peer = ModelPeer(4096, fingerprint, landing_slots=slots) if self.with_peer else None
        self.leases = []
        landing = PlainLanding(4096, self.landing) if self.with_direct else None
        self.stack = make_stack(
            host_pages=self.host_pages,
            ssd=ssd,
            policy=self.policy,
            lent=self.peer,
            landing=landing,
            direct=direct_reads(ssd, self.array, landing) if landing is not None else None,
        )
        self.restores = []
        self.pinned: dict[bytes, list[tuple[Page, bool, bool]]] = {}  # page, whether in host memory, whether on ssd
        self.broken = False  # a pin may be lost
        self.limits: dict[str, int] = {}  # bytes

    @rule(paths=st.lists(PATHS, min_size=1, max_size=4))
    def put(self, paths):
        for path in paths:
            keys = chain(*path)
            put(self.stack, keys)
            self.put_once.update(keys)

    @rule(crowd=st.integers(0, 3), number=NUMBERS)
    def crowd(self, crowd, number):
        """Another sequence fills host memory; what it has pushed out comes back from elsewhere."""
        keys = chain("crowd", crowd, *range(self.host_pages - 2))
        put(self.stack, keys)
        self.put_once.update(keys)
        if self.with_direct:
            self.stack.tiers["ssd"].direct.settle()  # what is on ssd is known to the device
        with self.stack.table.lock:
            out = [page for page in self.stack.table.listed(self.stack.digest) if not page.in_host]
            keys = sorted([page.key for page in prefix_of(page)][::-1] for page in out)
        if keys:
            self.stack.restorer.release(self.brought_up(keys[number % len(keys)]))

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
        offered = self.stack.intake.begin(chain(*path), ROOT_KEY, 1)
        if fill:
            for slot in offered.slots:
                self.stack.host.page(slot)[:] = 0xFF
        self.stack.intake.abort(offered)

    @rule(path=PATHS, target=held)
    def restore(self, path):
        keys = chain(*path)
        restore = self.brought_up(keys)
        self.restores.append((restore, keys))
        return restore, keys

    def brought_up(self, keys):
        """A restore that has settled. What it promises is right."""
        restore = settle(self.stack, self.stack.restore(keys))
        assert restore.pages <= len(keys)
        assert set(keys[: restore.pages]) <= self.put_once, "a page that nobody put"
        for key, place in zip(keys, restore.slots, strict=False):
            assert np.array_equal(page_at(self.stack, int(place)), content(key)), "wrong bytes"
        return restore

    @rule(path=PATHS)
    def cancel(self, path):
        self.stack.restorer.release(self.stack.restore(chain(*path)))

    @rule(one=consumes(held))
    def release(self, one):
        restore, _ = one
        self.stack.restorer.release(restore)
        self.restores = [other for other in self.restores if other[0] is not restore]

    def has(self, page: Page, tier: str) -> bool:
        return copy_of(self.stack, page, tier) is not None

    def some_page(self, number: int) -> bytes:
        """One of the pages that were put, for most numbers one that is still held."""
        with self.stack.table.lock:
            held = sorted(page.key for page in self.stack.table.listed(self.stack.digest))
        known = held if held and number % 8 else sorted(self.put_once) or chain("never")
        return known[number % len(known)]

    @rule(number=NUMBERS)
    def pin(self, number):
        key = self.some_page(number)
        outcome = obey(self.stack, Pin(page=key.hex()))
        if isinstance(outcome, CommandRefusedError):
            assert "not held" in str(outcome) or "more pages would be pinned" in str(outcome)
        elif key not in self.pinned:
            pages = list(prefix_of(self.stack.table.find(self.stack.digest, key)))
            self.pinned[key] = [(page, page.resident, self.has(page, "ssd")) for page in pages]

    @rule(number=NUMBERS)
    def unpin(self, number):
        keys = sorted(self.pinned)
        key = keys[number % len(keys)] if keys and number % 4 else self.some_page(number)
        outcome = obey(self.stack, Unpin(page=key.hex()))
        if not self.broken:
            assert isinstance(outcome, str) == (key in self.pinned), outcome
        self.pinned.pop(key, None)

    @rule(number=NUMBERS)
    def drop(self, number):
        key = self.some_page(number)
        outcome = obey(self.stack, Drop(page=key.hex()))
        assert not self.stack.probe([key]), outcome
        for pinned, pages in list(self.pinned.items()):
            if isinstance(outcome, str) and any(page.gone or page.key == key for page, _, _ in pages):
                del self.pinned[pinned]

    @rule(tier=st.sampled_from(["host", "ssd"]), pages=st.none() | st.integers(0, 12))
    def cap(self, tier, pages):
        outcome = obey(self.stack, CapTier(tier=tier, limit=None if pages is None else pages * 4096))
        if isinstance(outcome, CommandRefusedError):
            assert "that are pinned" in str(outcome) or (tier == "ssd" and self.array is None), outcome
            return
        self.limits.pop(tier, None)
        if pages is not None and "when they are done" not in outcome:
            self.limits[tier] = pages * 4096

    @rule(
        change=st.sampled_from(
            [
                ("eviction", "lru"), ("eviction", "lfu"), ("write", "through"), ("write", "back"),
                ("ssd_admission", "always"), ("ssd_admission", "reuse"), ("ssd_admission", "size"),
                ("admission_uses", 1), ("admission_tokens", 12), ("restore_deadline", "3s"),
            ]
        )
    )  # fmt: skip
    def set_policy(self, change):
        field, value = change
        assert isinstance(obey(self.stack, SetPolicy(field=field, value=value)), str)

    @rule(device=st.integers(0, 3))
    def drain(self, device):
        outcome = obey(self.stack, DrainDevice(device=device))
        if self.array is not None and device < len(self.array.sizes) and not (self.lost_devices or self.failed):
            assert isinstance(outcome, str), outcome

    @staticmethod
    def new_device(directory, known):
        return MadeDevice(directory, np.zeros(262_144 + 5 * 8192, np.uint8), lambda close: None)

    @rule()
    def add_device(self):
        if self.array is not None and len(self.array.sizes) < 4:
            number = len(self.array.sizes)
            assert f"device {number}" in obey(self.stack, AddDevice(directory="/new"))

    @rule(path=PATHS)
    def damage_host(self, path):
        """A byte of an unpinned page changes in host memory."""
        self.broken = True
        page = self.stack.table.find(self.stack.namespace.digest(), chain(*path)[-1])
        with self.stack.table.lock:
            if page is not None and page.resident and not page.pins and page.digest is not None:
                self.stack.host.page(page.slot)[3] ^= 0x40

    @rule(slots=st.integers(1, 12), donor=st.sampled_from(["d1", "d2"]))
    def lend(self, slots, donor):
        if self.peer is not None:
            self.leases.append(self.peer.lend(slots, donor))

    @rule(seconds=st.sampled_from([0.0, 1e-3, 1.0]))
    def set_a_pace(self, seconds):
        """Pages with two copies come from ssd, or from donors, or from both by turns."""
        if self.peer is not None:
            self.peer.seconds_each = seconds
            self.stack.planner.costs = KNOWN

    @rule(number=NUMBERS, way=st.sampled_from(["recall", "late", "end"]))
    def take_back(self, number, way):
        if self.peer is not None and self.leases:
            self.broken = True  # what was nowhere else may be lost, pinned or not
            lease = self.leases.pop(number % len(self.leases))
            if way == "end":
                self.peer.end(lease)
            else:
                self.peer.recall(lease, in_time=way == "recall")

    @rule(paths=st.lists(PATHS, min_size=1, max_size=4), number=NUMBERS, way=st.sampled_from(["recall", "late", "end"]))
    def put_while_peer_is_slow(self, paths, number, way):
        """What is asked of lent memory piles up for a while, and a lease goes meanwhile."""
        if self.peer is not None:
            self.peer.hold(True)
            self.put(paths)
            self.take_back(number, way)
            self.peer.hold(False)

    @rule(path=PATHS, number=NUMBERS, way=st.sampled_from(["recall", "late", "end", "flush", "release"]))
    def restore_while_peer_is_slow(self, path, number, way):
        """Pages are on their way when their lease goes, or nobody wants them any more."""
        if self.peer is None:
            return
        self.peer.hold(True)
        restore = self.stack.restore(chain(*path))
        self.stack.restorer.poll(restore)  # somebody waits: it is not put off
        self.stack.restorer.wait_idle()
        if way == "flush":
            self.flush(host=True, ssd=False)
        elif way == "release":
            self.stack.restorer.release(restore)
        else:
            self.take_back(number, way)
        self.peer.hold(False)
        if way != "release":
            keys = chain(*path)
            settle(self.stack, restore)
            for key, place in zip(keys, restore.slots, strict=False):
                assert np.array_equal(page_at(self.stack, int(place)), content(key)), "wrong bytes"
            self.stack.restorer.release(restore)

    @rule(number=NUMBERS)
    def damage_peer(self, number):
        if self.peer is not None:
            with self.stack.table.lock:
                shared = [
                    copy.place for page in self.stack.table.all_pages() if (copy := copy_of(self.stack, page, "peer"))
                ]
                if shared:
                    self.broken = True
                    self.peer.damage(shared[number % len(shared)])

    @rule(host=st.booleans(), ssd=st.booleans())
    def flush(self, host, ssd):
        self.stack.flush("all" if ssd else "memory" if host else "nothing")
        if host or ssd:
            self.broken = True  # pins end with the last copy

    @rule()
    def quiet(self):
        """Pins of requests are given back, and with them what was held beyond a limit."""
        self.stack.restorer.wait_idle()

    @rule(device=st.integers(0, 2))
    def lose_device(self, device):
        if self.array is not None and device < len(self.array.sizes) and len(self.lost_devices) < 2:
            self.lost_devices.add(device)
            self.broken = True
            present = self.array.present
            lost = frozenset(self.lost_devices)
            self.array.present = lambda index: index not in lost and present(index)  # type: ignore[method-assign]

    @rule(device=st.integers(0, 2))
    def break_device(self, device):
        """What is written to it fails, until it is mended."""
        if self.array is not None and device < len(self.array.sizes):
            self.broken = True
            self.failing.add(device)
            self.failed = True
            carry_out, failing = type(self.array)._carry_out, self.failing

            def fails(request):
                done = carry_out(self.array, request)
                wrong = request.operation is Operation.WRITE and request.device in failing
                return done._replace(error=errno.EIO) if wrong else done

            self.array._carry_out = fails  # type: ignore[method-assign]

    @rule(device=st.integers(0, 3), mended=st.booleans())
    def readmit(self, device, mended):
        if mended:
            self.failing.clear()
        outcome = obey(self.stack, ReadmitDevice(device=device))
        if not isinstance(outcome, str):
            assert self.array is None or device >= len(self.array.sizes) or "stays so" in str(outcome), outcome

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
            self.failing, self.failed = set(), False
        self.open()

    @invariant()
    def rules_hold(self):
        if not hasattr(self, "stack"):
            return
        with self.stack.table.lock:
            check_rules(self.stack.table)
            assert self.stack.host.used_slots <= self.host_pages
            if "host" in self.limits:
                assert self.stack.host.used_slots * 4096 <= self.limits["host"]
            if "ssd" in self.limits:
                on_ssd = self.stack.table.named("ssd")
                assert on_ssd.used_bytes + on_ssd.coming_bytes <= self.limits["ssd"]
            if not self.broken:
                for pages in self.pinned.values():
                    for page, in_host, on_ssd in pages:
                        assert not page.dropped, "a pinned page left"
                        assert page.resident or not in_host, "a pinned page left host memory"
                        assert self.has(page, "ssd") or not on_ssd, "a pinned page left ssd"
        for restore, keys in self.restores:
            for key, slot in zip(keys, restore.slots, strict=False):
                assert np.array_equal(page_at(self.stack, int(slot)), content(key)), "a promised page changed"

    def teardown(self):
        if hasattr(self, "stack"):
            for restore, _ in self.restores:
                self.stack.restorer.release(restore)
            check(self.stack)
            close(self.stack)
            assert not self.stack.restorer._thread.is_alive()


StackMachine.TestCase.settings = settings(
    max_examples=examples(250), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestStack = StackMachine.TestCase
