"""`./swift bench index`: what it says of memory is in the documents."""

from __future__ import annotations

from pathlib import Path

import pytest

from swift_tiers.ops.lab.bench import index
from swift_tiers.ops.lab.bench.index import MEMORY, ONCE, UNIT, main

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


def test_the_table_of_kinds(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "KINDS", (("a", 16, 3 << 18), ("b", 64, (3 << 18) - 1)))
    assert main(["--table", "--pages", "5000"]) == 0
    head, rule, *rows = capsys.readouterr().out.splitlines()
    assert head.count("|") == rule.count("|") == 8
    assert [row.split("|")[1:6] for row in rows] == [
        [" a ", " 16 ", " 0.75 MiB ", " 3 ", " 1,252,003 "], [" b ", " 64 ", " 0.75 MiB ", " 3 ", " 1,252,003 "],
    ]  # fmt: skip


def test_every_kind_is_in_the_documents() -> None:
    text = OPERATIONS.read_text()
    for name, tokens, nbytes in index.KINDS:
        assert f"| {name} | {tokens} | {nbytes / 2**20:.2f} MiB |" in text


def test_the_sizing_in_the_documents_is_what_it_holds_to() -> None:
    most = MEMORY + 8 * UNIT + ONCE / 100_000
    assert f"at most {most:.0f} bytes" in OPERATIONS.read_text()
