"""Python, SGLang, our place in it, and the compiler."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib import metadata
from typing import Any, NamedTuple

from swift_tiers.radix_tiering.base.release import required_sglang

from .finding import Check, Finding, note, ok, warning, wrong

#: As `requires-python` says it: from the first, below the second.
PYTHON_FROM, PYTHON_BELOW = (3, 11), (3, 13)
PLUGINS, PLATFORMS = "sglang.srt.plugins", "sglang.srt.platforms"
PLUGIN, PLATFORM = "swift-tiers", "swift-tiers-cpu"
#: Seconds that importing SGLang's scheduler may take on a slow disk, for the first time.
IMPORT_SECONDS = 180.0
#: Seconds that compiling SGLang's page hash may take.
COMPILE_SECONDS = 180.0
_REINSTALL = "install the pinned one into this environment: pip install --force-reinstall sglang=={}"


class EntryPoint(NamedTuple):
    """One line of what is installed here for SGLang to find."""

    name: str
    value: str
    distribution: str


def checks() -> Iterator[Check]:
    required = required_sglang()
    yield Check("Python", lambda: python(sys.version_info[:3]))
    yield Check("SGLang", lambda: sglang_version(_installed("sglang"), required))
    yield Check("plugin entry point", lambda: plugin(_entry_points(PLUGINS), os.environ.get("SGLANG_PLUGINS", "")))
    yield Check("platform plugins", lambda: platforms(_entry_points(PLATFORMS), os.environ.get("SGLANG_PLATFORM", "")))
    # Before the scheduler, whose import fails as well where no platform can be chosen.
    yield Check("platform chosen", lambda: chosen_platform(_resolve_platform), IMPORT_SECONDS)
    yield Check("SGLang's scheduler", partial(scheduler_import, _import_scheduler, required), IMPORT_SECONDS)
    yield Check("hook targets", partial(after_import, _import_scheduler, _hook_targets), IMPORT_SECONDS)
    yield Check("--enable-swift-tiers", partial(after_import, _import_scheduler, _flag), IMPORT_SECONDS)
    yield Check("compiler", partial(after_import, _import_scheduler, _compiler), COMPILE_SECONDS)


def python(version: tuple[int, int, int]) -> Finding:
    text = ".".join(map(str, version))
    if PYTHON_FROM <= version[:2] < PYTHON_BELOW:
        return ok(text)
    return wrong(text, f"make the environment with Python {PYTHON_FROM[0]}.{PYTHON_FROM[1]} or 3.{PYTHON_BELOW[1] - 1}")


def sglang_version(installed: str | None, required: str | None) -> Finding:
    if required is None:
        return wrong("swift-tiers is not installed in this environment", "pip install . in a checkout of swift-tiers")
    if installed is None:
        return wrong("not installed", f"pip install sglang=={required}")
    if installed != required:
        return wrong(f"{installed}, this version of swift-tiers is for {required}", _REINSTALL.format(required))
    return ok(installed)


def plugin(found: Sequence[EntryPoint], allowed: str) -> Finding:
    """Whether SGLang will find and load us. `allowed`: the environment variable SGLANG_PLUGINS."""
    ours = [one for one in found if one.name == PLUGIN]
    others = sorted({one.name for one in found} - {PLUGIN})
    if not ours:
        return wrong("SGLang finds no swift-tiers here", "pip install . in a checkout of swift-tiers, into this Python")
    names = {name.strip() for name in allowed.split(",") if name.strip()}
    if names and PLUGIN not in names:
        return wrong(f"SGLANG_PLUGINS={allowed} leaves swift-tiers out", f"unset it, or add {PLUGIN} to it")
    if len(ours) > 1:
        where = ", ".join(one.distribution for one in ours)
        return warning(
            f"installed {len(ours)} times ({where})", "pip uninstall swift-tiers until none is left, then once"
        )
    if others:
        return ok(f"installed, beside {', '.join(others)}")
    return ok("installed")


def platforms(found: Sequence[EntryPoint], selected: str) -> Finding:
    """Whether another platform plugin gets in the way. `selected`: the environment variable SGLANG_PLATFORM."""
    names = {one.name for one in found}
    others = sorted(names - {PLATFORM})
    if selected and selected not in names:
        return wrong(
            f"SGLANG_PLATFORM={selected} names none that is installed ({', '.join(sorted(names)) or 'none is'})",
            "unset SGLANG_PLATFORM, or install what it names",
        )
    if PLATFORM not in names:
        return wrong(f"SGLang finds no {PLATFORM} here", "pip install . in a checkout of swift-tiers, into this Python")
    if others and not selected:
        return note(
            f"{', '.join(others)}, which {PLATFORM} leaves this machine to",
            f"to serve on its processors, set SGLANG_PLATFORM={PLATFORM}",
        )
    return ok(f"only {PLATFORM}" if not selected else f"SGLANG_PLATFORM={selected}")


def chosen_platform(resolve: Callable[[], str]) -> Finding:
    """`resolve` does what a server does at its start, and raises RuntimeError as it does."""
    try:
        return ok(resolve())
    except RuntimeError as error:
        return wrong(_one_line(error), "set SGLANG_PLATFORM to the one that is meant, or unset it")


def scheduler_import(
    load: Callable[[], Any],
    required: str | None,
    modules: Callable[[], Iterable[Any]] = lambda: list(sys.modules.values()),
) -> Finding:
    """`modules`: what is imported then."""
    start = time.perf_counter()
    try:
        load()
    except Exception as error:  # noqa: BLE001 - anything may be missing in a half-updated environment
        remedy = f"unless a line above says why, {_REINSTALL.format(required or 'VERSION')}"
        return wrong(f"cannot be imported: {type(error).__name__}: {_one_line(error)}", remedy)
    seconds = time.perf_counter() - start
    anew = uncompiled(modules()) if sys.dont_write_bytecode else 0
    slow = f"; every start compiles {anew} modules anew: PYTHONDONTWRITEBYTECODE is set" if anew else ""
    return ok(f"imported in {seconds:.1f} s{slow}")


def uncompiled(modules: Iterable[Any]) -> int:
    """How many of them lie on disk as source alone."""
    files = [getattr(module, "__cached__", None) for module in modules]
    return sum(isinstance(file, str) and not os.path.exists(file) for file in files)


def after_import(load: Callable[[], Any], look: Callable[[], Finding]) -> Finding:
    """What `look` finds, where SGLang can be imported at all."""
    try:
        load()
    except Exception:  # noqa: BLE001 - `scheduler_import` has said it
        return note("not known: SGLang's scheduler cannot be imported")
    return look()


def hook_targets(hooks: Iterable[Any], check: Callable[[Any], None]) -> Finding:
    """`check` raises HookMismatchError for a hook whose target is not as it must be."""
    from swift_tiers.sglang_ext.hooks import HookMismatchError

    hooks = tuple(hooks)
    problems = []
    for hook in hooks:
        try:
            check(hook)
        except HookMismatchError as error:
            problems.append(str(error).partition(": SGLang ")[0])
    if problems:
        found = f"{len(problems)} of {len(hooks)} not as expected: {'; '.join(problems)}"
        return wrong(found, _REINSTALL.format(required_sglang() or "VERSION"))
    return ok(f"all {len(hooks)} are there and take what is expected")


def flag(load: Callable[[], None], server_args: Callable[[], type]) -> Finding:
    """Whether SGLang's command line knows us once our plugin has been loaded."""
    load()
    if hasattr(server_args(), "enable_swift_tiers"):
        return ok("SGLang takes it")
    return wrong("SGLang does not know the flag", "look for `plugin` in the server's first lines of log, and report it")


