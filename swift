#!/usr/bin/env python3
"""The checkout's own command: sets up `.venv` from the lock file, then runs.

    ./swift test [PYTEST ARGS]   format check, lint, type check, then the test suite
    ./swift test --all           the same with every variant and every random example
    ./swift setup                only prepare `.venv`
    ./swift setup --remote       the same, and put Mooncake Store and NIXL there, for the tests that drive them
    ./swift python ARGS          python of the project's environment
    ./swift X ARGS               `swift-tiers X ARGS` in the project's environment

Needs nothing but python3 (3.11 or 3.12) with venv and pip. A second run re-installs only if the lock changed.
"""

import contextlib
import fcntl
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOCK = ROOT / "requirements.lock"
#: Of the optional dependency group `remote`, what the other one has not.
REMOTE_LOCK = ROOT / "requirements-remote.lock"
UV_VERSION = "0.13.8"
#: Kernels are compiled when they are first imported, and kept.
COMPILE = (
    "import swift_tiers.radix_tiering.table.kernels, swift_tiers.radix_tiering.table.newest_first, "
    "swift_tiers.radix_tiering.tiers.ssd.io_thread"
)


def die(message: str, code: int = 1) -> None:
    print(f"swift: {message}", file=sys.stderr)
    raise SystemExit(code)


def run(command: "list[str]", **environment: str) -> None:
    result = subprocess.run(command, cwd=ROOT, env={**os.environ, **environment})
    if result.returncode:
        die(f"`{' '.join(str(word) for word in command[:4])} …` failed with exit code {result.returncode}")


def fingerprint() -> str:
    """Changes when anything that decides the environment's content changes."""
    digest = hashlib.sha256(UV_VERSION.encode())
    for path in (LOCK, ROOT / "pyproject.toml"):
        digest.update(path.read_bytes())
    digest.update(f"{ROOT} {sys.version_info[:2]}".encode())
    return digest.hexdigest()


def make_venv() -> None:
    if not (3, 11) <= sys.version_info[:2] <= (3, 12):
        die(
            f"python {sys.version.split()[0]} is not supported: run it as `python3.11 swift …` or `python3.12 swift …`"
        )
    venv = subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], capture_output=True, text=True)
    if venv.returncode:
        die(
            "cannot make a virtual environment: install python3's venv and pip "
            "(Debian, Ubuntu: apt install python3-venv)"
        )


def setup() -> None:
    home = VENV.resolve().parent
    if home != ROOT and (home / "swift").is_file():
        die(
            f".venv is a link to the environment of the checkout {home}, which would then run this one's code: "
            "remove the link, and `./swift setup` makes this one's own"
        )
    stamp = VENV / ".swift-setup"
    wanted = fingerprint()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    # Two first runs at once (a test and a demo) must not both build the environment.
    with open(ROOT / ".setup.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if stamp.exists() and stamp.read_text() == wanted:
            return
        started = time.monotonic()
        print("swift: preparing .venv (about a minute, 10 GB, once)", file=sys.stderr)
        if not PYTHON.exists() or not stamp.exists():
            make_venv()
        pip = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run([*pip, f"uv=={UV_VERSION}"])
        uv = [str(VENV / "bin" / "uv"), "pip"]
        environment = {"VIRTUAL_ENV": str(VENV), "UV_COMPILE_BYTECODE": "1", "UV_PYTHON_DOWNLOADS": "never"}
        run([*uv, "install", "--quiet", "--require-hashes", "-r", str(LOCK)], **environment)
        run([*uv, "install", "--quiet", "--no-deps", "--no-build-isolation", "-e", "."], **environment)
        # So that what is tried first does not wait for it.
        run([str(PYTHON), "-c", COMPILE])
        stamp.write_text(wanted)
        print(f"swift: ready after {time.monotonic() - started:.0f} s", file=sys.stderr)


def setup_remote() -> None:
    uv = [str(VENV / "bin" / "uv"), "pip", "install", "--quiet", "--require-hashes", "--no-deps"]
    run([*uv, "-r", str(REMOTE_LOCK)], VIRTUAL_ENV=str(VENV), UV_PYTHON_DOWNLOADS="never")


def collecting() -> "subprocess.Popen[bytes]":
    """pytest reads all test files, which it compiles in its own way, and keeps. Types are checked meanwhile, on one core;
    else each of three processes would do it. What is wrong with them the run itself says."""
    command = [str(PYTHON), "-m", "pytest", "--collect-only", "-qq"]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def test(arguments: "list[str]") -> None:
    python = str(PYTHON)
    run([python, "-m", "ruff", "format", "--check", "--quiet", "."])
    run([python, "-m", "ruff", "check", "--quiet", "."])
    # Hundreds of processes import the same modules, which are compiled once.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # Compiled here once, and not by every process of the suite.
    run([python, "-c", COMPILE])
    whole = set(arguments) <= {"--all"}
    rooms = ("kernels", "radix_tiering", "sglang_ext", "console", "ops")
    with collecting() if whole else contextlib.nullcontext():
        run([python, "-m", "mypy", *(word for room in rooms for word in ("-p", f"swift_tiers.{room}"))])
    if whole:
        # One process for the tests that start servers, which wait for much of their time, and two for all others. A
        # fourth was tried on two cores: it is no faster, and what is slow then runs into its time limit.
        arguments += ["-n", "3", "--dist", "loadgroup", "--no-loadscope-reorder"]
    os.chdir(ROOT)
    os.execv(python, [python, "-m", "pytest", *arguments])


def main() -> None:
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return
    setup()
    command, rest = arguments[0], arguments[1:]
    if command == "setup":
        if rest == ["--remote"]:
            setup_remote()
        elif rest:
            die(f"setup: {rest[0][:40]!r} is not --remote", 2)
        return
    if command == "test":
        test(rest)
    elif command == "python":
        os.execv(str(PYTHON), [str(PYTHON), *rest])
    else:
        # In the caller's directory, in which relative names are meant; -P: but no module is taken from there.
        os.execv(str(PYTHON), [str(PYTHON), "-P", "-m", "swift_tiers.ops", *arguments])


if __name__ == "__main__":
    main()
