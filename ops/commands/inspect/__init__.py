"""Show what the servers say on the bus: who is alive, what tiers and devices hold, where a request's tokens came from.

Subjects: servers, tiers, devices, links, leases, tree, requests, request RID (the beginning of its id will do), restore
RID (how its prefix came back, and why so), page KEY, prefix KEY (where the pages of a sequence are), map TIER (what is
in each slot), nodes (the largest subtrees of SGLang's radix tree), events. What is wrong comes first. Without
--config, --url or --directory, the bus is the embedded Redis of this user. Exits 1 if the bus cannot be reached or has
nothing of that name, 2 for a wrong usage.
"""

from __future__ import annotations

import argparse
import re

from ...base.errors import USAGE, CommandError
from .bus import add_bus_arguments, seconds_argument

SUMMARY = "show what the servers say on the bus"
SUBJECTS = (
    "servers",
    "tiers",
    "devices",
    "links",
    "leases",
    "tree",
    "requests",
    "request",
    "restore",
    "page",
    "prefix",
    "map",
    "nodes",
    "events",
)
#: Subjects that need to be told of which one.
NAMED = {"request": "RID", "restore": "RID", "page": "KEY", "prefix": "KEY", "map": "TIER"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("subject", nargs="?", choices=SUBJECTS, metavar="SUBJECT", help="one of " + ", ".join(SUBJECTS))
    parser.add_argument("name", nargs="?", metavar="RID|KEY|TIER", help="which request, page or tier")
    add_bus_arguments(parser)
    add_look_arguments(parser)
    parser.add_argument(
        "--redis-cli", action="store_true", help="print the command that looks at this bus by hand, and exit"
    )


def add_look_arguments(parser: argparse.ArgumentParser) -> None:
    """How to look, whatever it is at."""
    parser.add_argument("--server", metavar="NAME", help="this server only")
    parser.add_argument("--json", action="store_true", help="JSON on stdout in place of tables; see docs/bus.md")
    parser.add_argument(
        "--watch",
        nargs="?",
        type=seconds_argument,
        const=1.0,
        metavar="SECONDS",
        help="look again and again until Ctrl-C (default: each second); events: as they come",
    )
    parser.add_argument(
        "--limit",
        type=_limit,
        default=50,
        metavar="N",
        help="at most N events, ended requests, leases, nodes (default: 50)",
    )


def run(options: argparse.Namespace) -> int:
    from swift_tiers.radix_tiering.bus.contract.schema import TIER_NAME

    from .command import run_inspect, show_redis_cli

    if options.redis_cli:
        return show_redis_cli(options)
    if options.subject is None:
        raise CommandError(f"inspect: what? One of {', '.join(SUBJECTS)}", USAGE)
    needed = NAMED.get(options.subject)
    if needed and options.name is None:
        raise CommandError(f"inspect {options.subject}: which one? Give its {needed}", USAGE)
    if not needed and options.name is not None:
        raise CommandError(f"inspect {options.subject}: takes no {options.name!r}", USAGE)
    if needed == "KEY" and not re.fullmatch("[0-9a-fA-F]{64}", options.name):
        raise CommandError(
            f"inspect {options.subject}: {options.name[:80]!r} is no page's key; give its 64 digits, 0-9 a-f", USAGE
        )
    if needed == "TIER" and not TIER_NAME.fullmatch(options.name):
        raise CommandError(
            f"inspect map: {options.name[:80]!r} is no name of a tier; `inspect tiers` says which there are", USAGE
        )
    return run_inspect(options)


def _limit(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 10_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 10000")
    return int(text)
