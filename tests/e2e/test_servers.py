"""Real servers, real files: the same tokens with and without tiers, whatever happens to the servers and the files.

Servers take long to start (nearly all of it imports), so they are few and shared; the tests run in file order.
"""

from __future__ import annotations

import json
import signal
import socket
import threading
import time

import pytest

from swift_tiers.ops.base.model import tiny_model
from swift_tiers.ops.commands.demo.servers import ServerError

from support.servers import (
    START_SECONDS,
    Site,
    call,
    fill_device,
    generate,
    prompt,
    snapshot,
    wait_memory_empty,
    wait_written,
)

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return Site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def answers(plain):
    """What a server without tiers answers to prompts 0..9."""
    return plain.answers([prompt(seed) for seed in range(10)])


@pytest.fixture(scope="module")
def main(site, answers):
    """The server with tiers that most tests share."""
    with site.server("main", tiers=site.tiers()) as server:
        server.start()
        server.wait_ready(START_SECONDS)
        yield server


def nothing_stays_pinned(server) -> None:
    """Pins are given back, and pages copied, after the answers."""
    limit = time.monotonic() + 60
    while snapshot(server)["tiers"]["host"]["pinned_pages"]:
        assert time.monotonic() < limit, "pins leaked"
        time.sleep(0.2)


def test_the_same_tokens_cold_and_evicted(main, answers):
    for seed, answer in enumerate(answers):
        assert generate(main, prompt(seed)) == (answer, {})
        wait_written(main)
    tiers = set()
    for seed, answer in enumerate(answers):
        tokens, details = generate(main, prompt(seed))
        assert tokens == answer
        tiers |= {tier for tier, count in details.items() if count}
    assert {"host", "ssd"} & tiers
    info = call(main, "/server_info")
    assert info["enable_swift_tiers"] is True
    assert snapshot(main)["restores"]["failed_loads"] == 0


def test_flush_cache_empties_device_and_host_memory(main, answers):
    wait_written(main)
    call(main, "/flush_cache", {})
    wait_memory_empty(main)
    assert generate(main, prompt(0)) == (answers[0], {"device": 0, "host": 0, "ssd": 688})


def test_the_openai_endpoint_names_the_tier(main):
    text = " ".join(f"word{number}" for number in range(150))
    body = {
        "model": "any", "messages": [{"role": "user", "content": text}], "max_tokens": 4, "temperature": 0,
        "return_meta_info": True, "return_cached_tokens_details": True,
    }  # fmt: skip
    first = call(main, "/v1/chat/completions", body)
    fill_device(main, 2)
    second = call(main, "/v1/chat/completions", body)
    assert first["choices"][0]["message"] == second["choices"][0]["message"]
    details = second["choices"][0]["meta_info"]["cached_tokens_details"]
    assert details["host"] + details["ssd"] > 0
    cached = second["choices"][0]["meta_info"]["cached_tokens"]
    assert cached == details["device"] + details["host"] + details["ssd"]
    # The shape that OpenAI clients of SGLang know: what lies below host memory is storage.
    assert details["storage"] == details["ssd"]
    standard = second["sglext"]["cached_tokens_details"]
    assert cached == standard["device"] + standard["host"] + standard["storage"]


