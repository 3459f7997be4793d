"""`swift-tiers bench codec` at its smallest size."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from swift_tiers.ops.base.errors import CommandError
from swift_tiers.ops.base.model import tiny_model
from swift_tiers.ops.commands.bench.codec import main


def test_it_runs(tmp_path: Path) -> None:
    """What never left its dtype changes nothing, and fewer bits change more."""
    model, file = tiny_model(tmp_path / "model", head_dim=64), tmp_path / "figures.json"
    words = ["--model-path", str(model), "--windows", "2", "--context", "64", "--read", "16", "--json", str(file)]
    assert main(words) == 0
    told = json.loads(file.read_text())
    quality = told["quality"]
    assert quality["none"]["kl"] == 0
    assert quality["none"]["agreement"] == 1
    assert 0 < quality["int8"]["kl"] < quality["int4"]["kl"]
    assert all(math.isfinite(value) for one in quality.values() for value in one.values())
    shares = {codec: told["page_bytes"][codec] / told["page_bytes"]["none"] for codec in told["page_bytes"]}
    assert shares == {"none": 1.0, "fp8": 0.53125, "int8": 0.53125, "int4": 0.28125}
    (lossless,) = [figure["value"] for figure in told["figures"] if figure["name"] == "lossless_bytes"]
    assert 0.5 < lossless < 1, "fractions of random numbers are random, exponents are not"
    assert 0.5 < told["zstd"]["share"] <= 1
    assert told["zstd"]["pace"]["down"] > 0


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--context", "20"], r"--context: a multiple of 16"),
        (["--windows", "0"], r"--windows: 0 is not between 1 and"),
        (["--stripe-unit", "5000"], r"multiple of 4096"),
        (["--windows", "1000", "--text", __file__], r"the text has \d+ tokens, and 1000 windows of 1024 are asked for"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(tmp_path: Path, words: list[str], complaint: str) -> None:
    model = tiny_model(tmp_path / "model")
    with pytest.raises(CommandError, match=complaint):
        main(["--model-path", str(model), *words])
