"""Commands to simulated servers: what is cheap to simulate is carried out, the rest is refused with a reason."""

from __future__ import annotations

from typing import assert_never

import msgspec

from swift_tiers.radix_tiering.base.units import format_size
from swift_tiers.radix_tiering.bus.contract.commands import (
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
    RecallLeases,
    SetPolicy,
    Unpin,
    UnpinLease,
)
from swift_tiers.radix_tiering.bus.contract.policy_values import limit_bytes, policy_value
from swift_tiers.radix_tiering.table.held_page import Page

from .server import DemoServer
from .stripes import IN_SERVICE

#: What a policy value changes in the simulation.
SIMULATED = ("eviction", "ssd_admission", "admission_uses", "admission_tokens")


def carry_out(server: DemoServer, command: AnyCommand) -> str:
    """What was done. Raises CommandRefusedError."""
    match command:
        case Pin(page=key) | Unpin(page=key) | Drop(page=key):
            return _page(server, command, _held(server, key))
        case CapTier(tier=tier, limit=limit):
            return _cap_tier(server, tier, _size(limit))
        case DrainDevice(device=number):
            return _drain(server, number)
        case AddDevice():
            if server.stripes is None:
                raise CommandRefusedError("this server has no ssd tier")
            device = server.stripes.add()
            server.events.emit("device.added", device=device.path, number=device.number)
            return f"device {device.number}: {device.path}"
        case OrderTier(tier="ssd", order="drain", argument=number) if number.isdecimal():
            return _drain(server, int(number))
        case OrderTier(tier=tier):
            raise CommandRefusedError(
                f"order: the demo simulates none of {tier} but `ssd drain NUMBER`; a real server obeys"
            )
        case Flush(tiers=tiers):
            return _flush(server, everywhere=tiers == "all")
        case SetPolicy(field=field, value=value):
            return _set_policy(server, field, value)
        case RecallLeases() | PinLease() | UnpinLease() | CapLending():
            return _lease(server, command)
        case _:
            assert_never(command)


def _flush(server: DemoServer, *, everywhere: bool) -> str:
    pages = server.tiers.flush(everywhere=everywhere)
    server.events.emit("tiers.flushed", host=True, ssd=everywhere, durable=True)
    return f"{pages} pages forgotten in {'every tier' if everywhere else 'host memory'}"


def _set_policy(server: DemoServer, field: str, value: str | float) -> str:
    if field not in SIMULATED:
        raise CommandRefusedError(f"{field}: the demo simulates {', '.join(SIMULATED)} only; a real server obeys")
    new = policy_value(field, value)
    old = getattr(server.tiers.policy, field)
    if new == old:
        return f"{field} was {old!s} already"
    server.tiers.change_policy(msgspec.structs.replace(server.tiers.policy, **{field: new}))
    server.events.emit("policy.changed", field=field, old=str(old), new=str(new))
    return f"{field}: {old!s} -> {new!s}"


def _size(limit: str | int | None) -> int | None:
    return None if limit is None else limit_bytes(limit)


def _held(server: DemoServer, key: str) -> Page:
    page = server.tiers.table.find(server.tiers.digest, bytes.fromhex(key))
    if page is None or not page.complete:
        raise CommandRefusedError(f"page: {key} is not held below the device here")
    return page


def _page(server: DemoServer, command: Pin | Unpin | Drop, page: Page) -> str:
    table, events, key = server.tiers.table, server.events, page.key.hex()
    with table.lock:
        if isinstance(command, Drop):
            before = table.directory(server.tiers.digest).pages
            table.drop(page)
            pages = before - table.directory(server.tiers.digest).pages
            events.emit("prefix.dropped", page=key, pages=pages)
            return f"{pages} pages forgotten"
        pins = table.operator_pins
        if isinstance(command, Pin):
            if page not in pins.pinned:
                pins.remember(page)
                pins.keep(page)
            events.emit("prefix.pinned", page=key, pages=page.depth)
            return f"{page.depth} pages pinned"
        if page not in pins.pinned:
            raise CommandRefusedError(f"page: {key} is not pinned")
        del pins.pinned[page]
        pins.let_go(page)
        events.emit("prefix.unpinned", page=key, reason="unpinned")
        return "unpinned"


def _cap_tier(server: DemoServer, tier: str, limit: int | None) -> str:
    table, host = server.tiers.table, server.tiers.host
    if tier != host.name and tier not in server.tiers.tiers:
        raise CommandRefusedError(f"this server has no {tier} tier")
    with table.lock:
        if tier == host.name:
            host.limit_bytes = host.capacity_bytes if limit is None else limit
        else:
            table.named(tier).limit = limit
    pages = server.tiers.shed()
    server.events.emit("tier.capped", tier=tier, limit_bytes=limit)
    if limit is None:
        return f"{tier} may use its whole capacity"
    return f"{tier} holds at most {format_size(limit)}; {pages} pages evicted"


def _drain(server: DemoServer, number: int) -> str:
    stripes = server.stripes
    if stripes is None or number >= len(stripes.devices):
        raise CommandRefusedError(f"device: there is no device {number} here")
    device = stripes.devices[number]
    if device.service != IN_SERVICE:
        raise CommandRefusedError(f"device: {device.path} is {device.service}")
    stripes.drain(number)
    server.events.emit("device.draining", device=device.path)
    return f"{device.path} gets no new pages"


def _lease(server: DemoServer, command: RecallLeases | PinLease | UnpinLease | CapLending) -> str:
    donor = server.donor
    if donor is None:
        raise CommandRefusedError("this server does not lend; set peer.donate and start it again")
    match command:
        case RecallLeases(leases=leases, borrower=borrower):
            recalled = donor.recall(None if leases == "all" else [leases], borrower or "")
            if not recalled and leases != "all":
                raise CommandRefusedError(f"leases: {leases} is not lent here, or recalled already")
            server.events.emit("lease.recalled", leases=recalled, borrower=borrower or "", reason="command")
            return f"{recalled} leases recalled"
        case PinLease(lease=lease) | UnpinLease(lease=lease):
            pinned = isinstance(command, PinLease)
            if not donor.machine.pin(lease, pinned):
                raise CommandRefusedError(f"lease: {lease} is not lent here")
            server.events.emit("lease.pinned" if pinned else "lease.unpinned", lease=lease)
            return "recalled last from now on" if pinned else "recalled like others from now on"
        case CapLending(limit=limit):
            size = _size(limit)
            donor.lender.cap(size)
            server.events.emit("lending.capped", limit_bytes=size)
            return "as much is lent as there is" if size is None else f"at most {format_size(size)} are lent"
