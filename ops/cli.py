"""The command line `swift-tiers`. Errors are one line on stderr; exit codes: see `ops.errors`.

Subcommands import what is slow to import (torch, sglang, numpy) only when they run, so that help is instant.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from swift_tiers.radix_tiering.base.errors import ConfigError, SwiftTiersError
from swift_tiers.radix_tiering.bus.hear.figures import text

from .base.errors import FAILURE, INTERRUPTED, USAGE, CommandError
from .base.model import ModelError
from .base.output import cannot_write, has_no_reader, open_streams
from .base.parser import Parser, fail
from .commands import (
    bench_command,
    config_command,
    console_command,
    control_command,
    demo,
    doctor,
    fsck,
    gpu_proof_command,
    inspect,
    lease_command,
    monitoring,
    profile,
    replay_command,
    simulate_command,
    swiftkv,
    torture_command,
)

#: Each has SUMMARY, `add_arguments(parser)` and `run(options) -> exit code`.
COMMANDS = {
    "demo": demo,
    "doctor": doctor,
    "console": console_command,
    "replay": replay_command,
    "inspect": inspect,
    "control": control_command,
    "lease": lease_command,
    "monitoring": monitoring,
    "profile": profile,
    "bench": bench_command,
    "swiftkv": swiftkv,
    "gpu-proof": gpu_proof_command,
    "simulate": simulate_command,
    "torture": torture_command,
    "fsck": fsck,
    "config": config_command,
}


#: Commands whose options may stand between their words: `inspect request --json RID`.
INTERMIXED = {"inspect", "control", "lease", "simulate"}
#: Commands that hand what they do not know to a server, as `options.server_arguments`.
PASSING_ON = {"profile"}


#: What to do where what is printed cannot be kept.
NO_ROOM = "make room, or name another place behind `>`"


class _VersionAction(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import version

        print(f"swift-tiers {version('swift-tiers')} (for sglang {version('sglang')})")
        parser.exit()


def make_parser() -> argparse.ArgumentParser:
    """The parser of everything behind `swift-tiers`."""
    parser = Parser(prog="swift-tiers", description="Memory tiers beneath SGLang's prefix tree: the tools around them.")
    parser.add_argument("--version", action=_VersionAction, nargs=0, help="show the version and exit")
    parser.add_argument("-v", "--verbose", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, module in COMMANDS.items():
        # What is passed on must not be taken for an abbreviation of an option here.
        command = commands.add_parser(
            name, help=module.SUMMARY, description=module.__doc__, allow_abbrev=name not in PASSING_ON
        )
        # Suppressed: the default of a subcommand must not overwrite what stood before it.
        command.add_argument(
            "-v", "--verbose", action="store_true", default=argparse.SUPPRESS, help="show the traceback of an error"
        )
        module.add_arguments(command)
        command.intermixed = name in INTERMIXED
        command.passing_on = name in PASSING_ON
        command.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code. Only argparse itself exits by SystemExit."""
    open_streams()
    code = 0
    try:
        try:
            code = _run(argv)
        finally:
            sys.stdout.flush()  # what has no reader, or no room, is noticed here, not when Python ends
    except BrokenPipeError:
        # Who read our output has seen enough (`| head`); Python must not try to flush it once more. What a command
        # that had ended by then has found out stands.
        sys.stdout = None  # type: ignore[assignment]
    except OSError as error:
        sys.stdout = None  # type: ignore[assignment]
        return fail(f"standard output: {error.strerror}; {NO_ROOM}", FAILURE, verbose=False)
    return code


def _run(argv: Sequence[str] | None) -> int:
    options = make_parser().parse_args(argv)
    try:
        code: int = options.run(options)
        return code
    except KeyboardInterrupt:
        return fail("interrupted", INTERRUPTED, options.verbose)
    except CommandError as error:
        for line in error.detail.splitlines():
            print(text(line), file=sys.stderr)
        return fail(str(error), error.code, options.verbose)
    except ConfigError as error:
        return fail(str(error), USAGE, options.verbose)
    except (SwiftTiersError, ModelError) as error:
        return fail(str(error), FAILURE, options.verbose)
    except Exception as error:
        if (isinstance(error, BrokenPipeError) and has_no_reader(sys.stdout)) or cannot_write(sys.stdout, error):
            raise
        detail = " ".join(str(error).split())
        hint = "" if options.verbose else " (-v shows where)"
        return fail(f"{type(error).__name__}: {detail}{hint}", FAILURE, options.verbose)
