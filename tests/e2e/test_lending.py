"""Two real servers of different models on one machine: one lends idle KV memory, the other keeps prefixes in it.

Whatever happens to either, answers are those of servers that neither lend nor borrow.
"""

from __future__ import annotations

import signal
import time

import pytest

from swift_tiers.ops.base.model import tiny_model
from swift_tiers.ops.cli import main as command
from swift_tiers.radix_tiering.base.config import BusConfig
from swift_tiers.radix_tiering.base.read_config import parse_config
from swift_tiers.radix_tiering.bus.hear.event_reading import StreamEvent
from swift_tiers.radix_tiering.bus.hear.reader import BusReader
from swift_tiers.radix_tiering.bus.hear.waiting import wait_for

from support.prompts import prompt
from support.servers import START_SECONDS, Site, call, generate, snapshot

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

#: Tokens of the donor's pool: 4 MiB.
POOL = 8192
PATIENCE = 60.0


class Neighbours:
    """A donor and a borrower that share a bus."""

    def __init__(self, site: Site) -> None:
        self.site = site
        other_model = tiny_model(site.root / "other", layers=2, heads=2, kv_heads=1, head_dim=32, seed=5)
        bus = {"directory": str(site.bus), "control": True, "interval": "200ms"}
        self.tiers = {
            "donor": {
                "host": {"size": "1MiB"}, "bus": {**bus, "server": "donor"},
                "peer": {"donate": True, "window": "1s", "term": "5s"},
            },
            "borrower": {
                "host": {"size": "1MiB"}, "bus": {**bus, "server": "borrower"},
                "peer": {"borrow": True, "term": "5s"},
            },
        }  # fmt: skip
        shape = {"--model-path": str(other_model), "--max-total-tokens": str(POOL), "--page-size": "16"}
        self.donor = site.server("donor", tiers=self.tiers["donor"], **shape)
        self.borrower = site.server("borrower", "--page-size", "16", tiers=self.tiers["borrower"])

    def events(self, server: str, kind: str) -> list[StreamEvent]:
        """What a server says has happened, of this kind."""
        with BusReader.open(BusConfig(directory=str(self.site.bus)), "test") as reader:
            return [
                event
                for event in reader.newest_events(server, 1000).items
                if isinstance(event, StreamEvent) and event.kind == kind
            ]

    def lease_command(self, capsys, *words: str) -> tuple[int, str]:
        capsys.readouterr()
        code = command(["lease", *words, "--directory", str(self.site.bus)])
        return code, capsys.readouterr().out


@pytest.fixture(scope="module")
def pair(tmp_path_factory, plain):
    both = Neighbours(Site(tmp_path_factory.mktemp("lending")))
    both.borrower_answers = plain.answers([prompt(seed) for seed in range(8)])
    with both.donor, both.borrower:
        both.borrower.start()
        both.donor.start()
        both.donor.wait_ready(START_SECONDS)
        # What it computes while it has nothing in any tier.
        both.donor_answers = [generate(both.donor, prompt(seed)) for seed in range(3)]
        assert not any(count for _, details in both.donor_answers for count in details.values())
        both.borrower.wait_ready(START_SECONDS)
        yield both


def borrowed(pair) -> int:
    return snapshot(pair.borrower)["tiers"]["peer"]["capacity_bytes"]


def ask_all(pair) -> dict[str, int]:
    """The borrower's prompts twice over, every answer compared; tokens by where they came from, second time."""
    found: dict[str, int] = {}
    for again in range(2):
        for seed, answer in enumerate(pair.borrower_answers):
            tokens, details = generate(pair.borrower, prompt(seed))
            assert tokens == answer
            for tier, count in details.items() if again else ():
                found[tier] = found.get(tier, 0) + count
    return found


def ask_donor(pair) -> None:
    for seed, (answer, _) in enumerate(pair.donor_answers):
        assert generate(pair.donor, prompt(seed))[0] == answer, "a donor's own request came to harm"


def borrow_something(pair) -> None:
    assert wait_for(lambda: (ask_all(pair), borrowed(pair))[1] or None, PATIENCE), "nothing was lent"


def test_tokens_are_served_from_the_neighbour(pair):
    borrow_something(pair)
    assert wait_for(lambda: ask_all(pair).get("peer") or None, PATIENCE), "nothing was served from the neighbour"
    state = snapshot(pair.borrower)
    assert state["links"]["peer-host"]["bytes"] > 0
    assert state["tiers"]["peer"]["checksum_failures"] == 0
    ask_donor(pair)


def test_an_operator_sees_the_leases_and_recalls_them(pair, capsys):
    borrow_something(pair)

    def both_are_listed() -> bool:
        code, out = pair.lease_command(capsys, "list", "--json")
        assert code == 0
        return "donor.dp0-tp0" in out and "borrower.dp0-tp0" in out

    assert wait_for(lambda: both_are_listed() or None, PATIENCE)
    before = wait_for(lambda: borrowed(pair) or None, PATIENCE)
    assert before
    code, out = pair.lease_command(capsys, "recall", "donor", "all")
    assert code == 0, out
    assert wait_for(lambda: borrowed(pair) < before or None, PATIENCE)
    ask_all(pair)


def test_a_request_as_large_as_the_pool_gets_its_memory_back(pair):
    borrow_something(pair)
    tokens, _ = generate(pair.donor, prompt(77, tokens=POOL - 200), 3)
    assert len(tokens) == 3
    told = wait_for(lambda: pair.events("donor", "lending.taken_back") or None, PATIENCE)
    assert told, "nobody was told that memory was taken back"
    # From a borrower that answers; without one it would take a lease's whole term.
    assert float(told[-1].fields["seconds"]) < float(parse_config(pair.tiers["donor"]).peer.term)
    ask_all(pair)


def test_flush_cache_leaves_lent_what_is_lent(pair):
    borrow_something(pair)
    call(pair.donor, "/flush_cache", {})
    ask_all(pair)
    ask_donor(pair)


def test_a_borrower_that_stands_still_loses_its_leases_and_nothing_else(pair):
    borrow_something(pair)
    pair.borrower.signal_all(signal.SIGSTOP)
    try:
        time.sleep(3)  # longer than a lease
        tokens, _ = generate(pair.donor, prompt(78, tokens=POOL - 200), 3)
        assert len(tokens) == 3
    finally:
        pair.borrower.signal_all(signal.SIGCONT)
    ask_all(pair)


def test_a_donor_that_is_killed_takes_nobody_along(pair):
    borrow_something(pair)
    pair.donor.signal_all(signal.SIGKILL)
    ask_all(pair)
    assert wait_for(lambda: not borrowed(pair) or None, PATIENCE)
    assert ask_all(pair).get("peer", 0) == 0
    pair.donor.end()
    pair.donor.start()
    pair.donor.wait_ready(START_SECONDS)
    borrow_something(pair)
    assert wait_for(lambda: ask_all(pair).get("peer") or None, PATIENCE), "nothing was served from the neighbour"
