"""Processes that begin with SGLang imported, and its plugins loaded: each is forked from one that has done so once.

A server spends nearly all of its start on that, three times over: the launched process, the scheduler and the
detokenizer. What runs in a forked one is the same code in the same processes; only `python -m` and `spawn` are left
out, and `e2e/test_entry_points.py` starts servers by those.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import types
from collections.abc import Sequence
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO
from unittest import mock

from swift_tiers.ops.commands.demo.servers import Server

#: Of the variables that SGLang and Triton know, those that are read when they are needed. All others may be read while
#: a module is imported: a process that is to have another value than the one that was loaded has to import it itself.
READ_WHEN_USED = {
    "SGLANG_CPU_OMP_THREADS_BIND",
    "SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR",
    "SGLANG_MAMBA_CONV_DTYPE",
    "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND",
}
#: Set where SGLang is imported, if they are not: in the process that the others are forked from as in ours.
SET_BY_IMPORTS = {"OMP_WAIT_POLICY", "TRITON_CACHE_DIR"}
KNOWN_TO_IMPORTS = ("SGLANG_", "TRITON_", "TORCH_", "OMP_")
PR_SET_PDEATHSIG = 1
CONTEXT = multiprocessing.get_context("forkserver")


class Zygote(forkserver.ForkServer):
    """The process that others are forked from: one for each environment that imports know."""

    def __init__(self, environment: dict[str, str]) -> None:
        super().__init__()
        self.set_forkserver_preload(["support.preloaded"])
        self._environment = environment

    def ensure_running(self) -> None:
        ours = dict(os.environ)
        become(self._environment)  # it begins with ours
        try:
            super().ensure_running()
        finally:
            become(ours)


@functools.cache
def loaded() -> dict[str, str]:
    """The environment that processes are forked with, but for what imports know of another one."""
    # Children find `support` as we do.
    paths = [*sys.path[:1], *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    multiprocessing.get_context("forkserver").set_forkserver_preload(["support.preloaded"])
    return dict(os.environ)


@functools.cache
def _zygote(differing: tuple[tuple[str, str | None], ...]) -> Zygote:
    changed = {**loaded(), **dict(differing)}
    return Zygote({name: value for name, value in changed.items() if value is not None})


def start(process: multiprocessing.process.BaseProcess, environment: dict[str, str]) -> None:
    """Start a process of `CONTEXT`, which is to become one with this environment: it is forked from one that has
    imported SGLang under it."""
    before = loaded()
    differing = {name for name in before.keys() | environment.keys() if before.get(name) != environment.get(name)}
    differing -= READ_WHEN_USED | {name for name in SET_BY_IMPORTS if name not in before}
    known = sorted(name for name in differing if name.startswith(KNOWN_TO_IMPORTS))
    if not known:
        process.start()
        return
    zygote = _zygote(tuple((name, environment.get(name)) for name in known))
    with mock.patch.object(forkserver, "connect_to_new_process", zygote.connect_to_new_process):
        process.start()


def become(environment: dict[str, str]) -> None:
    """In a child: have this environment instead of the one that the forking process began with."""
    os.environ.clear()
    os.environ.update(environment)


class Forked:
    """A process as `subprocess.Popen` shows it."""

    def __init__(self, process: multiprocessing.process.BaseProcess) -> None:
        assert process.pid is not None
        self.pid = process.pid
        self._process = process

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired("a forked server", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


class ForkedServer(Server):
    """`python -m sglang.launch_server`, but for the imports."""

    patience = 120.0
    log_lines = 200  # what a rank wrote that failed is followed by what others wrote that it took along
    prepare = ""  # functions that are called in it before anything else, see `call_by_path`

    def _spawn(self, environment: dict[str, str], log: IO[bytes]) -> Forked:  # type: ignore[override]
        ours, theirs = CONTEXT.Pipe()
        process = CONTEXT.Process(
            target=_launch, args=(theirs, self.command[3:], environment, str(self.log), os.getcwd(), self.prepare)
        )
        start(process, environment)
        theirs.close()
        ours.recv()  # it leads a process group of its own by now, so that signals reach it
        ours.close()
        return Forked(process)


def run(code: str, *arguments: str, said: str = "", timeout: float = 600) -> subprocess.CompletedProcess[str]:
    """`python -c CODE ARGUMENTS`, but for the imports; `said`: on its standard input."""
    with tempfile.TemporaryDirectory(prefix="swift-forked-") as folder:
        Path(folder, "in").write_text(said)
        process = CONTEXT.Process(target=_run, args=(code, arguments, dict(os.environ), folder, os.getcwd()))
        start(process, dict(os.environ))
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(code, timeout)
        told, complained = (Path(folder, name).read_text() for name in ("out", "error"))
    return subprocess.CompletedProcess(arguments, process.exitcode, told, complained)


def _run(code: str, arguments: Sequence[str], environment: dict[str, str], folder: str, directory: str) -> None:
    _leave_the_forking_process()
    become(environment)
    os.chdir(directory)
    for descriptor, name, flags in ((0, "in", os.O_RDONLY), (1, "out", os.O_WRONLY), (2, "error", os.O_WRONLY)):
        opened = os.open(Path(folder, name), flags | os.O_CREAT)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.stdin = os.fdopen(0, "r", closefd=False)
    _write_at_once()
    _fork_from_here_on()
    sys.argv = ["-c", *arguments]
    # As `python -c` does: what it is asks by this name, and what it raises ends it.
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    exec(compile(code, "<string>", "exec"), main.__dict__)


def _leave_the_forking_process() -> None:
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    # The forking process ends when nobody holds this any more; others are to end with it, and not to keep it.
    alive = forkserver._forkserver._forkserver_alive_fd
    if alive is not None:
        os.close(alive)


def _write_at_once() -> None:
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)


def _fork_from_here_on() -> None:
    """SGLang asks for "spawn": its children are forked as well, with all that is imported."""
    multiprocessing.set_start_method("fork", force=True)
    multiprocessing.set_start_method = lambda *_, **__: None


def call_by_path(paths: str) -> None:
    """Call functions that are named by their dotted paths, with blanks between them, one after the other."""
    for path in paths.split():
        module, name = path.rsplit(".", 1)
        getattr(importlib.import_module(module), name)()


def _launch(
    ready: Connection,
    arguments: Sequence[str],
    environment: dict[str, str],
    log: str,
    directory: str,
    prepare: str,
) -> None:
    _leave_the_forking_process()
    become(environment)
    os.chdir(directory)
    written = os.open(log, os.O_WRONLY | os.O_APPEND)
    for descriptor in (1, 2):
        os.dup2(written, descriptor)
    os.close(written)
    _write_at_once()
    ready.send(None)
    ready.close()
    _fork_from_here_on()
    call_by_path(prepare)
    sys.argv = ["sglang.launch_server", *arguments]
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)
