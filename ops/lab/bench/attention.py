"""The CPU attention backend against SGLang's `torch_native`, on random KV.

One process, no model: one layer of SmolLM2's shape (9 query heads, 3 KV heads, 64 wide); decoding goes through 30 such
layers. The figures are ratios of the fastest rounds: other work on the machine only ever adds time, and adds more to
many short calls than to one long call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

from ...commands.bench.report import Figure, by_turns, finish, parser, spread

HEADS, KV_HEADS, DIM = 9, 3, 64
PROMPT = 4000
CACHED_NEW = 16
CHUNKS = (512, 1024)
LAYERS = 30


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

#: Largest allowed ratios; see `figures`.
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
        batch = SimpleNamespace(out_cache_loc=None)
        backend.init_forward_metadata(batch)
        if hasattr(backend, "enter"):
            backend.enter(SimpleNamespace(tp_k_head_num=KV_HEADS, layer_id=0), batch)


def measure(rounds: int, dtype_name: str, layers: int = LAYERS) -> dict[str, list[float]]:
    """Seconds of every case with each backend, in every round."""
    import torch
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    from swift_tiers.sglang_ext.platform.cpu_attention_backend import CpuAttentionBackend

    dtype = getattr(torch, dtype_name)
    prompt = Pool([PROMPT], False, dtype)
    native, swift = prompt.backend(TorchNativeAttnBackend), prompt.backend(CpuAttentionBackend)

    def chunked(size: int) -> None:
        for begin in range(0, PROMPT, size):
            prompt.extend(swift, begin, min(size, PROMPT - begin))

    seconds = by_turns(
        {
            "cold/native": lambda: prompt.extend(native, 0, PROMPT),
            "cold/swift": lambda: prompt.extend(swift, 0, PROMPT),
            "cached/native": lambda: prompt.extend(native, PROMPT - CACHED_NEW, CACHED_NEW),
            "cached/swift": lambda: prompt.extend(swift, PROMPT - CACHED_NEW, CACHED_NEW),
            **{f"chunk_{size}/swift": partial(chunked, size) for size in CHUNKS},
        },
        rounds,
    )
    for case in DECODES:
        pool = Pool(case.lengths, case.scattered, dtype)
        both = {"native": pool.backend(TorchNativeAttnBackend), "swift": pool.backend(CpuAttentionBackend)}
        calls = {f"{case.name}/{name}": partial(pool.decode, backend, layers) for name, backend in both.items()}
        seconds |= by_turns(calls, rounds)
    return seconds


def figures(seconds: Mapping[str, Sequence[float]]) -> list[Figure]:
    """Ours to theirs; of chunked prefill: ours in chunks to ours in one piece."""
    result = []
    for name, bound in BOUNDS.items():
        reference = "cold/swift" if name.startswith("chunk_") else f"{name}/native"
        result.append(Figure(name, min(seconds[f"{name}/swift"]) / min(seconds[reference]), at_most=bound))
    return result


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser("attention", __doc__, rounds=7)
    arguments.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    arguments.add_argument("--layers", type=int, default=LAYERS, help="that decoding goes through (%(default)s)")
    options = arguments.parse_args(argv)

    import torch

    seconds = measure(options.rounds, options.dtype, options.layers)
    print(f"{PROMPT} tokens, {HEADS}/{KV_HEADS} heads of {DIM}, {options.dtype}, {torch.get_num_threads()} threads")
    for name, values in seconds.items():
        print(spread(name, [value * 1e3 for value in values], "ms"))
    details = {
        "dtype": options.dtype, "threads": torch.get_num_threads(), "torch": torch.__version__, "seconds": seconds
    }  # fmt: skip
    return finish("attention", figures(seconds), details, options.json, smaller=options.layers < LAYERS)


if __name__ == "__main__":
    raise SystemExit(main())
