"""What an operator may command over the bus: one typed message each, checked before anything is touched.

Every command is carried out by all ranks of a server in the same step of their schedulers. None of them can make an
answer wrong: at worst pages are recomputed.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

from ...base.errors import CommandRefusedError

PageKeyText = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z", description="a page's key: its 64 digits, 0-9 a-f")]
LeaseNumber = Annotated[int, Meta(ge=1, description="number of a lease at its donor")]
LeaseName = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9._-]{1,128}\Z", description="a rank, as leases call it: SERVER.RANK")
]
RankName = Annotated[str, Meta(pattern=r"^dp\d+-tp\d+\Z", description="the one rank that is meant, as dp0-tp0")]


class Command(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", kw_only=True):
    """Base of all commands."""


class Flush(Command, frozen=True, tag="flush"):
    """Forget the pages of this server's namespace: in host memory, or in every tier."""

    tiers: Literal["host", "all"] = "host"


class DrainDevice(Command, frozen=True, tag="drain_device"):
    """A device gets no new pages any more; it goes on serving those it has, until they are evicted."""

    device: Annotated[int, Meta(ge=0, description="number of the device in the stripe set")]


class ReadmitDevice(Command, frozen=True, tag="readmit_device"):
    """A device that was drained, or has no room, gets new pages again; one that is out of service is taken back, empty,
    if it answers."""

    device: Annotated[int, Meta(ge=0, description="number of the device in the stripe set")]


class AddDevice(Command, frozen=True, tag="add_device"):
    """One more device for the stripe set: a file in this directory, made if need be."""

    directory: Annotated[str, Meta(min_length=1, max_length=4096)]


class Pin(Command, frozen=True, tag="pin"):
    """A page and its prefix are not evicted from where they are until they are unpinned; a flush takes them too."""

    page: PageKeyText


class Unpin(Command, frozen=True, tag="unpin"):
    """Take back a `pin` of the same page."""

    page: PageKeyText


class Drop(Command, frozen=True, tag="drop"):
    """Forget a page and everything that follows it, in every tier below the device but a remote store's."""

    page: PageKeyText


class SetPolicy(Command, frozen=True, tag="set_policy"):
    """Change one value of the configuration until the server ends: of its section `policy`, or of another one."""

    field: Literal[
        "eviction",
        "write",
        "ssd_admission",
        "admission_uses",
        "admission_tokens",
        "restore_deadline",
        "flush_cache",
        "restore.strategy",
        "restore.behind",
        "restore.loads",
        "ssd.throttle",
        "remote.throttle",
    ]
    value: str | int | float


#: The name of a tier below the device. Which there are, the server knows.
CappedTier = Annotated[
    str, msgspec.Meta(pattern=r"^(?!device$)[a-z][a-z0-9-]{0,31}$", description="a tier below the device")
]


class CapTier(Command, frozen=True, tag="cap_tier"):
    """Let a tier of each rank hold no more than this; what is too much is evicted. Without a limit: its whole capacity
    again."""

    tier: CappedTier
    limit: str | int | None = None  # "8GiB", or bytes


class OrderTier(Command, frozen=True, tag="order_tier"):
    """Let one tier do what it alone can do: `drain`, `readmit` or `add` of ssd. Which orders a tier has, it says when
    it has not the one that is named."""

    tier: CappedTier
    order: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9-]{0,31}\Z", description="what it can do")]
    argument: Annotated[str, Meta(max_length=4096, description="for what")] = ""


class RecallLeases(Command, frozen=True, tag="recall_leases"):
    """Ask borrowers to return a lease, or all; of one borrower only, if it is named. They may be lent again."""

    leases: LeaseNumber | Literal["all"]
    borrower: LeaseName | None = None
    rank: RankName | None = None


class PinLease(Command, frozen=True, tag="pin_lease"):
    """A lease is recalled last when memory is taken back, until it is unpinned or ends."""

    lease: LeaseNumber
    rank: RankName | None = None


class UnpinLease(Command, frozen=True, tag="unpin_lease"):
    """Take back a `pin_lease`."""

    lease: LeaseNumber
    rank: RankName | None = None


class CapLending(Command, frozen=True, tag="cap_lending"):
    """Let each rank lend no more than this, and recall what is beyond. Without a limit: as much as there is to lend.
    `rank`: every rank of its replica, since these lend together."""

    limit: str | int | None = None  # "8GiB", or bytes
    rank: RankName | None = None


AnyCommand = (
    Flush
    | DrainDevice
    | ReadmitDevice
    | AddDevice
    | Pin
    | Unpin
    | Drop
    | SetPolicy
    | CapTier
    | OrderTier
    | RecallLeases
    | PinLease
    | UnpinLease
    | CapLending
)

COMMANDS: tuple[type[Command], ...] = get_args(AnyCommand)

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the control stream, read."""

    id: str
    author: str
    deadline: float  # seconds since 1970 by Redis' clock
    command: AnyCommand


def is_author(text: str) -> bool:
    """Whether it may say who wants a command, for the audit: 1 to 200 printable characters."""
    return 0 < len(text) <= 200 and text.isprintable()


def read_order(entry: dict[str, str]) -> Order:
    """An entry of the control stream. Raises CommandRefusedError, which names what is wrong with it."""
    identifier = entry.get("id", "")
    if not _ID.fullmatch(identifier):
        raise CommandRefusedError("id: must be 1 to 64 characters of A-Z a-z 0-9 . _ -")
    author = entry.get("author", "")
    if not is_author(author):
        raise CommandRefusedError("author: must be 1 to 200 printable characters, for the audit")
    try:
        deadline = float(entry["deadline"])
    except (KeyError, ValueError):
        deadline = math.nan
    if not math.isfinite(deadline):
        raise CommandRefusedError("deadline: must be a time in seconds since 1970 by Redis' clock (TIME)")
    return Order(id=identifier, author=author, deadline=deadline, command=read_command(entry.get("command", "")))


def read_command(text: str) -> AnyCommand:
    """A command from its JSON. Raises CommandRefusedError."""
    try:
        return msgspec.json.decode(text, type=AnyCommand)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        names = ", ".join(str(kind.__struct_config__.tag) for kind in COMMANDS)
        raise CommandRefusedError(f"command: {error}; it is a JSON object whose `type` is one of {names}") from None


def write_order(order: Order) -> dict[str, str]:
    """The inverse of `read_order`."""
    return {
        "id": order.id,
        "author": order.author,
        "deadline": repr(order.deadline),
        "command": msgspec.json.encode(order.command).decode(),
    }
