"""Simulate the tiers on devices that are not here: the papers' evaluations, and beyond them.

SCENARIO is a name of `--list`, the beginning of several (cacheflow), or all. The product's own planner, policies and
placement run over modelled GPUs, links and SSDs in virtual time; docs/evaluation.md is what `all --markdown` prints.
"""

from __future__ import annotations

import argparse

SUMMARY = "simulate devices that are not here"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scenario", nargs="?", metavar="SCENARIO", help="which one, several (cacheflow), or all")
    parser.add_argument("--list", action="store_true", help="list the scenarios and exit")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="JSON on stdout in place of tables")
    form.add_argument("--markdown", action="store_true", help="Markdown on stdout, as in docs/evaluation.md")


def run(options: argparse.Namespace) -> int:
    from .command import run as run_scenarios

    return run_scenarios(options)
