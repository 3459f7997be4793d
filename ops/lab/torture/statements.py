"""Lets threads switch between any two statements of the engine, so that a lock that is missing shows.

The virtual runner switches where something waits, wakes or looks at the clock; what lies between is atomic there. Here
the engine's functions are compiled once more with a turn before each statement, and between the read and the write of
`x.a += 1`; while `switching` lasts they have that code.
"""

from __future__ import annotations
import __future__

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType
from typing import Any

from swift_tiers.radix_tiering.base.virtual import VirtualRunner

ENGINE = "swift_tiers.radix_tiering"
#: What makes the turns, and models of devices, which have no locks to miss.
LEFT_ALONE = (f"{ENGINE}.base.virtual", f"{ENGINE}.base.runner", f"{ENGINE}.tiers.testing")
#: Called inside of dictionaries and sorting, which nobody may leave half way.
NEVER_INSIDE = {"__hash__", "__eq__", "__lt__"}
#: The share of statements at which the runner draws whether another thread goes on.
SHARE = 0.2
TURN, HAD = "__turn__", "__had__"

_runner: VirtualRunner | None = None
_codes: dict[str, dict[tuple[str, int], CodeType]] = {}


def turn() -> None:
    """Another thread may go on here."""
    if _runner is not None and _runner.current is not None and _runner.random.random() < SHARE:
        _runner.step()


@contextmanager
def switching() -> Iterator[None]:
    """While it lasts, threads of the runner that is `used` switch between statements."""
    before: list[tuple[FunctionType, CodeType]] = []
    try:
        for function in _functions():
            code = _code_of(function)
            if code is not None and code.co_freevars == function.__code__.co_freevars:
                function.__globals__[TURN] = turn
                before.append((function, function.__code__))
                function.__code__ = code
        yield
    finally:
        use(None)
        for function, code in before:
            function.__code__ = code


def use(runner: VirtualRunner | None) -> None:
    """Whose threads switch; None: nobody's."""
    global _runner
    _runner = runner


def _functions() -> Iterator[FunctionType]:
    """Every function and method of the engine's modules that are loaded."""
    for name, module in sorted(sys.modules.items()):
        if name.startswith(f"{ENGINE}.") and not name.startswith(LEFT_ALONE):
            seen: set[int] = set()
            for value in list(vars(module).values()):
                yield from _within(value, name, seen)


def _within(value: Any, module: str, seen: set[int]) -> Iterator[FunctionType]:
    if id(value) in seen or getattr(value, "__module__", module) != module:
        return
    seen.add(id(value))
    if isinstance(value, type):
        for member in list(vars(value).values()):
            yield from _within(member, module, seen)
        return
    if isinstance(value, property):
        for part in (value.fget, value.fset):
            yield from _within(part, module, seen)
        return
    value = inspect.unwrap(getattr(value, "__func__", getattr(value, "func", value)))
    written_there = isinstance(value, FunctionType) and value.__globals__.get("__name__") == module
    if written_there and value.__name__ not in NEVER_INSIDE:
        yield value


def _code_of(function: FunctionType) -> CodeType | None:
    """The code of a function with turns in it; None where its source is not to be had."""
    if (source := getattr(function, "source", None)) is not None:  # it has been made from a text that it tells
        codes = _compiled(textwrap.dedent(source), function.__code__.co_filename)
        return next((code for (name, _), code in codes.items() if name == function.__name__), None)
    module: ModuleType = sys.modules[function.__module__]
    if module.__name__ not in _codes:
        _codes[module.__name__] = _compiled(inspect.getsource(module), module.__file__ or "")
    return _codes[module.__name__].get((function.__code__.co_qualname, function.__code__.co_firstlineno))


def _compiled(source: str, filename: str) -> dict[tuple[str, int], CodeType]:
    """Every function's code with turns, by its qualified name and its first line."""
    tree = ast.fix_missing_locations(_Turns().visit(ast.parse(source)))
    flags = __future__.annotations.compiler_flag
    found: dict[tuple[str, int], CodeType] = {}
    left = [compile(tree, filename, "exec", flags=flags, dont_inherit=True)]
    while left:
        code = left.pop()
        found[code.co_qualname, code.co_firstlineno] = code
        left += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return found


class _Turns(ast.NodeTransformer):
    """Puts turns into the bodies of functions."""

    def __init__(self) -> None:
        self._inside = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self._inside += 1
        self.generic_visit(node)
        self._inside -= 1
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if self._inside and not isinstance(node, (ast.ClassDef, ast.Lambda)):
            for field in ("body", "orelse", "finalbody"):
                if isinstance(body := getattr(node, field, None), list):
                    setattr(node, field, [one for statement in body for one in self._with_turns(statement)])
        return node

    def _with_turns(self, statement: ast.stmt) -> list[ast.stmt]:
        if isinstance(statement, (ast.Global, ast.Nonlocal)) or _is_text(statement):
            return [statement]
        if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Attribute):
            return [_turn(statement), *_split(statement, statement.target)]
        return [_turn(statement), statement]


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _turn(at: ast.stmt) -> ast.stmt:
    return ast.copy_location(ast.Expr(ast.Call(ast.Name(TURN, ast.Load()), [], [])), at)


def _split(statement: ast.AugAssign, target: ast.Attribute) -> list[ast.stmt]:
    """`x.a += v` as what it does: it reads, computes and writes."""
    read = ast.Assign([ast.Name(HAD, ast.Store())], ast.Attribute(target.value, target.attr, ast.Load()))
    compute = ast.AugAssign(ast.Name(HAD, ast.Store()), statement.op, statement.value)
    write = ast.Assign([target], ast.Name(HAD, ast.Load()))
    return [ast.copy_location(read, statement), _turn(statement), ast.copy_location(compute, statement),
            ast.copy_location(write, statement)]  # fmt: skip
