"""Real servers that compute prefixes from the front while their pages come up from slow devices."""

from __future__ import annotations

import threading
import time

import pytest

from swift_tiers.radix_tiering.base.read_config import parse_config
from swift_tiers.radix_tiering.bus.contract.commands import SetPolicy
from swift_tiers.radix_tiering.bus.hear.reader import BusReader

from support.prompts import prompt
from support.servers import START_SECONDS, Site, call, generate, snapshot, wait_written

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

LENGTHS = (900, 1000, 1100, 600)
#: How often a prompt is asked for until computing and loading meet: a machine may do the one or the other in no time.
MEETINGS = 5


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return Site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def prompts():
    shared = prompt(50, 300)
    return [prompt(40 + number, length) for number, length in enumerate(LENGTHS)] + [
        [*shared, *prompt(60 + number, 500)] for number in range(3)
    ]


@pytest.fixture(scope="module")
def answers(plain, prompts):
    return plain.answers(prompts)


def slow_tiers(site, name: str, throttle: str) -> dict:
    directory = site.root / name
    directory.mkdir()
    tiers = site.tiers(directory, host="16MiB")
    tiers["ssd"]["throttle"] = throttle
    tiers["restore"] = {"strategy": "token-wise", "chunk": 64}
    tiers["bus"] |= {"control": True, "server": name}
    return tiers


def from_ssd(server) -> None:
    wait_written(server)
    limit = time.monotonic() + 60
    # Once at least: what is on the device may be on its way to host memory yet.
    call(server, "/flush_cache", {})
    while snapshot(server)["tiers"]["host"]["pages"]:
        assert time.monotonic() < limit
        time.sleep(0.1)
        call(server, "/flush_cache", {})


def assert_the_same_tokens_one_by_one_and_all_at_once(server, prompts, answers) -> None:
    for one, answer in zip(prompts, answers, strict=True):
        assert generate(server, one)[0] == answer
    from_ssd(server)
    for one, answer in zip(prompts, answers, strict=True):
        assert generate(server, one)[0] == answer
    from_ssd(server)
    found: dict[int, list[int]] = {}
    threads = [
        threading.Thread(target=lambda number=number: found.update({number: generate(server, prompts[number])[0]}))
        for number in range(len(prompts))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert [found.get(number) for number in range(len(prompts))] == answers
    restores = snapshot(server)["restores"]
    assert restores["restores_split"] > 0, "no prefix was computed while it came up: this tests nothing"
    assert restores["failed_loads"] == 0
    # SGLang's own checks would have ended the server.
    assert call(server, "/health") is not None


def test_the_same_tokens_one_by_one_and_all_at_once(site, prompts, answers) -> None:
    tiers = slow_tiers(site, "overlap", "1MiB")
    with site.server("overlap", "--enable-mixed-chunk", tiers=tiers) as server:
        server.start()
        server.wait_ready(START_SECONDS)
        assert_the_same_tokens_one_by_one_and_all_at_once(server, prompts, answers)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "arguments", "throttle"),
    [
        # A page of one token takes as much of an ssd as one of sixteen does here.
        ("no-overlap", ("--disable-overlap-schedule", "--page-size", "1"), "6MiB"),
        ("two-ranks", ("--tp-size", "2"), "1MiB"),
    ],
)
def test_the_same_tokens_by_other_schedules(site, prompts, answers, name, arguments, throttle, monkeypatch) -> None:
    if "--tp-size" in arguments:
        monkeypatch.setenv("SGLANG_CPU_OMP_THREADS_BIND", "0|1")  # a core for each rank
    with site.server(name, *arguments, tiers=slow_tiers(site, name, throttle)) as server:
        server.start()
        server.wait_ready(START_SECONDS)
        assert_the_same_tokens_one_by_one_and_all_at_once(server, prompts, answers)


@pytest.fixture
def plans(site):
    """A server whose ssd is so slow that even a busy machine begins to compute before the last page has come; and that
    gives no load up for being late, as it would on a machine that is busy enough."""
    tiers = slow_tiers(site, "plans", "2MiB")
    tiers["restore"]["behind"] = 50
    with site.server("plans", tiers=tiers) as server:
        server.start()
        server.wait_ready(START_SECONDS)
        yield server


def went_as_chosen(story, choice: str, *, one_forward: bool) -> bool:
    """Whether a request whose prefix was on ssd got it as `choice` says. `one_forward`: it fits in one, and may be
    computed before the first page is there."""
    found, computed, loaded = story.found, story.pages("compute"), story.pages("ssd")
    if choice == "recompute":
        return (found, loaded) == (0, 0)
    assert found == computed + loaded > 0
    if choice == "load":
        return computed == 0
    if choice == "layer-wise" and one_forward:
        return 0 < story.met_layer <= story.layers
    return choice == "auto" or 0 < computed <= found - (not one_forward)


def test_the_same_tokens_under_every_plan(site, plans, prompts, answers) -> None:
    """Loaded, recomputed, both at once by tokens and by layers, and whatever the server decides."""
    short = len(prompts)  # fits in one forward, so that it can be computed layer by layer
    asked = [*prompts, prompts[0][:450]]
    expected = [*answers, generate(plans, asked[short])[0]]
    for one, answer in zip(asked, expected, strict=True):
        assert generate(plans, one)[0] == answer
    with BusReader.open(parse_config({"bus": {"directory": str(site.bus)}}).bus, "plans") as reader:
        for choice in ("load", "recompute", "token-wise", "layer-wise", "auto"):
            command = SetPolicy(field="restore.strategy", value=choice)
            assert reader.command("plans", "tests", command, 20).state == "done"
            attempts = MEETINGS if choice in ("token-wise", "layer-wise") else 1
            for number, answer in enumerate(expected):
                for attempt in range(attempts):
                    from_ssd(plans)
                    rid = f"{choice}-{number}-{attempt}"
                    sampling = {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True}
                    body = {"input_ids": asked[number], "sampling_params": sampling, "rid": rid}
                    assert call(plans, "/generate", body)["output_ids"] == answer, rid
                    story = story_of(reader, "plans", rid)
                    if went_as_chosen(story, choice, one_forward=number == short):
                        break
                else:
                    raise AssertionError(f"{rid}: {story}")


def story_of(reader: BusReader, server: str, rid: str):
    """What is told of a request that has ended."""
    limit = time.monotonic() + 60
    while True:
        for view in reader.request(rid, server):
            if not view.live and view.restore_story is not None:
                return view.restore_story
        assert time.monotonic() < limit, f"{rid} is not told of"
        time.sleep(0.05)
