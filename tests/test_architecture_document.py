"""docs/architecture.md names every thread of a server."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: What begins a thread, or makes something that does.
BEGINS = ("thread", "Thread", "ThreadPoolExecutor", "ErrandThread")
#: Those of models, and of the process that a remote engine lives in.
ELSEWHERE = ("testing", "tiers/remote/child.py")


def _names() -> Iterator[str]:
    """What threads are called, `ssd-verify-` where a number follows."""
    for room in ("radix_tiering", "sglang_ext", "kernels"):
        for path in (ROOT / room).rglob("*.py"):
            if any(part in path.relative_to(ROOT).as_posix() for part in ELSEWHERE):
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                function = node.func if isinstance(node, ast.Call) else None
                called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
                if isinstance(node, ast.Call) and called in BEGINS:
                    words = (
                        one
                        for given in (*node.args, *(word.value for word in node.keywords))
                        for one in ast.walk(given)
                    )
                    yield from (str(one.value) for one in words if isinstance(one, ast.Constant))


def test_every_thread_has_a_row() -> None:
    section = (ROOT / "docs" / "architecture.md").read_text().partition("\n## Threads\n")[2].partition("\n## ")[0]
    rows = [name for row in re.findall(r"^\| ([^|]*) \|", section, re.M) for name in row.split(", ")]
    named = {name.removesuffix("N") for name in rows}
    there = {name for name in _names() if re.match(r"(swift|ssd)-", name)}
    assert len(there) > 20
    assert there <= named
