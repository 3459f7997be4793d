"""A function with one thing wrong in it, for as long as a test looks whether that is found."""

from __future__ import annotations
import __future__

import inspect
import re
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from swift_tiers.radix_tiering.table import kernels

FLAGS = __future__.annotations.compiler_flag


def mutate(patch: pytest.MonkeyPatch, owner: Any, method: str, old: str, new: str) -> None:
    """Replace `old` by `new` in a method of `owner`, or in a kernel. Raises AssertionError unless it stands there
    once."""
    if owner is kernels:
        _mutate_kernel(patch, method, old, new)
        return
    function: Any = getattr(owner, method)
    source = getattr(function, "source", None) or textwrap.dedent(inspect.getsource(function))
    source = _replaced(source, f"{owner.__name__}.{method}", old, new)
    code = compile(source, f"{owner.__name__}.{method}, mutated", "exec", flags=FLAGS, dont_inherit=True)
    made: dict[str, Any] = {}
    exec(code, function.__globals__, made)
    made[method].source = source  # for another edit of the same
    patch.setattr(owner, method, made[method])


def _replaced(source: str, name: str, old: str, new: str) -> str:
    assert source.count(old) == 1, f"{name} has {source.count(old)} of {old!r}"
    return source.replace(old, new)


def _mutate_kernel(patch: pytest.MonkeyPatch, name: str, old: str, new: str) -> None:
    """All kernels are interpreted then: to compile them takes longer than the worlds that find what is wrong."""
    whole = inspect.getsource(kernels)
    function = re.search(rf"^def {name}\(.*?(?=^@|\Z)", whole, re.MULTILINE | re.DOTALL)
    assert function is not None, f"there is no kernel {name}"
    edited = whole.replace(function[0], _replaced(function[0], f"kernels.{name}", old, new))
    entries = re.findall(r"^@_entry\(.*\)\ndef (\w+)", edited, re.MULTILINE)
    assert len(entries) > 20, "how kernels are declared has changed"
    plain = re.sub(r"^@_(part|entry\(.*\))\n", "", edited, flags=re.MULTILINE)
    made: dict[str, Any] = {"__name__": kernels.__name__, "__package__": kernels.__package__}
    exec(compile(plain, "kernels, mutated", "exec", flags=FLAGS, dont_inherit=True), made)
    for entry in entries:
        patch.setattr(kernels, entry, _over_plain_numbers(made[entry]))


class PlainArray(np.ndarray):
    """One whose elements are Python's own numbers, which neither wrap around nor warn."""

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        return found.item() if isinstance(found, np.generic) else found


def _over_plain_numbers(kernel: Callable[..., Any]) -> Callable[..., Any]:
    def interpreted(*arguments: Any) -> Any:
        return kernel(*(one.view(PlainArray) if isinstance(one, np.ndarray) else one for one in arguments))

    return interpreted
