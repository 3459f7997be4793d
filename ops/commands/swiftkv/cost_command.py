"""`swiftkv cost`: the table of a model."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.base.units import format_size
from swift_tiers.sglang_ext.models.later_layers import LaterLayers

from ...base.errors import USAGE, CommandError
from .checkpoint import read_config
from .cost import DecoderShape, PrefillCost, kv_bytes, skipping

SHARES = (0.25, 0.5)
ACROSS = (1, 2, 4, 8, 16)
_COLUMNS = ("vocabulary", "K, V", "Q, O", "MLP", "attention", "total")


def run_cost(options: argparse.Namespace) -> int:
    """Raises CommandError."""
    if options.tokens < 1:
        raise CommandError(f"swiftkv cost: --tokens: {options.tokens} is not a number of tokens", USAGE)
    config = read_config(options.model / "config.json" if options.model.is_dir() else options.model)
    shape = DecoderShape.of(config)
    base = PrefillCost.of(shape, options.tokens)
    lines: list[dict[str, Any]] = []
    for name, later in _kinds(config, shape):
        cost = PrefillCost.of(shape, options.tokens, later)
        lines.append(
            {
                "kind": name,
                "gflops_per_token": {
                    column: value / 1e9 for column, value in zip(_COLUMNS, (*cost, cost.total), strict=True)
                },
                "share": cost.total / base.total,
                "kv_bytes_per_token": kv_bytes(shape, later),
            }
        )
    if options.json:
        print(json.dumps({"tokens": options.tokens, "kinds": lines}))
        return 0
    print(f"GFLOPs for each token of a prompt of {options.tokens:,} tokens, and KV of a token")
    print(f"{'':<26}" + "".join(f"{column:>12}" for column in _COLUMNS) + f"{'share':>9}{'KV':>12}")
    for line in lines:
        values = "".join(f"{value:>12.2f}" for value in line["gflops_per_token"].values())
        print(f"{line['kind']:<26}{values}{line['share']:>9.1%}{format_size(line['kv_bytes_per_token']):>12}")
    return 0


def _kinds(config: dict[str, Any], shape: DecoderShape) -> Iterator[tuple[str, LaterLayers | None]]:
    """The model as it was, at several shares, and as it is if it is one of SwiftKV already."""
    yield "all layers", None
    for share in SHARES:
        for across in ACROSS:
            later = skipping(shape, share, across)
            if later.first < shape.layers and (across == 1 or across < 2 * (shape.layers - later.first)):
                yield f"{share:.0%}" + (f", {across} share" if across > 1 else ""), later
    if config.get("num_key_value_layers"):
        try:
            own = LaterLayers.of(SimpleNamespace(**config))
        except ConfigError as error:
            raise CommandError(f"swiftkv cost: {error}", USAGE) from None
        yield f"this one: {own.first} of {own.layers}" + (f", {own.group} share" if own.group > 1 else ""), own
