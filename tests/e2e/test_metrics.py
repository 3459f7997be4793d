"""What a Prometheus scrape of a real server says of its tiers, without a bus; `test_bus` has it with one."""

from __future__ import annotations

import pytest

from support.scrapes import assert_a_scrape_says_what_the_server_says
from support.servers import START_SECONDS, Site

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive, pytest.mark.timeout(1800)]


def test_a_scrape_says_what_the_server_says(tmp_path_factory, monkeypatch):
    site = Site(tmp_path_factory.mktemp("site"))
    tiers = {**site.tiers(host="2MiB"), "bus": {"enabled": False}}
    monkeypatch.setenv("SGLANG_CPU_OMP_THREADS_BIND", "0|1")
    with site.server("metrics", "--tp-size", "2", "--enable-metrics", tiers=tiers) as server:
        server.start()
        server.wait_ready(START_SECONDS)
        assert_a_scrape_says_what_the_server_says(server)
