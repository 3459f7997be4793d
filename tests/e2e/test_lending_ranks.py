"""Two real servers of two ranks each, over gloo on the CPU: one lends, the other borrows, rank by rank.

Whatever happens to either, answers are those of a server of two ranks that has no tiers, and neither hangs.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from swift_tiers.ops.base.model import tiny_model
from swift_tiers.radix_tiering.base.config import BusConfig
from swift_tiers.radix_tiering.base.read_config import parse_config
from swift_tiers.radix_tiering.bus.hear.event_reading import StreamEvent
from swift_tiers.radix_tiering.bus.hear.reader import BusReader
from swift_tiers.radix_tiering.bus.hear.waiting import wait_for

from support.prompts import prompt
from support.servers import START_SECONDS, Server, Site, call, generate

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive, pytest.mark.timeout(3600)]

#: Tokens of the donor's pool.
POOL = 8192
PATIENCE = 180.0
RANKS = ("dp0-tp0", "dp0-tp1")


class RankedPair:
    """A donor and a borrower, of two ranks each, that share a bus."""

    def __init__(self, site: Site) -> None:
        self.site = site
        other_model = tiny_model(site.root / "other", layers=2, heads=4, kv_heads=2, head_dim=32, seed=5)
        bus = {"directory": str(site.bus), "control": True, "interval": "200ms"}
        self.tiers = {
            "donor": {
                "host": {"size": "2MiB"}, "bus": {**bus, "server": "donor"},
                "peer": {"donate": True, "window": "1s"},
            },
            "borrower": {
                "host": {"size": "2MiB"}, "bus": {**bus, "server": "borrower"},
                "peer": {"borrow": True},
            },
        }  # fmt: skip
        self._shapes = {
            "donor": {"--model-path": str(other_model), "--max-total-tokens": str(POOL), "--page-size": "16"},
            "borrower": {"--page-size": "8"},
        }
        self.donor, self.borrower = self.server("donor"), self.server("borrower")
        self.expected: dict[str, list[list[int]]] = {}

    def server(self, name: str, *, tiers: bool = True) -> Server:
        config = self.tiers[name] if tiers else None
        name = name if tiers else f"plain-{name}"
        return self.site.server(name, "--tp-size", "2", tiers=config, **self._shapes[name.removeprefix("plain-")])

    def figures(self, server: str, rank: str) -> dict[str, str]:
        """What a rank says of itself on the bus."""
        with redis.Redis(unix_socket_path=f"{self.site.bus}/redis.sock", decode_responses=True) as client:
            return client.hgetall(f"swift:{server}:{rank}:rank")

    def lent(self) -> list[int]:
        """Bytes, on each rank of the donor."""
        return [int(self.figures("donor", rank).get("lent_bytes") or 0) for rank in RANKS]

    def ask(self, name: str) -> Counter[str]:
        """All prompts of a server, every answer compared; tokens by where they came from."""
        server = {"donor": self.donor, "borrower": self.borrower}[name]
        found: Counter[str] = Counter()
        for seed, expected in enumerate(self.expected[name]):
            tokens, details = generate(server, prompt(seed))
            assert tokens == expected, f"{name} answers otherwise"
            found.update(details)
        return found

    def borrow_something(self) -> None:
        assert wait_for(lambda: (self.ask("borrower"), all(self.lent()))[1] or None, PATIENCE), self.lent()

    def events(self, server: str, kind: str) -> list[StreamEvent]:
        with BusReader.open(BusConfig(directory=str(self.site.bus)), "test") as reader:
            return [
                event
                for event in reader.newest_events(server, 1000).items
                if isinstance(event, StreamEvent) and event.kind == kind
            ]


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Iterator[RankedPair]:
    both = RankedPair(Site(tmp_path_factory.mktemp("ranks")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SGLANG_CPU_OMP_THREADS_BIND", "0|1")
        for name in ("donor", "borrower"):
            with both.server(name, tiers=False) as plain:
                plain.start()
                plain.wait_ready(START_SECONDS)
                both.expected[name] = [
                    generate(plain, prompt(seed))[0] for seed in range(8 if name == "borrower" else 3)
                ]
        with both.donor, both.borrower:
            both.borrower.start()
            both.donor.start()
            both.donor.wait_ready(START_SECONDS)
            both.borrower.wait_ready(START_SECONDS)
            yield both
        for name in ("donor", "borrower"):
            log = (both.site.root / f"{name}.log").read_text()
            assert "please report this" not in log
            assert "lending failed" not in log


def test_each_rank_lends_to_its_counterpart_and_pages_are_served(pair) -> None:
    pair.borrow_something()
    assert wait_for(lambda: pair.ask("borrower")["peer"] or None, PATIENCE), "nothing came from the neighbour"
    assert [pair.figures("donor", rank)["lends_to"] for rank in RANKS] == [f"borrower.{rank}" for rank in RANKS]
    assert [pair.figures("borrower", rank)["borrows_from"] for rank in RANKS] == [f"donor.{rank}" for rank in RANKS]
    pair.ask("donor")


def test_a_request_as_large_as_the_pool_gets_its_memory_back(pair) -> None:
    pair.borrow_something()
    assert len(generate(pair.donor, prompt(77, tokens=POOL - 200), 3)[0]) == 3
    told = wait_for(lambda: pair.events("donor", "lending.taken_back") or None, PATIENCE)
    assert told, "nobody was told that memory was taken back"
    assert float(told[-1].fields["seconds"]) < 3 * float(parse_config(pair.tiers["donor"]).peer.term)
    pair.ask("borrower")


def test_recalls_under_load_cost_no_answer(pair) -> None:
    pair.borrow_something()
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            pair.ask("borrower")

    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(work)
        for seed in range(3):
            assert len(generate(pair.donor, prompt(90 + seed, tokens=POOL - 300), 3)[0]) == 3
            pair.ask("donor")
            time.sleep(1.5)  # a window, so that memory is lent again
        stop.set()
        working.result()


def test_flush_cache_leaves_lent_what_is_lent(pair) -> None:
    pair.borrow_something()
    call(pair.donor, "/flush_cache", {})
    pair.ask("borrower")
    pair.ask("donor")


def test_a_borrower_that_is_killed_takes_no_memory_along(pair) -> None:
    pair.borrow_something()
    pair.borrower.signal_all(signal.SIGKILL)
    assert len(generate(pair.donor, prompt(78, tokens=POOL - 200), 3)[0]) == 3
    assert wait_for(lambda: not any(pair.lent()) or None, PATIENCE), pair.lent()
    pair.ask("donor")
    pair.borrower.end()
    pair.borrower.start()
    pair.borrower.wait_ready(START_SECONDS)
    pair.borrow_something()
    assert wait_for(lambda: pair.ask("borrower")["peer"] or None, PATIENCE), "nothing came from the neighbour"


def test_a_donor_that_is_killed_takes_nobody_along(pair) -> None:
    pair.borrow_something()
    pair.donor.signal_all(signal.SIGKILL)
    pair.ask("borrower")
    pair.donor.end()
    pair.donor.start()
    pair.donor.wait_ready(START_SECONDS)
    pair.borrow_something()
    state = call(pair.borrower, "/server_info")["internal_states"][0]["swift_tiers"]
    assert state["tiers"]["peer"]["checksum_failures"] == 0, json.dumps(state["tiers"]["peer"])
