"""The command's options; imports nothing that is slow to import."""

from __future__ import annotations

import argparse

from ...base.arguments import path_argument

#: Of everything, seconds. A part that would begin later is left out.
MOST_SECONDS = 8 * 60.0


class ProofError(Exception):
    """There is nothing here to prove anything on, or something else was asked for than there is."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=path_argument, metavar="DIR", help="write results.json and results.svg there")
    parser.add_argument("--device", type=int, default=0, metavar="N", help="which CUDA device (default 0)")
    parser.add_argument("--seed", type=int, help="of the random inputs (default: a fresh one)")
    parser.add_argument("--cases", type=int, default=24, metavar="N", help="random inputs of each check (default 24)")
    parser.add_argument("--layouts", metavar="NAME,...", help="of these models' pages only")
    parser.add_argument(
        "--only-serving", action="store_true", help="the servers alone, which then have all of the time"
    )
    parser.add_argument(
        "--seconds", type=float, default=MOST_SECONDS, metavar="S", help="begin nothing after so long (default 480)"
    )
