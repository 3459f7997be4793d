"""How prefixes come back: recomputed, loaded, or both at once, by turns on one real server.

The server serves SmolLM2-135M in float32. A prompt's pages are on ssd alone, or (`--source remote`) in a store that
other machines could use too: SGLang's engine "file" in its child process, behind a throttled link. For each length, the
source is slowed down so that loading all of them takes 0.25 to 4 times as long as recomputing them. In each round each
prompt is answered once by recomputing it, and at each rate once by loading all of it and once as the server decides
(`restore.strategy = "auto"`). Figures are the medians over the rounds of the ratios of times to first token. After that
the source is made ten times slower while a prefix comes back, again and again.

Loading at a rate that makes it four times as slow as recomputing is what takes long: a round of one length takes about
twelve times as long as recomputing that length, and there is one round more than asked for, which is not counted. How
long all of it will take is said when it is known how fast this machine computes.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from threading import Timer
from typing import Any, NamedTuple

from swift_tiers.radix_tiering.base.config import RemoteConfig
from swift_tiers.radix_tiering.base.read_config import parse_config
from swift_tiers.radix_tiering.bus.contract.commands import SetPolicy
from swift_tiers.radix_tiering.bus.hear.reader import BusReader
from swift_tiers.radix_tiering.restore.plan import two_pointer_bound
from swift_tiers.radix_tiering.tiers.remote import ObjectShape
from swift_tiers.radix_tiering.tiers.remote.remote_tier import RUN_TOKENS

from ...base.arguments import path_argument
from ...base.errors import USAGE, CommandError
from ...commands.bench.report import Figure, finish, parser, ratio, take_turns
from ...commands.bench.two_servers import START_SECONDS, call
from ...commands.demo.bus import DemoBus
from ...commands.demo.servers import Server, free_ports

#: Of the time to load a prefix to the time to recompute it.
RATIOS = (0.25, 0.5, 1.0, 2.0, 4.0)
PAGE_TOKENS = 16
#: Tokens behind the prefix: what the user has said since.
NEW_TOKENS = 16
SLOWER = 1.05
ABOVE_BOUND = 1.25
AFTER_SLOWDOWN = 1.15
UNTHROTTLED = "64GiB"
#: Prefixes during which the source becomes slow.
SLOWDOWNS = 6


class ThrottledSource(NamedTuple):
    """Where pages lie that come back."""

    tier: str
    link: str  # the way there, as the server's state has it

    def config(self, folder: Path) -> dict[str, Any]:
        """What the server is told of it; `folder`: an empty one."""
        if self.tier == "ssd":
            return {"directories": [str(folder)], "size_per_device": "4GiB", "throttle": UNTHROTTLED}
        options = {"file_storage_path": str(folder)}
        return {"engine": "file", "options": options, "admission": "always", "throttle": UNTHROTTLED}

    def together(self, page_bytes: int) -> int:
        """Pages that are stored and found together."""
        if self.tier == "ssd":
            return 1
        return ObjectShape.of(page_bytes, PAGE_TOKENS, int(RemoteConfig().object), RUN_TOKENS).run

    @property
    def throttle(self) -> str:
        """The policy that slows it down."""
        return f"{self.tier}.throttle"


SOURCES = {"ssd": ThrottledSource("ssd", "host-ssd"), "remote": ThrottledSource("remote", "host-remote")}


class Answer(NamedTuple):
    """Of one request."""

    seconds: float  # to its first token
    tokens: tuple[int, ...]
    cached: dict[str, int]


class Rig:
    """One server whose pages lie on one throttled source, and what the bench does with it."""

    def __init__(self, server: Server, reader: BusReader, source: ThrottledSource) -> None:
        self.server = server
        self.source = source
        self._reader = reader

    def set(self, field: str, value: str) -> None:
        outcome = self._reader.command("bench", "bench", SetPolicy(field=field, value=value), 10)  # type: ignore[arg-type]
        if outcome.state != "done":
            raise CommandError(f"bench restore: {field} cannot be set: {outcome}")

    def wait_open(self) -> None:
        """Until the source takes pages: an engine is opened while the server serves already."""
        limit = time.monotonic() + START_SECONDS
        while self.source.tier == "remote" and self.state()["remote_engine"] != "asked":
            if time.monotonic() > limit:
                raise CommandError(f"bench restore: the engine is never opened; the server's log: {self.server.log}")
            time.sleep(0.1)

    def strategy(self, name: str) -> None:
        self.set("restore.strategy", name)

    def rate(self, bytes_per_second: float) -> None:
        self.set(self.source.throttle, str(max(2**20, int(bytes_per_second))))

    @property
    def together(self) -> int:
        """Pages that are stored and found together; known once some have been."""
        link = self.state()["links"][self.source.link]
        return self.source.together(link["bytes"] // max(1, link["pages"]))

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = self._get("/server_info")["internal_states"][0]["swift_tiers"]
        return state

    def empty(self) -> None:
        """Everything is at the source, and there alone."""
        while self.state()["write_queue_pages"]:
            time.sleep(0.02)
        limit = time.monotonic() + 60
        while b"flushed" not in call(self.server.port, "/flush_cache", {}).lower() and time.monotonic() < limit:
            time.sleep(0.05)  # SGLang refuses while the last request is not quite gone

    def ask(self, prompt: list[int]) -> Answer:
        sampling = {"temperature": 0, "max_new_tokens": 1, "ignore_eos": True}
        started = time.perf_counter()
        answer = self._get("/generate", {"input_ids": prompt, "sampling_params": sampling})
        seconds = time.perf_counter() - started
        cached = answer["meta_info"].get("cached_tokens_details") or {}
        tiers = ("host", self.source.tier)
        return Answer(seconds, tuple(answer["output_ids"]), {tier: cached.get(tier, 0) for tier in tiers})

    def _get(self, path: str, body: Any = None) -> Any:
        return json.loads(call(self.server.port, path, body, timeout=900))


class Cell(NamedTuple):
    """One length at one ratio, over the rounds."""

    tokens: int
    io_over_compute: float
    recompute: list[float]  # seconds
    load: list[float]
    auto: list[float]
    computed_tokens: int  # of the prefix, by `auto` in the last round

    @property
    def of_better(self) -> float:
        """`auto` over the better of the others."""
        return ratio(self.auto, [min(pair) for pair in zip(self.recompute, self.load, strict=True)])

    @property
    def of_bound(self) -> float:
        """`auto` over what no split of linear costs can beat."""
        return ratio(self.auto, list(map(two_pointer_bound, self.recompute, self.load)))


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser("restore", __doc__, rounds=3)
    arguments.add_argument("--model-path", type=path_argument, help="a model's directory (default: the demo's)")
    arguments.add_argument("--source", choices=SOURCES, default="ssd", help="where pages lie (%(default)s)")
    arguments.add_argument("--lengths", default="1024,2048,4096,8128", help="tokens of the prefixes (%(default)s)")
    arguments.add_argument("--chunk", type=int, default=512, help="restore.chunk (%(default)s)")
    options = arguments.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="swift-bench-") as folder:
        return _measure(Path(folder), options)


def _measure(folder: Path, options: argparse.Namespace) -> int:
    from ...base.model import demo_model

    model = options.model_path or demo_model()
    source = SOURCES[options.source]
    lengths = [int(word) // PAGE_TOKENS * PAGE_TOKENS for word in options.lengths.split(",")]
    context = json.loads((model / "config.json").read_text())["max_position_embeddings"]
    if max(lengths) + NEW_TOKENS >= context:
        raise CommandError(
            f"bench restore: the model's context is {context} tokens, {NEW_TOKENS} of which come after the prefix: "
            f"let --lengths end at {(context - NEW_TOKENS - 1) // PAGE_TOKENS * PAGE_TOKENS}",
            USAGE,
        )
    stored = folder / source.tier
    stored.mkdir()
    (port,) = free_ports(1)
    with DemoBus() as bus:
        settings = {**bus.settings, "server": "bench", "control": True}
        config = {
            "host": {"size": "1GiB"},
            source.tier: source.config(stored),
            "policy": {"restore_deadline": "600s"},
            "restore": {"chunk": options.chunk},
            "bus": settings,
        }
        flags = {
            "--model-path": str(model), "--dtype": "float32",
            "--max-total-tokens": str(max(lengths) + 1024), "--page-size": str(PAGE_TOKENS),
            "--chunked-prefill-size": "2048", "--swift-tiers-config": json.dumps(config),
        }  # fmt: skip
        words = [word for pair in flags.items() for word in pair]
        with Server("bench", [*words, "--enable-swift-tiers", "--enable-cache-report"], port, folder / "log") as server:
            server.start()
            server.wait_ready(START_SECONDS)
            with BusReader.open(parse_config({"bus": settings}).bus, "bench") as reader:
                rig = Rig(server, reader, source)
                rig.wait_open()
                return _run(rig, lengths, options)


def whole_lengths(lengths: Sequence[int], together: int) -> list[int]:
    """Each length down to a multiple of the tokens stored `together`. Raises CommandError for one that is shorter."""
    if min(lengths) < together:
        raise CommandError(f"bench restore: of this source, --lengths are {together} tokens at least", USAGE)
    return [tokens // together * together for tokens in lengths]


def _run(rig: Rig, lengths: Sequence[int], options: argparse.Namespace) -> int:
    generator = random.Random(0)
    cells: list[Cell] = []
    token_seconds = _learn(rig, generator)
    lengths = whole_lengths(lengths, rig.together * PAGE_TOKENS)
    expected = expected_seconds(token_seconds, lengths, options.rounds)
    print(f"this will take about {expected / 60:.0f} minutes; rows come length by length", flush=True)
    print("tokens  io/compute  recompute s  load s  both s   of the better   of the bound   recomputed tokens")
    for tokens in lengths:
        prompt = generator.choices(range(1000, 40_000), k=tokens + NEW_TOKENS)
        stored = _store(rig, prompt)
        measured = _cells(rig, prompt, stored, tokens, options.rounds)
        cells += measured
        for cell in measured:
            print(
                f"{cell.tokens:6}  {cell.io_over_compute:10g}  {statistics.median(cell.recompute):11.3f}  "
                f"{statistics.median(cell.load):6.3f}  {statistics.median(cell.auto):6.3f}  {cell.of_better:14.3f}  "
                f"{cell.of_bound:13.3f}  {cell.computed_tokens:10}",
                flush=True,
            )
    slowed = _slowdowns(rig, generator, lengths[-1])
    print(f"slowed down ten times in mid-restore: {', '.join(f'{one:.3f}' for one in slowed)} of recomputing")
    figures = [
        Figure("of_better", max(cell.of_better for cell in cells), at_most=SLOWER),
        Figure("of_bound", max(cell.of_bound for cell in cells if cell.io_over_compute == 1), at_most=ABOVE_BOUND),
        Figure("slowed_p99", max(slowed), " of recomputing", at_most=AFTER_SLOWDOWN),
    ]
    of = [{"of_better": cell.of_better, "of_bound": cell.of_bound} for cell in cells]
    details = {
        "cells": [{**cell._asdict(), **ratios} for cell, ratios in zip(cells, of, strict=True)],
        "slowed": slowed,
    }
    return finish("restore", figures, details, options.json)


def _store(rig: Rig, prompt: list[int]) -> int:
    """Bring the pages of `prompt` to the source; the bytes of its prefix there."""
    source, together = rig.source, rig.together
    rig.rate(2**36)
    rig.strategy("recompute")
    before = rig.state()["links"][source.link]
    rig.ask(prompt)
    pages = len(prompt) // PAGE_TOKENS // together * together
    limit = time.monotonic() + 60
    while (link := rig.state()["links"][source.link])["pages"] < before["pages"] + pages:
        if time.monotonic() > limit:
            came = link["pages"] - before["pages"]
            raise CommandError(f"bench restore: only {came} of {pages} pages came to {source.tier}")
        time.sleep(0.05)
    rig.empty()
    return int((link["bytes"] - before["bytes"]) * (len(prompt) - NEW_TOKENS) // PAGE_TOKENS / pages)


def _learn(rig: Rig, generator: random.Random) -> float:
    """Let the server see what computing costs, as its first requests would; seconds that a token took."""
    rig.strategy("recompute")
    lengths = (1536, 64, 1024, 128, 768, 256, 512, 96)
    seconds = [rig.ask(generator.choices(range(1000, 40_000), k=tokens)).seconds for tokens in lengths]
    rig.empty()
    return sum(seconds) / sum(lengths)


def expected_seconds(token_seconds: float, lengths: Sequence[int], rounds: int) -> float:
    """How long the bench takes, roughly: what every answer should take, if a token takes `token_seconds` to compute."""
    each_round = 1 + sum(ratio + min(1.0, ratio / (1 + ratio) + 0.1) for ratio in RATIOS)
    before = 3.5  # storing it, and recomputing it twice to set the rates
    of_lengths = sum(lengths) * (before + each_round * (rounds + 1))
    return token_seconds * (of_lengths + lengths[-1] * (4.5 + 2.5 * SLOWDOWNS))


def _ask(rig: Rig, prompt: list[int], strategy: str, bytes_per_second: float) -> Answer:
    rig.strategy(strategy)
    rig.rate(bytes_per_second)
    answer = rig.ask(prompt)
    rig.empty()
    return answer


def _cells(rig: Rig, prompt: list[int], stored: int, tokens: int, rounds: int) -> list[Cell]:
    compute = statistics.median(_ask(rig, prompt, "recompute", 2**36).seconds for _ in range(2))
    cases: dict[tuple[str, float], Any] = {("recompute", 0.0): partial(_ask, rig, prompt, "recompute", 2**36)}
    for factor in RATIOS:
        rate = stored / (factor * compute)
        for strategy in ("load", "auto"):
            cases[strategy, factor] = partial(_ask, rig, prompt, strategy, rate)
    found: dict[tuple[str, float], list[Answer]] = take_turns(cases, rounds)
    answers = {answer.tokens for answers in found.values() for answer in answers}
    if len(answers) != 1:
        raise CommandError(f"bench restore: the ways of coming back do not give the same tokens: {answers}")
    seconds = {case: [answer.seconds for answer in answers] for case, answers in found.items()}
    return [
        Cell(
            tokens, factor, seconds["recompute", 0.0], seconds["load", factor], seconds["auto", factor],
            tokens - sum(found["auto", factor][-1].cached.values()),
        )
        for factor in RATIOS
    ]  # fmt: skip


def _slowdowns(rig: Rig, generator: random.Random, tokens: int) -> list[float]:
    """Times to first token of prefixes during which the source becomes ten times slower, over recomputing them."""
    prompt = generator.choices(range(1000, 40_000), k=tokens + NEW_TOKENS)
    stored = _store(rig, prompt)
    compute = statistics.median(_ask(rig, prompt, "recompute", 2**36).seconds for _ in range(3))
    rate = stored / (0.5 * compute)
    result = []
    for _ in range(SLOWDOWNS):
        _ask(rig, prompt, "auto", rate)  # it is as fast as it was known to be
        rig.rate(rate)
        slower = Timer(compute / 8, rig.rate, [rate / 10])
        slower.start()
        try:
            seconds = rig.ask(prompt).seconds
        finally:
            slower.join()
        rig.empty()
        result.append(seconds / _ask(rig, prompt, "recompute", rate / 10).seconds)
    return result


if __name__ == "__main__":
    raise SystemExit(main())
