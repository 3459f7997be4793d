"""argparse, and errors, as every command here has them: one line each."""

from __future__ import annotations

import argparse
import sys
import traceback
from typing import Any, NoReturn

from swift_tiers.radix_tiering.bus.hear.figures import text

from .errors import USAGE


class Parser(argparse.ArgumentParser):
    """argparse with errors of one line."""

    intermixed = False
    passing_on = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self.passing_on:
            found, found.server_arguments = super().parse_known_args(args, namespace)
            return found, []
        if not self.intermixed:
            return super().parse_known_args(args, namespace)
        self.intermixed = False  # it calls this in its turn
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self.intermixed = True

    def error(self, message: str) -> NoReturn:
        raise SystemExit(fail(f"{message} (see `{self.prog} --help`)", USAGE, verbose=False))


def fail(message: str, code: int, verbose: bool) -> int:
    """One line, and `code`. What is in the message may be anybody's words: a name on the bus, a path, a server's."""
    for line in traceback.format_exc().splitlines() if verbose else ():
        print(text(line), file=sys.stderr)
    line = " ".join(message.splitlines())
    print(f"swift-tiers: error: {text(line)}", file=sys.stderr)
    return code