def test_clients_that_leave_leave_nothing_behind(main, answers):
    fill_device(main, 3)
    body = json.dumps({"input_ids": prompt(1), "sampling_params": {"max_new_tokens": 1000, "ignore_eos": True}})
    head = (
        f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    for wait in (0.0, 0.02, 0.1, 0.3, 0.6):
        with socket.create_connection(("127.0.0.1", main.port)) as client:
            client.sendall((head + body).encode())
            time.sleep(wait)
    nothing_stays_pinned(main)
    assert generate(main, prompt(1))[0] == answers[1]


def test_many_at_once(main, answers):
    wrong: list[int] = []

    def ask(seed: int) -> None:
        if generate(main, prompt(seed))[0] != answers[seed]:
            wrong.append(seed)

    threads = [threading.Thread(target=ask, args=(number % 10,)) for number in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    nothing_stays_pinned(main)


@pytest.mark.exhaustive
def test_a_second_server_on_the_same_stripe_set_is_refused(site, main):
    server = site.server("second", tiers=site.tiers())
    with server:
        server.start()
        with pytest.raises(ServerError, match="exit code 2"):
            server.wait_ready(START_SECONDS)
    lines = [line for line in server.log.read_text().splitlines() if line.startswith("swift-tiers: error:")]
    assert len(lines) == 1
    assert str(site.directories[0]) in lines[0]


@pytest.mark.exhaustive
def test_two_servers_and_a_restart_of_one(site, main, answers):
    """Another server, of page size 1, on directories of its own, while the first restarts."""
    other_directory = site.root / "other"
    other_directory.mkdir()
    wait_written(main)
    tiers = site.tiers(other_directory, host="4MiB")
    tiers["ssd"]["size_per_device"] = "64MiB"  # a page of one token takes a whole stripe unit
    with site.server("page1", "--page-size", "1", tiers=tiers) as other:
        other.start()
        main.stop()
        main.start()
        main.wait_ready(START_SECONDS)
        main.wait_found(START_SECONDS)
        other.wait_ready(START_SECONDS)
        assert generate(main, prompt(2)) == (answers[2], {"device": 0, "host": 0, "ssd": 688})
        assert generate(other, prompt(3)) == (answers[3], {})
        fill_device(other, 5)
        tokens, details = generate(other, prompt(3))
        assert tokens == answers[3]
        assert details["device"] == 0
        assert 0 < details["host"] + details["ssd"] <= 699


def test_a_killed_server_finds_its_pages_again(site, main, answers):
    for seed in (4, 5):
        assert generate(main, prompt(seed))[0] == answers[seed]
    wait_written(main)
    assert main._process is not None
    main._process.send_signal(signal.SIGKILL)
    main._process.wait()
    main._kill_group()
    main.start()
    main.wait_ready(START_SECONDS)
    main.wait_found(START_SECONDS)
    found = sum(
        generate(main, prompt(seed)) == (answers[seed], {"device": 0, "host": 0, "ssd": 688}) for seed in (4, 5)
    )
    assert found == 2
    for seed in range(10):
        assert generate(main, prompt(seed))[0] == answers[seed]


def test_a_device_file_deleted_under_load(site, main, answers):
    (path,) = site.directories[1].glob("*.stripe")
    stop = threading.Event()
    wrong: list[int] = []

    def load() -> None:
        seed = 0
        while not stop.is_set():
            if generate(main, prompt(seed % 10))[0] != answers[seed % 10]:
                wrong.append(seed)
            seed += 1

    worker = threading.Thread(target=load)
    worker.start()
    time.sleep(1)
    path.unlink()
    limit = time.monotonic() + 60
    while all(device["in_service"] for device in snapshot(main)["devices"]):
        assert time.monotonic() < limit
        time.sleep(0.2)
    time.sleep(1)
    stop.set()
    worker.join()
    assert not wrong
    assert [device["in_service"] for device in snapshot(main)["devices"]] == [True, False, True]
    for seed, answer in enumerate(answers):
        assert generate(main, prompt(seed))[0] == answer


def assert_others_never_hit(site, main, answers, **others) -> None:
    """Servers with other options, on main's stripe set and one after the other, find nothing there; main does then."""
    wait_written(main)
    main.stop()
    for name, changes in others.items():
        with site.server(name, tiers=site.tiers(), **changes) as server:
            server.start()
            server.wait_ready(START_SECONDS)
            server.wait_found(START_SECONDS)
            for seed in range(10):
                assert generate(server, prompt(seed), 1)[1] == {}, name
            assert snapshot(server)["tiers"]["ssd"]["hits"] == 0
            wait_written(server)
            server.stop()
    main.start()
    main.wait_ready(START_SECONDS)
    main.wait_found(START_SECONDS)
    hits = 0
    for seed, answer in enumerate(answers):
        tokens, details = generate(main, prompt(seed))
        assert tokens == answer
        hits += details.get("ssd", 0)
    assert hits > 0, "its own pages are still there"


@pytest.mark.exhaustive  # of one scheduler, the default run has it in sglang_ext/test_identity_of_starts.py
def test_other_weights_never_hit(site, main, answers):
    """The deleted device joins again, blank."""
    other_model = tiny_model(site.root / "other-model", seed=1)
    assert_others_never_hit(site, main, answers, other_model={"--model-path": str(other_model)})


@pytest.mark.exhaustive
def test_other_dtypes_and_page_sizes_never_hit(site, main, answers):
    assert_others_never_hit(site, main, answers, bfloat16={"--dtype": "bfloat16"}, page32={"--page-size": "32"})


@pytest.mark.exhaustive
def test_ranks_agree(site, answers, monkeypatch):
    """Two tensor-parallel ranks, each with its own device files."""
    directory = site.root / "tp"
    directory.mkdir()
    monkeypatch.setenv("SGLANG_CPU_OMP_THREADS_BIND", "0|1")
    with site.server("tp2", "--tp-size", "2", tiers=site.tiers(directory, host="2MiB")) as server:
        server.start()
        server.wait_ready(START_SECONDS)
        cold = []
        for seed in range(4):
            cold.append(generate(server, prompt(seed)))
            wait_written(server)
        assert [details for _, details in cold] == [{}] * 4
        fill_device(server, 7)
        for seed, (answer, _) in enumerate(cold):
            tokens, details = generate(server, prompt(seed))
            assert tokens == answer
            assert details["host"] + details["ssd"] == 688
        assert len(list(directory.glob("*.stripe"))) == 2
        server.stop()
        server.start()
        server.wait_ready(START_SECONDS)
        assert generate(server, prompt(0)) == (cold[0][0], {"device": 0, "host": 0, "ssd": 688})
