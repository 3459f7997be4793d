"""Real servers of a model with multi-head latent attention: tensor parallelism, and memory borrowed from another model.

Its latent KV is the same on every rank of a tensor-parallel server; each keeps a copy of its own.
"""

from __future__ import annotations

import pytest

from swift_tiers.ops.base.model import tiny_model

from support.models import tiny_mla
from support.servers import (
    START_SECONDS,
    Site,
    await_the_neighbour,
    fill_device,
    generate,
    prompt,
    snapshot,
    wait_written,
)

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

#: Bytes of a page: 4 layers of 16 tokens, 48 float32 each.
PAGE_BYTES = 4 * 16 * 48 * 4
PATIENCE = 120.0


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return Site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def model(site):
    return str(tiny_mla(site.root / "mla"))


@pytest.mark.exhaustive
def test_two_ranks_agree(site, model, monkeypatch):
    directory = site.root / "tp"
    directory.mkdir()
    monkeypatch.setenv("SGLANG_CPU_OMP_THREADS_BIND", "0|1")
    tiers = site.tiers(directory, host="2MiB")
    with site.server("tp2", "--tp-size", "2", tiers=tiers, **{"--model-path": model}) as server:
        server.start()
        server.wait_ready(START_SECONDS)
        cold = []
        for seed in range(4):
            cold.append(generate(server, prompt(seed)))
            wait_written(server)
        assert [details for _, details in cold] == [{}] * 4
        assert [generate(server, prompt(3))[0]] == [cold[3][0]], "behind its prefix on the device"
        fill_device(server, 7)
        for seed, (answer, _) in enumerate(cold):
            tokens, details = generate(server, prompt(seed))
            assert tokens == answer
            assert details["device"] == 0
            assert details["host"] + details["ssd"] == 688
        state = snapshot(server)
        assert state["page_bytes"] == PAGE_BYTES, "a rank keeps whole rows"
        assert state["restores"]["failed_loads"] == 0
        wait_written(server)
        assert len(list(directory.glob("*.stripe"))) == 2
        server.stop()
        server.start()
        server.wait_ready(START_SECONDS)
        server.wait_found(START_SECONDS)
        for seed in (0, 3):
            assert generate(server, prompt(seed)) == (cold[seed][0], {"device": 0, "host": 0, "ssd": 688})


def test_it_borrows_from_a_server_of_another_model(site, model):
    """Which lends memory of K and V, in pages of another size."""
    bus = {"directory": str(site.bus), "interval": "200ms"}
    lending = {
        "host": {"size": "1MiB"}, "bus": {**bus, "server": "donor"}, "peer": {"donate": True, "window": "1s"},
    }  # fmt: skip
    borrowing = {"host": {"size": "1MiB"}, "bus": {**bus, "server": "borrower"}, "peer": {"borrow": True}}
    other = str(tiny_model(site.root / "other", layers=2, heads=2, kv_heads=1, head_dim=32, seed=5))
    pages = ("--page-size", "16")
    shape = {"--model-path": other, "--max-total-tokens": "8192"}
    borrower = site.server("borrower", *pages, tiers=borrowing, **{"--model-path": model})
    with borrower, site.server("donor", *pages, tiers=lending, **shape) as donor:
        borrower.start()
        borrower.wait_ready(START_SECONDS)
        cold = [generate(borrower, prompt(seed)) for seed in range(8)]
        assert [details for _, details in cold] == [{}] * 8
        donor.start()
        donor.wait_ready(START_SECONDS)
        await_the_neighbour(borrower, [answer for answer, _ in cold], PATIENCE)
        state = snapshot(borrower)
        assert state["links"]["peer-host"]["bytes"] % PAGE_BYTES == 0
        assert state["tiers"]["peer"]["checksum_failures"] == 0
