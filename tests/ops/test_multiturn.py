"""The bench of three systems without its servers: what is asked, HiCache's throttle and copies, what comes of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from swift_tiers.ops.base.errors import CommandError
from swift_tiers.ops.commands.bench import multiturn, multiturn_hicache
from swift_tiers.ops.commands.bench.multiturn_hicache import DiskBytes, ThrottledDisk, announce, disk_bytes
from swift_tiers.ops.commands.bench.multiturn_replay import Replayed, TurnOutcome, read_answer, replay
from swift_tiers.ops.commands.bench.multiturn_report import (
    Round,
    different_answers,
    figures,
    make_rows,
    percentile,
    show,
)
from swift_tiers.ops.commands.bench.multiturn_systems import (
    HICACHE,
    OFF,
    SYSTEMS,
    TIERS,
    Sizes,
    choose_sizes,
    make_system,
)
from swift_tiers.ops.commands.bench.multiturn_workload import (
    BenchTurn,
    RoundShape,
    distinct_tokens,
    make_fresh_round,
    make_round,
    make_short_round,
    read_trace,
)
from swift_tiers.radix_tiering.base.read_config import parse_config

SHAPE = RoundShape(agents=5, turns=4, longest=600)
VOCABULARY = 1000
PAGE = 4


# --- what is asked ---


def test_histories_grow_and_agents_share_the_system_prompt_alone() -> None:
    turns = make_round(SHAPE, VOCABULARY, seed=1)
    assert sorted((turn.agent, turn.turn) for turn in turns) == [(a, t) for a in range(5) for t in range(4)]
    last: dict[int, list[int]] = {}
    for turn in turns:
        before = last.get(turn.agent, [])
        assert turn.turn == 0 or len(turn.prompt) > len(before) > 0
        assert turn.prompt[: len(before)] == before
        assert len(turn.prompt) <= SHAPE.longest
        assert set(turn.prompt) <= set(range(VOCABULARY // 16, VOCABULARY * 3 // 4))
        last[turn.agent] = turn.prompt
    shared = SHAPE.longest // 6
    assert len({tuple(prompt[:shared]) for prompt in last.values()}) == 1
    assert distinct_tokens(turns) == sum(len(prompt) - shared for prompt in last.values()) + shared


def test_rounds_are_drawn_by_their_seed_and_share_nothing() -> None:
    assert make_round(SHAPE, VOCABULARY, seed=1) == make_round(SHAPE, VOCABULARY, seed=1)
    one, other = (make_round(SHAPE, VOCABULARY, seed) for seed in (1, 2))
    assert distinct_tokens(one + other) == distinct_tokens(one) + distinct_tokens(other)
    assert [turn.agent for turn in one] != [turn.agent for turn in other]


def test_every_agent_has_one_turn_in_each_lap() -> None:
    turns = make_round(SHAPE, VOCABULARY, seed=3)
    for lap in range(SHAPE.turns):
        assert {(turn.agent, turn.turn) for turn in turns[lap * 5 : lap * 5 + 5]} == {(a, lap) for a in range(5)}


def write_trace(path: Path, chains: list[list[int]]) -> Path:
    lines = [json.dumps({"timestamp": number, "hash_ids": chain}) for number, chain in enumerate(chains)]
    path.write_text("\n".join(reversed(lines)) + "\n")
    return path


def test_a_trace_gives_conversations_and_equal_blocks_equal_tokens(tmp_path: Path) -> None:
    # 0 is a system prompt. 1 is alone; 2-3 with 5 is a conversation of two turns, 7-8 of three.
    chains = [[0, 1, 90], [0, 2, 3, 91], [0, 7, 8, 92], [0, 2, 3, 5, 93], [0, 7, 8, 9, 94], [0, 7, 8, 9, 10, 95]]
    turns = read_trace(write_trace(tmp_path / "trace.jsonl", chains), SHAPE, VOCABULARY, seed=0)
    assert [(turn.agent, turn.turn) for turn in turns] == [(0, 0), (1, 0), (0, 1), (1, 1), (1, 2)]
    first, second = turns[0].prompt, turns[2].prompt
    block = (SHAPE.longest - 8) // 6
    assert len(turns[4].prompt) == 6 * block + 8
    assert second[: 3 * block] == first[: 3 * block]
    assert second[3 * block : 4 * block] != first[3 * block : 4 * block]
    directory = read_trace(tmp_path, SHAPE, VOCABULARY, seed=0)
    assert directory == turns
    fewer = read_trace(tmp_path, SHAPE._replace(agents=1, turns=1), VOCABULARY, seed=0)
    assert [(turn.agent, turn.turn) for turn in fewer] == [(0, 0)]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ('{"timestamp": 0, "hash_ids": [1, 2, 3]}', "no requests that continue one another"),
        ('{"timestamp": 0}', "not a Mooncake trace"),
        ("prose", "not a Mooncake trace"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: str, problem: str) -> None:
    (tmp_path / "trace.jsonl").write_text(content)
    with pytest.raises(CommandError, match=problem):
        read_trace(tmp_path / "trace.jsonl", SHAPE, VOCABULARY, seed=0)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--rates", "1,fast"], "--rates"),
        (["--rates", "0"], "--rates"),
        (["--rates", "none,-1"], "--rates"),
        (["--rounds", "0"], "--rounds"),
        (["--together", "0"], "--together"),
    ],
)
def test_options_that_cannot_be_are_refused_before_anything_starts(arguments: list[str], problem: str) -> None:
    with pytest.raises(CommandError, match=problem):
        multiturn.main(arguments)


def test_host_memory_is_what_hicache_makes_of_its_ratio(tmp_path: Path) -> None:
    shape = {"num_hidden_layers": 4, "num_attention_heads": 2, "head_dim": 16, "max_position_embeddings": 2048}
    (tmp_path / "config.json").write_text(json.dumps(shape))  # K and V in float32: 1024 bytes a token
    sizes = choose_sizes(tmp_path, longest=600, together=2, written_tokens=10_000)
    assert sizes.device_tokens == 2 * 632
    assert sizes.host_tokens == (int(1264 * 1.25) // 16 + 1) * 16
    assert sizes.page_bytes == 16 * 1024


def after(command: list[str], flag: str) -> str:
    return command[command.index(flag) + 1]


def test_both_have_the_same_memory_and_disk_and_all_the_same_flags(tmp_path: Path) -> None:
    sizes = Sizes(tmp_path, token_bytes=1000, device_tokens=1264, host_tokens=1584, ssd_bytes=2**26)
    commands: dict[str, list[str]] = {}
    for name in SYSTEMS:
        (tmp_path / name).mkdir()
        system = make_system(name, sizes, 5e6, "wait_complete", tmp_path / name)
        commands[name] = system.server.command
        commands[name][commands[name].index("--port") + 1] = "any"
        if name == HICACHE:
            environment = system.server.environment
    off, hicache, tiers = (commands[name] for name in SYSTEMS)
    end = off.index("--host")
    assert hicache[:end] == tiers[:end] == off[:end], "what they differ in comes after what they share"
    assert hicache[-4:] == tiers[-4:] == off[end:]

    config = parse_config(json.loads(after(tiers, "--swift-tiers-config")))
    page_bytes = 16 * sizes.token_bytes
    assert config.host.size == sizes.host_tokens // 16 * (page_bytes + 384), "a page begins at a multiple of 4 KiB"
    assert int(sizes.device_tokens * float(after(hicache, "--hicache-ratio"))) // 16 + 1 == sizes.host_tokens // 16
    assert config.ssd.throttle == json.loads(environment[multiturn_hicache.SETTINGS])["bytes_per_second"] == 5e6
    assert config.ssd.directories == (str(tmp_path / TIERS / "ssd"),)
    assert (config.policy.write, after(hicache, "--hicache-write-policy")) == ("through", "write_through")
    assert after(hicache, "--hicache-storage-prefetch-policy") == "wait_complete"


# --- HiCache's disk ---


class Page:
    """As much of a tensor as the throttle looks at."""

    def __init__(self, length: int) -> None:
        self.length = length

    def numel(self) -> int:
        return self.length // 4

    def element_size(self) -> int:
        return 4


class Storage:
    """As SGLang's file storage, in memory; a read takes `seconds` of the clock."""

    def __init__(self, clock: list[float], seconds: float = 0.0) -> None:
        self.pages: set[str] = set()
        self._clock, self._seconds = clock, seconds

    def exists(self, key: str) -> bool:
        return key in self.pages

    def get(self, key: str, target: Page, target_sizes: object = None) -> Page | None:
        self._clock[0] += self._seconds
        return target if key in self.pages else None

    def set(self, key: str, value: Page | None = None) -> bool:
        if key == "no room":
            return False
        self.pages.add(key)
        return True


