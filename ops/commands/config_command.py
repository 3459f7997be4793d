"""Explain every field of the tiers' configuration, print the defaults, or check a file before a server needs it."""

from __future__ import annotations

import argparse
import json
import sys

from ..base.arguments import MOST_RANKS, check_between, place_argument

SUMMARY = "explain, print or check the configuration"
#: SGLang's default, of a server whose name is not known yet.
PORT = 30000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--explain", action="store_true", help="every field with its type, default and meaning")
    action.add_argument("--markdown", action="store_true", help="the same as the table of docs/configuration.md")
    action.add_argument("--defaults", action="store_true", help="the configuration that no file gives, as JSON")
    action.add_argument(
        "--check", type=place_argument, metavar="FILE", help="check a TOML or JSON file, and the directories it names"
    )
    parser.add_argument(
        "--ranks", type=int, default=1, metavar="N", help="with --check: schedulers of the server, tp size x dp size"
    )


def run(options: argparse.Namespace) -> int:
    if options.explain:
        return _explain()
    if options.markdown:
        return _markdown()
    if options.defaults:
        from swift_tiers.radix_tiering.base.config import TiersConfig
        from swift_tiers.radix_tiering.base.read_config import dump_config

        print(json.dumps(dump_config(TiersConfig()), indent=2))
        return 0
    return _check(options.check, options.ranks)


def _check(name: str, ranks: int) -> int:
    from swift_tiers.radix_tiering.base.read_config import load_config

    check_between("--ranks", ranks, 1, MOST_RANKS)
    config = load_config(f"@{name.removeprefix('@')}")
    # The same look at the machine that a server takes: it imports torch, so only after the cheap part.
    from swift_tiers.sglang_ext.build.assembly import Rank
    from swift_tiers.sglang_ext.build.start_checks import check_start, server_name, without_a_bus_that_cannot_be

    config, trouble = without_a_bus_that_cannot_be(config)
    check_start(config, server=server_name(PORT, None, 1), last=Rank(ranks - 1, ranks, 0, 1), make=False)
    if trouble:
        print(f"swift-tiers: warning: {trouble}", file=sys.stderr)
    print("ok")
    return 0


def _explain() -> int:
    from rich import box
    from rich.table import Table

    from swift_tiers.radix_tiering.base.read_config import explain

    from ..base.terminal import Terminal

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=False)
    table.add_column("field", no_wrap=True)
    table.add_column("type", overflow="fold", max_width=12)
    table.add_column("default", overflow="fold")
    table.add_column("meaning", overflow="fold", ratio=1)
    section = None
    for field in explain():
        if section is not None and field.section != section:
            table.add_section()
        section = field.section
        table.add_row(f"{field.section}.{field.name}", field.kind, field.default, field.description)
    Terminal().print(table)
    print('Give it to a server with --swift-tiers-config \'{"host": {"size": "8GiB"}}\' or @FILE (TOML or JSON).')
    return 0


def _markdown() -> int:
    from swift_tiers.radix_tiering.base.read_config import explain

    print("| field | type | default | |\n|---|---|---|---|")
    for field in explain():
        kind = field.kind.replace(" | ", " or ")
        print(f"| `{field.section}.{field.name}` | {kind} | {field.default} | {field.description} |")
    return 0
