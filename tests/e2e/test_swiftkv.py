"""A real server of a SwiftKV model on two ranks: tokenizers, processes and tensor parallelism as users have them."""

from __future__ import annotations

import pytest

from swift_tiers.ops.commands.demo.servers import Server

from support.servers import (
    START_SECONDS,
    Site,
    await_the_neighbour,
    call,
    fill_device,
    generate,
    prompt,
    snapshot,
    wait_written,
)
from support.swiftkv_models import Reference, tiny_swiftkv

#: A guard against hanging, seconds.
PATIENCE = 120.0

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]


def check_log_probabilities(server: Server, reference: Reference, question: list[int], start: int) -> None:
    """Of the tokens of a prompt behind `start`: all of a chunk go on, on every rank, and none of them leaves early."""
    body = {
        "input_ids": question, "sampling_params": {"temperature": 0, "max_new_tokens": 1},
        "return_logprob": True, "logprob_start_len": start,
    }  # fmt: skip
    given = call(server, "/generate", body)["meta_info"]["input_token_logprobs"]
    expected = reference.logprobs(question, exits=False)
    wanted = [float(expected[place - 1, question[place]]) for place in range(start + 1, len(question))]
    assert [value for value, *_ in given][1:] == pytest.approx(wanted, abs=1e-4)


def test_two_ranks_answer_as_the_reference_does(tmp_path, monkeypatch):
    """Each rank has half of the heads, of the fused projection too, of the second output matrix, and of each page."""
    site = Site(tmp_path)
    model = tiny_swiftkv(site.root / "swiftkv", "qwen2", first=4, group=2, exits=0.6)
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
        check_log_probabilities(server, reference, prompt(5), start=600)
        fill_device(server, 7)
        for seed, (answer, _) in enumerate(cold):
            tokens, details = generate(server, prompt(seed))
            assert tokens == answer
            assert details["device"] == 0
            assert details["host"] + details["ssd"] == 688


@pytest.mark.exhaustive
def test_two_models_lend_each_other_memory(tmp_path):
    """Beside `test_mla.py`, where others do. The donor's pool has six layers of its eight, in other pages."""
    site = Site(tmp_path)
    lent, borrowed = (
        tiny_swiftkv(site.root / "lent", "llama", group=2),
        tiny_swiftkv(site.root / "borrowed", "qwen3", group=4),
    )
    bus = {"directory": str(site.bus), "interval": "200ms"}
    lending = {
        "host": {"size": "1MiB"}, "bus": {**bus, "server": "donor"}, "peer": {"donate": True, "window": "1s"},
    }  # fmt: skip
    borrowing = {"host": {"size": "1MiB"}, "bus": {**bus, "server": "borrower"}, "peer": {"borrow": True}}
    pages = ("--page-size", "16")
    borrower = site.server("borrower", *pages, tiers=borrowing, **{"--model-path": str(borrowed)})
    shape = {"--model-path": str(lent), "--max-total-tokens": "8192"}
    with borrower, site.server("donor", *pages, tiers=lending, **shape) as donor:
        borrower.start()
        borrower.wait_ready(START_SECONDS)
        cold = [generate(borrower, prompt(seed)) for seed in range(8)]
        assert [details for _, details in cold] == [{}] * 8
        donor.start()
        donor.wait_ready(START_SECONDS)
        reference, question = Reference(lent), prompt(20)
        answer, _ = generate(donor, question)
        logits = reference.logits(question + answer)[len(question) - 1 : -1]
        assert answer == logits.argmax(-1).tolist()
        await_the_neighbour(borrower, [answer for answer, _ in cold], PATIENCE)
        assert snapshot(borrower)["tiers"]["peer"]["checksum_failures"] == 0