def make_disk(tmp_path: Path, clock: list[float], rate: float = 1000.0) -> ThrottledDisk:
    def sleep(seconds: float) -> None:
        clock[0] += seconds

    return ThrottledDisk(rate, tmp_path / "disk-bytes", now=lambda: clock[0], sleep=sleep)


def test_two_pages_pass_at_once_and_then_the_rate_rules_reads_and_writes_together(tmp_path: Path) -> None:
    clock = [0.0]
    disk, storage = make_disk(tmp_path, clock), Storage(clock)
    for key in "abc":
        assert disk.around_set(Storage.set, storage, key, Page(100))
    assert clock[0] == pytest.approx(0.1)
    assert disk.around_get(Storage.get, storage, "a", Page(100)) is not None
    assert clock[0] == pytest.approx(0.2)
    assert disk_bytes(tmp_path) == DiskBytes(read=100, written=300)


def test_what_is_not_moved_costs_nothing(tmp_path: Path) -> None:
    clock = [0.0]
    disk, storage = make_disk(tmp_path, clock), Storage(clock)
    for _ in range(9):
        assert disk.around_get(Storage.get, storage, "missing", Page(100)) is None
        assert not disk.around_set(Storage.set, storage, "no room", Page(100))
    disk.around_set(Storage.set, storage, "there", Page(100))
    for _ in range(9):
        assert disk.around_set(Storage.set, storage, "there", Page(100))
    assert clock[0] == 0.0
    assert disk_bytes(tmp_path) == DiskBytes(read=0, written=100)


