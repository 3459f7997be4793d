"""`python -m swift_tiers.ops.bench.attention`: the CPU attention backend against SGLang's `torch_native`, on random KV.

One process, no model: one layer of SmolLM2's shape (9 query heads, 3 KV heads, 64 wide). In every round each case runs
once with each backend, so that whatever else the machine does falls on both. The figures are ratios of the fastest
rounds: other work on the machine only ever adds time, and adds more to many short calls than to one long call.
Prints a table and the line `attention: figure=value (bound) ...`; exit code 3 if a bound is missed.
"""

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

HEADS, KV_HEADS, DIM = 9, 3, 64
PROMPT = 4000
CACHED_NEW = 16
CHUNKS = (512, 1024)


class Decode(NamedTuple):
    """A batch of decoding requests: how many, how long, and whether their slots are scattered over the pool."""

    name: str
    lengths: list[int]
    scattered: bool


DECODES = (
    Decode("decode_1x4000", [4000], False),
    Decode("decode_8x500", [500] * 8, False),
    Decode("decode_8x500_scattered", [500] * 8, True),
    Decode("decode_16x64", [64] * 16, False),
    Decode("decode_mixed", [4000, 900, 100, 20, 20, 60, 30], False),
)

# Largest allowed ratio, ours to theirs; of chunked prefill: ours in chunks to ours in one piece.
BOUNDS = {
    "cold": 1.10,
    "cached": 0.10,
    **{f"chunk_{size}": 1.15 for size in CHUNKS},
    **{case.name: 1.05 for case in DECODES},
}


class Pool:
    """One layer's KV pool with a request table; what `torch_native` and `swift_cpu` read."""

    def __init__(self, lengths: Sequence[int], scattered: bool, dtype: Any) -> None:
        import torch

        generator = torch.Generator().manual_seed(0)
        total = sum(lengths)
        slots = torch.randperm(total, generator=generator) if scattered else torch.arange(total)
        self.key = torch.randn(total, KV_HEADS, DIM, generator=generator).to(dtype)
        self.value = torch.randn(total, KV_HEADS, DIM, generator=generator).to(dtype)
        self.query = torch.randn(max(lengths), HEADS, DIM, generator=generator).to(dtype)
        self.table = torch.zeros(len(lengths), max(lengths), dtype=torch.int32)
        taken = 0
        for row, length in enumerate(lengths):
            self.table[row, :length] = slots[taken : taken + length].int()
            taken += length
        self.lengths = torch.tensor(lengths)
        self.rows = torch.arange(len(lengths))

    def backend(self, kind: type) -> Any:
        runner = SimpleNamespace(
            device="cpu",
            token_to_kv_pool=SimpleNamespace(),
            req_to_token_pool=SimpleNamespace(req_to_token=self.table),
        )
        return kind(runner)

    def extend(self, backend: Any, prefix: int, new: int) -> None:
        """One request's tokens `prefix .. prefix + new`, its earlier ones in the pool."""
        import torch

        self._begin(backend)
        query = self.query[prefix : prefix + new]
        backend._run_sdpa_forward_extend(
            query,
            torch.empty_like(query),
            self.key,
            self.value,
            self.table,
            self.rows,
            torch.tensor([prefix + new]),
            torch.tensor([prefix]),
            torch.tensor([new]),
            scaling=DIM**-0.5,
            enable_gqa=True,
            causal=True,
        )

    def decode(self, backend: Any, layers: int) -> None:
        """One token of every request, through `layers` layers of one forward."""
        import torch

        self._begin(backend)
        query = self.query[: len(self.rows)]
        output = torch.empty_like(query)
        for _ in range(layers):
            backend._run_sdpa_forward_decode(
                query,
                output,
                self.key,
                self.value,
                self.table,
                self.rows,
                self.lengths,
                scaling=DIM**-0.5,
                enable_gqa=True,
            )

    @staticmethod
    def _begin(backend: Any) -> None:
        backend.init_forward_metadata(SimpleNamespace(out_cache_loc=None))


def alternate(calls: Mapping[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of every call in every round; one unmeasured round first."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if number:
                taken[name].append((time.perf_counter() - start) * 1000)
    return taken


def measure(rounds: int, dtype_name: str) -> tuple[dict[str, list[float]], dict[str, float]]:
    """All times in ms by case and backend, and the figures that have bounds."""
    import torch
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    from swift_tiers.sglang_ext.cpu_attention_backend import CpuAttentionBackend

    dtype = getattr(torch, dtype_name)
    times: dict[str, list[float]] = {}
    figures: dict[str, float] = {}

    def ratio(figure: str, ours: str, theirs: str) -> None:
        figures[figure] = min(times[ours]) / min(times[theirs])

    prompt = Pool([PROMPT], False, dtype)
    native, swift = prompt.backend(TorchNativeAttnBackend), prompt.backend(CpuAttentionBackend)

    def chunked(size: int) -> None:
        for begin in range(0, PROMPT, size):
            prompt.extend(swift, begin, min(size, PROMPT - begin))

    times |= alternate(
        {
            "cold/native": lambda: prompt.extend(native, 0, PROMPT),
            "cold/swift": lambda: prompt.extend(swift, 0, PROMPT),
            "cached/native": lambda: prompt.extend(native, PROMPT - CACHED_NEW, CACHED_NEW),
            "cached/swift": lambda: prompt.extend(swift, PROMPT - CACHED_NEW, CACHED_NEW),
            **{f"chunk_{size}/swift": partial(chunked, size) for size in CHUNKS},
        },
        rounds,
    )
    ratio("cold", "cold/swift", "cold/native")
    ratio("cached", "cached/swift", "cached/native")
    for size in CHUNKS:
        ratio(f"chunk_{size}", f"chunk_{size}/swift", "cold/swift")
    for case in DECODES:
        pool = Pool(case.lengths, case.scattered, dtype)
        both = {"native": pool.backend(TorchNativeAttnBackend), "swift": pool.backend(CpuAttentionBackend)}
        calls = {f"{case.name}/{name}": partial(pool.decode, backend, 30) for name, backend in both.items()}
        times |= alternate(calls, rounds)
        ratio(case.name, *reversed(list(calls)))
    return times, figures


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the bench. Returns 0 if every figure is within its bound, 3 if not."""
    parser = argparse.ArgumentParser(prog="attention", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all times and figures there")
    parser.add_argument("--rounds", type=int, default=7, help="measured rounds a case (default: 7)")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    options = parser.parse_args(argv)

    import torch

    times, figures = measure(options.rounds, options.dtype)
    print(f"{PROMPT} tokens, {HEADS}/{KV_HEADS} heads of {DIM}, {options.dtype}, {torch.get_num_threads()} threads")
    print("prefill: one layer; decode: 30 layers of one forward\n")
    print(f"{'case':34}{'median ms':>11}{'min':>9}{'max':>9}")
    for name, values in times.items():
        print(f"{name:34}{statistics.median(values):11.2f}{min(values):9.2f}{max(values):9.2f}")
    if options.json is not None:
        report = {
            "bench": "attention",
            "dtype": options.dtype,
            "threads": torch.get_num_threads(),
            "machine": platform.machine(),
            "torch": torch.__version__,
            "milliseconds": times,
            "figures": figures,
            "bounds": BOUNDS,
        }
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    print("\nattention: " + " ".join(f"{name}={value:.3f} (<={BOUNDS[name]})" for name, value in figures.items()))
    return 0 if all(value <= BOUNDS[name] for name, value in figures.items()) else 3


if __name__ == "__main__":
    sys.exit(main())
