"""SwiftCache's evaluation (sections 1 and 5) on modelled devices, the paper's numbers beside ours."""

from __future__ import annotations

import random
from collections.abc import Sequence

from swift_tiers.ops.simulate.clock import Clock
from swift_tiers.ops.simulate.context import block_bytes, blocks
from swift_tiers.ops.simulate.curve import Curve
from swift_tiers.ops.simulate.donors import Donor
from swift_tiers.ops.simulate.hardware import GB, GPUS, USAGE
from swift_tiers.ops.simulate.machine import Call, Machine, Replay, Running
from swift_tiers.ops.simulate.models import MODELS, Model
from swift_tiers.ops.simulate.restoring import BY_AGE, LOAD, Method
from swift_tiers.ops.simulate.scenarios.scenario import Scenario
from swift_tiers.ops.simulate.tables import Cell, Table, table
from swift_tiers.ops.simulate.workloads import Lengths
from swift_tiers.radix_tiering.restore.planner import HERE

H20 = GPUS["H20"]
LWM = MODELS["LWM-7B"]
#: Part of a GPU's memory that a server uses (SGLang's and vLLM's default).
USABLE = 0.9
NVLINK = H20.nvlink_bytes_per_second * USAGE.link
PCIE = H20.pcie_bytes_per_second * USAGE.link


def kv_bytes(model: Model, memory_bytes: float) -> float:
    """What is left for the KV cache."""
    return max(0.0, memory_bytes * USABLE - model.weight_bytes)


# ---- Figure 1 ----


def breakdown() -> list[Table]:
    curve = Curve(model=LWM, gpu=H20, gpus=2)
    rows: list[list[Cell]] = []
    papers = {5000: "75 + 27, 73.2 %", 50_000: "86.2 %"}
    for history in (5000, 10_000, 20_000, 30_000, 50_000):
        compute = curve.seconds(history, history + 256)
        loads = [history * LWM.token_bytes / speed for speed in (PCIE, H20.pcie_bytes_per_second, 2 * NVLINK)]
        rows.append(
            [
                history, round(1000 * compute), round(1000 * loads[0]), round(100 * loads[0] / (loads[0] + compute), 1),
                round(1000 * loads[1]), round(100 * loads[1] / (loads[1] + compute), 1), papers.get(history),
                round(1000 * loads[2]), round(100 * loads[2] / (loads[2] + compute), 1),
            ]
        )  # fmt: skip
    return [
        table(
            "swiftcache-breakdown",
            "SwiftCache, Figure 1: 256 new tokens after a history, LWM-7B on 2xH20 (ms, and loading's part in %)",
            [
                "history", "compute", "PCIe, 0.8 of peak", "%", "PCIe, at its peak", "%", "paper: PCIe + compute, %",
                "NVLink", "%",
            ],
            rows,
            [
                "PCIe 4.0 at 32 GB/s for both GPUs together, NVLink at 200 GB/s each way and GPU. The paper's 75 ms "
                "for 5,000 tokens of 0.5 MiB are 35 GB/s, above the peak that it names, so its PCIe column is nearest "
                "to ours at the peak. Our compute grows less with history than theirs must (131 ms at 50,000, by its "
                "percentages): kernels that read long histories reach less of their peak than is assumed here.",
            ],
        )
    ]  # fmt: skip


# ---- P99 against host offload (Figure 7) ----

PAGE_TOKENS = 64
SECONDS, PER_SECOND = 900.0, 0.15
TURN = Lengths(median=40, p90=132, least=8, most=2000)
ANSWER = Lengths(median=250, p90=600, least=16, most=2000)
HISTORY = Lengths(median=26_000, p90=36_000, least=20_000, most=60_000)
HOST_BYTES = 96 * GB


