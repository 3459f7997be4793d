"""(c) Two processes that lend each other memory of a device: what is read is what was stored, how fast, how soon it is
given back under load, and what a donor's death leaves behind.

The process that lends runs the donor's real side (`lending_donor`), this one the borrower's (`borrower`), first on one
device, then, where there is another whose memory this one reaches, between the two.
"""

from __future__ import annotations

import os
import select
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import SystemRandom

import numpy as np
import torch

from swift_tiers.kernels.copy_queue import Accelerator
from swift_tiers.kernels.page_gather import gather_pages
from swift_tiers.kernels.piece_copy import copy_pieces
from swift_tiers.radix_tiering.base.errors import SwiftTiersError
from swift_tiers.radix_tiering.lending.donation.arena import ArenaError, SharedArena
from swift_tiers.radix_tiering.lending.donation.arena_client import ArenaClient
from swift_tiers.radix_tiering.lending.donation.arena_socket import arena_path
from swift_tiers.radix_tiering.lending.donation.device_arena import AttachedDevice, DeviceArena
from swift_tiers.radix_tiering.lending.donation.device_memory import DeviceMemory
from swift_tiers.radix_tiering.lending.donation.extents import CutRun
from swift_tiers.radix_tiering.lending.leases import Party

from .borrower import PATIENCE, KnowingBorrower, ReadLoad
from .donor_process import COMMAND, DonorProcess, LendingError
from .figures import LeftOutError, ProofCheck, ProofFigure
from .layouts import Layout, layer_first, planes_of
from .lending_donor import DonorOptions
from .stopwatch import Stopwatch

#: Of the donor's pool, at most, and at least.
PAGES, _FEWEST_PAGES = 512, 16
#: A borrow from the same device, of a local gather of as many pages.
BORROW_SHARE = 0.85
#: From a recall until the memory is back, milliseconds.
RECALL_MS = 50.0
#: Recalls of one run each: so many one after the other, then all is lent anew.
RECALLS, ROUNDS = 8, 5
#: Pages that are read between two recalls.
_BETWEEN = 48
#: Of a plain copy between two devices.
_PEER_BYTES = 2**29
_GB = 1e9


def lend_on_cuda(
    layout: Layout,
    accelerator: Accelerator,
    watch: Stopwatch,
    pages: int,
    seed: int,
    command: Sequence[str] = COMMAND,
) -> Iterator[ProofCheck | ProofFigure]:
    """On this device, and from another one if there is one whose memory it reaches. Raises LeftOutError, and
    ImportError where something is not installed."""
    from swift_tiers.radix_tiering.lending.donation.cuda_memory import CudaDeviceMemory

    if pages < _FEWEST_PAGES:
        raise LeftOutError("too little of the device's memory is free")
    device = accelerator.device
    assert device.index is not None
    try:
        memory = CudaDeviceMemory(device.index)
    except ArenaError as error:
        raise LeftOutError(str(error)) from None
    with tempfile.TemporaryDirectory(prefix="swift-tiers-proof-") as directory:
        lending = LendingSetup(layout, accelerator, memory, watch, pages, seed, directory, command)
        yield from lending.on_one_device(device.index)
        for other in range(torch.cuda.device_count()):
            if other != device.index and torch.cuda.can_device_access_peer(device.index, other):
                yield from lending.between_devices(other, _peer_copy_rate(device, other, watch))
                return


def _peer_copy_rate(device: torch.device, other: int, watch: Stopwatch) -> float:
    """Bytes a second, read and written."""
    here = torch.empty(_PEER_BYTES, dtype=torch.uint8, device=device)
    there = torch.empty(_PEER_BYTES, dtype=torch.uint8, device=f"cuda:{other}")
    return 2 * _PEER_BYTES / watch.seconds(lambda: here.copy_(there))


