"""Measure what recomputing and loading cost with one model on this machine, and save it for the servers that run it.

Starts a server of its own with the arguments given here, measures for about a minute, fits, shows and saves what it
found. Nothing else should be running on the machine. Every option that is not listed goes to the server: give those
that it is served with. SSDs named by directory are measured in a temporary directory beside the server's own files;
whole block devices are left alone.
"""

from __future__ import annotations

import argparse

from ...base.arguments import path_argument
from ..inspect.bus import seconds_argument

SUMMARY = "measure what recomputing and loading cost with a model on this machine (a minute)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "swift-tiers profile --model-path MODEL [OPTIONS] [any option of the server]"
    parser.add_argument(
        "--model-path", required=True, metavar="MODEL", help="directory or cached hub name of the model"
    )
    parser.add_argument(
        "--swift-tiers-config", metavar="JSON|@FILE", help="what the server is to get: the tiers that are measured"
    )
    parser.add_argument(
        "--out", type=path_argument, metavar="FILE", help="write it there, not to where servers look for it"
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="how long to measure, without the server's start (%(default)g)"
    )
    parser.add_argument(
        "--start-timeout",
        type=seconds_argument,
        default=300.0,
        metavar="SECONDS",
        help="for the server to start (%(default)g)",
    )


def run(options: argparse.Namespace) -> int:
    from .procedure import run_profile

    return run_profile(options)
