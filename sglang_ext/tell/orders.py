"""Operators' commands on their way to every rank, by the way that requests take.

Ranks must not act on their own: what one of them hears must reach all in the same step. SGLang has that for requests:
rank 0 pulls them, broadcasts them, and every rank dispatches the same list. So an order is put among the requests that
rank 0 has pulled, and dispatched by a type of our own.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
import zmq
from sglang.srt.managers.scheduler_components.idle_sleeper import IdleSleeper
from sglang.utils import TypeBasedDispatcher

from swift_tiers.radix_tiering.base.errand_thread import ENDING
from swift_tiers.radix_tiering.base.errors import CommandTooLateError
from swift_tiers.radix_tiering.bus.contract.commands import CommandRefusedError, Order, read_order
from swift_tiers.radix_tiering.bus.speak.steering import carry_out
from swift_tiers.radix_tiering.stack import TierStack

logger = logging.getLogger(__name__)


class OrderOutcome(Protocol):
    """What became of an order: a result in words, or why it was refused, at this rank, or at all ranks that this one
    leads. Short; called on any thread."""

    def __call__(self, order: Order, outcome: str | CommandRefusedError, *, for_group: bool = False) -> None: ...


class OrderMessage(msgspec.Struct, frozen=True):
    """What SGLang broadcasts: the text of the order, which every rank reads and checks anew."""

    entry: dict[str, str]


class Orders:
    """One for each scheduler."""

    def __init__(self, stack: TierStack, *, leads: bool) -> None:
        """`leads`: this rank is the one that pulls requests, so orders are to be submitted here.

        Before the first order, `told` and `redis_time` are set.
        """
        self.leads = leads
        self.told: OrderOutcome = _nobody
        self.redis_time: Callable[[], float | None] = lambda: None  # what deadlines are by; waits for nothing
        self._stack = stack
        self._waiting: deque[dict[str, str]] = deque()
        self._lock = threading.Lock()
        self._closed = False
        # Readable while orders wait: wakes a scheduler that sleeps. Stays open as long as the process: nothing can be
        # taken back from what SGLang sleeps on.
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self._wake

    # ---- any thread ----

    def submit(self, entry: dict[str, str]) -> None:
        """Have an order, which `read_order` takes, carried out by every rank, unless its deadline passes first."""
        with self._lock:
            if not self._closed:
                self._waiting.append(entry)
                os.eventfd_write(self._wake, 1)
                return
        self._turn_away(read_order(entry), CommandRefusedError(ENDING))

    def close(self) -> None:
        """What waits is refused. Idempotent."""
        with self._lock:
            self._closed = True
            waiting, self._waiting = self._waiting, deque()
        for entry in waiting:
            self._turn_away(read_order(entry), CommandRefusedError(ENDING))

    # ---- the scheduler's thread; nothing raises ----

    def take(self) -> list[OrderMessage]:
        """Orders to broadcast now: all that are not too late."""
        if not self._waiting:
            return []
        try:
            return self._take()
        except Exception:
            logger.exception("swift-tiers: orders are lost")
            return []

    def _take(self) -> list[OrderMessage]:
        with self._lock:
            waiting, self._waiting = self._waiting, deque()
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)
        now = self.redis_time()
        messages: list[OrderMessage] = []
        for entry in waiting:
            order = read_order(entry)
            if now is not None and now > order.deadline:
                self._turn_away(order, CommandTooLateError("its deadline passed before a turn of the scheduler came"))
            else:
                messages.append(OrderMessage(entry))
        return messages

    def carry_out(self, message: OrderMessage) -> None:
        """On every rank, in the same step. Returns None: SGLang has nobody to answer."""
        try:
            order = read_order(message.entry)
            carry_out(self._stack, order.command, lambda outcome: self._tell(order, outcome))
        except Exception:
            logger.exception("swift-tiers: an order cannot be carried out: %s", message.entry)

    def _turn_away(self, order: Order, refusal: CommandRefusedError) -> None:
        self._tell(order, refusal, for_group=True)

    def _tell(self, order: Order, outcome: str | CommandRefusedError, *, for_group: bool = False) -> None:
        try:
            self.told(order, outcome, for_group=for_group)
        except Exception:
            logger.exception("swift-tiers: nobody can be told what became of order %s: %s", order.id, outcome)


def _nobody(order: Order, outcome: str | CommandRefusedError, *, for_group: bool = False) -> None:
    """Nobody listens."""


#: Of this process; SGLang runs one scheduler in each, and what pulls its requests does not know it.
_orders: Orders | None = None


def expect(scheduler: Any) -> None:
    """Let `scheduler` know orders, before any rank sends one: SGLang ends a rank that is sent what it does not know.
    One that cannot carry them out serves all the same."""
    scheduler._request_dispatcher += TypeBasedDispatcher([(OrderMessage, _carry_out)])


def _carry_out(message: OrderMessage) -> None:
    if _orders is not None:
        _orders.carry_out(message)


def install(scheduler: Any, orders: Orders) -> None:
    """Let `scheduler`, which expects them, take in and carry out orders from now on."""
    global _orders
    _orders = orders
    if isinstance(scheduler.idle_sleeper, IdleSleeper):
        scheduler.idle_sleeper.poller.register(orders.fileno(), zmq.POLLIN)


def after_split(result: Any, self: Any, recv_reqs: Any) -> None:
    """Hook: with data-parallel attention SGLang broadcasts to a group of ranks what is work, and to all ranks, from the
    first group, what is not. An order is for the ranks of its group."""
    work, control = result
    orders = [message for message in control if isinstance(message, OrderMessage)]
    if orders:
        work.extend(orders)
        control[:] = [message for message in control if not isinstance(message, OrderMessage)]


def after_pull(result: Any, self: Any) -> None:
    """Hook: orders go among the requests that rank 0 has pulled; the other ranks pull nothing."""
    if _orders is not None and result is not None:
        result.extend(_orders.take())
