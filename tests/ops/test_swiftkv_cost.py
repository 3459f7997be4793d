"""The formulas of `swiftkv cost` against the paper's table, and what the command says."""

from __future__ import annotations

import json

import pytest

from swift_tiers.ops.base.errors import USAGE
from swift_tiers.ops.commands.swiftkv.cost import DecoderShape, PrefillCost, kv_bytes, skipping

from support.command_line import run_command

LLAMA_70B = {
    "num_hidden_layers": 80, "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64,
    "num_key_value_heads": 8, "vocab_size": 128256, "torch_dtype": "bfloat16",
}  # fmt: skip
#: Of its Table 1, Llama-3.1-70B: GFLOPs a token for the vocabulary, K and V, Q and O, MLP, attention, and all.
TABLE = {
    (0.0, 1): (4.3, 2.6, 22, 113, 160, 302),
    (0.25, 1): (4.3, 2.6, 16, 85, 120, 228),
    (0.5, 1): (4.3, 2.6, 11, 56, 80, 154),
    (0.5, 4): (4.3, 1.7, 11, 56, 80, 153),
}
TOKENS = 122_000


def cost(share, across):
    shape = DecoderShape.of(LLAMA_70B)
    return PrefillCost.of(shape, TOKENS, skipping(shape, share, across) if share else None)


@pytest.mark.parametrize("kind", TABLE)
def test_every_entry_of_the_table(kind):
    found = cost(*kind)
    for value, printed in zip((*found, found.total), TABLE[kind], strict=True):
        assert value / 1e9 == pytest.approx(printed, rel=0.04)


@pytest.mark.parametrize(("kind", "percent"), [((0.25, 1), 75.6), ((0.5, 1), 51.1), ((0.5, 4), 50.8)])
def test_what_is_left_of_a_prompt(kind, percent):
    assert 100 * cost(*kind).total / cost(0.0, 1).total == pytest.approx(percent, abs=0.2)


def test_what_is_left_of_kv():
    """The paper's cache reductions at a half, with 2, 4, 8 and 16 layers that share."""
    shape = DecoderShape.of({**LLAMA_70B, "num_hidden_layers": 32})
    whole = kv_bytes(shape)
    for across, saved in ((1, 0.0), (2, 0.25), (4, 0.375), (8, 0.4375), (16, 0.46875)):
        assert 1 - kv_bytes(shape, skipping(shape, 0.5, across)) / whole == saved
    assert kv_bytes(DecoderShape.of(LLAMA_70B)) == 80 * 2 * 8 * 128 * 2


def test_the_command(capsys, tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps({**LLAMA_70B, "num_key_value_layers": 40, "key_value_group_size": 4})
    )
    code, out, _ = run_command(capsys, "swiftkv", "cost", str(tmp_path), "--tokens", str(TOKENS))
    assert code == 0
    assert "this one: 40 of 80, 4 share" in out
    assert "50.8%" in out
    code, out, _ = run_command(capsys, "swiftkv", "cost", str(tmp_path / "config.json"), "--json")
    kinds = {line["kind"]: line for line in json.loads(out)["kinds"]}
    assert kinds["50%, 4 share"]["kv_bytes_per_token"] == 50 * 2 * 8 * 128 * 2


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"num_local_experts": 8}, "has num_local_experts, which the formulas do not know"),
        ({"num_key_value_layers": 80}, "num_key_value_layers is 80"),
        ({"hidden_size": None}, ""),
    ],
)
def test_what_it_cannot_reckon_is_said(capsys, tmp_path, change, problem):
    config = {name: value for name, value in {**LLAMA_70B, **change}.items() if value is not None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    code, _, error = run_command(capsys, "swiftkv", "cost", str(tmp_path))
    assert code == USAGE
    assert problem in error
    assert len(error.splitlines()) == 1
