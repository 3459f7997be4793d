"""Simulate the tiers on devices that are not here: the papers' evaluations, and beyond them.

SCENARIO is a name of `--list`, the beginning of several (cacheflow), or all. The product's own planner, policies and
placement run over modelled GPUs, links and SSDs in virtual time; docs/evaluation.md is what `all --markdown` prints.
It is part of the source tree, not of what is installed.
"""

from __future__ import annotations

import argparse

from .source_tree import lab_module

SUMMARY = "simulate devices that are not here (part of the source tree)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scenario", nargs="?", metavar="SCENARIO", help="which one, several (cacheflow), or all")
    parser.add_argument("--list", action="store_true", help="list the scenarios and exit")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="JSON on stdout in place of tables")
    form.add_argument("--markdown", action="store_true", help="Markdown on stdout, as in docs/evaluation.md")


def run(options: argparse.Namespace) -> int:
    code: int = lab_module("simulate.command", "simulate").run(options)
    return code
