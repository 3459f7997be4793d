"""Real SGLang servers as child processes that always end."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from ...base.errors import CommandError

#: Seconds a server may take to end after SIGTERM: it writes its SSD checkpoint then.
STOP_SECONDS = 60.0
#: Seconds between two looks whether a server is ready.
POLL_SECONDS = 0.5
#: Lines of a dead server's log that are shown.
LOG_LINES = 12
#: The first and the last port that the kernel gives to a connection that asks for none.
OUTGOING_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
#: The first of those that SGLang looks among for where a server's ranks meet (`get_free_port_below_ephemeral`).
SGLANGS_PORTS = 22_000
_given: set[int] = set()  # by `free_ports`
# Runs the rest of its command line in its place, after asking the kernel for SIGTERM should its parent die: a demo
# that is killed with SIGKILL must not leave servers behind either.
TIED_TO_PARENT = (
    "import ctypes, os, signal, sys; ctypes.CDLL(None).prctl(1, signal.SIGTERM); os.execv(sys.argv[1], sys.argv[1:])"
)


class ServerError(CommandError):
    """A server died, or did not become ready or end in time."""


#: Into so many parts the ports are divided, of which a process has one, by its number.
_SHARES = 16


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 that nobody listens on now, all different.

    A server binds its port many seconds after this has looked. So the ports lie below those that the kernel gives to
    outgoing connections, and below those that SGLang looks among for its ranks to meet at: any client and any other
    server on the machine could take one of those in the meantime. None is returned twice, and processes that look at
    the same time look among others, most of them.
    """
    ports = _ports_for_servers()[os.getpid() % _SHARES :: _SHARES]
    candidates = random.sample(ports, min(100 + count, len(ports)))
    free = list(itertools.islice((port for port in candidates if port not in _given and _is_free(port)), count))
    if len(free) < count:
        raise ServerError(f"no {count} ports are free among {len(candidates)} of 127.0.0.1: end what listens on them")
    _given.update(free)
    return free


def _ports_for_servers() -> range:
    try:
        first_outgoing = int(OUTGOING_PORTS.read_text().split()[0])
    except (OSError, ValueError):
        first_outgoing = 32768  # the kernel's default
    # Where the kernel may give nearly all of them, none is better than another.
    end = min(first_outgoing, SGLANGS_PORTS)
    return range(end // 2, end) if first_outgoing >= 4096 else range(10_000, 65_536)


def _is_free(port: int) -> bool:
    with socket.socket() as one:
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class Server:
    """One `python -m sglang.launch_server`, in a process group of its own. A context manager: leaving it ends it."""

    #: How long it may take to say what its tiers hold, seconds.
    patience = 30.0
    #: Of its log, if it has died, so many lines are shown.
    log_lines = LOG_LINES

    def __init__(
        self, name: str, arguments: Sequence[str], port: int, log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        """`environment`: variables of its own."""
        self.name = name
        self.port = port
        self.log = log
        self._arguments = [*arguments, "--host", "127.0.0.1", "--port", str(port)]
        self.environment = environment or {}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", "sglang.launch_server", *self._arguments]

    def start(self) -> None:
        """Start it, appending to its log; `wait_ready` waits for it."""
        environment = {
            **os.environ,
            # What it needs lies in a directory; a hub that is out of reach would only cost time.
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "PYTHONUNBUFFERED": "1",
            **self.environment,
        }
        with open(self.log, "ab") as log:
            self._process = self._spawn(environment, log)

    def _spawn(self, environment: dict[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-c", TIED_TO_PARENT, *self.command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # Ctrl-C in the terminal is the demo's business, and `end` reaches all children
        )

    def wait_ready(self, timeout: float, tick: Callable[[], None] = lambda: None) -> None:
        """Wait until it answers /health. Calls `tick` twice a second. Raises ServerError."""
        deadline = time.monotonic() + timeout
        while not self._healthy():
            self.check_alive()
            if time.monotonic() > deadline:
                raise self._error(f"was not ready after {timeout:.0f} s")
            tick()
            time.sleep(POLL_SECONDS)

    def wait_found(self, timeout: float) -> None:
        """Wait until it knows again which pages it has kept over a restart. It serves before. Raises ServerError."""
        deadline = time.monotonic() + timeout
        while not all(map(_has_found, self.states())):
            self.check_alive()
            if time.monotonic() > deadline:
                raise self._error(f"was still looking for its pages after {timeout:.0f} s")
            time.sleep(POLL_SECONDS / 10)

    def states(self) -> list[dict[str, Any]]:
        """What the first rank of each replica says of its tiers."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/server_info", timeout=self.patience) as response:
            return [state["swift_tiers"] for state in json.load(response)["internal_states"]]

    def check_alive(self) -> None:
        """Raises ServerError if it has ended by itself."""
        if self._process is None or self._process.poll() is not None:
            code = None if self._process is None else self._process.returncode
            raise self._error(f"ended by itself (exit code {code})")

    def signal_all(self, number: int) -> None:
        """Send a signal to every process of the server. Raises ServerError if it has ended."""
        self.check_alive()
        assert self._process is not None  # alive
        os.killpg(self._process.pid, number)

    def stop(self, timeout: float = STOP_SECONDS) -> float:
        """End it as an operator does, with SIGTERM to the launched process; returns seconds. Raises ServerError."""
        self.check_alive()
        process = self._process
        assert process is not None  # alive
        started = time.monotonic()
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise self._error(f"did not end within {timeout:.0f} s of SIGTERM") from None
        self._kill_group()
        return time.monotonic() - started

    def end(self) -> None:
        """Whatever state it is in, afterwards none of its processes runs. Raises nothing, may be called again."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_SECONDS / 4)
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                pass  # the next line is not to be argued with
        self._kill_group()
        process.wait()
        self._process = None

    def _kill_group(self) -> None:
        assert self._process is not None  # callers have checked
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # the last of the group has ended

    def _healthy(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def _error(self, problem: str) -> ServerError:
        detail = log_tail(self.log, self.log_lines)
        return ServerError(f"the server {self.name} {problem}; its log: {self.log}", detail=detail)


def _has_found(state: Mapping[str, Any]) -> bool:
    unread = any(tier["unread_pages"] for tier in state["tiers"].values())
    return not unread and all(device["service"] != "opening" for device in state["devices"])


def log_tail(path: Path, lines: int) -> str:
    """The last lines of a text file, indented; of a missing or empty one, a word about that."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 64 * 1024))
            text = file.read().decode(errors="replace")
    except OSError:
        text = ""
    found = [line for line in text.splitlines() if line.strip()][-lines:]
    return "\n".join(f"    {line}" for line in found or ["(empty)"])
