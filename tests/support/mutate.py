"""A method with one thing wrong in it, for as long as a test looks whether that is found."""

from __future__ import annotations
import __future__

import inspect
import textwrap
from typing import Any

import pytest


def mutate(patch: pytest.MonkeyPatch, owner: Any, method: str, old: str, new: str) -> None:
    """Replace `old` by `new` in a method of `owner`. Raises AssertionError unless it stands there once."""
    function: Any = getattr(owner, method)
    source = getattr(function, "source", None) or textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, f"{owner.__name__}.{method} has {source.count(old)} of {old!r}"
    source = source.replace(old, new)
    flags = __future__.annotations.compiler_flag
    code = compile(source, f"{owner.__name__}.{method}, mutated", "exec", flags=flags, dont_inherit=True)
    made: dict[str, Any] = {}
    exec(code, function.__globals__, made)
    made[method].source = source  # for another edit of the same
    patch.setattr(owner, method, made[method])
