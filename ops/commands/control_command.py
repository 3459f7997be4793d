"""Send one command to a server and show what became of it at each of its ranks. The server needs bus.control = true.

Exits 0 if every rank carried it out, 1 if it was refused, expired, was carried out by some ranks only, was not answered
or not finished, or if it is not known whether it was carried out: what is said tells which.
"""

from __future__ import annotations

import argparse
import getpass
import json
import os
import socket
from typing import TYPE_CHECKING

from ..base.arguments import author_argument
from ..base.errors import FAILURE, USAGE, CommandError
from .inspect.bus import add_bus_arguments, bus_config, seconds_argument

if TYPE_CHECKING:
    from swift_tiers.radix_tiering.bus.contract.commands import AnyCommand
    from swift_tiers.radix_tiering.bus.contract.views import CommandView

SUMMARY = "steer a server: flush, drain, add, pin, drop, set, cap"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from swift_tiers.radix_tiering.bus.contract.commands import COMMANDS
    from swift_tiers.radix_tiering.bus.hear.command_words import name_of, usage

    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "\n".join(["commands:", *(f"  {usage(kind)}\n      {kind.__doc__}" for kind in COMMANDS)])
    parser.add_argument("server", metavar="SERVER", help="its name on the bus; see `swift-tiers inspect servers`")
    parser.add_argument("order", metavar="COMMAND", choices=[name_of(kind) for kind in COMMANDS], help="see below")
    parser.add_argument("values", metavar="VALUE", nargs="*", default=[], help="what the command takes")
    add_bus_arguments(parser)
    parser.add_argument("--author", type=author_argument, help="who wants it, for the audit (default: user@host)")
    parser.add_argument(
        "--timeout",
        type=seconds_argument,
        default=10.0,
        metavar="SECONDS",
        help="after that the server must not begin with it any more (default: 10)",
    )
    parser.add_argument("--json", action="store_true", help="the outcome as JSON")


def run(options: argparse.Namespace) -> int:
    from swift_tiers.radix_tiering.bus.hear.reader import BusReader

    command = make_command(options.order, options.values)
    with BusReader.open(bus_config(options), "control") as reader:
        outcome = reader.command(options.server, options.author or author(), command, options.timeout)
    if options.json:
        import msgspec

        print(json.dumps(msgspec.to_builtins(outcome), indent=1))
    else:
        show(options.order, outcome)
    return 0 if outcome.state == "done" else FAILURE


def make_command(name: str, values: list[str]) -> AnyCommand:
    """The command from its words. Raises CommandError (usage)."""
    from swift_tiers.radix_tiering.bus.contract.commands import CommandRefusedError as BusCommandError
    from swift_tiers.radix_tiering.bus.hear import command_words

    try:
        return command_words.make_command(name, values)
    except BusCommandError as error:
        raise CommandError(
            f"control: {error}" if str(error).startswith("usage") else f"control {error}", USAGE
        ) from None


def author() -> str:
    """`user@host`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid{os.geteuid()}"  # an account that has no name here, as in containers
    return f"{user}@{socket.gethostname()}"


def show(name: str, outcome: CommandView) -> None:
    """One line about all, then one about each rank."""
    from swift_tiers.radix_tiering.bus.hear.figures import text

    reason = f": {text(outcome.reason)}" if outcome.reason else ""
    state = outcome.state if outcome.state == "done" else outcome.state.upper()
    print(f"{state} {name} on {text(outcome.server)}{reason} (command {text(outcome.id)})")
    for rank, became in sorted(outcome.ranks.items()):
        print(f"  {text(rank)}  {text(became)}")