def compiler(which: Callable[[str], str | None], load_hash: Callable[[], bool]) -> Finding:
    """Never more than a note: without one, a page hash in Python takes the place of SGLang's."""
    missing = [name for name in ("g++", "ninja") if which(name) is None]
    if missing:
        return note(
            f"no {' and no '.join(missing)}: page keys are hashed in Python, about five times slower",
            "install g++, ninja and the OpenSSL headers (Debian: g++ ninja-build libssl-dev)",
        )
    if not load_hash():
        return note(
            "SGLang's page hash cannot be compiled: page keys are hashed in Python, about five times slower",
            "install the OpenSSL headers (Debian: libssl-dev); the server's log names the error",
        )
    return ok("SGLang's page hash is compiled")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _entry_points(group: str) -> list[EntryPoint]:
    # One distribution may be found by two ways (an editable install seen from its checkout); SGLang takes each once.
    found = {(one.name, one.value, one.dist.name if one.dist else "?") for one in metadata.entry_points(group=group)}
    return [EntryPoint(*one) for one in sorted(found)]


def _import_scheduler() -> None:
    importlib.import_module("sglang.srt.managers.scheduler")


def _resolve_platform() -> str:
    from sglang.srt import platforms as sglang_platforms

    return type(sglang_platforms.current_platform).__name__


def _hook_targets() -> Finding:
    from swift_tiers.sglang_ext.hooks import check_hook, scheduler_hooks
    from swift_tiers.sglang_ext.overrides import overrides

    return hook_targets((*scheduler_hooks(), *overrides()), check_hook)


def _flag() -> Finding:
    from sglang.srt import server_args

    from swift_tiers.sglang_ext.plugin import load

    # The attribute is looked up afterwards: our plugin puts another class there.
    return flag(load, lambda: server_args.ServerArgs)


def _compiler() -> Finding:
    from swift_tiers.sglang_ext.build.page_hash import prepare_page_hash

    return compiler(shutil.which, prepare_page_hash)