class Sessions:
    """Conversations of long histories; each request is the next turn of one of them."""

    def __init__(self, count: int, seed: int, history: Lengths) -> None:
        self._random = random.Random(seed)
        self._lengths = [history.draw(self._random) for _ in range(count)]

    def opening(self, session: int) -> Call:
        return self._call(session, self._lengths[session], 0)

    def turn(self, session: int) -> Call:
        prompt = self._lengths[session] + TURN.draw(self._random)
        return self._call(session, prompt, ANSWER.draw(self._random))

    def _call(self, session: int, prompt: int, answer: int) -> Call:
        self._lengths[session] = prompt + answer
        first = session << 24
        whole, further = prompt // PAGE_TOKENS, (prompt + answer) // PAGE_TOKENS
        # What the last page of the prompt became with its answer is a page of its own.
        claimed = (prompt - 1) // PAGE_TOKENS
        return Call(
            0.0, prompt, tuple(range(first, first + whole)), answer=tuple(range(first + claimed, first + further))
        )


def conversations(model: Model, method: Method, count: int, *, lent: bool) -> tuple[Replay, float, int]:
    """The result, the mean of what was lent (bytes), and how often some of it was taken back."""
    clock = Clock()
    donors: list[Donor] = []
    pools = [kv_bytes(MODELS["Qwen3-14B"], H20.memory_bytes), kv_bytes(MODELS["Qwen3-8B"], H20.memory_bytes)]
    machine = Machine(
        curve=Curve(model=model, gpu=H20),
        page_tokens=PAGE_TOKENS,
        device_bytes=kv_bytes(model, H20.memory_bytes),
        host_bytes=sum(pools) if lent else HOST_BYTES,
        copy_bytes_per_second=NVLINK if lent else PCIE,
    )
    running = Running(clock, machine, method)
    lending = _Lending()

    def changed() -> None:
        now_lent = sum(donor.lent_bytes for donor in donors)
        lending.note(clock.now, now_lent)
        running.tiers.limit(now_lent // (PAGE_TOKENS * model.token_bytes))

    if lent:
        running.tiers.limit(0)
        for number, (name, pool) in enumerate(zip(("Qwen3-14B", "Qwen3-8B"), pools, strict=True)):
            tokens = MODELS[name].token_bytes
            donors.append(
                Donor(
                    clock, pool_bytes=pool, page_bytes=tokens * PAGE_TOKENS, page_tokens=PAGE_TOKENS, per_second=0.5,
                    lengths=Lengths(median=1500, p90=7000, least=100, most=30_000), hold_seconds=12.0, seed=number,
                    changed=changed,
                )
            )  # fmt: skip
    sessions = Sessions(count, seed=13, history=HISTORY)
    source = random.Random(17)
    # Every conversation has been opened before, and what its donors did not need for a minute has been lent.
    warm = 120.0
    for donor in donors:
        donor.run(warm + SECONDS)
    for session in range(count):
        clock.at(70.0 + session / 10, lambda session=session: running.warm(sessions.opening(session)))  # type: ignore[misc]
    now = warm
    while (now := now + source.expovariate(PER_SECOND)) < warm + SECONDS:
        session = source.randrange(count)
        clock.at(now, lambda session=session: running.call(sessions.turn(session)))  # type: ignore[misc]
    clock.run()
    return running.result(), lending.mean(warm, warm + SECONDS), sum(donor.recalls for donor in donors)


class _Lending:
    """What is lent over time."""

    def __init__(self) -> None:
        self._changes: list[tuple[float, int]] = [(0.0, 0)]

    def note(self, now: float, lent: int) -> None:
        self._changes.append((now, lent))

    def mean(self, start: float, end: float) -> float:
        ends = [*(when for when, _ in self._changes[1:]), end]
        spans = zip(self._changes, ends, strict=True)
        return sum(max(0.0, min(until, end) - max(when, start)) * lent for (when, lent), until in spans) / (end - start)


def tail() -> list[Table]:
    rows: list[list[Cell]] = []
    for name, counts in (("LWM-7B", (4, 5, 6)), ("Qwen3-14B", (16,)), ("Qwen3-32B", (9, 12))):
        for count in counts:
            model = MODELS[name]
            host, _, _ = conversations(model, LOAD, count, lent=False)
            ours, mean, recalls = conversations(model, BY_AGE, count, lent=True)
            rows.append(
                [
                    name, count, *_figures(host), *_figures(ours), round(mean / GB), recalls,
                    *(round(100 * (1 - ours.percentile(at) / host.percentile(at))) for at in (0.5, 0.99)), "54 to 69",
                ]
            )  # fmt: skip
    return [
        table(
            "swiftcache-tail",
            "SwiftCache, Figure 7: conversations of long histories on one H20, host memory over PCIe against lent "
            "memory over NVLink",
            [
                "model", "conversations", "host: device hits (%)", "host hits (%)", "P50 (ms)", "P99 (ms)",
                "lent: device hits (%)", "lent hits (%)", "P50 (ms)", "P99 (ms)", "lent (GB, mean)", "recalls",
                "P50 less by (%)", "P99 less by (%)", "paper: P99 (%)",
            ],
            rows,
            [
                "Histories of 20,000 to 60,000 tokens, opened before; then a quarter of an hour of turns at 0.15 per "
                "second, each of a conversation chosen at random, with some 40 new tokens and 250 of answer. 96 GB of "
                "host memory behind 32 GB/s of PCIe (0.8 of it), all for this one server, against what two "
                "neighbours with Qwen3-14B and Qwen3-8B lend, sized by the sizer that serves; they get a request "
                "every two seconds, of 1,500 tokens in the median and up to 30,000, which each hold their KV for 12 "
                "s.",
                "LWM-7B, with multi-head attention and 0.5 MiB for each token, shows what the paper does: with 4 "
                "conversations everything fits below, and P99 is the link's. With more, the host tier forgets "
                "histories, which are then computed for seconds: there sizes decide and not links, and any number "
                "comes out. With the smaller caches of the other two, the link is worth a fifth to a half of the "
                "median, and the tail is that of new tokens, not of loads; here the paper's gains are not reproduced. "
                "It does not say its request rate.",
            ],
        )
    ]  # fmt: skip


def _figures(result: Replay) -> list[Cell]:
    return [
        round(100 * result.share("device"), 1), round(100 * result.share(HERE), 1),
        round(1000 * result.percentile(0.5)), round(1000 * result.percentile(0.99)),
    ]  # fmt: skip


# ---- interference (Figure 8) ----


def interference() -> list[Table]:
    rows: list[list[Cell]] = []
    papers = {"Qwen3-14B": "9.7, 6.5", "Qwen3-32B": "7.9, 6.4"}
    memory = H20.memory_bytes_per_second * USAGE.memory
    for name in ("Qwen3-14B", "Qwen3-32B"):
        model = MODELS[name]
        for history in (16_384, 65_536):
            seconds = history * LWM.token_bytes / NVLINK
            # Decoding reads all weights and the KV of what it decodes for each token, prefill computes.
            alone = model.weight_bytes / memory
            beside = model.weight_bytes / (memory - NVLINK)
            prefill = Curve(model=model, gpu=H20)
            slower = _slower_prefill(prefill, 1024, memory)
            rows.append(
                [
                    name, history, round(1000 * seconds), round(100 * (beside / alone - 1), 1),
                    round(100 * (slower - 1), 1), papers[name],
                ]
            )  # fmt: skip
    return [
        table(
            "swiftcache-interference",
            "SwiftCache, Figure 8: what a donor loses while LWM-7B loads a history from it",
            [
                "donor", "history", "the load takes (ms)", "per further token (+%)", "to first token (+%)",
                "paper, at most: first token, further token",
            ],
            rows,
            [
                "Copies take HBM bandwidth and nothing else, 160 of 3,200 GB/s; decoding waits for HBM, prefill "
                "hardly. An upper bound for the first: a load may last less than a token. What the paper measures for "
                "first tokens must be something else: launches of copies, or the link's own traffic. `swift-tiers "
                "bench interference` measures it on a real machine, where both share processors.",
            ],
        )
    ]  # fmt: skip


def _slower_prefill(curve: Curve, tokens: int, memory: float) -> float:
    """How much longer a prefill takes whose memory traffic (weights once) goes on at what is left of HBM."""
    alone = curve.seconds(0, tokens)
    return (alone + curve.model.weight_bytes * (1 / (memory - NVLINK) - 1 / memory)) / alone


# ---- maximum context (Figure 9) ----

BLOCK_TOKENS = 16


def activation_bytes(model: Model, tokens: int) -> float:
    """Of one forward over so many tokens: the widest layer's intermediate values, and input and output; 16 bits."""
    return tokens * (2 * 2.7 * model.hidden + 4 * model.hidden) * 2


def longest(model: Model, memory: float, chunk: int | None) -> int:
    """Tokens that fit without lent memory; `chunk` None: the whole prompt is one forward."""
    kv = kv_bytes(model, memory)
    if chunk is not None:
        return int(max(0.0, kv - activation_bytes(model, chunk)) // model.token_bytes)
    return int(kv // (model.token_bytes + activation_bytes(model, 1)))


def contexts() -> list[Table]:
    rows: list[list[Cell]] = []
    for gpu, workers in (
        ("H20", ("Qwen3-14B", "Qwen3-8B")),
        ("A100-80G", ("Qwen3-14B", "Qwen3-8B")),
        ("V100", ("Qwen3-14B", "Qwen3-8B")),
        ("L4", ("Qwen3-8B", "Qwen3-8B")),
    ):
        for name in ("LWM-7B", "Qwen3-8B"):
            rows.append(_context_row(gpu, workers, MODELS[name]))
    return [
        table(
            "swiftcache-context",
            "SwiftCache, Figure 9 and Eq. 1-5: the longest context (1,000 tokens)",
            [
                "GPU",
                "master",
                "workers",
                "one forward",
                "chunks of 32K",
                "chunks of 8K",
                "one layer here",
                "over chunks of 8K",
                "paper",
            ],
            rows,
            [
                "0.9 of each GPU's memory less 16-bit weights; activations of a forward as counted in "
                "`scenarios/swiftcache.py`. Lent: all that the workers' caches hold. The paper names 18,000 tokens on "
                "V100 and 160,000 on H20 for LWM without lending, and 1.58 to 3.98 over chunks of 8K over all its "
                "GPUs.",
                "swift-tiers does not stream layers yet: this is what Eq. 1-5 promise, not what it serves.",
            ],
        )
    ]


def _context_row(gpu: str, workers: Sequence[str], model: Model) -> list[Cell]:
    memory = GPUS[gpu].memory_bytes
    plain = [longest(model, memory, chunk) for chunk in (None, 32_768, 8192)]
    each = block_bytes(BLOCK_TOKENS, model.kv_heads, model.head_dim, 2)
    lent = [kv_bytes(MODELS[worker], memory) for worker in workers]
    local = kv_bytes(model, memory) - activation_bytes(model, 8192)
    ours = blocks(max(0.0, local), lent, each, model.layers).total * BLOCK_TOKENS
    return [
        gpu, model.name, ", ".join(workers), *(round(one / 1000) for one in plain), round(ours / 1000),
        round(ours / plain[2], 2) if plain[2] else None, "1.58 to 3.98",
    ]  # fmt: skip


SCENARIOS = {
    "swiftcache-breakdown": Scenario("SwiftCache: what loading takes of a turn, PCIe against NVLink", breakdown),
    "swiftcache-tail": Scenario("SwiftCache: P99 of long conversations, host against lent memory", tail),
    "swiftcache-interference": Scenario("SwiftCache: what a donor loses", interference),
    "swiftcache-context": Scenario("SwiftCache: the longest context, by Eq. 1-5", contexts),
}