class LendingSetup:
    """A donor's device, and this process' one, which may be the same."""

    def __init__(
        self,
        layout: Layout,
        accelerator: Accelerator,
        memory: DeviceMemory,
        watch: Stopwatch,
        pages: int,
        seed: int,
        directory: str,
        command: Sequence[str] = COMMAND,
    ) -> None:
        """`memory`: this process' device. `directory`: of this user alone, with a short name: sockets are put there.
        `command`: what starts the process that lends."""
        self._layout = layout
        self._accelerator = accelerator
        self._memory = memory
        self._watch = watch
        self._pages = pages
        self._seed = seed
        self._directory = directory
        self._command = command

    def on_one_device(self, ordinal: int) -> Iterator[ProofCheck | ProofFigure]:
        """Everything. Raises LeftOutError where the device's memory cannot be exported and mapped at all."""
        try:
            _try_out(self._memory)
        except ArenaError as error:
            raise LeftOutError(str(error)) from None
        yield from self._guarded("on one GPU", lambda: self._everything(ordinal))

    def between_devices(self, ordinal: int, copying: float) -> Iterator[ProofCheck | ProofFigure]:
        """That pages arrive, and how fast. `copying`: bytes a second, read and written, of a plain copy from there."""
        yield from self._guarded(f"from GPU {ordinal}", lambda: self._from_another(ordinal, copying))

    def _guarded(
        self, where: str, steps: Callable[[], Iterator[ProofCheck | ProofFigure]]
    ) -> Iterator[ProofCheck | ProofFigure]:
        """Whatever goes wrong is one finding: the parts after this one can still be proved."""
        try:
            yield from steps()
        except (SwiftTiersError, OSError) as error:
            yield ProofCheck(f"lending {where}", 0, str(error))

    def _everything(self, ordinal: int) -> Iterator[ProofCheck | ProofFigure]:
        gathering = self._gather_rate()
        with self._donor(ordinal) as donor:
            note = f"of a local gather; {self._layout.name}, {self._half} scattered pages"
            yield self._figure("borrow on one GPU", self._borrow_rate(donor), gathering, BORROW_SHARE, note)
            with self._borrower() as borrower:
                borrower.borrow(donor, donor.options.lent_pages)
                yield from self._stored_and_read(borrower)
                yield from self._recalled(borrower, donor)
                yield from self._outlived(borrower, donor)

    def _from_another(self, ordinal: int, copying: float) -> Iterator[ProofCheck | ProofFigure]:
        with self._donor(ordinal) as donor:
            note = "of a plain copy from there"
            yield self._figure(f"borrow from GPU {ordinal}", self._borrow_rate(donor), copying, note=note)
            with self._borrower() as borrower:
                borrower.borrow(donor, donor.options.run_pages)
                yield from self._stored_and_read(borrower, f", from GPU {ordinal}")

    # How fast

    def _gather_rate(self) -> float:
        """Bytes a second, read and written, of a gather of half the pages of a pool of this process."""
        device, half = self._accelerator.device, self._half
        pool = planes_of(layer_first(self._layout, self._pages, device))
        slab = self._accelerator.device_memory(half, self._layout.page_bytes)
        chosen = torch.from_numpy(self._chosen()).to(device)
        slots = torch.arange(half, device=device)
        seconds = self._watch.device_seconds(lambda: gather_pages(pool, chosen, slab, slots))
        return 2 * half * self._layout.page_bytes / seconds

    def _borrow_rate(self, donor: DonorProcess) -> float:
        """The same of as many pages of the donor's memory, where they lie as it lends them."""
        layout, options = self._layout, donor.options
        runs = [CutRun(extents, layout.page_bytes) for extents in options.runs()]
        pieces = np.concatenate(
            [
                runs[page // options.run_pages].pieces_of(page % options.run_pages, at * layout.page_bytes)
                for at, page in enumerate(self._chosen())
                if page // options.run_pages < len(runs)
            ]
        )
        slab = self._accelerator.device_memory(self._half, layout.page_bytes).view(-1)
        with _mapped(donor, layout.page_bytes, self._memory) as memory:
            seconds = self._watch.device_seconds(lambda: copy_pieces(memory, slab, pieces))
        return 2 * int(pieces[:, 2].sum()) / seconds

    @property
    def _half(self) -> int:
        return max(1, self._pages // 2)

    def _chosen(self) -> np.ndarray:
        return np.random.default_rng(self._seed).permutation(self._pages)[: self._half].astype(np.int64)

    # Whether it is right

    def _stored_and_read(self, borrower: KnowingBorrower, where: str = "") -> Iterator[ProofCheck | ProofFigure]:
        half = borrower.tier.capacity_bytes // borrower.tier.page_bytes // 2
        steps: list[tuple[str, Callable[[], int]]] = [
            ("stored, through host memory", lambda: borrower.fill(half)),
            ("stored, from device to device", lambda: borrower.fill(aside=True)),
            ("landed", lambda: borrower.read_all(land=True)),
            ("read to host memory", lambda: borrower.read_all(land=False)),
        ]
        for what, work in steps:
            began = time.perf_counter()
            rate = work() * self._layout.page_bytes / (time.perf_counter() - began)
            yield self._figure(f"pages {what}{where}", rate, note="asked for, verified, answered, compared here")
        yield _check(f"what is lent is read as it was stored{where}", borrower.pages_read, borrower)
        none = "" if borrower.pulled else "no page: the donor does not read memory of this GPU, its log says why"
        yield ProofCheck(f"pages go from device to device{where}", borrower.pulled, none)

    def _recalled(self, borrower: KnowingBorrower, donor: DonorProcess) -> Iterator[ProofCheck | ProofFigure]:
        seconds: list[float] = []
        backs: Counter[str] = Counter()
        overwritten = untouched = 0
        at_once = min(RECALLS, max(1, donor.options.pages // donor.options.run_pages // 2))
        before = borrower.pages_read
        with ReadLoad(borrower) as load:
            for _ in range(ROUNDS):
                for _ in range(at_once):
                    load.wait_for_pages(_BETWEEN)
                    said = donor.ask("recall")
                    seconds.append(said["seconds"])
                    backs[said["back"]] += 1
                load.wait_for_pages(_BETWEEN)
                said = donor.ask("restock")
                overwritten += said["runs"]
                untouched += said["untouched"]
                # What is not lent would be taken back first.
                borrower.borrow(donor, donor.options.lent_pages)
        note = f"worst of {len(seconds)} while pages were read; median {statistics.median(seconds) * 1e3:.3g} ms"
        yield ProofFigure("lending", "recall until return", max(seconds) * 1e3, "ms", at_most=RECALL_MS, note=note)
        other_ways = ", ".join(f"{times} {back}" for back, times in backs.items() if back != "returned")
        yield ProofCheck("recalled memory is returned", len(seconds), other_ways)
        changed = f"{overwritten - untouched} runs were changed after their return" * (untouched < overwritten)
        yield ProofCheck("memory that came back is its donor's alone", overwritten, changed)
        yield _check("no byte of a later owner is accepted", borrower.pages_read - before, borrower)

    def _outlived(self, borrower: KnowingBorrower, donor: DonorProcess) -> Iterator[ProofCheck | ProofFigure]:
        with ReadLoad(borrower) as load:
            load.wait_for_pages(_BETWEEN)
            donor.kill()
            killed = time.perf_counter()
            borrower.wait(lambda: not borrower.tier.capacity_bytes, "the leases of a donor that was killed to end")
            gone = time.perf_counter() - killed
        yield ProofFigure("lending", "leases over after their donor's death", gone * 1e3, "ms")
        before = borrower.pages_read
        with self._donor(donor.options.ordinal) as next_life:
            borrower.borrow(next_life, next_life.options.run_pages)
            with ReadLoad(borrower) as load:
                load.wait_for_pages(_BETWEEN)
            pages = borrower.pages_read - before
            yield _check("a donor that was killed is outlived, and its next life borrowed from", pages, borrower)
            borrower.close()

    @staticmethod
    def _figure(
        name: str, rate: float, of: float | None = None, at_least: float | None = None, note: str = ""
    ) -> ProofFigure:
        return ProofFigure("lending", name, rate / _GB, "GB/s", None if of is None else of / _GB, at_least, note)

    # The two sides

    @contextmanager
    def _donor(self, ordinal: int) -> Iterator[DonorProcess]:
        """One that lends. Its name and address are the same in each life."""
        options = DonorOptions(
            directory=self._directory,
            name="proof-donor",
            ordinal=ordinal,
            planes=2 * self._layout.layers,
            plane_bytes=self._layout.layer_bytes // 2,
            pages=self._pages,
        )
        with DonorProcess(options, self._command) as donor:
            donor.wait_ready()
            yield donor

    @contextmanager
    def _borrower(self) -> Iterator[KnowingBorrower]:
        borrower = KnowingBorrower(self._accelerator, self._memory, self._layout.page_bytes, self._seed)
        try:
            yield borrower
        finally:
            borrower.close()


def _check(name: str, cases: int, borrower: KnowingBorrower) -> ProofCheck:
    """What the borrower has found since it was last asked."""
    failure = f"{len(borrower.wrong)} times: {borrower.wrong[0]}" if borrower.wrong else ""
    borrower.wrong.clear()
    return ProofCheck(name, cases, failure or ("" if cases else "no page was accepted"))


def _try_out(memory: DeviceMemory) -> None:
    """Export a little, and map it in the same process. Raises ArenaError."""
    arena = DeviceArena(memory, 1)
    try:
        AttachedDevice(memory, os.dup(arena.fd), 1).close()
    finally:
        arena.close()


@contextmanager
def _mapped(donor: DonorProcess, page_bytes: int, memory: DeviceMemory) -> Iterator[torch.Tensor]:
    """The donor's memory, as a borrower without leases has it. Raises LendingError and ArenaError."""
    path = arena_path(donor.address)
    staging = SharedArena(page_bytes)
    party = Party("proof-measure", SystemRandom().getrandbits(62))
    client = ArenaClient(path, donor.options.name, party, page_bytes, staging, memory)
    try:
        poll = select.poll()
        poll.register(client.descriptor, select.POLLIN)
        while client.arena is None and not client.ended:
            if not poll.poll(PATIENCE * 1000):
                raise LendingError(f"the donor has not handed its memory out within {PATIENCE:g} s")
            client.handle()
        if not isinstance(client.arena, AttachedDevice):
            raise LendingError(client.ended or "the donor lends memory of the host")
        with client.arena.use() as mapped:
            yield mapped
    finally:
        client.end("measured")
        staging.close()
