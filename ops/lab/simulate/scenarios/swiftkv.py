"""SwiftKV's evaluation (section 4.2, Appendix A.4) on modelled devices, and SwiftKV with tiers, which no paper has."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from swift_tiers.radix_tiering.base.config import RestoreConfig
from swift_tiers.radix_tiering.base.virtual import VirtualRunner
from swift_tiers.sglang_ext.models import LaterLayers

from ....base.devices.curve import FORWARD_TOKENS, Curve
from ....base.devices.hardware import GPUS, SSDS, USAGE
from ....base.devices.models import MODELS
from ..machine import Call, Machine, ModelServer, Trace, in_virtual_time, replay
from ..tables import HELD, Cell, Compared, Table, compared, table
from ..workloads import WORKLOADS
from .scenario import Scenario

H100 = GPUS["H100"]
#: Of section 4.2: models, and the GPUs that serve each.
SERVED = {"Llama-3.1-8B": 1, "Llama-3.1-70B": 4}
#: Share of later layers, and how many of them share KV.
KINDS = {"as it is": (0.0, 1), "25 %": (0.25, 1), "50 %": (0.5, 1), "50 %, 4 share": (0.5, 4)}
PAGE_TOKENS = 256
ANSWER_TOKENS = 256
#: Table A.2, combined tokens a second of SGLang: as it is, 50 %, and 50 % of which 4 share, by tokens of the prompt.
PAPER = {
    "Llama-3.1-8B": {
        2000: (27_400, 36_200, 38_900), 8000: (22_900, 31_000, 34_000), 32_000: (16_900, 25_900, 26_600),
        128_000: (7660, 13_200, 14_000),
    },
    "Llama-3.1-70B": {
        2000: (11_600, 15_700, 17_300), 8000: (10_800, 16_100, 17_800), 32_000: (8820, 14_000, 15_300),
        128_000: (4780, 8210, 8750),
    },
}  # fmt: skip


def curve_of(name: str, kind: str) -> Curve:
    """The model of that name, rewired so, on its GPUs."""
    model, (share, across) = MODELS[name], KINDS[kind]
    later = LaterLayers(model.layers, model.layers - int(model.layers * share + 0.5), across) if share else None
    return Curve(model=msgspec.structs.replace(model, later=later), gpu=H100, gpus=SERVED[name])


def kv_pool_bytes(curve: Curve) -> float:
    return curve.gpus * curve.gpu.memory_bytes * 0.9 - curve.model.weight_bytes


# ---- throughput (Table A.2) ----


def tokens_per_second(curve: Curve, prompt: int) -> float:
    """Of prompts and answers together, where as many requests are there as the KV pool holds: for each answer that
    ends, one prompt is computed, and all answers go on by turns with it."""
    requests = max(1, int(kv_pool_bytes(curve) // (curve.model.token_bytes * (prompt + ANSWER_TOKENS))))
    prefill = sum(
        curve.seconds(start, min(prompt, start + FORWARD_TOKENS)) for start in range(0, prompt, FORWARD_TOKENS)
    )
    decode = ANSWER_TOKENS * curve.decode_seconds(requests, prompt + ANSWER_TOKENS // 2) / requests
    return (prompt + ANSWER_TOKENS) / (prefill + decode)


def throughput() -> list[Table]:
    rows: list[list[Cell]] = []
    against: list[Compared] = []
    for name, lengths in PAPER.items():
        for prompt, paper in lengths.items():
            found = [tokens_per_second(curve_of(name, kind), prompt) for kind in KINDS]
            base, _, half, shared = found
            gains = [one / base for one in found[1:]]
            what = f"{name}, {prompt} tokens"
            held = [
                compared(f"{what}: as it is", base, paper[0], within=0.25),
                compared(f"{what}: 50 % over as it is", half / base, paper[1] / paper[0]),
                compared(f"{what}: 4 share over as it is", shared / base, paper[2] / paper[0]),
            ]
            against += held
            rows.append(
                [
                    name, prompt, *(round(one / 1000, 2) for one in found), *(round(one, 2) for one in gains),
                    ", ".join(f"{one / 1000:.3g}" for one in paper),
                    ", ".join(f"{one / paper[0]:.2f}" for one in paper[1:]),
                    "; ".join(one.shown for one in held),
                ]
            )  # fmt: skip
    return [
        table(
            "swiftkv-throughput",
            "SwiftKV, Table A.2: combined throughput (1,000 tokens/s), answers of 256 tokens, H100 (8B: one, 70B: "
            "four)",
            [
                "model", "prompt", *KINDS, *(f"{kind} over as it is" for kind in list(KINDS)[1:]),
                "paper: as it is, 50 %, 4 share", "paper: over as it is", f"{HELD}: as it is; 50 %; 4 share",
            ],
            rows,
            [
                "As many requests at a time as the KV pool holds (0.9 of the memory less the weights); each in turn "
                "has its prompt computed, in forwards of 8,192 tokens, and its answer in batches of all, by formulas: "
                "no scheduler runs here, so nobody waits for a batch to fill, and 25 % stands beside no number of the "
                "paper, whose table has none.",
            ],
            against,
        )
    ]  # fmt: skip


# ---- time to first token (section 4.2) ----

#: Of what the model as it is could compute.
LOADS = (0.1, 0.7, 0.95)
REQUESTS = 40
#: What the time to first token is reduced by at low rates for long prompts, at most (%).
PAPER_REDUCTION = 50.0


def _machine(curve: Curve, host: float = 0.0, ssds: int = 0) -> Machine:
    return Machine(
        curve=curve,
        page_tokens=PAGE_TOKENS,
        device_bytes=kv_pool_bytes(curve),
        host_bytes=host,
        ssd=SSDS["PM9A3"],
        ssds=ssds,
        ssd_bytes=ssds * 1e12,
        copy_bytes_per_second=curve.gpus * H100.pcie_bytes_per_second * USAGE.link,
    )


def _arriving(prompt: int, per_second: float) -> Iterator[Call]:
    source, now = random.Random(5), 0.0
    for number in range(REQUESTS):
        now += source.expovariate(per_second)
        yield Call(now, prompt, tuple(range(number << 16, (number << 16) + prompt // PAGE_TOKENS)))


def first_token(name: str, kind: str, prompt: int, load: float) -> float:
    """Mean seconds of requests that come at `load` times the rate which the model as it is could compute them at."""
    base = curve_of(name, "as it is")
    alone = sum(base.seconds(start, min(prompt, start + FORWARD_TOKENS)) for start in range(0, prompt, FORWARD_TOKENS))
    return replay(_machine(curve_of(name, kind)), _arriving(prompt, load / alone)).mean


def first_token_row(name: str, prompt: int, load: float, found: Sequence[float]) -> list[Cell]:
    """`found`: seconds by `KINDS`."""
    less = [100 * (1 - one / found[0]) for one in found[1:]]
    return [name, prompt, load, *(round(1000 * one) for one in found), *(round(one) for one in less)]


def first_tokens() -> list[Table]:
    rows: list[list[Cell]] = []
    against: list[Compared] = []
    for name in SERVED:
        for prompt in (2000, 8000, 32_000):
            for load in LOADS:
                found = [first_token(name, kind, prompt, load) for kind in KINDS]
                is_papers = prompt == 32_000 and load == LOADS[0]
                if is_papers:
                    less = 100 * (1 - found[list(KINDS).index("50 %")] / found[0])
                    against.append(compared(f"{name}, {prompt} tokens", less, PAPER_REDUCTION))
                rows.append(
                    [
                        *first_token_row(name, prompt, load, found),
                        "up to 50" if is_papers else None, against[-1].shown if is_papers else None,
                    ]
                )  # fmt: skip
    return [
        table(
            "swiftkv-first-token",
            "SwiftKV, section 4.2: mean time to first token (ms) by arrivals, nothing cached, H100 (70B: four)",
            [
                "model", "prompt", "load", *KINDS, *(f"{kind}: less by (%)" for kind in list(KINDS)[1:]),
                "paper: 50 %, less by (%)", HELD,
            ],
            rows,
            [
                f"The tier stack that serves, without a tier; {REQUESTS} requests as a Poisson process. *Load*: of "
                "what the model as it is could compute. The paper says in numbers only what a long prompt gains where "
                "requests are few; where they are many, queues make it more, as its figures show.",
            ],
            against,
        )
    ]  # fmt: skip


# ---- with tiers and two pointers ----

#: `restore.strategy`.
WAYS: dict[str, Literal["recompute", "load", "token-wise"]] = {
    "recomputed": "recompute", "loaded": "load", "two pointers": "token-wise"
}  # fmt: skip
WORKLOAD = WORKLOADS["SWE-Bench"]
HOST_BYTES = 256e9
#: Until everything is written, seconds.
WRITTEN_SECONDS = 300.0


def restored(name: str, kind: str, way: str, ssds: int, load: float) -> tuple[float, float]:
    """Mean seconds to the first token of requests whose histories lie on so many SSDs, and the share of their tokens
    that was loaded. `load`: of the rate at which the model as it is could recompute everything."""
    base, curve = curve_of(name, "as it is"), curve_of(name, kind)
    source, now = random.Random(11), 0.0
    calls: list[Call] = []
    for number in range(REQUESTS):
        pages = max(1, WORKLOAD.history.draw(source) // PAGE_TOKENS)
        tokens = pages * PAGE_TOKENS + WORKLOAD.new.draw(source)
        calls.append(Call(now, tokens, tuple(range(number << 16, (number << 16) + pages))))
        now += source.expovariate(load / base.seconds(0, tokens))

    def simulate(runner: VirtualRunner) -> tuple[float, float]:
        server = ModelServer(
            runner, _machine(curve, HOST_BYTES, ssds), Trace(calls, PAGE_TOKENS), RestoreConfig(strategy=WAYS[way])
        )
        for call in calls:
            server.warm(call._replace(tokens=len(call.blocks) * PAGE_TOKENS + 1))
        runner.sleep(WRITTEN_SECONDS)
        server.leave_device()
        server.leave_host()
        found = server.run()
        return found.mean, sum(found.share(place) for place in ("host", "ssd"))

    return in_virtual_time(simulate)


def tier_row(name: str, way: str) -> list[Cell]:
    found = [restored(name, kind, way, SERVED[name], 0.5) for kind in KINDS]
    seconds = [one for one, _ in found]
    return [
        name, SERVED[name], way, *(round(1000 * one) for one in seconds),
        *(round(seconds[0] / one, 2) for one in seconds[1:]),
        ", ".join(f"{100 * loaded:.0f}" for _, loaded in found),
    ]  # fmt: skip


def with_tiers() -> list[Table]:
    rows: list[list[Cell]] = []
    for name in SERVED:
        rows += [tier_row(name, way) for way in WAYS]
    return [
        table(
            "swiftkv-tiers",
            "SwiftKV with tiers: mean time to first token (ms), histories on SSDs, H100 (8B: one, 70B: four)",
            [
                "model", "SSDs", "histories are", *KINDS, *(f"as it is over {kind}" for kind in list(KINDS)[1:]),
                "loaded (% of all tokens)",
            ],
            rows,
            [
                f"{REQUESTS} requests of {WORKLOAD.name}'s lengths as a Poisson process at half of the rate at which "
                "the model as it is could recompute everything, by the tier stack that serves. Histories have been "
                "computed before and are on PM9A3 alone. The planner knows of each model what its forwards cost, as "
                "servers learn it.",
            ],
        )
    ]  # fmt: skip


SCENARIOS = {
    "swiftkv-throughput": Scenario("SwiftKV: combined throughput, by Table A.2", throughput),
    "swiftkv-first-token": Scenario("SwiftKV: time to first token by arrivals", first_tokens),
    "swiftkv-tiers": Scenario("SwiftKV with tiers and two pointers", with_tiers),
}
