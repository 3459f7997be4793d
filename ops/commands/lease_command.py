"""What servers lend each other: see it, take it back, keep it, limit it.

list shows what `inspect leases` does. recall DONOR LEASE|all asks borrowers to return a lease, or all of them; pin and
unpin DONOR LEASE say whether it is recalled last; cap DONOR LIMIT|none sets the most that is lent. DONOR is the server
that lends, or one rank of it, as `lease list` has it (web-1.dp0-tp0). All but list need bus.control = true there. What
was recalled may be lent again once peer.window has passed; a cap keeps it. Exits 0 if it was done, 1 if it was refused,
expired, was done by some ranks only, or was not answered.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, NamedTuple

from ..base.arguments import author_argument
from ..base.errors import FAILURE, USAGE, CommandError
from . import control_command
from .inspect import add_look_arguments
from .inspect.bus import add_bus_arguments, bus_config, seconds_argument

if TYPE_CHECKING:
    from swift_tiers.radix_tiering.bus.contract.commands import AnyCommand
    from swift_tiers.radix_tiering.bus.hear.reader import BusReader

SUMMARY = "see and steer what servers lend each other"
#: What each action takes beside the donor.
ACTIONS = {"list": "", "recall": "LEASE|all", "pin": "LEASE", "unpin": "LEASE", "cap": "LIMIT|none"}


class CommandedDonor(NamedTuple):
    """Who is commanded."""

    server: str
    rank: str | None  # None: all of them


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=ACTIONS, metavar="ACTION", help="one of " + ", ".join(ACTIONS))
    parser.add_argument("donor", nargs="?", metavar="DONOR", help="the server that lends, or one rank of it")
    parser.add_argument("value", nargs="?", metavar="LEASE|LIMIT", help="which lease, or how much")
    add_bus_arguments(parser)
    add_look_arguments(parser)
    parser.add_argument("--borrower", metavar="NAME", help="recall: only what this one holds, as `lease list` names it")
    parser.add_argument("--author", type=author_argument, help="who wants it, for the audit (default: user@host)")
    parser.add_argument(
        "--timeout",
        type=seconds_argument,
        default=10.0,
        metavar="SECONDS",
        help="after that the server must not begin with it any more (default: 10)",
    )


def run(options: argparse.Namespace) -> int:
    _check_words(options)
    if options.action == "list":
        from .inspect.command import run_inspect

        options.subject, options.name = "leases", None
        return run_inspect(options)
    return _command(options)


def _check_words(options: argparse.Namespace) -> None:
    """Raises CommandError for words and options that the action does not take."""
    action, takes = options.action, ACTIONS[options.action]
    if action == "list":
        if options.donor is not None:
            raise CommandError(f"lease list: takes no {options.donor!r}; --server NAME limits it to one server", USAGE)
    elif options.value is None:
        raise CommandError(f"lease: usage: lease {action} DONOR {takes}", USAGE)
    if options.borrower is not None and action != "recall":
        raise CommandError(f"lease {action}: takes no --borrower", USAGE)
    for name in ("server", "watch"):
        if action != "list" and getattr(options, name) is not None:
            raise CommandError(f"lease {action}: takes no --{name}", USAGE)


def _command(options: argparse.Namespace) -> int:
    import msgspec

    from swift_tiers.radix_tiering.bus.hear.command_words import name_of
    from swift_tiers.radix_tiering.bus.hear.reader import BusReader

    make_command(options.action, options.value)  # raises before anything is asked of anybody
    with BusReader.open(bus_config(options), "lease") as reader:
        donor = find_donor(reader, options.donor)
        command = make_command(options.action, options.value, options.borrower, donor.rank)
        author = options.author or control_command.author()
        outcome = reader.command(donor.server, author, command, options.timeout)
    if options.json:
        print(json.dumps(msgspec.to_builtins(outcome), indent=1))
    else:
        control_command.show(name_of(type(command)), outcome)
    return 0 if outcome.state == "done" else FAILURE


def find_donor(reader: BusReader, name: str) -> CommandedDonor:
    """The server of this name, or the rank. Raises CommandError, BusError."""
    servers = {one.server: one for one in reader.servers()}
    if name in servers:
        return CommandedDonor(name, None)
    server, _, rank = name.rpartition(".")
    if server in servers and rank in servers[server].ranks:
        return CommandedDonor(server, rank)
    known = ", ".join(sorted(servers)) or "none"
    raise CommandError(f"lease: there is no server or rank {name[:80]!r} on this bus; there are: {known}")


def make_command(action: str, value: str, borrower: str | None = None, rank: str | None = None) -> AnyCommand:
    """The command. Raises CommandError (usage)."""
    from swift_tiers.radix_tiering.bus.contract.commands import CapLending, PinLease, RecallLeases, UnpinLease

    if action == "cap":
        return CapLending(limit=_limit(value), rank=rank)
    if action == "recall":
        return RecallLeases(leases="all" if value == "all" else _number(action, value), borrower=borrower, rank=rank)
    kind = PinLease if action == "pin" else UnpinLease
    return kind(lease=_number(action, value), rank=rank)


def _number(action: str, value: str) -> int:
    if not value.isdecimal() or int(value) == 0:
        raise CommandError(f"lease {action}: {value[:80]!r} is no lease; it takes {ACTIONS[action]}", USAGE)
    return int(value)


def _limit(value: str) -> str | int | None:
    from swift_tiers.radix_tiering.bus.contract.commands import CommandRefusedError
    from swift_tiers.radix_tiering.bus.contract.policy_values import written_limit

    try:
        return None if value == "none" else written_limit(value)
    except CommandRefusedError as error:
        raise CommandError(f"lease cap: {error}, or none", USAGE) from None
