"""Three real servers whose models have different shapes: each lends to the others and borrows from them, all at work.

What one answers never depends on what the others do, take back, or lose.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest
import redis

from swift_tiers.ops.base.model import tiny_model
from swift_tiers.ops.cli import main as command
from swift_tiers.radix_tiering.base.config import BusConfig
from swift_tiers.radix_tiering.bus.hear.reader import BusReader
from swift_tiers.radix_tiering.bus.hear.waiting import wait_for
from swift_tiers.radix_tiering.bus.redis.redis_server import socket_path

from support.prompts import prompt
from support.servers import START_SECONDS, Site, generate, snapshot

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive, pytest.mark.timeout(1800)]

#: Layers, heads, KV heads, their size, tokens of a page: 8, 3 and 24 KiB of KV a page, in float32.
SHAPES = {"a": (4, 4, 2, 16, 8), "b": (3, 2, 1, 16, 8), "c": (2, 2, 2, 48, 16)}
POOL = 4096
SEEDS = range(9)  # 6300 tokens of prompts
PATIENCE = 60.0
TERM = 2.0


class Room:
    """Three servers that share a bus, and what each answers when it has nothing in any tier."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.servers = {}
        for name, (layers, heads, kv_heads, head_dim, page) in SHAPES.items():
            model = tiny_model(
                site.root / f"model-{name}", layers=layers, heads=heads, kv_heads=kv_heads, head_dim=head_dim, seed=7
            )
            tiers = {
                "host": {"size": "1MiB"},
                "bus": {"directory": str(site.bus), "control": True, "interval": "200ms", "server": name},
                # While all are at work none has idle memory, unless it gives away prefixes that it used just now.
                "peer": {"donate": True, "borrow": True, "window": "1s", "term": f"{TERM:g}s", "keep": "0s"},
            }
            shape = {"--model-path": str(model), "--max-total-tokens": str(POOL), "--page-size": str(page)}
            self.servers[name] = site.server(name, tiers=tiers, **shape)
        self.expected: dict[str, list[list[int]]] = {}

    def ask(self, name: str) -> Counter[str]:
        """All prompts of one server, every answer compared; tokens by where they came from."""
        found: Counter[str] = Counter()
        for seed, expected in enumerate(self.expected[name]):
            tokens, details = generate(self.servers[name], prompt(seed))
            assert tokens == expected, f"{name} answers otherwise"
            found.update(details)
        return found

    @contextmanager
    def at_work(self) -> Iterator[dict[str, Counter[str]]]:
        """All three answer without a pause; what each has found where so far."""
        found: dict[str, Counter[str]] = {name: Counter() for name in self.servers}
        stop = threading.Event()

        def work(name: str) -> None:
            while not stop.is_set():
                found[name] = found[name] + self.ask(name)

        with ThreadPoolExecutor(len(self.servers)) as threads:
            working = [threads.submit(work, name) for name in self.servers]
            try:
                yield found
            finally:
                stop.set()
            for one in working:
                one.result()

    def borrowed(self, name: str) -> int:
        held: int = snapshot(self.servers[name])["tiers"]["peer"]["capacity_bytes"]
        return held

    def lent(self, name: str) -> int:
        """Bytes that this server has lent."""
        with BusReader.open(BusConfig(directory=str(self.site.bus)), "test") as reader:
            (rank,) = reader.ranks(name)
        lent: int = rank.lent_bytes
        return lent

    def redis(self) -> int:
        """The process of the embedded Redis."""
        with redis.Redis(unix_socket_path=str(socket_path(str(self.site.bus)))) as client:
            found: int = client.info("server")["process_id"]
        return found


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Room]:
    made = Room(Site(tmp_path_factory.mktemp("three")))
    with ExitStack() as running:
        for server in made.servers.values():
            running.enter_context(server)
            server.start()
        for server in made.servers.values():
            server.wait_ready(START_SECONDS)
        for name, server in made.servers.items():
            answers = [generate(server, prompt(seed)) for seed in SEEDS]
            assert not any(count for _, details in answers for count in details.values())
            made.expected[name] = [tokens for tokens, _ in answers]
        yield made


def test_all_lend_and_borrow_and_find_tokens_at_each_other(room: Room) -> None:
    with room.at_work() as found:
        assert wait_for(lambda: all(one["peer"] for one in found.values()) or None, PATIENCE), found
    for server in room.servers.values():
        assert snapshot(server)["tiers"]["peer"]["checksum_failures"] == 0


def test_a_donor_that_takes_everything_back_while_all_are_at_work_gets_it(room: Room) -> None:
    with room.at_work() as found:
        assert wait_for(lambda: room.lent("a") or None, PATIENCE), "nothing is lent"
        assert command(["lease", "cap", "a", "0", "--directory", str(room.site.bus)]) == 0
        assert wait_for(lambda: not room.lent("a") or None, PATIENCE), "it has not got everything back"
        # As large as its pool, beside its other requests.
        tokens, _ = generate(room.servers["a"], prompt(77, tokens=POOL - 300), 3)
        assert len(tokens) == 3
        before = {name: one["peer"] for name, one in found.items()}
        assert command(["lease", "cap", "a", "none", "--directory", str(room.site.bus)]) == 0
        assert wait_for(lambda: all(one["peer"] > before[name] for name, one in found.items()) or None, PATIENCE), found


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_what_is_lent_stays_so_without_a_bus(room: Room, number: signal.Signals) -> None:
    with room.at_work() as found:
        assert wait_for(lambda: all(room.borrowed(name) for name in room.servers) or None, PATIENCE), "nothing is lent"
        process = room.redis()
        os.kill(process, number)
        try:
            began = time.monotonic()
            before = {name: one["peer"] for name, one in found.items()}
            # Longer than a term: leases are renewed without it.
            assert wait_for(
                lambda: (
                    (
                        time.monotonic() > began + 2 * TERM
                        and all(one["peer"] > before[name] for name, one in found.items())
                    )
                    or None
                ),
                PATIENCE,
            ), found
        finally:
            if number == signal.SIGSTOP:
                os.kill(process, signal.SIGCONT)
