"""CacheFlow's other two dimensions on modelled devices, layers and stages; and what is assumed of devices."""

from __future__ import annotations

from itertools import takewhile

import msgspec

from swift_tiers.radix_tiering.restore.cost import SourceCost
from swift_tiers.radix_tiering.restore.plan import Prefix, Run, plan_layers

from ....base.devices.curve import Curve
from ....base.devices.hardware import GIGABIT, USAGE
from ..devices.restoring import RECOMPUTE, SWIFT_TIERS
from ..runs import REMOTE, chunk_for
from ..stages import Inputs, Stages
from ..tables import HELD, Cell, Compared, Table, compared, table
from .cacheflow import (
    LONGEST,
    METHODS,
    alone,
    curve_of,
    gains_of,
    ms,
    run,
    setup_of,
)
from .scenario import Scenario

# ---- the third dimension (Figure 7, ablation) ----


def stages() -> list[Table]:
    rows: list[list[Cell]] = []
    against: list[Compared] = []
    for model, gpu, count in (("Qwen3-8B", "L40S", 2), ("Qwen3-30B-A3B", "L40S", 2), ("Qwen3-8B", "H100", 4)):
        curve = curve_of(model, gpu)
        chunk = chunk_for(curve)
        for tokens in (6144, 12_288):
            seconds = {
                inputs: Stages(curve, count, 10 * GIGABIT, chunk, inputs).restore(tokens)
                for inputs in (Inputs.STORED, Inputs.CHUNK_BY_CHUNK, Inputs.WHOLE)
            }
            one = Stages(curve, 1, 10 * GIGABIT, chunk, Inputs.STORED).restore(tokens)
            recomputed = Stages(curve, count, 10 * GIGABIT, chunk, Inputs.CHUNK_BY_CHUNK, loads=False).restore(tokens)
            over, saves = seconds[Inputs.WHOLE] / seconds[Inputs.STORED], 1 - seconds[Inputs.WHOLE] / recomputed
            what = f"{count}x{gpu}, {model}, {tokens} tokens"
            held = [
                compared(f"{what}: 2D / 3D", round(over, 2), 1.38),
                compared(
                    f"{what}: 2D saves",
                    round(saves, 2),
                    0.24,
                    within=0.3,
                    reproduced=(model, gpu, tokens) == ("Qwen3-8B", "L40S", 6144),
                ),
            ]
            against += held
            rows.append(
                [
                    f"{count}x{gpu}", model, tokens, ms(one / count), *map(ms, seconds.values()), ms(recomputed),
                    round(over, 2), round(saves, 2), "1.38; 0.24", "; ".join(one.shown for one in held),
                ]
            )  # fmt: skip
    return [
        table(
            "cacheflow-stages",
            "CacheFlow, section 3.2 and the ablation of section 4.3: restoring on a pipeline of GPUs (ms), 10 Gb/s "
            "each",
            [
                "devices", "model", "tokens", "T*/S", "3D: boundary activations", "2D, chunk by chunk",
                "2D, stage after stage", "recompute, chunk by chunk", "2D / 3D", "2D saves of recompute",
                "paper: 2D / 3D; saves", HELD,
            ],
            rows,
            [
                "Every stage loads its own layers through a line of its own, which Eq. 2 takes for granted; T*/S is "
                "what one device of the same kind takes, divided by the stages. Loading the boundary activations "
                "themselves (16 bits times the hidden width for each token that is computed) is counted here, and is "
                "why T*/S is missed; the paper does not count it.",
                "What the paper calls 2D keeps the dependency between stages. If a stage waits for the whole prefix "
                "of the one before, boundary activations gain what the paper reports. If chunks follow each other "
                "through the pipeline, as chunked prefill does anyway, nearly nothing is left to gain, and nothing "
                "has to be stored.",
                "The paper names neither model nor lengths: 0.21 s with and 0.29 s without boundary activations, and "
                "0.24 better than vLLM, which is 0.38 s, if 0.24 of that is saved. 6,144 tokens of Qwen3-8B on 2xL40S "
                "are near to all three, as long as recomputing follows through the pipeline chunk by chunk, as vLLM "
                "does; stage after stage it would take 711 ms. **Not reproduced:** 0.24 with the others, where what "
                "is saved goes from less than nothing (4 stages, of which each waits for the one before) to 0.42.",
            ],
            against,
        )
    ]  # fmt: skip


# ---- layer-wise or token-wise (Figure 3) ----