def test_a_page_comes_neither_before_its_read_nor_before_its_bytes_have_passed(tmp_path: Path) -> None:
    clock = [0.0]
    disk, storage = make_disk(tmp_path, clock), Storage(clock, seconds=0.5)
    storage.pages.add("a")
    for expected in (0.5, 1.0, 1.5):  # slower than the throttle, which therefore adds nothing
        disk.around_get(Storage.get, storage, "a", Page(100))
        assert clock[0] == pytest.approx(expected)


def test_threads_share_the_rate(tmp_path: Path) -> None:
    slept: list[float] = []
    disk = ThrottledDisk(1000.0, tmp_path / "disk-bytes", now=lambda: 0.0, sleep=slept.append)
    storage = Storage([0.0])
    storage.pages.add("a")

    def read() -> None:
        for _ in range(5):
            disk.around_get(Storage.get, storage, "a", Page(100))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(slept) == pytest.approx([0.1 * count for count in range(1, 19)]), "all but the first two wait"
    assert disk_bytes(tmp_path) == DiskBytes(read=2000, written=0)


def test_a_server_without_throttle_is_noticed(tmp_path: Path) -> None:
    assert disk_bytes(tmp_path) is None


# --- HiCache's copies: each against plain loops over tokens ---


def pools(pages: int, layers: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """(K and V of a page-first host pool, every layer's K and then V of a device pool), all different."""
    torch.manual_seed(0)
    host = [torch.rand(pages, layers, PAGE, 2, 3) for _ in range(2)]
    device = [torch.rand(pages * PAGE, 2, 3) for _ in range(2 * layers)]
    return host, device


def tokens_of(pages: list[int]) -> torch.Tensor:
    return torch.tensor([page * PAGE + token for page in pages for token in range(PAGE)])


def test_pages_go_down_and_come_up_as_they_were() -> None:
    layers, device_pages, host_pages = 3, [4, 1, 2], [0, 3, 5]
    host, device = pools(6, layers)
    before = [tensor.clone() for tensor in device]
    untouched = [tensor[[1, 2, 4]].clone() for tensor in host]
    multiturn_hicache.transfer_kv_all_layer_direct_lf_pf(
        device, host, tokens_of(device_pages), tokens_of(host_pages), PAGE
    )
    for part in range(2):
        for layer in range(layers):
            for source, target in zip(device_pages, host_pages, strict=True):
                expected = before[part * layers + layer][source * PAGE : (source + 1) * PAGE]
                assert torch.equal(host[part][target, layer], expected)
        assert torch.equal(host[part][[1, 2, 4]], untouched[part])

    elsewhere = [5, 0, 3]
    for layer in range(layers):
        targets = [device[layer], device[layers + layer]]
        multiturn_hicache.transfer_kv_per_layer_direct_pf_lf(
            host, targets, tokens_of(host_pages), tokens_of(elsewhere), layer, PAGE
        )
    for tensor, was in zip(device, before, strict=True):
        assert torch.equal(tensor[tokens_of(elsewhere)], was[tokens_of(device_pages)])
        assert torch.equal(tensor[tokens_of([1, 2, 4])], was[tokens_of([1, 2, 4])])


def test_tokens_go_between_layer_first_pools() -> None:
    _, device = pools(6, 2)
    target = [torch.zeros_like(tensor) for tensor in device]
    multiturn_hicache.transfer_kv_direct(device, target, torch.tensor([7, 1]), torch.tensor([2, 9]), PAGE)
    for before, after in zip(device, target, strict=True):
        assert torch.equal(after[[2, 9]], before[[7, 1]])
        assert after.count_nonzero() == 12


# --- the plugin is found by the server that it was announced to, and by no other ---


def plugins(environment: Mapping[str, str]) -> set[str]:
    code = "from importlib.metadata import entry_points as e; print(*(p.value for p in e(group='sglang.srt.plugins')))"
    found = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    return set(found.stdout.split())


def test_only_the_server_it_was_announced_to_finds_the_plugin(tmp_path: Path) -> None:
    ours = "swift_tiers.ops.commands.bench.multiturn_hicache:load"
    environment = announce(tmp_path / "plugin", 1000.0)
    assert ours in plugins(environment)
    assert "swift_tiers.sglang_ext.plugin:load" in plugins(environment), "the platform's hooks come with it"
    assert ours not in plugins({})


def test_it_does_nothing_in_a_process_that_it_was_not_announced_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(multiturn_hicache.SETTINGS, raising=False)
    monkeypatch.setitem(sys.modules, "sglang.srt.managers.scheduler", None)  # looks like the scheduler's process
    multiturn_hicache.load()


# --- asking ---


def event(**more: Any) -> dict[str, Any]:
    about = {"prompt_tokens": 4, "cached_tokens": 3, "cached_tokens_details": {"device": 1, "host": 0, "storage": 2}}
    return {"output_ids": [7, 8], "meta_info": {**about, **more}}


def test_an_answer_says_where_its_tokens_came_from() -> None:
    answer = read_answer(BenchTurn(1, 2, [5, 5, 5, 5]), 0.5, event())
    assert (answer.device, answer.host, answer.disk, answer.computed) == (1, 0, 2, 1)
    assert answer.token_ids == (7, 8)
    without = read_answer(BenchTurn(1, 2, [5, 5, 5, 5]), 0.5, event(cached_tokens_details=None))
    assert (without.device, without.computed) == (3, 1)


@pytest.mark.parametrize("more", [{"cached_tokens": 2}, {"prompt_tokens": 5}, {"cached_tokens": None}])
def test_figures_that_do_not_add_up_are_an_error(more: dict[str, Any]) -> None:
    with pytest.raises(CommandError, match="do not add up"):
        read_answer(BenchTurn(0, 0, [5, 5, 5, 5]), 0.5, event(**more))


class Desk:
    """Holds each request until a later one has come, or none is left; remembers who was there at a time."""

    def __init__(self, requests: int) -> None:
        self._left = requests
        self._changed = threading.Condition()
        self._inside: list[int] = []
        self.seen: list[tuple[int, ...]] = []

    def visit(self, agent: int) -> None:
        with self._changed:
            self._inside.append(agent)
            self.seen.append(tuple(self._inside))
            so_far = len(self.seen)
            self._changed.notify_all()
            self._changed.wait_for(lambda: len(self.seen) > so_far or self._left == 1, timeout=10)
            self._inside.remove(agent)
            self._left -= 1
            self._changed.notify_all()


def make_handler(desk: Desk) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            prompt = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["input_ids"]
            desk.visit(prompt[0])
            about = {"prompt_tokens": len(prompt), "cached_tokens": 0}
            answer = {"output_ids": prompt, "meta_info": about}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f"data: {json.dumps(answer)}\n\ndata: [DONE]\n\n".encode())

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def test_turns_are_asked_side_by_side_but_those_of_an_agent_one_after_the_other() -> None:
    turns = [BenchTurn(agent, turn, [agent, turn]) for turn in range(4) for agent in range(2)]
    desk = Desk(len(turns))
    with ThreadingHTTPServer(("127.0.0.1", 0), make_handler(desk)) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            replayed = replay(server.server_port, turns, together=2, new_tokens=1)
        finally:
            server.shutdown()
    assert [(answer.agent, answer.turn) for answer in replayed.answers] == [(turn.agent, turn.turn) for turn in turns]
    assert [answer.token_ids for answer in replayed.answers] == [tuple(turn.prompt) for turn in turns]
    assert max(len(inside) for inside in desk.seen) == 2
    assert all(len(set(inside)) == len(inside) for inside in desk.seen), "no agent has two requests at a time"


