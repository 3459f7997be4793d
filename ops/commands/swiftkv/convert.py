"""`swiftkv convert`: from a model to a SwiftKV model that has not been trained yet."""

from __future__ import annotations

import argparse
import itertools
from typing import Any

import torch

from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.sglang_ext.models.later_layers import LaterLayers

from ...base.errors import USAGE, CommandError
from ...base.progress import progress
from .checkpoint import EMBEDDING, ModelDirectory, place_for, write
from .fitting import KeyValueFit, rewired_weights
from .network import TeacherAndPupil, Tensors
from .ranks import Ranks, alone
from .text import windows_of

#: Shares of layers that prompts skip unless one is named: of a Qwen, half of them cost the paper 7 points of 77.
USUAL_SHARE = {"llama": 0.5, "qwen2": 0.25, "qwen3": 0.25}
#: Windows of a fit that are computed at once.
BATCH = 4


def run_convert(options: argparse.Namespace) -> int:
    """Raises CommandError."""
    source = ModelDirectory(options.model)
    if source.later is not None:
        raise CommandError(f"swiftkv convert: {options.model} is a SwiftKV model already; name its original", USAGE)
    later = later_layers(source, options.layers, options.across)
    if options.fit_tokens < 0:
        raise CommandError(f"swiftkv convert: --fit-tokens: {options.fit_tokens}; name 0 for no fit", USAGE)
    place_for(options.out, "convert")
    tensors = source.whole()
    stored = tensors[EMBEDDING].dtype
    network = network_of(source, tensors, later, options.dtype, alone(options.device, "convert"))
    new, tokens = _fitted(network, options)
    write(
        source,
        options.out,
        later,
        itertools.chain(tensors.items(), ((name, tensor.to("cpu", stored)) for name, tensor in new.items())),
    )
    how = f"fitted to {tokens:,} tokens" if tokens else "not fitted"
    shared = "" if later.group == 1 else f", {later.group} later ones sharing"
    print(
        f"made: {options.out}: prompts stop after layer {later.first} of {later.layers}{shared}; keys and values "
        f"{how}. Next: swift-tiers swiftkv distill"
    )
    return 0


def later_layers(source: ModelDirectory, wanted: str | None, across: int) -> LaterLayers:
    """Which layers are to be later ones: a share, a number, or the usual share. Raises CommandError."""
    layers = source.layers
    words = wanted if wanted is not None else f"{USUAL_SHARE[source.family]:.0%}"
    try:
        later = int(layers * float(words.removesuffix("%")) / 100 + 0.5) if words.endswith("%") else int(words)
        if across < 1:
            raise ValueError
        return LaterLayers.of(_Fields(layers, layers - later, across))
    except (ValueError, OverflowError, ConfigError):
        raise CommandError(
            f"swiftkv convert: --layers {words} --across {across}: of {layers} layers, 1 to {layers - 1} can be later "
            "ones, and 1 or more of them share; name for example 50%",
            USAGE,
        ) from None


class _Fields:
    """As a configuration has them."""

    def __init__(self, layers: int, first: int, group: int) -> None:
        self.num_hidden_layers, self.num_key_value_layers, self.key_value_group_size = layers, first, group


def network_of(
    source: ModelDirectory, tensors: Tensors, later: LaterLayers, dtype: str, ranks: Ranks
) -> TeacherAndPupil:
    """The model in `--dtype`. Of a SwiftKV model, `tensors` has the original's too."""
    from transformers import AutoConfig

    from swift_tiers.sglang_ext.models import configurations

    configurations.register()
    config: Any = AutoConfig.from_pretrained(source.directory)
    original = {name: tensor for name, tensor in tensors.items() if "_swiftkv" not in name}
    return TeacherAndPupil(config, original, later, chosen_dtype(dtype, ranks.device), ranks)


def chosen_dtype(words: str, device: torch.device) -> torch.dtype:
    """`--dtype`; of "auto", the one that this machine multiplies matrices faster in, and bfloat16 on a GPU."""
    if words == "auto" and device.type == "cuda":
        return torch.bfloat16
    if words != "auto":
        found: torch.dtype = getattr(torch, words)
        return found
    return min((torch.float32, torch.bfloat16), key=_seconds_of_a_product)


def _seconds_of_a_product(dtype: torch.dtype) -> float:
    from time import perf_counter

    one, other = torch.ones(256, 1024, dtype=dtype), torch.ones(1024, 1024, dtype=dtype)
    took = []
    for _ in range(5):
        began = perf_counter()
        torch.nn.functional.linear(one, other)
        took.append(perf_counter() - began)
    return min(took)


def _fitted(network: TeacherAndPupil, options: argparse.Namespace) -> tuple[Tensors, int]:
    """The new tensors, and the tokens that they were fitted to."""
    if not options.fit_tokens:
        return rewired_weights(network), 0
    windows = windows_of(options, options.model).read
    wanted = min(len(windows), -(-options.fit_tokens // options.length))
    # Spread over all of the text.
    chosen = windows[torch.linspace(0, len(windows) - 1, wanted).round().long().unique()]
    fit = KeyValueFit(network)
    with progress("fitting keys and values", total=len(chosen) * options.length, unit=" tokens") as bar:
        for batch in chosen.split(BATCH):
            fit.add(batch)
            bar.update(fit.tokens)
    return fit.solve(), fit.tokens
