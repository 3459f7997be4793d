"""The thread "swift-lease": drives a server's donor and borrower by a clock and a wire."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any

from ...base.repeats import FaultLogger
from ...base.runner import THREADS, Runner
from .borrower import Borrower
from .donor import Donor
from .effects import (
    BorrowerEffect,
    BorrowerLeft,
    DonorEffect,
    LeaseKey,
    LeaseView,
    Send,
)
from .lease import Ticket, Use
from .messages import Extent, Party
from .runs import HeldRun, RunState
from .wire import BorrowerGone, DonorGone, DonorRefuses, Event, FromBorrower, FromDonor, Wire
from .zmq_wire import ZmqWire

logger = logging.getLogger(__name__)

#: The longest that the thread waits, seconds.
IDLE_SECONDS = 1.0
#: How long the thread rests after an error of ours, seconds.
FAULT_SECONDS = 0.1
#: How long closing waits for the others, in recall bounds.
CLOSING_BOUNDS = 4


class LeaseService:
    """A server's part in the lease protocol: a donor, a borrower, or both.

    Any thread may call its methods; none waits for the network. What the machines tell comes to `on_donor` and
    `on_borrower`, in order, in whichever thread caused it and **under the service's lock**: they may only put away what
    they get, as `deque.append` does.
    """

    def __init__(
        self,
        *,
        donor: Donor | None = None,
        listen: str = "",
        on_donor: Callable[[DonorEffect], None] = lambda effect: None,
        borrower: Borrower | None = None,
        on_borrower: Callable[[BorrowerEffect], None] = lambda effect: None,
        runner: Runner = THREADS,
        wire: Wire[Any] | None = None,
    ) -> None:
        """`listen`: the donor's address, `ipc:///PATH`. `wire`: which is closed with this; None: over ZeroMQ. Raises
        ConfigError."""
        if donor is None and borrower is None:
            raise ValueError("a lease service without a donor or a borrower has nothing to do")
        self._donor, self._borrower = donor, borrower
        self._on_donor, self._on_borrower = on_donor, on_borrower
        self._runner = runner
        self._fault_logger = FaultLogger(logger)
        self._clock = runner.boot_time
        self._lock = runner.lock()
        self._outbox: deque[Send] = deque()
        self._errands: deque[Callable[[], None]] = deque()  # for the thread, which alone touches the sockets
        self._closing = self._stopping = False
        self._settled = runner.flag()
        self._wire = ZmqWire() if wire is None else wire
        try:
            if donor is not None:
                self._wire.listen(listen, donor.party)
        except BaseException:
            self._wire.close()
            raise
        self._thread = runner.thread(self._run, "swift-lease")
        self._thread.start()

    # For the donor's server

    def stock(self, run: int, extents: Collection[Extent]) -> None:
        """See `Donor.stock`. Raises ValueError."""
        self._lend(lambda donor, now: donor.stock(run, extents))

    def fenced(self, run: int) -> None:
        """See `Donor.fenced`."""
        self._lend(lambda donor, now: donor.fenced(run))

    def withdraw(self, wanted_bytes: int) -> None:
        """See `Donor.withdraw`: what was not lent has been told as reclaimed when this returns."""
        self._lend(lambda donor, now: donor.withdraw(wanted_bytes, now))

    def withdraw_unused(self) -> None:
        """See `Donor.withdraw_unused`: it has been told as reclaimed when this returns."""
        self._lend(lambda donor, now: donor.withdraw_unused())

    def to_withdraw(self, wanted_bytes: int) -> list[int]:
        """See `Donor.to_withdraw`."""
        with self._lock:
            return self._donor.to_withdraw(wanted_bytes) if self._donor else []

    def withdraw_runs(self, runs: Collection[int]) -> None:
        """See `Donor.withdraw_runs`: what was not lent has been told as reclaimed when this returns."""
        self._lend(lambda donor, now: donor.withdraw_runs(runs, now))

    def unused(self) -> list[int]:
        """See `Donor.unused`."""
        with self._lock:
            return self._donor.unused() if self._donor else []

    def recall(self, leases: Iterable[int]) -> None:
        """See `Donor.recall`."""
        self._lend(lambda donor, now: donor.recall(leases, now))

    def set_limit(self, limit_bytes: int | None) -> None:
        """See `Donor.set_limit`."""
        self._lend(lambda donor, now: donor.set_limit(limit_bytes, now))

    def pin(self, lease: int, pinned: bool) -> bool:
        """See `Donor.pin`."""
        with self._lock:
            return self._donor is not None and self._donor.pin(lease, pinned)

    @property
    def limit_bytes(self) -> int | None:
        """The most that is lent; see `Donor.set_limit`."""
        with self._lock:
            return self._donor.limit_bytes if self._donor else None

    def holds(self, borrower: Party, lease: int) -> bool:
        """See `Donor.holds`."""
        with self._lock:
            return self._donor is not None and self._donor.holds(borrower, lease)

    def lent_to(self, borrower: Party, lease: int) -> HeldRun | None:
        """See `Donor.lent_to`."""
        with self._lock:
            return self._donor.lent_to(borrower, lease) if self._donor else None

    def wanted_bytes(self, run_bytes: int) -> int:
        """See `Donor.wanted_bytes`."""
        with self._lock:
            return self._donor.wanted_bytes(run_bytes) if self._donor else 0

    def bytes_in(self, *states: RunState) -> int:
        """See `Donor.bytes_in`."""
        with self._lock:
            return self._donor.bytes_in(*states) if self._donor else 0

    # For the borrower's server

    def connect(self, donor: str, address: str) -> None:
        """Borrow from a donor, whether it is there already or not. Raises ConfigError, or ValueError if it is known.

        To be called by one thread at a time.
        """
        with self._lock:
            if self._borrower is None or donor in self._borrower.donors or self._closing:
                raise ValueError(f"{donor}: is connected already, or this server does not borrow (any more)")
        way = self._wire.dial(address)
        with self._lock:
            if self._closing:
                way.close()
                raise ValueError(f"{donor}: this server does not borrow any more")
            self._errands.append(lambda: self._wire.add(donor, way))
            self._dispatch(self._borrower.connect(donor, self._clock()))
        self._wire.wake()

    def disconnect(self, donor: str) -> None:
        """See `Borrower.disconnect`."""
        self._borrow(lambda borrower, now: borrower.disconnect(donor, now))

    def want(self, wanted_bytes: int) -> None:
        """See `Borrower.want`."""
        self._borrow(lambda borrower, now: borrower.want(wanted_bytes, now))

    def release(self, key: LeaseKey) -> None:
        """See `Borrower.release`."""
        self._borrow(lambda borrower, now: borrower.release(key, now))

    def check_before(self, key: LeaseKey, use: Use = Use.READ) -> Ticket | None:
        """See `Borrower.check_before`."""
        now = self._clock()
        with self._lock:
            return self._borrower.check_before(key, now, use) if self._borrower else None

    def check_after(self, ticket: Ticket) -> bool:
        """See `Borrower.check_after`; to be called when the copy is complete."""
        now = self._clock()
        with self._lock:
            assert self._borrower is not None
            valid = self._borrower.check_after(ticket, now)
            due = self._borrower.wake <= now
        if due:
            self._wire.wake()
        return valid

    # For both

    def leases(self) -> list[LeaseView]:
        """What is lent and what is borrowed, now."""
        now = self._clock()
        with self._lock:
            return [
                *(self._donor.leases(now) if self._donor else []),
                *(self._borrower.leases(now) if self._borrower else []),
            ]

    @property
    def counters(self) -> dict[str, int]:
        """See `Wire.counters`; and `faults`: errors of ours, which were logged."""
        return dict(self._wire.counters)

    def close(self) -> bool:
        """Return what is borrowed, recall what is lent, and end. True if all that was lent came back.

        If False, nobody may use what is still lent until this process ends. Waits for the others, at most four times
        the recall's bound. Safe to call twice.
        """
        with self._lock:
            self._closing = True
            now = self._clock()
            if self._borrower is not None:
                for donor in self._borrower.donors:
                    self._dispatch(self._borrower.disconnect(donor, now))
            if self._donor is not None:
                self._dispatch(self._donor.withdraw(self._donor.bytes_in(*RunState), now))
        self._wire.wake()
        self._settled.wait(CLOSING_BOUNDS * max(machine.timing.recall_bound for machine in self._machines))
        self._stopping = True
        self._wire.wake()
        self._thread.join()
        return not self._is_lending()

    # The thread

    def _run(self) -> None:
        seconds = 0.0
        while not self._stopping:
            try:
                seconds = self._round(seconds)
            except Exception:
                # Leases end by themselves if this goes on, and nobody gets what is not his.
                self._wire.counters["faults"] += 1
                self._fault_logger.exception("swift-tiers: lease protocol: a round failed")
                self._runner.sleep(FAULT_SECONDS)
        self._do_errands()  # among them ways to donors, which only now are the wire's to close
        self._wire.close()

    def _round(self, seconds: float) -> float:
        """Wait so long at most for something to do, and do it; how long to wait next."""
        events = self._wire.wait(seconds)
        with self._lock:
            self._do_errands()
            for event in events:
                self._guarded(lambda event=event: self._handle(event))  # type: ignore[misc]
            for machine in self._machines:
                if machine.wake <= self._clock():
                    self._guarded(lambda machine=machine: machine.tick(self._clock()))  # type: ignore[misc]
            letters = list(self._outbox)
            self._outbox.clear()
            wake = min(machine.wake for machine in self._machines)
            if self._borrower is not None:
                self._wire.keep(self._borrower.donors)
            if self._closing and not self._is_lending() and not (self._borrower and self._borrower.donors):
                self._settled.set()
        for letter in letters:
            self._wire.send(letter)
        return min(max(0.0, wake - self._clock()), IDLE_SECONDS)

    def _do_errands(self) -> None:
        while self._errands:
            self._guarded(self._errands.popleft())

    def _handle(self, event: Event) -> list[Any]:
        now = self._clock()  # read after the letter came
        match event:
            case FromBorrower(letter) if self._donor is not None:
                return self._donor.receive(letter, now)
            case BorrowerGone(party) if self._donor is not None:
                return self._donor.gone(party)
            case FromDonor(letter) if self._borrower is not None:
                return self._borrower.receive(letter, now)
            case DonorGone(party) if self._borrower is not None:
                return self._borrower.gone(party, now)
            case DonorRefuses(donor, reason) if self._borrower is not None:
                return self._borrower.refused(donor, reason, now)
        return []

    def _guarded(self, step: Callable[[], list[Any] | None]) -> None:
        """An error of ours in one step must not end all leases: it is logged, and the next step is tried."""
        try:
            self._dispatch(step() or [])
        except Exception:
            self._wire.counters["faults"] += 1
            self._fault_logger.exception("swift-tiers: lease protocol: a step failed")

    def _lend(self, step: Callable[[Donor, float], list[Any]]) -> None:
        if self._donor is None:
            raise ValueError("this server does not lend")
        with self._lock:
            self._dispatch(step(self._donor, self._clock()))
        self._wire.wake()

    def _borrow(self, step: Callable[[Borrower, float], list[Any]]) -> None:
        if self._borrower is None:
            raise ValueError("this server does not borrow")
        with self._lock:
            self._dispatch(step(self._borrower, self._clock()))
        self._wire.wake()

    def _dispatch(self, outputs: list[Any]) -> None:
        for output in outputs:
            if isinstance(output, Send):
                self._outbox.append(output)
            elif isinstance(output, DonorEffect):
                if isinstance(output, BorrowerLeft):
                    self._errands.append(lambda party=output.borrower: self._wire.forget(party))  # type: ignore[misc]
                self._on_donor(output)
            else:
                self._on_borrower(output)

    def _is_lending(self) -> bool:
        return self._donor is not None and self._donor.bytes_in(RunState.LENT, RunState.RECALLED) > 0

    @property
    def _machines(self) -> list[Donor | Borrower]:
        return [machine for machine in (self._donor, self._borrower) if machine is not None]