def test_no_server_is_one_error() -> None:
    with pytest.raises(CommandError, match="no answer from the server"):
        replay(1, [BenchTurn(0, 0, [1]), BenchTurn(1, 0, [1])], together=2, new_tokens=1)


# --- what is made of it ---


def make_answer(ttft: float, ids: tuple[int, ...] = (1,), **tokens: int) -> TurnOutcome:
    counted = {"device": 0, "host": 0, "disk": 0, **tokens}
    return TurnOutcome(agent=0, turn=0, ttft_seconds=ttft, prompt_tokens=100, token_ids=ids, **counted)


def make_test_round(system: str, answers: list[TurnOutcome], rate: float = 1.0, number: int = 0) -> Round:
    replayed = Replayed(seconds=10.0, answers=tuple(answers))
    return Round(
        rate=rate, number=number, system=system, replayed=replayed, disk=DiskBytes(300, 100), disk_seconds=20.0
    )


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(value) for value in range(200, 0, -1)]
    assert (percentile(values, 0.5), percentile(values, 0.9), percentile(values, 0.99)) == (100, 180, 198)
    assert percentile(values[:100], 0.99) == 199
    assert percentile([3.0], 0.5) == 3.0


def test_a_row_is_over_all_rounds_of_a_system_at_a_rate() -> None:
    rounds = [
        make_test_round(TIERS, [make_answer(1.0, device=50, disk=10)]),
        make_test_round(TIERS, [make_answer(3.0, host=20)], number=1),
        make_test_round(TIERS, [make_answer(9.0)], rate=2.0),
        make_test_round(OFF, [make_answer(5.0)]),
    ]
    off, tiers, faster = make_rows(rounds)
    assert (off.system, tiers.system, faster.rate) == (OFF, TIERS, 2.0)
    assert (tiers.requests, tiers.p50, tiers.p99) == (2, 1.0, 3.0)
    assert (tiers.device, tiers.host, tiers.disk, tiers.computed) == (0.25, 0.1, 0.05, 0.6)
    assert tiers.tokens_per_second == 10.0
    assert (tiers.read_rate, tiers.write_rate) == (15.0, 5.0)