def in_a_server(curve: Curve, tokens: int, new: int) -> float:
    """Seconds to the first token as a server restores by layers: pages are read whole, and of what has come up to host
    memory single layers are copied; by the plan that it would make (decision 10)."""
    setup = setup_of(curve, 40)
    prefix = Prefix(
        start=0, runs=(Run(tokens, REMOTE),), token_bytes=setup.token_bytes, layers=setup.layers, behind=new,
        page_tokens=setup.page_tokens,
    )  # fmt: skip
    copying = SourceCost(latency_seconds=0.0, bytes_per_second=curve.gpu.pcie_bytes_per_second * USAGE.link)
    return plan_layers(prefix, setup.costs, copying).first_token_seconds


def crossover() -> list[Table]:
    rows: list[list[Cell]] = []
    for model, gpu in (("Qwen3-8B", "H100"), ("Llama-3.1-8B", "L40S"), ("Qwen3-30B-A3B", "H100")):
        curve = curve_of(model, gpu)
        layer_wise = msgspec.structs.replace(SWIFT_TIERS, layer_wise_below=LONGEST + 1)
        seconds = [
            (
                run(curve, 40, SWIFT_TIERS, alone(tokens, 64)).mean,
                run(curve, 40, layer_wise, alone(tokens, 64)).mean,
                in_a_server(curve, tokens, 64),
            )
            for tokens in SHORT
        ]
        crossings = [
            min(
                (
                    tokens
                    for tokens, _ in takewhile(
                        lambda one, way=way: one[1][0] <= one[1][way],  # type: ignore[misc]
                        reversed([*zip(SHORT, seconds, strict=True)]),
                    )
                ),
                default=None,
            )
            for way in (1, 2)
        ]
        rows.append([model, gpu, *(" / ".join(f"{1000 * each:.1f}" for each in one) for one in seconds), *crossings])
    return [
        table(
            "cacheflow-crossover",
            "CacheFlow, Figure 3: token-wise / layer-wise as in the paper / layer-wise as in a server, time to first "
            "token (ms) by length, 40 Gb/s, 64 new tokens",
            ["model", "device", *(str(tokens) for tokens in SHORT), "L_delta", "in a server"],
            rows,
            [
                "L_delta is the one of these lengths from which on token-wise restoration is as fast. The paper shows "
                "that there is one, of a few hundred to some thousand tokens, and gives no numbers in its text. What "
                "is called token-wise here may also load or recompute all of a prefix, as a few tokens are best "
                "recomputed along with the new ones.",
                "**What no server does:** the paper's layer-wise way reads single layers from the source. Servers read "
                "whole pages, and only copy single layers from host memory "
                "([decision 10](decisions/0010-layers-are-copied-not-read.md)); so theirs can begin to copy when the "
                "last page has come, and saves no reading. It is what a server's planner expects (`plan_layers`), at "
                "0.8 of the device's PCIe. From the length in the last column on token-wise is as fast as that.",
            ],
        )
    ]


SHORT = (128, 512, 2048, 8192, 16_384, 32_768)


# ---- what the assumptions are worth ----


def usages() -> list[Table]:
    rows: list[list[Cell]] = []
    for matrices, attention in ((0.3, 0.2), (0.4, 0.3), (0.5, 0.4), (0.6, 0.5), (0.7, 0.6)):
        curve = curve_of(
            "Qwen3-8B", "H100", usage=msgspec.structs.replace(USAGE, matrices=matrices, attention=attention)
        )
        recomputed = run(curve, 10, RECOMPUTE, alone(20_480)).mean
        gains = []
        for gigabits in (10, 40, 80):
            gains.append(gains_of([run(curve, gigabits, method, alone(20_480)).mean for method in METHODS])[0])
        rows.append([matrices, attention, ms(recomputed), *gains])
    return [
        table(
            "cacheflow-usage",
            "What is assumed of the device: gain for 20,480 tokens, Qwen3-8B on H100",
            ["of peak, matrices", "of peak, attention", "recompute (ms)", "gain, 10 Gb/s", "40 Gb/s", "80 Gb/s"],
            rows,
            [
                "CacheFlow has recomputing more than 20,000 tokens at 1.2 to 1.5 s (section 2, device not named), and "
                "gains of up to 1.7 at 10 Gb/s, 1.7 at 40 and 1.5 at 80. Every other table assumes 0.5 and 0.4.",
            ],
        )
    ]


SCENARIOS = {
    "cacheflow-stages": Scenario("CacheFlow: the third dimension, pipeline stages", stages),
    "cacheflow-crossover": Scenario("CacheFlow: token-wise against layer-wise", crossover),
    "cacheflow-usage": Scenario("what the assumed speed of the device is worth", usages),
}
