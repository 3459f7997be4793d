"""Whether what a command prints can be read, and its figures are numbers."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

_FIGURE = re.compile(r"(\w+)=([^\s(]+)")
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[-+]\d+)?")


def figures_of(closing_line: str) -> dict[str, float]:
    """The figures of a bench's closing line, `NAME: figure=value (bound) …`. Raises AssertionError for what is none."""
    name, colon, words = closing_line.partition(": ")
    assert re.fullmatch(r"\w+", name), closing_line
    assert colon, closing_line
    found = {}
    for figure, value in _FIGURE.findall(words):
        number = _NUMBER.match(value)
        assert number, f"{figure} is {value}"
        found[figure] = float(number[0])
        assert math.isfinite(found[figure])
    assert found, closing_line
    return found


def finite_json(text: str) -> Any:
    """What it says. Raises AssertionError for a number that is none (NaN, Infinity), ValueError for no JSON."""

    def refuse(constant: str) -> NoReturn:
        raise AssertionError(f"{constant} is no figure")

    return json.loads(text, parse_constant=refuse)