def test_one_slow_answer_at_one_rate_breaks_the_bound_there() -> None:
    rounds = [
        *(make_test_round(HICACHE, [make_answer(2.0)] * 9, rate=rate) for rate in (0.5, 1.0)),
        make_test_round(TIERS, [make_answer(1.0)] * 9, rate=0.5),
        make_test_round(TIERS, [make_answer(1.0)] * 8 + [make_answer(2.5)], rate=1.0),
    ]
    found = {figure.name: figure for figure in figures(rounds, "agents", different=0)}
    assert (found["p99_at_0.5"].value, found["p99_at_0.5"].holds) == (0.5, True)
    assert (found["p99_at_1"].value, found["p99_at_1"].holds) == (1.25, False)
    assert (found["p50_at_1"].value, found["p50_at_1"].holds) == (0.5, True)
    assert found["different_answers"].holds
    assert found["time_at_1"].value is None, "the server without tiers took no part"


def test_ratios_are_taken_round_by_round() -> None:
    """A round in which the machine is slow is slow for both."""
    rounds = [
        *(make_test_round(HICACHE, [make_answer(speed)] * 3, 0.0, number) for number, speed in enumerate((1, 9, 2))),
        *(
            make_test_round(TIERS, [make_answer(0.9 * speed)] * 3, 0.0, number)
            for number, speed in enumerate((1, 9, 2))
        ),
    ]
    p50, p99, _ = figures(rounds, "agents", different=0)
    assert (p50.name, p99.name) == ("p50_on_host", "p99_on_host")
    assert p50.value == p99.value == pytest.approx(0.9)


