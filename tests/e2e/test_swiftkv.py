"""A real server of a SwiftKV model on two ranks: tokenizers, processes and tensor parallelism as users have them."""

from __future__ import annotations

import pytest

from support.servers import START_SECONDS, Site, fill_device, generate, prompt, snapshot, wait_written
from support.swiftkv_models import Reference, tiny_swiftkv

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def test_two_ranks_answer_as_the_reference_does(tmp_path, monkeypatch):
    """Each rank has half of the heads, of the fused projection too, and of each page."""
    site = Site(tmp_path)
    model = tiny_swiftkv(site.root / "swiftkv", "qwen2", first=4, group=2)
    reference = Reference(model)
    monkeypatch.setenv("SGLANG_CPU_OMP_THREADS_BIND", "0|1")
    (site.root / "tp").mkdir()
    tiers = site.tiers(site.root / "tp", host="2MiB")
    with site.server("tp2", "--tp-size", "2", tiers=tiers, **{"--model-path": str(model)}) as server:
        server.start()
        server.wait_ready(START_SECONDS)
        cold = []
        for seed in range(2):
            cold.append(generate(server, prompt(seed)))
            wait_written(server)
            question, answer = prompt(seed), cold[seed][0]
            logits = reference.logits(question + answer)[len(question) - 1 : -1]
            assert answer == logits.argmax(-1).tolist()
        assert snapshot(server)["page_bytes"] == 6 * 2 * 16 * 16 * 4, "six layers, one of two heads"
        fill_device(server, 7)
        for seed, (answer, _) in enumerate(cold):
            tokens, details = generate(server, prompt(seed))
            assert tokens == answer
            assert details["device"] == 0
            assert details["host"] + details["ssd"] == 688
