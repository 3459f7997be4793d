"""Whether this machine gets the portable CPU platform: the entry point of group `sglang.srt.platforms`.

SGLang calls `activate()` once in every process, while `sglang.srt.utils.common` is being imported. It must therefore
be light, and must not import anything of sglang that is not already loaded.
"""

import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType

PLATFORM_CLASS = "swift_tiers.sglang_ext.platform.cpu_platform:PortableCpuPlatform"
GROUP = "sglang.srt.platforms"
ENTRY_POINT = "swift-tiers-cpu"


def activate() -> str | None:
    """Name of the platform class (`module:class`), or None: not our machine, SGLang decides as without us.

    None where any accelerator is present, where `SGLANG_USE_CPU_ENGINE` asks for SGLang's own CPU engine (AMX kernels)
    and where `SGLANG_PLATFORM` names somebody else's platform, or none of several that are installed.
    """
    _show_plugin_flags_in_help(sys.argv[1:])
    if _user_chose_otherwise(os.environ) or has_accelerator() or _others_come_first(os.environ):
        return None
    # Read when OpenMP is loaded, so it holds for the child processes, which do the computing. By default OpenMP's
    # threads spin while they wait, and where they share their cores with anything (another server, our own copies),
    # a step of one token takes ten times as long.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    return PLATFORM_CLASS


def _user_chose_otherwise(environ: "os._Environ[str] | dict[str, str]") -> bool:
    chosen = environ.get("SGLANG_PLATFORM", "")
    return (bool(chosen) and chosen != ENTRY_POINT) or environ.get("SGLANG_USE_CPU_ENGINE", "0") == "1"


def _others_come_first(environ: "os._Environ[str] | dict[str, str]") -> bool:
    """Whether somebody has installed a platform and the user has chosen none. SGLang refuses to start where two feel
    responsible, and whether the other one does, for a device that torch may know nothing of, it alone can say."""
    if environ.get("SGLANG_PLATFORM"):
        return False
    return any(other.name != ENTRY_POINT for other in importlib.metadata.entry_points(group=GROUP))


def has_accelerator() -> bool:
    """True if torch sees a device of any kind but a CPU. ROCm and SAIL answer as CUDA."""
    import torch

    if torch.cuda.is_available():
        return True
    # "npu", "musa" and "hpu" exist on torch only once their vendor's package has been imported; "accelerator" is a
    # device of whatever name.
    for kind in ("xpu", "mps", "npu", "musa", "hpu", "accelerator"):
        module = getattr(torch, kind, None)
        if module is not None and hasattr(module, "is_available") and module.is_available():
            return True
    # A build of torch for MUSA has the version tag even before its device module is loaded.
    return getattr(torch.version, "musa", None) is not None


class _LoadPluginsAfter(importlib.abc.MetaPathFinder):
    """Loads the general plugins as soon as `sglang.srt.server_args` has been executed."""

    target = "sglang.srt.server_args"

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.target:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            from sglang.srt.plugins import load_plugins

            load_plugins()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _show_plugin_flags_in_help(arguments: Sequence[str]) -> None:
    """Makes `sglang serve --help` show the flags of general plugins.

    `sglang serve` prints its help before it calls `load_plugins()` (sglang/cli/serve.py), so a plugin's flags would be
    missing just where an operator looks for them. This entry point is the only code of ours that runs earlier, and it
    runs too early to load them itself: `sglang.srt.server_args`, which the plugins extend, is not imported yet. So, and
    only when help was asked for, the plugins are loaded right after that module. `load_plugins()` runs once a process,
    whoever calls it first.
    """
    if not any(word in ("-h", "--help") for word in arguments):
        return
    if _LoadPluginsAfter.target in sys.modules or any(
        isinstance(finder, _LoadPluginsAfter) for finder in sys.meta_path
    ):
        return
    sys.meta_path.insert(0, _LoadPluginsAfter())
