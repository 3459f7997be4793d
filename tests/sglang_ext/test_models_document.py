"""docs/models.md says what is so: the tests it names are there, and it names all that is refused."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = (ROOT / "docs" / "models.md").read_text()


def test_every_test_that_it_names_is_there():
    named = re.findall(r"`((?:\w+/)*)(test_\w+\.py)`", DOCUMENT)
    assert len(named) > 5
    for folder, name in named:
        assert (ROOT / "tests" / (folder or "sglang_ext/") / name).is_file(), name


def test_every_line_says_whether_it_works():
    lines = [line for line in DOCUMENT.splitlines() if line.startswith("|") and not re.match(r"\|[-|]+$", line)]
    kinds = [re.search(r"\| (works|refused|not tried) \|", line) for line in lines]
    heads = [line for line, kind in zip(lines, kinds, strict=True) if kind is None]
    columns = [line.split("|")[1].strip() for line in heads]
    assert columns == ["kind", "`--attention-backend`", "`--kv-cache-dtype`", "mode"]


def test_every_flag_that_swiftkv_models_are_refused_with_is_in_theirs():
    source = (ROOT / "sglang_ext" / "models" / "supported.py").read_text()
    document = (ROOT / "docs" / "swiftkv.md").read_text()
    flags = re.findall(r'"(--[a-z-]+)"', source)
    assert len(flags) > 10
    for flag in flags:
        assert flag in document, flag


def test_every_flag_that_is_refused_is_in_it():
    source = (ROOT / "sglang_ext" / "pools" / "supported.py").read_text()
    for flag in re.findall(r'\("(--[a-z-]+)", view', source):
        assert flag in DOCUMENT, flag


def test_restoration_names_the_models_that_are_computed_layer_by_layer():
    source = (ROOT / "sglang_ext" / "way" / "layer_wise.py").read_text()
    compared = re.findall(r'"(\w+)ForCausalLM"', source)
    *others, last = [re.sub(r"(\d+)$", r" \1", name) for name in compared]
    document = " ".join((ROOT / "docs" / "restore.md").read_text().split())
    assert f"**Only {', '.join(others)} and {last} (dense) are computed layer by layer:**" in document
