"""Torture the real engine in virtual time: requests, while devices, leases, operators and processes fail.

A seed is one history: what everybody does, and in which order threads go on. One that fails is printed with what was
done until then and the command that does it again; the exit code is 1. It is part of the source tree, not of what is
installed.
"""

from __future__ import annotations

import argparse

from .source_tree import lab_module

SUMMARY = "run the engine under seeds while everything fails (part of the source tree)"
#: Worlds, and scenarios about one thing.
KINDS = (
    "trouble",
    "calm",
    "lent",
    "crash",
    "borrowed",
    "ranked",
    "shared",
    "ranks",
    "windowed",
    "recall",
    "recall-prefix",
    "draining",
    "landing-here",
    "many",
    "million",
)


def whole(text: str) -> int:
    """An argument that is a whole number, not below 0."""
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


def positive(text: str) -> int:
    """An argument that is a whole number above 0."""
    number = whole(text)
    if not number:
        raise ValueError(text)
    return number


def minutes(text: str) -> float:
    """An argument that is a time above 0."""
    number = float(text)
    if not 0 < number < 1e6:
        raise ValueError(text)
    return number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=whole, default=0, metavar="N", help="the first seed (default: 0)")
    parser.add_argument("--seeds", type=positive, metavar="K", help="end after so many seeds, one after another")
    parser.add_argument("--minutes", type=minutes, metavar="M", help="end after this time (default without --seeds: 1)")
    parser.add_argument("--steps", type=positive, default=12, metavar="S", help="what each client does (default: 12)")
    parser.add_argument(
        "--kind", action="append", metavar="KIND",
        choices=KINDS,
        help="worlds of this kind only, may be repeated: %(choices)s",
    )  # fmt: skip
    parser.add_argument("--fine", action="store_true", help="switch threads between statements, too")
    parser.add_argument("--go-on", action="store_true", help="go on after a world that failed")
    parser.add_argument("--as-it-is", action="store_true", help="do not shrink a world that failed")
    parser.add_argument("--schedule", type=whole, metavar="N", help="another order of threads, for one world")
    parser.add_argument("--keep", metavar="ACTIONS", help="only these actions of one world, as a failure prints them")
    parser.add_argument("--json", action="store_true", help="the last summary as JSON, and nothing else")


def run(options: argparse.Namespace) -> int:
    code: int = lab_module("torture.command", "torture").run(options)
    return code
