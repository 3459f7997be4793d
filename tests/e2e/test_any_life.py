"""A real server whose clients, operators and devices do anything at any time: each answer is right, or an error.

Conversations branch, so that requests share prefixes of every length. Clients ask many at once, leave, abort, ask for
log probabilities and for several answers; operators flush, cap tiers and change policies in between; bytes of device
files change; and the server is stopped or killed, and begun anew over its files. What happens is drawn from a seed;
when it meets what is the server's own affair. A server without tiers says what the answers are.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from support.any_life import Conversation, Life, conversations
from support.servers import START_SECONDS, Site

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive, pytest.mark.timeout(1800)]

#: Rounds of up to 16 requests at once, and one of so many servers' lives.
ROUNDS = 40

#: Of pages and devices: small ones, so that everything is evicted; and what a restore does where devices are slow.
KINDS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "loads": ({"restore": {"strategy": "load"}}, {"--page-size": "16"}),
    "single tokens, computed from the front": (
        {"restore": {"strategy": "token-wise", "chunk": 64}, "ssd": {"throttle": "3MiB"}},
        {"--page-size": "1"},
    ),
    "written back, least often used": (
        {"restore": {"strategy": "load"}, "policy": {"write": "back", "eviction": "lfu"}, "host": {"verify": "beside"}},
        {"--page-size": "16"},
    ),
    "layers": ({"restore": {"strategy": "layer-wise"}, "ssd": {"throttle": "3MiB"}}, {"--page-size": "8"}),
    "chunks of all": (
        {"restore": {"strategy": "token-wise", "chunk": 64}, "ssd": {"throttle": "6MiB"}},
        {"--page-size": "4", "--chunked-prefill-size": "128", "--schedule-policy": "lpm"},
    ),
}


@contextmanager
def begun(site: Site, said: list[Conversation], draw: random.Random, kind: str) -> Iterator[Life]:
    changes, options = KINDS[kind]
    tiers = site.tiers(host="768KiB")
    tiers["bus"] |= {"control": True, "server": "life"}
    tiers["ssd"]["throttle"] = "1GiB"  # without one none can be set later
    tiers["policy"]["restore_deadline"] = "20s"
    for section, fields in changes.items():
        tiers[section] = {**tiers.get(section, {}), **fields}
    with site.server("life", tiers=tiers, **{"--max-total-tokens": "2560", **options}) as server:
        server.start()
        server.wait_ready(START_SECONDS)
        yield Life(site, server, said, draw)


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_happens_answers_are_right(plain: Any, tmp_path_factory: pytest.TempPathFactory, kind: str) -> None:
    draw = random.Random(kind)
    with begun(Site(tmp_path_factory.mktemp("life")), conversations(plain, draw), draw, kind) as life:
        for number in range(ROUNDS):
            life.one_round()
            assert not life.wrong, life.happened
            if number % 20 == 10:
                life.end_and_begin()
            elif number % 10 == 0:
                life.rest()
        life.rest()
        assert life.happened["tokens from host"] + life.happened["tokens from ssd"], life.happened
