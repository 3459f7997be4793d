"""What a source tree has and a wheel has not: the simulation, the evaluations and the developers' benches of `ops/lab`.

Commands find them by name, so that what is installed stands without them.
"""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from ..base.errors import CommandError

LAB = "swift_tiers.ops.lab"


def has_lab() -> bool:
    """Whether this installation is a source tree."""
    return importlib.util.find_spec(LAB) is not None


def lab_module(name: str, command: str) -> ModuleType:
    """The module `ops/lab/NAME`, for `swift-tiers COMMAND`. Raises CommandError where there is no source tree."""
    if not has_lab():
        raise CommandError(f"{command} is part of the source tree, not of the wheel: there, run `./swift {command}`")
    return importlib.import_module(f"{LAB}.{name}")
