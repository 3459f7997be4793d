"""Look at everything that a new installation gets wrong: software, machine, accelerators, devices, bus.

Each line says what was found and, where something is to be done, what. Nothing is changed, and nothing is left behind
but SGLang's compiled page hash, and with `remote.engine` one small object there.
A check that does not answer (a dead mount, a sick device, a hanging driver) is cut off and reported. Exits 0 where
nothing is wrong (warnings are allowed), 3 where something is, 2 for a configuration that cannot be read.
"""

from __future__ import annotations

import argparse

SUMMARY = "check that this machine and this configuration fit"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", metavar="JSON|@FILE", help="what the server gets as --swift-tiers-config (default: no file)"
    )
    parser.add_argument(
        "--ranks", type=int, default=1, metavar="N", help="schedulers of the server, tp size x dp size (default: 1)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout in place of the table")


def run(options: argparse.Namespace) -> int:
    from .command import run_doctor

    return run_doctor(options.config, options.ranks, as_json=options.json)