@pytest.mark.parametrize("workload", ["short", "fresh"])
def test_who_needs_no_tiers_is_held_against_a_server_without(workload: str) -> None:
    slower = Replayed(seconds=10.4, answers=(make_answer(1.0),))
    off, tiers = make_test_round(OFF, [make_answer(1.0)]), make_test_round(TIERS, [make_answer(1.0)])
    rounds = [off, msgspec.structs.replace(tiers, replayed=slower)]
    p50, seconds, _ = figures(rounds, workload, different=0)
    assert (p50.value, p50.holds) == (1.0, True)
    assert (seconds.value, seconds.holds) == (pytest.approx(1.04), False)


@pytest.mark.parametrize("make", [make_short_round, make_fresh_round])
def test_nobody_has_asked_the_beginning_of_such_a_prompt(make: Callable[..., list[BenchTurn]]) -> None:
    turns = make(SHAPE, VOCABULARY, seed=4) + make(SHAPE, VOCABULARY, seed=5)
    assert len({tuple(turn.prompt[:PAGE]) for turn in turns}) == len(turns)
    assert max(len(turn.prompt) for turn in turns) <= SHAPE.longest
    assert len({turn.agent for turn in make(SHAPE, VOCABULARY, seed=4)}) == len(turns) // 2, "none waits for another"


def test_without_a_disk_host_memory_holds_everything(tmp_path: Path) -> None:
    shape = {"num_hidden_layers": 4, "num_attention_heads": 2, "head_dim": 16, "max_position_embeddings": 2048}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    sizes = choose_sizes(tmp_path, longest=600, together=2, written_tokens=10_000, held_tokens=9_000)
    assert sizes.host_tokens >= 9_000
    (tmp_path / "disk").mkdir()
    hicache, tiers = (make_system(name, sizes, 0.0, "timeout", tmp_path / "disk") for name in (HICACHE, TIERS))
    command = hicache.server.command
    assert int(sizes.device_tokens * float(after(command, "--hicache-ratio"))) // 16 + 1 == sizes.host_tokens // 16
    assert "--hicache-storage-backend" not in command
    config = parse_config(json.loads(after(tiers.server.command, "--swift-tiers-config")))
    assert (config.ssd.directories, tiers.disk()) == ((), DiskBytes(0, 0))


def test_the_table_says_how_far_it_is_from_hicache_and_how_busy_the_disk_was(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rounds = [make_test_round(name, [make_answer(ttft)]) for name, ttft in ((OFF, 5.0), (HICACHE, 4.0), (TIERS, 3.0))]
    show(make_rows(rounds), bytes_per_second=25.0)
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")}
    assert ["+25%" in lines[OFF], "-25%" in lines[TIERS]] == [True, True]
    assert lines[TIERS].endswith("= 80%"), "15 read and 5 written, of 25 bytes per second"


def test_other_tokens_break_a_bound_and_are_shown() -> None:
    same, other = [make_answer(1.0), make_answer(1.0)], [make_answer(1.0), make_answer(1.0, ids=(2,))]
    rounds = [make_test_round(OFF, same), make_test_round(HICACHE, same), make_test_round(TIERS, other)]
    (line,) = different_answers(rounds)
    assert "swift-tiers [2]" in line
    assert "hicache [1]" in line
    assert not figures(rounds, "agents", different=1)[-1].holds
    assert different_answers(rounds[:2]) == []
    elsewhere = make_test_round(TIERS, other, number=1)
    assert different_answers([*rounds[:2], elsewhere]) == [], "another round's prompts are others"
