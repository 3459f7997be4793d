"""`./swift bench pages`: it runs, and what it says is in the documents."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from swift_tiers.ops.lab.bench import pages
from swift_tiers.ops.lab.bench.pages import BOUND_BYTES, main

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


def test_it_says_what_a_page_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--pages", "3000", "--units", "2", "--json", str(tmp_path / "figures.json")])
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("pages: memory_per_page=")
    told = json.loads((tmp_path / "figures.json").read_text())
    assert [figure["name"] for figure in told["figures"]] == [
        "memory_per_page", "entering_per_page", "collecting_per_page",
    ]  # fmt: skip
    assert all(math.isfinite(figure["value"]) for figure in told["figures"])
    assert told["known"] == told["pages"] == 3000


def test_the_table_of_kinds(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "KINDS", (("a", 16, 3 << 18), ("b", 64, (3 << 18) - 1)))
    assert main(["--table", "--pages", "2000"]) == 0
    head, rule, *rows = capsys.readouterr().out.splitlines()
    assert head.count("|") == rule.count("|") == 8
    assert [row.split("|")[1:6] for row in rows] == [
        [" a ", " 16 ", " 0.75 MiB ", " 3 ", " 1,252,003 "], [" b ", " 64 ", " 0.75 MiB ", " 3 ", " 1,252,003 "],
    ]  # fmt: skip


def test_every_kind_is_in_the_documents() -> None:
    text = OPERATIONS.read_text()
    for name, tokens, nbytes in pages.KINDS:
        assert f"| {name} | {tokens} | {nbytes / 2**20:.2f} MiB |" in text


def test_the_sizing_in_the_documents_is_what_it_holds_to() -> None:
    assert f"at most {BOUND_BYTES:,} bytes" in OPERATIONS.read_text()
