"""Carrying out what an operator commands: see `bus.commands` for the commands.

Whatever may take longer than a few microseconds is done by the stack's errand thread: a command comes in on the thread
of the serving engine, between two batches.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal, Protocol, assert_never, runtime_checkable

import msgspec

from ...base.errand_thread import ENDING, Errand
from ...base.errors import SwiftTiersError
from ...base.units import format_size
from ...lending.leases.hand import LeaseHand
from ...stack import TierStack
from ...table.held_page import Page
from ...table.policy import eviction_policy
from ...tiers.ssd.ssd_tier import SsdTier
from ...tiers.tier import Tier
from ...way import sweeps
from ..contract.commands import (
    AddDevice,
    AnyCommand,
    CapLending,
    CapTier,
    CommandRefusedError,
    DrainDevice,
    Drop,
    Flush,
    OrderTier,
    Pin,
    PinLease,
    ReadmitDevice,
    RecallLeases,
    SetPolicy,
    Unpin,
    UnpinLease,
)
from ..contract.policy_values import limit_bytes, policy_value, section_of

logger = logging.getLogger(__name__)

#: Share of host memory that operators may pin: requests need the rest to come up.
PINNED_SHARE = 0.5

#: What is said where a tier is commanded that is not there.
_LACKS = {"ssd": "this server has no ssd tier; name ssd.directories or ssd.devices and start it again"}

#: Gets what has been done, in words, or why nothing was.
Done = Callable[[str | CommandRefusedError], None]


def carry_out(stack: TierStack, command: AnyCommand, done: Done) -> None:
    """Carry out one command. Any thread, but one at a time; returns at once and never raises.

    `done` is called exactly once: before this returns, or later on another thread, at the latest when the stack is
    closed. It must be short. Commands that take longer are carried out one after the other.
    """
    try:
        outcome: str | Errand | CommandRefusedError = _begin(stack, command)
    except CommandRefusedError as error:
        outcome = error
    except Exception as error:
        logger.exception("swift-tiers: a command failed: %s", command)
        outcome = CommandRefusedError(f"internal error: {error!r}")
    if isinstance(outcome, str | CommandRefusedError):
        done(outcome)
    else:
        stack.errands.start(outcome, lambda told: done(told if isinstance(told, str) else _as_refusal(told)))


def _as_refusal(error: SwiftTiersError) -> CommandRefusedError:
    return error if isinstance(error, CommandRefusedError) else CommandRefusedError(str(error))


def _begin(stack: TierStack, command: AnyCommand) -> str | Errand:
    """What has been done, or what is left to do. Raises CommandRefusedError."""
    if stack.closed:
        raise CommandRefusedError(ENDING)
    match command:
        case Flush(tiers=tiers):
            return _flush(stack, durable=tiers == "all")
        case DrainDevice(device=device):
            return _order(stack, SsdTier.name, "drain", str(device))
        case ReadmitDevice(device=device):
            return _order(stack, SsdTier.name, "readmit", str(device))
        case AddDevice(directory=directory):
            return _order(stack, SsdTier.name, "add", directory)
        case OrderTier(tier=tier, order=order, argument=argument):
            return _order(stack, tier, order, argument)
        case Pin(page=key):
            return _pin(stack, _held(stack, key), key)
        case Unpin(page=key):
            return _unpin(stack, _held(stack, key), key)
        case Drop(page=key):
            return _drop(stack, _held(stack, key), key)
        case SetPolicy(field=field, value=value):
            return _set_policy(stack, field, value)
        case CapTier(tier=tier, limit=limit):
            size = None if limit is None else limit_bytes(limit)
            return _cap_host(stack, size) if tier == stack.host.name else _cap(stack, tier, size)
        case RecallLeases() | PinLease() | UnpinLease() | CapLending():
            return _of_leases(stack, command)
        case _:
            assert_never(command)


# ---- pages ----


# A command is begun some time after its page was found, which may have left the table then, its key with it.


def _held(stack: TierStack, key: str) -> Page:
    page = stack.table.find(stack.digest, bytes.fromhex(key))
    if page is None or not page.complete:
        raise _not_held(key)
    return page


def _not_held(key: str) -> CommandRefusedError:
    return CommandRefusedError(
        f"page: {key} is not held below the device here; `swift-tiers inspect page` says where pages are"
    )


def _flush(stack: TierStack, *, durable: bool) -> Errand:
    flushed = yield from stack.flush_steps("all" if durable else "memory")
    text = f"{flushed.pages} pages forgotten in {'every tier below the device' if durable else 'host memory'}"
    if durable and stack.table.hints:
        text += f"; what is in the {stack.table.of[stack.table.hints].name} store stays there"
    return text if flushed.durable else f"{text}; no device could write this down: a restart may find some again"


def _drop(stack: TierStack, page: Page, key: str) -> Errand:
    pages = yield from sweeps.drop(stack.table, page)
    stack.events.emit("prefix.dropped", page=key, pages=pages)
    return f"{pages} pages forgotten"


def _pin(stack: TierStack, page: Page, key: str) -> Errand:
    pins, room = stack.table.operator_pins, int(stack.host.limit_slots * PINNED_SHARE)
    if page in pins.pinned:
        return "it was pinned already"
    new = sum(not one.kept for one in sweeps.prefix_of(page))
    if pins.kept_pages + new > room:
        raise CommandRefusedError(
            f"page: {new} more pages would be pinned with it, {pins.kept_pages} are; at most {room} may be, half of "
            "host memory: unpin others first"
        )
    pages = yield from sweeps.keep(stack.table, page)
    if pages and page.namespace != stack.digest:
        yield from sweeps.let_go(stack.table, page)
        pages = 0
    if not pages:
        raise _not_held(key)
    stack.events.emit("prefix.pinned", page=key, pages=pages)
    return f"{pages} pages pinned"


def _unpin(stack: TierStack, page: Page, key: str) -> Errand:
    pages = yield from sweeps.let_go(stack.table, page)
    if not pages:
        raise CommandRefusedError(f"page: {key} is not pinned; a prefix is unpinned by the page it was pinned by")
    stack.events.emit("prefix.unpinned", page=key, reason="unpinned")
    return "unpinned"


# ---- policy and limits ----


def _set_policy(stack: TierStack, field: str, value: str | float) -> str:
    name, field_name = section_of(field)
    section, new = getattr(stack.config, name), policy_value(field, value)
    old = getattr(section, field_name)
    if new == old:
        return f"{field} was {old!s} already"
    if field_name == "throttle":
        _throttle(stack, name, float(new))
    changed = msgspec.structs.replace(section, **{field_name: new})
    stack.config = msgspec.structs.replace(stack.config, **{name: changed})
    policy, restoring = stack.config.policy, stack.config.restore
    stack.restorer.change_deadline(float(policy.restore_deadline))
    stack.restorer.behind = restoring.behind
    stack.restorer.serve(by_age=restoring.loads == "by-age")
    stack.planner.choice = restoring.strategy
    for mover in stack.movers.values():
        mover.admission = mover.tier.admission(policy, stack.namespace.geometry.tokens)
    if name == "policy" and field_name == "eviction":  # what a tier's order is made of
        with stack.table.lock:
            stack.table.change_eviction(eviction_policy(policy))
    stack.events.emit("policy.changed", field=field, old=str(old), new=str(new))
    return f"{field}: {old!s} -> {new!s}"


@runtime_checkable
class ThrottledTier(Protocol):
    """What can be slowed down while it serves."""

    def throttle(self, bytes_per_second: float) -> bool: ...


def _throttle(stack: TierStack, name: str, bytes_per_second: float) -> None:
    tier = stack.tiers.get(name)
    if not isinstance(tier, ThrottledTier) or not tier.throttle(bytes_per_second):
        raise CommandRefusedError(
            f"{name}.throttle: can be changed only where the server was started with it; set it there"
        )


def _cap_host(stack: TierStack, limit: int | None) -> Errand:
    table, host = stack.table, stack.host
    with table.lock:
        pinned = table.pinned_pages * host.geometry.stride_bytes
        if limit is not None and limit < pinned:
            raise _too_low(limit, table.pinned_pages, pinned)
        host.limit_bytes = host.capacity_bytes if limit is None else limit
    shed = yield from _shed(stack, host.name, limit, host.limit_bytes)
    if limit is not None and host.limit_bytes == host.capacity_bytes:
        return f"host of this rank has no more than {format_size(host.capacity_bytes)}, and may use all of it"
    return shed


def _cap(stack: TierStack, name: str, limit: int | None) -> Errand:
    tier, table = _tier(stack, name), stack.table
    with table.lock:
        copies = table.named(name)
        pages = table.pinned_in(copies.number)
        pinned = pages * tier.size_of(stack.namespace.geometry.page_bytes)
        if limit is not None and limit < pinned:
            raise _too_low(limit, pages, pinned)
        copies.limit = limit
    return (yield from _shed(stack, name, limit, limit or 0))


def _too_low(limit: int, pages: int, pinned: int) -> CommandRefusedError:
    return CommandRefusedError(
        f"limit: {format_size(limit)} is less than the {format_size(pinned)} of the {pages} pages that are pinned; "
        "unpin some, or wait for the requests that use them"
    )


def _shed(stack: TierStack, tier: str, limit: int | None, effective: int) -> Errand:
    """`effective`: the limit in force, bytes."""
    stack.events.emit("tier.capped", tier=tier, limit_bytes=limit)
    pages = yield from sweeps.shed(stack.table)
    if limit is None:
        return f"{tier} may use its whole capacity"
    with stack.table.lock:
        rest = stack.table.over_limit
    text = f"{tier} of this rank holds at most {format_size(effective)}; {pages} pages evicted"
    return f"{text}; what running requests hold beyond that leaves when they are done" if rest else text


# ---- what a tier alone can do ----


def _order(stack: TierStack, name: str, order: str, argument: str) -> Errand:
    if name == stack.host.name:
        raise CommandRefusedError(f"order: {name} has no orders; flush and cap-tier are what it obeys")
    tier = _tier(stack, name)
    orders = tier.commands(stack.config)
    if order not in orders:
        raise CommandRefusedError(f"order: {name} has none called {order}; it has: {', '.join(orders) or 'none'}")
    yield
    obeyed = orders[order](argument)
    for event, facts in obeyed.events:
        stack.events.emit(event, **facts)
    return obeyed.text


def _tier(stack: TierStack, name: str) -> Tier:
    if name not in stack.tiers:
        raise CommandRefusedError(_LACKS.get(name, f"this server has no {name} tier"))
    return stack.tiers[name]


# ---- leases ----


def _of_leases(stack: TierStack, command: RecallLeases | PinLease | UnpinLease | CapLending) -> str:
    hand = stack.lease_hand
    if hand is None or not hand.lends:
        raise CommandRefusedError("this server does not lend; set peer.donate and start it again")
    if not _is_meant(command, hand.name.rpartition(".")[2]):
        return "another rank was meant"
    match command:
        case RecallLeases(leases=leases, borrower=borrower):
            return _recall(stack, hand, leases, borrower or "")
        case PinLease(lease=lease):
            return _pin_lease(stack, hand, lease, pinned=True)
        case UnpinLease(lease=lease):
            return _pin_lease(stack, hand, lease, pinned=False)
        case CapLending(limit=limit):
            return _cap_lending(stack, hand, None if limit is None else limit_bytes(limit))
        case _:
            assert_never(command)


def _is_meant(command: RecallLeases | PinLease | UnpinLease | CapLending, rank: str) -> bool:
    """Whether the command is for this rank. Those of one replica lend together, the same on each: one has no cap that
    the others have not."""
    if isinstance(command, CapLending) and command.rank is not None:
        return command.rank.partition("-")[0] == rank.partition("-")[0]
    return command.rank in (None, rank)


def _recall(stack: TierStack, hand: LeaseHand, leases: int | Literal["all"], borrower: str) -> str:
    recalled = hand.recall(None if leases == "all" else [leases], borrower)
    if not recalled and leases != "all":
        whose = f" to {borrower}" if borrower else ""
        raise CommandRefusedError(
            f"leases: {leases} is not lent{whose} here, or recalled already; `swift-tiers inspect leases` shows all"
        )
    if recalled:
        stack.events.emit("lease.recalled", leases=recalled, borrower=borrower, reason="command")
    return f"{recalled} leases recalled"


def _pin_lease(stack: TierStack, hand: LeaseHand, lease: int, *, pinned: bool) -> str:
    if not hand.pin(lease, pinned):
        raise CommandRefusedError(f"lease: {lease} is not lent here; `swift-tiers inspect leases` shows those that are")
    stack.events.emit("lease.pinned" if pinned else "lease.unpinned", lease=lease)
    return "recalled last from now on" if pinned else "recalled like others from now on"


def _cap_lending(stack: TierStack, hand: LeaseHand, limit: int | None) -> str:
    try:
        hand.cap(limit)
    except ValueError as error:
        raise CommandRefusedError(str(error)) from None
    stack.events.emit("lending.capped", limit_bytes=limit)
    if limit is None:
        return "as much is lent as there is"
    return f"at most {format_size(limit)} are lent; what is beyond is recalled"
