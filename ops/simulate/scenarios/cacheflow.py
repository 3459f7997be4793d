"""CacheFlow's evaluation (section 4) on modelled devices, the paper's numbers beside ours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile

import msgspec

from swift_tiers.ops.simulate.curve import Curve
from swift_tiers.ops.simulate.hardware import GIGABIT, GPUS, USAGE, Usage
from swift_tiers.ops.simulate.models import MODELS
from swift_tiers.ops.simulate.restoring import (
    BY_AGE,
    IN_TURN,
    LOAD,
    RECOMPUTE,
    SWIFT_TIERS,
    TWO_POINTERS,
    Method,
    Request,
    Setup,
    Sharing,
)
from swift_tiers.ops.simulate.runs import Result, chunk_for, restore, setup_for
from swift_tiers.ops.simulate.scenarios.scenario import Scenario
from swift_tiers.ops.simulate.stages import Inputs, Stages
from swift_tiers.ops.simulate.tables import Cell, Table, table
from swift_tiers.ops.simulate.workloads import WORKLOADS, poisson

LATENCY = 200e-6  # of a request over a data centre's network, assumed
LONGEST = 32_768
METHODS = (RECOMPUTE, LOAD, TWO_POINTERS, SWIFT_TIERS)
STANDS_FOR = (
    "`recompute` stands for vLLM, `load` for LMCache and for SGLang's HiCache where it waits for its pages, `plain "
    "two pointers` (whole chunks, sources serve the oldest request) for Cake. All of them without whatever else those "
    "systems spend, Cake above all: what the paper gains over the real Cake it cannot gain over this. What swift-tiers "
    "gains over it at 10 Gb/s is for the most part that its forwards are longer than a chunk where each of them costs "
    "much; CacheFlow's are chunks."
)
PURE, PLAIN = "over the better of both", "over plain"


def curve_of(model: str, gpu: str, gpus: int = 1, usage: Usage = USAGE) -> Curve:
    return Curve(model=MODELS[model], gpu=GPUS[gpu], gpus=gpus, usage=usage)


def run(curve: Curve, gigabits: float, method: Method, requests: Iterable[Request]) -> Result:
    return restore(curve, _setup(curve, gigabits), method, requests)


def _setup(curve: Curve, gigabits: float) -> Setup:
    return setup_for(curve, gigabits * GIGABIT, LATENCY, chunk_for(curve), LONGEST)


def _alone(prefix: int, new: int = 256) -> list[Request]:
    return [Request(arrival=0.0, prefix=prefix, new=new)]


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _gains(seconds: Sequence[float]) -> list[Cell]:
    """How many times as fast swift-tiers is as the better of recomputing and loading, and as plain two pointers."""
    recompute, load, plain, ours = seconds
    return [round(min(recompute, load) / ours, 2), round(plain / ours, 2)]


# ---- by length (Figure 6) ----


def lengths() -> list[Table]:
    rows: list[list[Cell]] = []
    papers = {6144: "1.1 over vLLM, SGLang", 30_720: "1.7 over vLLM, SGLang"}
    curve = curve_of("Qwen3-8B", "H100")
    for tokens in (1024, 2048, 6144, 12_288, 20_480, 30_720):
        seconds = [run(curve, 10, method, _alone(tokens)).mean for method in METHODS]
        rows.append([tokens, *map(_ms, seconds), *_gains(seconds), papers.get(tokens)])
    return [
        table(
            "cacheflow-lengths",
            "CacheFlow, Figure 6: time to first token (ms) by length, Qwen3-8B on H100, 10 Gb/s, 256 new tokens",
            ["tokens", *(method.name for method in METHODS), PURE, PLAIN, "paper"],
            rows,
            [
                STANDS_FOR,
                "The gain grows with length for the same reason as in the paper: attention makes the ends of long "
                "prefixes dear to compute, and those are what is loaded. Its size depends on how fast the device is "
                "taken to be: a slower one leaves more to loading. See `cacheflow-usage`.",
            ],
        )
    ]


# ---- by workload (Figures 4 and 5) ----


def workloads() -> list[Table]:
    rows: list[list[Cell]] = []
    busy: list[list[Cell]] = []
    for name, workload in WORKLOADS.items():
        if name == "ShareGPT":
            continue
        for model in ("Qwen3-8B", "Llama-3.1-8B", "Qwen3-30B-A3B"):
            curve = curve_of(model, "H100")
            rate = RATE_SHARE / run(curve, 10, RECOMPUTE, _alone(workload.history.median)).mean
            asked = [
                Request(arrival=one.seconds, prefix=one.history, new=one.new)
                for one in poisson(workload, rate, REQUESTS, seed=7, page_tokens=16)
            ]
            results = [run(curve, 10, method, asked) for method in METHODS]
            means = [one.mean for one in results]
            tails = [one.percentile(0.99) for one in results]
            by_age = run(curve, 10, BY_AGE, asked)
            rows.append([name, model, *map(_ms, [*means, by_age.mean]), *_gains(means), *_gains(tails), "1.1 to 1.7"])
            if (name, model) == ("SWE-Bench", "Qwen3-8B"):
                papers = {"recompute": "91 / 0", "load": "10 / full", "swift-tiers": "88 / 78"}
                busy += [
                    [
                        method.name, round(100 * one.device_busy), round(100 * one.source_busy), papers.get(method.name)
                    ]
                    for method, one in zip(METHODS, results, strict=True)
                ]  # fmt: skip
    return [
        table(
            "cacheflow-workloads",
            "CacheFlow, Figure 4: mean time to first token (ms), H100, 10 Gb/s",
            [
                "workload",
                "model",
                *(method.name for method in (*METHODS, BY_AGE)),
                PURE,
                PLAIN,
                f"P99 {PURE}",
                f"P99 {PLAIN}",
                "paper",
            ],
            rows,
            [
                f"{REQUESTS} requests, arriving as a Poisson process that keeps a device which recomputes everything "
                f"busy for about {RATE_SHARE:.0%} of the time (the paper does not say its rate). Lengths are assumed, "
                "see `ops/simulate/workloads.py`: the paper's samples are not published.",
                "Serving whoever has most recomputation left, as CacheFlow does, costs mean time to first token where "
                "the device computes the oldest request first, as SGLang does: loads for a request whose turn is far "
                "off shorten nobody's wait now. Loads in the device's own order (`loads by age`, in servers "
                '`restore.loads` = "by-age") are the better choice then. See `cacheflow-batch`.',
            ],
        ),
        table(
            "cacheflow-busy",
            "CacheFlow, Figure 5: busy for so much of the time (%), SWE-Bench, Qwen3-8B on H100, 10 Gb/s",
            ["method", "device", "source", "paper: device / source"],
            busy,
            [
                "While some request waits for its first token. The paper measures while prefixes are restored, new "
                "tokens not included; the rate differs, too."
            ],
        ),
    ]


#: Of the rate at which a device that recomputes everything would be always busy.
RATE_SHARE = 0.3
REQUESTS = 120


# ---- by bandwidth (Figure 7) and hardware (Figure 8) ----


def bandwidths() -> list[Table]:
    rows: list[list[Cell]] = []
    for gigabits, paper in ((10, "1.1 to 1.7"), (40, "1.7"), (80, "1.5")):
        rows += [
            _alone_by_workload("H100", 1, model, gigabits, paper)
            for model in ("Qwen3-8B", "Llama-3.1-8B", "Qwen3-30B-A3B")
        ]
    return [
        table(
            "cacheflow-bandwidth",
            "CacheFlow, Figure 7: mean time to first token (ms) by bandwidth, SWE-Bench on H100",
            ["Gb/s", "model", *(method.name for method in METHODS), PURE, PLAIN, "paper"],
            [row[1:] for row in rows],
            [
                "Each request alone, so that only the restore counts. The gain is largest where loading and computing "
                "take about as long, and that is where the paper's is.",
            ],
        )
    ]


def hardware() -> list[Table]:
    rows = [
        _alone_by_workload(gpu, gpus, "Qwen3-30B-A3B", 10, paper)
        for gpu, gpus, paper in (("H100", 1, None), ("L40S", 2, "1.6"), ("A100", 2, "1.5"))
    ]
    return [
        table(
            "cacheflow-hardware",
            "CacheFlow, Figure 8: mean time to first token (ms) by hardware, SWE-Bench, Qwen3-30B-A3B, 10 Gb/s",
            ["device", "Gb/s", "model", *(method.name for method in METHODS), PURE, PLAIN, "paper"],
            rows,
            [
                "Two of each but H100, side by side (tensor parallel): 61 GB of weights do not fit one A100 of 40 GB. "
                "The paper says 2xL40S and A100s.",
            ],
        )
    ]


def _alone_by_workload(gpu: str, gpus: int, model: str, gigabits: float, paper: str | None) -> list[Cell]:
    curve = curve_of(model, gpu, gpus)
    drawn = list(poisson(WORKLOADS["SWE-Bench"], 1.0, 20, seed=11, page_tokens=16))
    means = []
    for method in METHODS:
        each = [run(curve, gigabits, method, _alone(one.history, one.new)).mean for one in drawn]
        means.append(sum(each) / len(each))
    name = f"{gpus}x{gpu}" if gpus > 1 else gpu
    return [name, gigabits, model, *map(_ms, means), *_gains(means), paper]


# ---- by batch (Figure 9) ----


def batch_sizes() -> list[Table]:
    rows: list[list[Cell]] = []
    curve = curve_of("Llama-3.1-8B", "L40S")
    age_in_turn = msgspec.structs.replace(IN_TURN, sharing=Sharing.AGE)
    ours = (SWIFT_TIERS, BY_AGE, IN_TURN, age_in_turn)
    for size in (2, 4, 8):
        drawn = poisson(WORKLOADS["SWE-Bench"], 1.0, size, seed=5, page_tokens=16)
        asked = [Request(arrival=0.0, prefix=one.history, new=one.new) for one in drawn]
        results = [run(curve, 10, method, asked) for method in (*METHODS[:3], *ours)]
        for what, of in (("mean", [one.mean for one in results]), ("last", [max(one.seconds) for one in results])):
            best = min(of[:2])
            rows.append([size, what, *map(_ms, of), round(best / of[3], 2), round(best / of[4], 2), "1.6 to 2.6"])
    return [
        table(
            "cacheflow-batch",
            "CacheFlow, Figure 9: time to first token (ms) of a batch, SWE-Bench, Llama-3.1-8B on L40S, 10 Gb/s",
            [
                "batch", "of", *(method.name for method in METHODS[:3]), "oldest chunks, loads by need",
                "oldest chunks, loads by age", "chunks in turn, loads by need", "chunks in turn, loads by age",
                "by need over the better pure one", "by age over the better pure one", "paper",
            ],
            rows,
            [
                "All requests of a batch arrive at once; \"loads by need\" with the oldest request's chunks first is "
                "what swift-tiers does on SGLang, which has one chunked request at a time. The paper does not say "
                "whether its figure is of means, nor over which system; with one device and one source that both "
                "always work, no schedule finishes a batch more than twice as fast as the better pure one.",
                "Algorithm 1 loads for the request with the largest remaining recomputation, one for each source, "
                "computes a chunk of every request, and looks again; that is \"chunks in turn, loads by need\". "
                "Section 3.3 gives as its reason that I/O then saves most computing over all, which is about a batch's "
                "throughput (`last`), not about the mean.",
                "**Not reproduced:** that serving the longest request first makes first tokens come sooner. It makes "
                "all requests of a batch end together, at about the time at which the last one has to end anyway; "
                "serving the oldest first, on device and source alike, ends them one after the other. Where chunks are "
                "computed in turn, as in Algorithm 1, it makes the last request of small batches a little faster.",
            ],
        )
    ]  # fmt: skip


# ---- the third dimension (Figure 7, ablation) ----


def stages() -> list[Table]:
    rows: list[list[Cell]] = []
    for model, gpu, count in (("Qwen3-8B", "L40S", 2), ("Qwen3-30B-A3B", "L40S", 2), ("Qwen3-8B", "H100", 4)):
        curve = curve_of(model, gpu)
        chunk = chunk_for(curve)
        for tokens in (6144, 12_288):
            seconds = {
                inputs: Stages(curve, count, 10 * GIGABIT, chunk, inputs).restore(tokens)
                for inputs in (Inputs.STORED, Inputs.CHUNK_BY_CHUNK, Inputs.WHOLE)
            }
            one = Stages(curve, 1, 10 * GIGABIT, chunk, Inputs.STORED).restore(tokens)
            recomputed = Stages(curve, count, 10 * GIGABIT, chunk, Inputs.WHOLE, loads=False).restore(tokens)
            rows.append(
                [
                    f"{count}x{gpu}", model, tokens, _ms(one / count), *map(_ms, seconds.values()), _ms(recomputed),
                    round(seconds[Inputs.WHOLE] / seconds[Inputs.STORED], 2),
                    round(1 - seconds[Inputs.WHOLE] / recomputed, 2), "1.38; 0.24",
                ]
            )  # fmt: skip
    return [
        table(
            "cacheflow-stages",
            "CacheFlow, section 3.2 and the ablation of section 4.3: restoring on a pipeline of GPUs (ms), 10 Gb/s "
            "each",
            [
                "devices", "model", "tokens", "T*/S", "3D: boundary activations", "2D, chunk by chunk",
                "2D, stage after stage", "recompute, stage after stage", "2D / 3D", "2D saves of recompute",
                "paper: 2D / 3D; saves",
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
            ],
        )
    ]  # fmt: skip


# ---- layer-wise or token-wise (Figure 3) ----


def crossover() -> list[Table]:
    rows: list[list[Cell]] = []
    for model, gpu in (("Qwen3-8B", "H100"), ("Llama-3.1-8B", "L40S"), ("Qwen3-30B-A3B", "H100")):
        curve = curve_of(model, gpu)
        layer_wise = msgspec.structs.replace(SWIFT_TIERS, layer_wise_below=LONGEST + 1)
        seconds = [
            (run(curve, 40, SWIFT_TIERS, _alone(tokens, 64)).mean, run(curve, 40, layer_wise, _alone(tokens, 64)).mean)
            for tokens in SHORT
        ]
        from_there_on = takewhile(lambda one: one[1][0] <= one[1][1], reversed([*zip(SHORT, seconds, strict=True)]))
        crossing = min((tokens for tokens, _ in from_there_on), default=None)
        rows.append([model, gpu, *(f"{1000 * a:.1f} / {1000 * b:.1f}" for a, b in seconds), crossing])
    return [
        table(
            "cacheflow-crossover",
            "CacheFlow, Figure 3: token-wise / layer-wise time to first token (ms) by length, 40 Gb/s, 64 new tokens",
            ["model", "device", *(str(tokens) for tokens in SHORT), "L_delta"],
            rows,
            [
                "L_delta is the one of these lengths from which on token-wise restoration is as fast. The paper shows "
                "that there is one, of a few hundred to some thousand tokens, and gives no numbers in its text. What "
                "is called token-wise here may also load or recompute all of a prefix, as a few tokens are best "
                "recomputed along with the new ones.",
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
        recomputed = run(curve, 10, RECOMPUTE, _alone(20_480)).mean
        gains = []
        for gigabits in (10, 40, 80):
            gains.append(_gains([run(curve, gigabits, method, _alone(20_480)).mean for method in METHODS])[0])
        rows.append([matrices, attention, _ms(recomputed), *gains])
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
    "cacheflow-lengths": Scenario("CacheFlow: time to first token by length", lengths),
    "cacheflow-workloads": Scenario("CacheFlow: three workloads, three models, and how busy everything is", workloads),
    "cacheflow-bandwidth": Scenario("CacheFlow: 10, 40 and 80 Gb/s", bandwidths),
    "cacheflow-hardware": Scenario("CacheFlow: H100, L40S, A100", hardware),
    "cacheflow-batch": Scenario("CacheFlow: batches of 2, 4 and 8", batch_sizes),
    "cacheflow-stages": Scenario("CacheFlow: the third dimension, pipeline stages", stages),
    "cacheflow-crossover": Scenario("CacheFlow: token-wise against layer-wise", crossover),
    "cacheflow-usage": Scenario("what the assumed speed of the device is worth", usages),
}
