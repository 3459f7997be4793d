"""What a donor keeps of its own: prefixes that are found on its device while a borrower wants all memory it can get.

Two real servers lend, one with `peer.keep` as it is and one with "0s", each to a borrower of its own. Both first cache
prompts that nobody asks for again, and then serve the same conversations, which come back by turns. The figures are the
share of the prompts that was found on the device, of what would be there if nothing were lent, and what is lent. The
model has random weights: what is measured is which pages are there.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from swift_tiers.radix_tiering.base.config import PeerConfig
from swift_tiers.radix_tiering.bus.hear.waiting import wait_for
from swift_tiers.radix_tiering.tiers.peer import PeerTier

from ...base.errors import CommandError
from ...commands.bench.report import Figure, finish, parser
from ...commands.bench.two_servers import START_SECONDS, call
from ...commands.demo.servers import Server, free_ports
from .busy_borrower import PATIENCE_SECONDS, find_donors

#: The least that a donor which keeps its prefixes finds, of what it could, and lends, of its pool.
FOUND, LENT = 0.9, 0.2
PAGE_TOKENS = 16
#: Ids of the model's vocabulary that stand for themselves.
VOCABULARY = range(1, 250)


class Turn(NamedTuple):
    """One request of a conversation that has been there before."""

    prompt: int  # tokens
    possible: int  # of them, that were computed before, in whole pages
    found: int  # of them, on the device
    lent: float  # of the pool, after it


class Side:
    """A donor, its borrower, and its conversations."""

    def __init__(self, port: int, borrower: PeerTier, pool_bytes: int, options: argparse.Namespace) -> None:
        self.turns: list[Turn] = []
        self._port = port
        self._borrower = borrower
        self._pool_bytes = pool_bytes
        self._options = options
        self._histories: list[list[int]] = [[] for _ in range(options.conversations)]

    def fill(self) -> None:
        """Cache as many prompts as the pool has room for, that are never asked for again."""
        generator = random.Random(1)
        for _ in range(self._options.pool // self._options.tokens):
            self._ask(generator.choices(VOCABULARY, k=self._options.tokens), 1)

    def turn(self, conversation: int, new: list[int]) -> None:
        """It comes back with so many new tokens."""
        history = self._histories[conversation]
        possible = max(0, len(history) - 1) // PAGE_TOKENS * PAGE_TOKENS
        prompt = history + new
        answer, found = self._ask(prompt, self._options.new_tokens)
        self._histories[conversation] = prompt + answer
        time.sleep(self._options.pause)
        if history:
            lent = self._borrower.capacity_bytes / self._pool_bytes
            self.turns.append(Turn(len(prompt), possible, min(found, possible), lent))

    def _ask(self, prompt: list[int], tokens: int) -> tuple[list[int], int]:
        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        body = {"input_ids": prompt, "sampling_params": sampling}
        answer = json.loads(call(self._port, "/generate", body, timeout=600))
        details = answer["meta_info"].get("cached_tokens_details") or {}
        return list(answer["output_ids"]), int(details.get("device", 0))


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser("donor", __doc__, rounds=6)
    arguments.add_argument("--conversations", type=int, default=8, help="that come back by turns (%(default)s)")
    arguments.add_argument("--tokens", type=int, default=512, help="that each begins with (%(default)s)")
    arguments.add_argument("--further-tokens", type=int, default=48, help="that each comes back with (%(default)s)")
    arguments.add_argument("--new-tokens", type=int, default=8, help="tokens of an answer (%(default)s)")
    arguments.add_argument("--pool", type=int, default=16_384, help="tokens of a donor's pool (%(default)s)")
    arguments.add_argument("--pause", type=float, default=0.5, help="seconds between two requests (%(default)s)")
    arguments.add_argument("--keep", help="the one donor's peer.keep (default: its own, as long as a minute)")
    options = arguments.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="swift-bench-") as folder:  # short: a socket's name is below it
        return _measure(Path(folder), options)


def _measure(folder: Path, options: argparse.Namespace) -> int:
    from ...base.model import tiny_model

    model = tiny_model(folder / "model", context=options.pool)
    keeps = {"kept": options.keep or "60s", "given": "0s"}
    ports = dict(zip(keeps, free_ports(len(keeps)), strict=True))
    with ExitStack() as children:
        servers = []
        for name, keep in keeps.items():
            config = {
                "host": {"size": "1MiB"},  # what is lost on the device is not to be found beneath it
                "bus": {"directory": str(folder / name), "server": name},
                "peer": {"donate": True, "window": "1s", "keep": keep},
            }
            flags = {
                "--model-path": str(model), "--dtype": "float32", "--max-total-tokens": str(options.pool),
                "--page-size": str(PAGE_TOKENS), "--swift-tiers-config": json.dumps(config),
            }  # fmt: skip
            words = [word for pair in flags.items() for word in pair]
            server = Server(name, [*words, "--enable-swift-tiers"], ports[name], folder / f"{name}.log")
            servers.append(children.enter_context(server))
            server.start()
        for server in servers:
            server.wait_ready(START_SECONDS)
        sides = {}
        for name in keeps:
            borrower = children.enter_context(_borrowing(str(folder / name), PAGE_TOKENS * _token_bytes(model)))
            sides[name] = Side(ports[name], borrower, options.pool * _token_bytes(model), options)
        _converse(list(sides.values()), options)
    return _report({name: side.turns for name, side in sides.items()}, options)


def _converse(sides: Sequence[Side], options: argparse.Namespace) -> None:
    generator = random.Random(0)
    for side in sides:
        side.fill()
    for number in range(options.rounds + 1):
        for conversation in range(options.conversations):
            new = generator.choices(VOCABULARY, k=options.further_tokens if number else options.tokens)
            for side in sides:
                side.turn(conversation, new)


@contextmanager
def _borrowing(bus_directory: str, page_bytes: int) -> Iterator[PeerTier]:
    """Somebody who wants everything that is lent there, from when something is."""
    tier = PeerTier("borrower", page_bytes, PeerConfig(borrow=True))
    try:
        tier.neighbours(find_donors(bus_directory))
        tier.want(2**40)
        if not wait_for(lambda: tier.capacity_bytes or None, PATIENCE_SECONDS):
            raise CommandError(f"the donor lent nothing within {PATIENCE_SECONDS:g} s")
        yield tier
    finally:
        tier.close()


def _token_bytes(model: Path) -> int:
    """Of a token's KV, in float32."""
    config = json.loads((model / "config.json").read_text())
    return int(2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"] * 4)


def _report(sides: dict[str, list[Turn]], options: argparse.Namespace) -> int:
    print(
        f"{options.conversations} conversations that come back {options.rounds} times, in a pool of {options.pool} "
        f"tokens; on the device, of the prompts and of what was computed before; lent, of the pool, in the median"
    )
    figures = []
    for name, turns in sides.items():
        found, possible = sum(turn.found for turn in turns), sum(turn.possible for turn in turns)
        lent, of_prompts = statistics.median(turn.lent for turn in turns), sum(turn.prompt for turn in turns)
        print(f"  {name:<6} {found / of_prompts:8.3f} of prompts {found / possible:8.3f} of possible {lent:8.3f} lent")
        bounded = name == "kept"
        figures += [
            Figure(f"hits_{name}", found / of_prompts, " of prompts"),
            Figure(f"found_{name}", found / possible, " of possible", at_least=FOUND if bounded else None),
            Figure(f"lent_{name}", lent, " of the pool", at_least=LENT if bounded else None),
        ]
    details = {"turns": {name: [list(turn) for turn in turns] for name, turns in sides.items()}}
    return finish("donor", figures, details, options.json)


if __name__ == "__main__":
    raise SystemExit(main())
