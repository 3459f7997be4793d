"""What codecs lose and save: a real model goes on from KV that was in a tier, in each of those of `host.codec`.

Of every window of text the KV of its first tokens is computed, goes down to a slab and comes up again through the pool
that serves on CPUs, page by page. From there on the model reads the rest of the window; what it expects of each next
token is held against what it expects from KV that never left. The same pages go through `ssd.codec`, which loses
nothing; of KV in bfloat16 it is also told how few bytes a code could do with that loses nothing, if it codes exponents
and fractions apart, each value by itself.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.base.page import BLOCK_BYTES
from swift_tiers.radix_tiering.base.units import Size, format_size
from swift_tiers.radix_tiering.tiers.ssd.blockio import aligned_buffer
from swift_tiers.radix_tiering.tiers.ssd.coding import Coder
from swift_tiers.radix_tiering.tiers.ssd.layout import check_unit_bytes, unit_count
from swift_tiers.sglang_ext.pools.device_pool import DevicePool, HostMemoryPool
from swift_tiers.sglang_ext.pools.encoded_pool import EncodedPool

from ...base.arguments import path_argument
from ...base.errors import USAGE, CommandError
from ...base.model import demo_model, pythons_manual
from .report import Figure, finish, parser

CODECS = ("none", "fp8", "int8", "int4")
PAGE_TOKENS = 16
#: Nats between what is expected of the next token, and the share of tokens that stay the likeliest.
MOST_KL, LEAST_AGREEMENT = 0.01, 0.97


class Quality(NamedTuple):
    """Of one codec over all windows, means over every token that was read."""

    kl: float  # nats, from what exact KV expects to what the coded one does
    agreement: float  # share of tokens of which both expect the same most
    perplexity: float


class CodingPace(NamedTuple):
    """Of one codec on this machine, bytes of the device's pages a second."""

    down: float
    up: float


class Lossless(NamedTuple):
    """What `ssd.codec` makes of pages, on one core."""

    share: float  # of their bytes, to whole blocks of 4 KiB
    units: float  # of the stripe units that each takes as it is, means
    pace: CodingPace


