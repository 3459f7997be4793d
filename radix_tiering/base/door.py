"""A package's door: its public names, each imported when it is first asked for.

A package is imported with every module in it, and SGLang imports some of ours in each of its processes: a door that
imported what it names would make all of them heavy. So what a door names stands under `if TYPE_CHECKING`, where type
checkers and readers find it, and is imported from there, name by name:

    if TYPE_CHECKING:
        from .stack import TierStack
    else:
        __getattr__ = lazily(__name__)

    __all__ = ["TierStack"]
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def lazily(package: str) -> Callable[[str], Any]:
    """The `__getattr__` of a package."""

    def look_up(name: str) -> Any:
        # Dunders are asked for by Python itself, of every module.
        home = None if name.startswith("__") else _homes(package).get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(home, package), name)
        setattr(sys.modules[package], name, value)  # so it is looked up only once
        return value

    return look_up


@cache
def _homes(package: str) -> dict[str, str]:
    """The module of each name that the package imports under `if TYPE_CHECKING`."""
    spec = find_spec(package)
    source = None if spec is None or spec.loader is None else spec.loader.get_source(package)  # type: ignore[attr-defined]
    return {
        alias.name: f"{'.' * node.level}{node.module}"
        for block in ast.parse(source or "").body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
