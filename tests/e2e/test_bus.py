"""Two tensor-parallel ranks of a real server, as an operator with nothing but a Redis client sees and steers them."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import redis

from swift_tiers.console.feeds.live import LiveFeed
from swift_tiers.console.model.place import Place, PlaceStep
from swift_tiers.radix_tiering.base.read_config import parse_config

from support.command_line import run_command
from support.console_screen import console, screen_text, shows, told
from support.console_screen import until as until_true
from support.scrapes import assert_a_scrape_says_what_the_server_says
from support.servers import (
    START_SECONDS,
    Site,
    call,
    fill_device,
    generate,
    prompt,
    snapshot,
    wait_written,
)

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

NAME = "alpha"
RANKS = ("dp0-tp0", "dp0-tp1")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return Site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def server(site):
    tiers = site.tiers(host="2MiB")
    tiers["bus"] |= {"server": NAME, "control": True, "requests_interval": "100ms", "interval": "100ms"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SGLANG_CPU_OMP_THREADS_BIND", "0|1")
        with site.server("bus", "--tp-size", "2", "--enable-metrics", tiers=tiers) as server:
            server.start()
            server.wait_ready(START_SECONDS)
            yield server


@pytest.fixture(scope="module")
def bus(site, server) -> Iterator[redis.Redis]:
    with redis.Redis(unix_socket_path=f"{site.bus}/redis.sock", decode_responses=True) as client:
        yield client


@pytest.fixture(scope="module")
def answers(server):
    found = []
    for seed in range(4):
        found.append(generate(server, prompt(seed))[0])
        wait_written(server)
    return found


def key(*words: str) -> str:
    return ":".join(("swift", NAME, *words))


def until(look: Any, what: str, seconds: float = 30) -> Any:
    limit = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < limit, what
        time.sleep(0.05)
    return found


_ids = count()


def command(bus: redis.Redis, *, seconds: float = 20, **words: Any) -> dict[str, str]:
    """Send a command; what has become of it once that is settled."""
    identifier = f"test-{next(_ids)}"
    now, _ = bus.time()
    bus.xadd(
        key("control"),
        {"id": identifier, "author": "a test", "deadline": now + seconds, "command": json.dumps(words)},
    )

    def settled() -> dict[str, str] | None:
        found = bus.hgetall(key("command", identifier))
        return found if found.get("state") in ("done", "refused", "expired", "partly") else None

    return until(settled, f"{words}: {bus.hgetall(key('command', identifier))}", seconds + 60)


def test_the_server_is_there_with_all_of_its_ranks(server, bus):
    info = until(lambda: bus.hgetall(key("info")), "no server")
    assert info["ranks"].split(",") == list(RANKS)
    assert info["address"] == f"127.0.0.1:{server.port}"
    assert info["control"] == "1"
    assert json.loads(info["configuration"])["bus"]["server"] == NAME
    for rank in RANKS:
        said = until(lambda rank=rank: bus.hgetall(key(rank, "rank")), rank)
        assert said["page_tokens"] == "16"
    namespaces = {bus.hget(key(rank, "rank"), "namespace") for rank in RANKS}
    assert len(namespaces) == 2, "the ranks hold different heads"


def test_the_bus_says_what_the_server_says(server, bus, answers):
    fill_device(server, 1)
    for seed, answer in enumerate(answers):
        assert generate(server, prompt(seed))[0] == answer
    wait_written(server)

    def equal() -> bool:
        state = snapshot(server)
        said = {tier: bus.hgetall(key(RANKS[0], "tier", tier)) for tier in state["tiers"]}
        return all(
            int(said[tier].get(field, -1)) == counts[field]
            for tier, counts in state["tiers"].items()
            for field in ("hits", "misses", "bytes_read", "bytes_written", "evictions", "pages", "used_bytes")
        )

    until(equal, "the bus differs from /server_info")

    def hits() -> list[list[str | None]]:
        return [[bus.hget(key(rank, "tier", tier), "hits") for tier in ("host", "ssd")] for rank in RANKS]

    until(lambda: hits()[0] == hits()[1], f"the ranks differ: {hits()}")  # each publishes in its own time
    assert hits()[0] != ["0", "0"]
    assert int(bus.hget(key(RANKS[0], "tier", "device"), "hits")) >= 0


def test_a_request_is_seen_from_its_arrival_to_its_end(server, bus):
    body = {
        "rid": "seen", "input_ids": prompt(50, 320),
        "sampling_params": {"temperature": 0, "max_new_tokens": 1500, "ignore_eos": True},
    }  # fmt: skip
    client = threading.Thread(target=call, args=(server, "/generate", body))
    client.start()
    try:
        for rank in RANKS:
            until(lambda rank=rank: bus.hget(key(rank, "request", "seen"), "state") == "running", rank)
            running = bus.hgetall(key(rank, "request", "seen"))
            assert running["block_table"]
            assert float(running["queue_seconds"]) >= 0
    finally:
        call(server, "/abort_request", {"rid": "seen"})
        client.join()
    for rank in RANKS:
        until(lambda rank=rank: bus.hget(key(rank, "request", "seen"), "state") == "aborted", rank)
        ended = bus.hgetall(key(rank, "request", "seen"))
        assert ended["block_table"] == ""
        tokens = sum(int(ended[f"{name}_tokens"]) for name in ("device", "host", "ssd", "recomputed"))
        assert tokens == int(ended["prompt_tokens"]) == 320


def test_how_a_prefix_came_back_is_told_by_every_rank(site, server, bus, answers, capsys):
    fill_device(server, 2)
    body = {"rid": "again", "input_ids": prompt(1), "sampling_params": {"temperature": 0, "max_new_tokens": 4}}
    call(server, "/generate", body)
    for rank in RANKS:
        until(lambda rank=rank: bus.hget(key(rank, "request", "again"), "state") == "finished", rank)
        told = bus.hgetall(key(rank, "request", "again"))
        story = json.loads(told["restore_story"])
        came = dict.fromkeys(("host", "ssd", "compute", "device"), 0)
        for how, pages in story["runs"]:
            came[how] += pages
        assert sum(came.values()) == sum(story["found_pages"].values()) > 0
        assert [came["host"] * 16, came["ssd"] * 16] == [int(told["host_tokens"]), int(told["ssd_tokens"])]
        assert story["why"]
        assert story["there_seconds"] > 0
    code, out, error = run_command(capsys, "inspect", "restore", "again", "--directory", str(site.bus))
    assert code == 0, error
    assert "the slowest of 2 ranks" in out
    assert "of them were found below it" in out


def test_commands_are_carried_out_by_every_rank(server, bus, answers):
    generate(server, prompt(0))
    wait_written(server)
    done = command(bus, type="flush", tiers="all")
    assert done["state"] == "done", done
    assert all(done[f"rank:{rank}"].startswith("done: ") for rank in RANKS)
    for rank in RANKS:
        pages = key(rank, "directory")
        until(lambda pages=pages: bus.hget(pages, "pages") == "0", rank)
    call(server, "/flush_cache", {})
    assert generate(server, prompt(0)) == (answers[0], {}), "nothing is left of it"

    refused = command(bus, type="drop", page="00" * 32)
    assert (refused["state"], refused["author"], refused["type"]) == ("refused", "a test", "drop")
    assert refused["reason"].startswith("page: ")
    expired = command(bus, seconds=-5, type="flush", tiers="all")
    assert expired["state"] == "expired"

    done = command(bus, type="set_policy", field="restore_deadline", value="7s")
    assert done["state"] == "done"
    until(
        lambda: json.loads(bus.hget(key("info"), "configuration"))["policy"]["restore_deadline"] == "7s",
        "the configuration on the bus is the old one",
    )

    def audited() -> bool:
        kinds = [fields["kind"] for _, fields in bus.xrange(key("events"))]
        return [kinds.count(f"command.{state}") for state in ("done", "refused", "expired")] == [2, 1, 1]

    until(audited, "commands are not in the event stream")


def test_commands_under_load_leave_every_answer_right(server, bus, answers):
    stop, wrong = threading.Event(), []

    def ask(start: int) -> None:
        for seed in count(start):
            if stop.is_set():
                return
            if generate(server, prompt(seed % 4))[0] != answers[seed % 4]:
                wrong.append(seed)

    clients = [threading.Thread(target=ask, args=(number,)) for number in range(3)]
    for client in clients:
        client.start()
    try:
        for number in range(6):
            for words in (
                {"type": "flush", "tiers": ("host", "all")[number % 2]},
                {"type": "cap_tier", "tier": "host", "limit": "1MiB"},
                {"type": "set_policy", "field": "eviction", "value": ("lfu", "lru")[number % 2]},
                {"type": "set_policy", "field": "restore.strategy", "value": ("layer-wise", "auto")[number % 2]},
                {"type": "cap_tier", "tier": "host"},
            ):
                done = command(bus, **words)
                assert done["state"] in ("done", "refused"), done
                # Ranks decide alike, since all of them do so in the same turn.
                assert len({done[f"rank:{rank}"].partition(":")[0] for rank in RANKS}) == 1
    finally:
        stop.set()
        for client in clients:
            client.join()
    assert not wrong
    until(lambda: snapshot(server)["tiers"]["host"]["pinned_pages"] == 0, "pins leaked")


def test_every_rank_stops_at_the_same_layer(server, bus, answers):
    """A prefix in host memory, and one on ssd, computed layer by layer."""
    question = prompt(0)[:480]
    body = {"input_ids": question, "sampling_params": {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True}}
    # What a flush has taken from the tiers does not come back to them as long as it is on the device.
    fill_device(server, 2)
    answer = call(server, "/generate", {**body, "rid": "asked"})["output_ids"]
    until(lambda: bus.hget(key(RANKS[0], "request", "asked"), "state") == "finished", "it did not end")
    page = bus.hget(key(RANKS[0], "request", "asked"), "last_page")
    assert command(bus, type="set_policy", field="restore.strategy", value="layer-wise")["state"] == "done"
    until(lambda: command(bus, type="pin", page=page)["state"] == "done", "it is not held below the device")
    found, met = [], []
    for turn in range(4):
        if turn == 2:
            assert command(bus, type="unpin", page=page)["state"] == "done"
        fill_device(server, 3 + turn)
        rid = f"layers-{turn}"
        assert call(server, "/generate", {**body, "rid": rid})["output_ids"] == answer
        stories = []
        for rank in RANKS:
            until(lambda rank=rank, rid=rid: bus.hget(key(rank, "request", rid), "state") == "finished", rank)
            stories.append(json.loads(bus.hget(key(rank, "request", rid), "restore_story")))
        assert [story["strategy"] for story in stories] == ["layer-wise"] * 2
        assert stories[0]["met_layer"] == stories[1]["met_layer"]
        found.append(stories[0]["found_pages"])
        met.append(stories[0]["met_layer"])
    assert [list(pages) for pages in found] == [["host"]] * 2 + [["ssd"]] * 2
    assert None not in met
    assert command(bus, type="set_policy", field="restore.strategy", value="load")["state"] == "done"
    until(lambda: snapshot(server)["tiers"]["host"]["pinned_pages"] == 0, "pins leaked")


@pytest.mark.anyio
async def test_the_console_shows_the_truth(site, server, bus, answers):
    """What an operator reads in it, and steers from it, is what the server itself says."""
    feed = LiveFeed(parse_config({"bus": {"directory": str(site.bus)}}).bus, "a test", steers=True)
    async with console(feed, interval=0.2).run_test(size=(160, 48), notifications=True) as pilot:
        app = pilot.app
        await shows(pilot, "LIVE", NAME)
        fill_device(server, 3)
        assert [generate(server, prompt(seed))[0] for seed in range(len(answers))] == answers
        wait_written(server)
        await pilot.press("enter")

        def row_of(tier: str) -> dict[str, Any]:
            row = next((row for row in app.grid.rows if row.key == f"{RANKS[0]} {tier}"), None)
            if row is None:
                return {}  # the view before it, yet
            names = [column.name for column in app.grid.table.columns]
            return dict(zip(names, (cell.content for cell in row.cells), strict=True))

        def overview_is_true() -> bool:
            state = snapshot(server)["tiers"]
            return all(
                row_of(tier).get(name) == counts[field]
                for tier, counts in state.items()
                for name, field in (("pages", "pages"), ("hits", "hits"), ("used", "used_bytes"))
            )

        await until_true(pilot, overview_is_true)

        # Every slot of host memory, as the server itself has it.
        steps = (PlaceStep("server", NAME), PlaceStep("rank", RANKS[0]), PlaceStep("tier", "host"))
        app.enter(Place("blocks", steps))
        await until_true(pilot, lambda: len(app.grid.rows) > 1)

        def map_is_true() -> bool:
            states = Counter(row.cells[1].text for row in app.grid.rows)
            held = len(app.grid.rows) - states["free"]
            return held == snapshot(server)["tiers"]["host"]["pages"]

        await until_true(pilot, map_is_true)

        # A command from its key to the server and back.
        await pilot.press("1", "1", "F", *"host", "enter", "y")
        await until_true(pilot, lambda: "done: flush" in told(app))
        await until_true(pilot, lambda: snapshot(server)["tiers"]["host"]["pages"] == 0)
        await pilot.press("8")
        await shows(pilot, "tiers.flushed", "command.done")
        for number in range(1, 9):
            await pilot.press(str(number))
            await pilot.pause(0.5)
            assert "this view failed" not in screen_text(app)


def test_no_text_of_a_client_is_on_the_bus(server, bus):
    marker = "Xylophon-Geheimnis-4711"
    body = {"text": f"{marker} " * 20, "sampling_params": {"max_new_tokens": 4}, "cache_salt": f"salt {marker}"}
    call(server, "/generate", body)
    chat = {"model": "any", "messages": [{"role": "user", "content": marker}], "max_tokens": 4}
    call(server, "/v1/chat/completions", chat)
    time.sleep(0.5)  # five publishings
    dump = []
    for name in bus.scan_iter():
        kind = bus.type(name)
        dump.append(name)
        if kind == "hash":
            dump += [text for pair in bus.hgetall(name).items() for text in pair]
        elif kind == "stream":
            dump += [text for _, fields in bus.xrange(name) for pair in fields.items() for text in pair]
        elif kind == "zset":
            dump += bus.zrange(name, 0, -1)
        else:
            dump.append(str(bus.get(name)))
    assert len(dump) > 100
    assert not [text for text in dump if marker in text or "Geheimnis" in text]


def test_a_scrape_says_what_the_server_says(server):
    assert_a_scrape_says_what_the_server_says(server)


def test_a_server_that_ends_says_so(server, bus):
    server.stop()
    # With it goes the embedded Redis, which was its own, or what it had said there.
    try:
        assert until(lambda: not bus.exists(key("info")), "it is still announced")
    except redis.ConnectionError:
        pass
