"""Every method of SGLang's that a class of ours overrides is in the checked table, with its parameters and a reason."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator

import pytest

from swift_tiers import sglang_ext
from swift_tiers.sglang_ext.hooks import check_hook, scheduler_hooks
from swift_tiers.sglang_ext.overrides import (
    allocator_overrides,
    cpu_overrides,
    linker_overrides,
    overrides,
    storage_overrides,
    swiftkv_overrides,
    tree_overrides,
)

#: Classes that SGLang wants to be derived from, by which it says what may be overridden: its platforms, and a model's
#: classes, whose parents are in the table by themselves.
OFFERED = {"SRTPlatform", "CpuSRTPlatform", "CpuDeviceMixin", "DeviceMixin", "ServerArgs", "Module", "AttentionBackend"}


def classes_of_ours() -> Iterator[type]:
    for module in pkgutil.walk_packages(sglang_ext.__path__, f"{sglang_ext.__name__}."):
        if ".models" in module.name:
            continue
        for found in vars(importlib.import_module(module.name)).values():
            if inspect.isclass(found) and found.__module__ == module.name:
                yield found


def overridden() -> dict[str, str]:
    """The method of SGLang's, by its dotted path -> who overrides it."""
    found = {}
    for one in classes_of_ours():
        theirs = [base for base in one.__mro__ if base.__module__.startswith("sglang.")]
        for name, value in vars(one).items():
            home = next((base for base in theirs if name in vars(base)), None)
            if home is None or home.__name__ in OFFERED or not inspect.isfunction(value) or name in vars(object):
                continue
            if inspect.isfunction(inspect.unwrap(vars(home)[name])):
                found[f"{home.__module__}.{home.__qualname__}.{name}"] = f"{one.__module__}.{one.__qualname__}"
    return found


def test_every_override_is_in_the_table() -> None:
    known = {hook.target for hook in scheduler_hooks()} | {override.target for override in overrides()}
    known |= {override.target for override in cpu_overrides()}
    missing = {method: who for method, who in overridden().items() if method not in known}
    assert list(missing.items()) == []
    assert len(overridden()) > 40, "this looks at nothing"


@pytest.mark.parametrize(
    "table", [tree_overrides, linker_overrides, allocator_overrides, storage_overrides, swiftkv_overrides]
)
def test_every_method_in_the_table_is_as_it_says(table) -> None:
    for override in table():
        check_hook(override)
    assert len({override.target for override in table()}) == len(table())
