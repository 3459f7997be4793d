"""A router that hears two servers' KV events by ZeroMQ sends a request to where its prefix lies beneath the device."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from support.prompts import prompt
from support.redis import wait_for
from support.router import BENEATH, GPU, Subscriber, blocks_of
from support.servers import START_SECONDS, Site, call, fill_device, free_ports, generate

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive]

PAGE = 16


def test_requests_go_where_their_prefix_lies(tmp_path: Path) -> None:
    site = Site(tmp_path)
    question, seeds = prompt(1), count(5)
    blocks = set(blocks_of(question, PAGE))
    with ExitStack() as running:
        servers, heard = [], []
        for number, port in enumerate(free_ports(2)):
            heard.append(subscriber := running.enter_context(Subscriber(port)))
            folder = site.root / f"of{number}"
            folder.mkdir()
            tiers = site.tiers(folder, host="2MiB")
            server = site.server(f"server{number}", "--page-size", str(PAGE), *subscriber.arguments, tiers=tiers)
            servers.append(running.enter_context(server))
            server.start()
        for server in servers:
            server.wait_ready(START_SECONDS)
        for server, subscriber in zip(servers, heard, strict=True):
            # Who has just connected may hear nothing yet.
            wait_for(lambda server=server, one=subscriber: generate(server, prompt(next(seeds), 40)) and one.knows(GPU))

        def where() -> list[float]:
            """Of each server, which part of the question a router believes that it has."""
            known = [one.knows(GPU) | one.knows(BENEATH) for one in heard]
            return [len(blocks & one) / len(blocks) for one in known]

        answer, _ = generate(servers[1], question)
        wait_for(lambda: where() == [0, 1])
        for seed, server in enumerate(servers, 1):
            fill_device(server, seed)
        assert not blocks & heard[1].knows(GPU)
        wait_for(lambda: where() == [0, 1])
        again, details = generate(servers[1], question)
        assert again == answer
        assert details["device"] == 0
        assert details["host"] + details["ssd"] == 688
        call(servers[1], "/flush_cache", {})
        wait_for(lambda: where() == [0, 0])