def main(argv: Sequence[str] | None = None) -> int:
    options = _options(argv)
    model, tokens = _model_and_tokens(options)
    windows = _windows(tokens, options.windows, options.context + options.read)
    sums = {codec: torch.zeros(4, dtype=torch.float64) for codec in CODECS}
    pages: dict[str, int] = {}
    times: dict[str, list[tuple[float, float, int]]] = {codec: [] for codec in CODECS}
    lossless: list[float] = []
    coder, coded = Coder(), list[Lossless]()
    for window in windows:
        cached = _computed(model, window[: options.context])
        rest = window[options.context :]
        coded.append(_coded_without_loss(coder, cached, options.stripe_unit))
        if options.dtype == "bfloat16":
            lossless.append(_fewest_without_loss(cached))
        exact = _expected(model, rest, cached)
        for codec in CODECS:
            layers, pool, took = _through(cached, codec)
            pages[codec] = pool.geometry.page_bytes
            times[codec].append((*took, pool.geometry.device_page_bytes * (options.context // PAGE_TOKENS)))
            sums[codec] += _held_against(_expected(model, rest, layers), exact, rest)
    quality = {codec: _mean(total) for codec, total in sums.items()}
    pace = {codec: _fastest(took) for codec, took in times.items()}
    _print(options, quality, pages, pace)
    zstd = _of_all(coded)
    _print_lossless(zstd, pages["none"], options.stripe_unit)
    figures = [
        Figure("none_kl", quality["none"].kl, at_most=0.0),
        *(Figure(f"{codec}_kl", quality[codec].kl, at_most=MOST_KL) for codec in ("fp8", "int8")),
        *(
            Figure(f"{codec}_agreement", quality[codec].agreement, at_least=LEAST_AGREEMENT)
            for codec in ("fp8", "int8")
        ),
        Figure("int4_kl", quality["int4"].kl),
        Figure("int4_agreement", quality["int4"].agreement),
        *(Figure(f"{codec}_bytes", pages[codec] / pages["none"]) for codec in CODECS[1:]),
        *(Figure("lossless_bytes", max(lossless)) for _ in lossless[:1]),
        Figure("zstd_bytes", zstd.share),
    ]
    details = {
        "model": str(options.model_path or "SmolLM2-135M-Instruct"),
        "quality": {codec: one._asdict() for codec, one in quality.items()},
        "pace": {codec: one._asdict() for codec, one in pace.items()},
        "page_bytes": pages,
        "zstd": {**zstd._asdict(), "pace": zstd.pace._asdict(), "stripe_unit": int(options.stripe_unit)},
    }
    return finish("codec", figures, details, options.json, smaller=options.smaller)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    form = parser("codec", __doc__, rounds=1)
    form.add_argument(
        "--model-path", type=path_argument, metavar="DIR", help="Hugging Face directory (default: the demo's model)"
    )
    form.add_argument(
        "--text", type=path_argument, metavar="FILE", help="what is read (default: the manual that Python brings)"
    )
    form.add_argument("--windows", type=int, default=8, help="stretches of the text, far apart (%(default)s)")
    form.add_argument("--context", type=int, default=768, help="tokens of each whose KV was in a tier (%(default)s)")
    form.add_argument("--read", type=int, default=256, help="tokens that are read from there on (%(default)s)")
    form.add_argument("--stripe-unit", default="256KiB", metavar="SIZE", help="ssd.stripe_unit (%(default)s)")
    form.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="of the KV (%(default)s)")
    options = form.parse_args(argv)
    if options.context % PAGE_TOKENS:
        raise CommandError(f"bench codec: --context: a multiple of {PAGE_TOKENS}, the tokens of a page", USAGE)
    try:
        options.stripe_unit = Size.parse(options.stripe_unit)
        check_unit_bytes(options.stripe_unit)
    except (ValueError, ConfigError) as error:
        raise CommandError(f"bench codec: --stripe-unit: {error}", USAGE) from None
    options.smaller = options.model_path is not None or options.windows < form.get_default("windows")
    return options


def _model_and_tokens(options: argparse.Namespace) -> tuple[Any, torch.Tensor]:
    """The model, and the text in its tokens, int64 [tokens]."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    place = options.model_path or demo_model()
    model = AutoModelForCausalLM.from_pretrained(place, dtype=getattr(torch, options.dtype)).eval()
    source = options.text or pythons_manual()
    if source is None:
        raise CommandError("bench codec: this Python came without its manual; name a text by --text")
    text = source.read_text()
    found = AutoTokenizer.from_pretrained(place)(text, return_tensors="pt", add_special_tokens=False, verbose=False)
    return model, found["input_ids"][0]


def _windows(tokens: torch.Tensor, count: int, length: int) -> list[torch.Tensor]:
    if len(tokens) < count * length:
        raise CommandError(
            f"bench codec: the text has {len(tokens)} tokens, and {count} windows of {length} are asked for; "
            "name a longer --text, or fewer --windows"
        )
    starts = [number * (len(tokens) // count) for number in range(count)]
    return [tokens[start : start + length] for start in starts]


Layers = list[tuple[torch.Tensor, torch.Tensor]]  # K and V of each, [1, heads, tokens, dimensions]


@torch.inference_mode()
def _computed(model: Any, tokens: torch.Tensor) -> Layers:
    cache = model(tokens[None], use_cache=True, logits_to_keep=1).past_key_values
    return [(layer.keys, layer.values) for layer in cache.layers]


@torch.inference_mode()
def _expected(model: Any, tokens: torch.Tensor, layers: Layers) -> torch.Tensor:
    """Log probabilities of what follows each token but the last, float32 [tokens - 1, vocabulary]."""
    from transformers import DynamicCache

    cache = DynamicCache([(keys.clone(), values.clone()) for keys, values in layers])
    logits = model(tokens[None], past_key_values=cache, use_cache=True).logits[0, :-1]
    return torch.log_softmax(logits.float(), -1)


def _rows(layers: Layers) -> list[list[torch.Tensor]]:
    """As a pool has them: [tokens, heads, dimensions] of each."""
    return [[side[0].transpose(0, 1).contiguous() for side in layer] for layer in layers]


def _through(layers: Layers, codec: str) -> tuple[Layers, DevicePool, tuple[float, float]]:
    """What is on the device after it was in a tier; the pool that it went through, and the seconds down and up."""
    rows = _rows(layers)
    pool = HostMemoryPool(rows, PAGE_TOKENS) if codec == "none" else EncodedPool(rows, PAGE_TOKENS, codec)
    pages = np.arange(pool.pool_pages, dtype=np.int64)
    slab = np.zeros((len(pages), pool.geometry.stride_bytes), np.uint8)
    began = time.perf_counter()
    pool.copy_out(pages, slab, pages)
    down = time.perf_counter() - began
    for planes in rows:
        for plane in planes:
            plane.zero_()
    began = time.perf_counter()
    pool.copy_in(pages, slab, pages, lambda layer, mark: None)
    up = time.perf_counter() - began
    back = [tuple(side.transpose(0, 1)[None] for side in layer) for layer in rows]
    return back, pool, (down, up)  # type: ignore[return-value]


def _coded_without_loss(coder: Coder, layers: Layers, stripe_unit: int) -> Lossless:
    rows = _rows(layers)
    pool = HostMemoryPool(rows, PAGE_TOKENS)
    numbers = np.arange(pool.pool_pages, dtype=np.int64)
    slab = np.zeros((len(numbers), pool.geometry.stride_bytes), np.uint8)
    pool.copy_out(numbers, slab, numbers)
    length = pool.geometry.page_bytes
    blocks, whole = unit_count(length, BLOCK_BYTES), unit_count(length, stripe_unit)
    into, took, came, share, units = aligned_buffer(slab.shape[1]), 0.0, 0.0, 0.0, 0.0
    for stored in slab:
        page, began = stored[:length], time.perf_counter()
        coded = coder.encode(page, into, BLOCK_BYTES)
        took += time.perf_counter() - began
        share += (coded or blocks) / blocks
        units += min(whole, unit_count((coded or blocks) * BLOCK_BYTES, stripe_unit)) / whole
        if coded:
            began = time.perf_counter()
            assert coder.decode(into, coded * BLOCK_BYTES, length), "what was coded is coded"
            came += time.perf_counter() - began
            assert np.array_equal(into[:length], page), "no bit is lost"
    nbytes = len(slab) * length
    pace = CodingPace(nbytes / took, nbytes / came if came else 0.0)
    return Lossless(share / len(slab), units / len(slab), pace)


def _of_all(windows: Sequence[Lossless]) -> Lossless:
    """Means, and the fastest pace."""
    return Lossless(
        sum(one.share for one in windows) / len(windows),
        sum(one.units for one in windows) / len(windows),
        CodingPace(max(one.pace.down for one in windows), max(one.pace.up for one in windows)),
    )


def _fewest_without_loss(layers: Layers) -> float:
    """The share of its bytes that KV in bfloat16 takes at least, where exponents and the other bits are coded each by
    how often it occurs."""
    words = torch.cat([side.flatten() for layer in layers for side in layer]).view(torch.int16).numpy().view(np.uint16)
    exponents, others = words >> 7 & 255, words & 127 | words >> 8 & 128
    return (_entropy(exponents) + _entropy(others)) / 16


def _entropy(values: np.ndarray) -> float:
    """Bits of each of these numbers below 256."""
    shares = np.bincount(values, minlength=256) / len(values)
    shares = shares[shares > 0]
    return float(-(shares * np.log2(shares)).sum())


def _held_against(coded: torch.Tensor, exact: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Sums over the tokens, float64 [4]: nats between both, those that agree, nats of the text, tokens."""
    kl = torch.nn.functional.kl_div(coded, exact, reduction="sum", log_target=True)
    agree = (coded.argmax(-1) == exact.argmax(-1)).sum()
    nats = -coded.gather(-1, tokens[1:, None]).sum()
    return torch.tensor([kl, agree, nats, len(tokens) - 1], dtype=torch.float64)


def _mean(total: torch.Tensor) -> Quality:
    kl, agree, nats = (total[:3] / total[3]).tolist()
    return Quality(max(0.0, kl), agree, float(np.exp(nats)))


def _fastest(took: Sequence[tuple[float, float, int]]) -> CodingPace:
    """Of the fastest window: what is measured beside something else is slower, never faster."""
    return CodingPace(max(nbytes / down for down, _, nbytes in took), max(nbytes / up for _, up, nbytes in took))


def _print(
    options: argparse.Namespace, quality: dict[str, Quality], pages: dict[str, int], pace: dict[str, CodingPace]
) -> None:
    print(
        f"{options.windows} windows: {options.context} tokens in a tier, {options.read} read from there; KV in "
        f"{options.dtype}, pages of {PAGE_TOKENS} tokens"
    )
    print(
        f"{'codec':<7}{'a page':>10}{'of none':>9}{'KL, nats':>12}{'agree':>9}{'perplexity':>12}{'down':>12}{'up':>12}"
    )
    for codec in CODECS:
        one, share = quality[codec], pages[codec] / pages["none"]
        print(
            f"{codec:<7}{format_size(pages[codec]):>10}{share:>9.3f}{one.kl:>12.5f}{one.agreement:>9.4f}"
            f"{one.perplexity:>12.3f}{format_size(int(pace[codec].down)):>10}/s{format_size(int(pace[codec].up)):>10}/s"
        )


def _print_lossless(zstd: Lossless, page_bytes: int, stripe_unit: int) -> None:
    whole = unit_count(page_bytes, stripe_unit)
    print(
        f"ssd.codec zstd, which loses nothing: {zstd.share:.3f} of a page, {zstd.units * whole:.1f} of {whole} stripe "
        f"units of {format_size(stripe_unit)}; {format_size(int(zstd.pace.down))}/s down and "
        f"{format_size(int(zstd.pace.up))}/s up on each of ssd.codec_threads"
    )


if __name__ == "__main__":
    raise SystemExit(main())
