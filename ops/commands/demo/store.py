"""A Mooncake Store on this machine, to try the remote tier with: a master and store nodes, as child processes.

Each part can be killed, hung and begun anew apart, which is what the tests do with it. What of Mooncake can be told
where to listen listens on 127.0.0.1; the ports by which its nodes send data are open on every interface.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ...base.errors import CommandError
from .servers import LOG_LINES, TIED_TO_PARENT, free_ports, log_tail

HOST = "127.0.0.1"
NODE = "swift_tiers.ops.commands.demo.store_node"
#: How long a part may take to start, seconds: importing Mooncake takes a second or two where nothing else runs.
START_SECONDS = 60.0
#: Between two looks whether the master listens.
LOOK_SECONDS = 0.05
#: How long a part of the store may take to end once it is killed.
END_SECONDS = 10.0


def check_library() -> None:
    """Raises CommandError, which names the remedy, where Mooncake Store cannot be loaded."""
    trial = subprocess.run([sys.executable, "-c", "import mooncake.store"], capture_output=True, text=True)
    if trial.returncode:
        problem = (trial.stderr.strip().splitlines() or ["it cannot be imported"])[-1]
        remedy = "pip install '.[remote]' from a checkout"
        if "libibverbs" in problem:
            remedy = "apt install libibverbs1, which Mooncake needs even for TCP"
        raise CommandError(f"Mooncake Store cannot be loaded ({problem}): {remedy}")


class StorePart(ABC):
    """The master or one node, in a process that ends with this one. `start` again after `kill`: empty, under the same
    name."""

    def __init__(self, what: str, log: Path) -> None:
        self._what = what
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def start(self) -> None:
        """Raises CommandError if it does not start."""

    def _spawn(self, command: Sequence[str], descriptors: Sequence[int] = ()) -> None:
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", TIED_TO_PARENT, sys.executable, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"GLOG_minloglevel": "1", "MC_LOG_LEVEL": "WARNING", **os.environ},
                start_new_session=True,
                pass_fds=descriptors,
            )

    def _wait(self, ready: Callable[[], bool]) -> None:
        """Until it is ready, which takes a moment to ask. Raises CommandError."""
        assert self._process is not None, "it has been started"
        until = time.monotonic() + START_SECONDS
        while not ready():
            if self._process.poll() is not None or time.monotonic() > until:
                self.kill()
                raise CommandError(
                    f"the store's {self._what} does not start; its log: {self._log}",
                    detail=log_tail(self._log, LOG_LINES),
                )

    def hang(self) -> None:
        """Stop it; none of its threads runs any more when this returns."""
        assert self._process is not None, "it has been started"
        self._process.send_signal(signal.SIGSTOP)
        # On a busy machine its threads go on for a while after the signal, and answer.
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def go_on(self) -> None:
        """After `hang`."""
        assert self._process is not None, "it has been started"
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """As a machine dies that holds it. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(END_SECONDS)
            self._process = None


class StoreMaster(StorePart):
    """Knows where objects are. Killed, it forgets that."""

    def __init__(self, log: Path, flags: Sequence[str]) -> None:
        """`flags`: more of mooncake_master's."""
        super().__init__("master", log)
        self.port, metrics = free_ports(2)
        self._command = ["-m", "mooncake.cli", f"--rpc_port={self.port}", f"--rpc_address={HOST}"]
        self._command += [f"--metrics_port={metrics}", f"--metrics_host={HOST}", *flags]

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def start(self) -> None:
        self._spawn(self._command)
        self._wait(self._listens)

    def _listens(self) -> bool:
        try:
            socket.create_connection((HOST, self.port), timeout=1).close()
        except OSError:
            time.sleep(LOOK_SECONDS)
            return False
        return True


class StoreNode(StorePart):
    """Lends memory for objects. Killed, it takes them along."""

    def __init__(self, log: Path, size: int, master: StoreMaster) -> None:
        super().__init__("node", log)
        (port,) = free_ports(1)
        self._command = ["-m", NODE, f"{HOST}:{port}", str(size), master.address]

    def start(self) -> None:
        # It writes there once it lends; what Mooncake itself says goes to the log.
        told, telling = os.pipe()
        with open(told, "rb"):
            with open(telling, "wb"):
                self._spawn([*self._command, str(telling)], [telling])
            self._wait(lambda: self._lends(told))

    @staticmethod
    def _lends(told: int) -> bool:
        return bool(select.select([told], [], [], LOOK_SECONDS)[0]) and os.read(told, 1) != b""


class LocalStore:
    """A context manager: leaving it ends all of it."""

    def __init__(self, folder: Path, node_bytes: int, *, nodes: int = 1, flags: Sequence[str] = ()) -> None:
        """`folder`: for its log; `node_bytes`: what each of the `nodes` lends; `flags`: more of mooncake_master's."""
        self.log = folder / "store.log"
        self.master = StoreMaster(self.log, flags)
        self.nodes = [StoreNode(self.log, node_bytes, self.master) for _ in range(nodes)]

    @property
    def options(self) -> dict[str, Any]:
        """`remote.options` of a server that uses it."""
        return {
            "local_hostname": HOST,
            "metadata_server": "P2PHANDSHAKE",
            "protocol": "tcp",
            "master_server_address": self.master.address,
            "global_segment_size": 0,
            "check_server": False,
        }

    def __enter__(self) -> Self:
        """Raises CommandError where the library is missing, or a part does not start."""
        check_library()
        try:
            for part in (self.master, *self.nodes):
                part.start()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Idempotent."""
        for part in (*self.nodes, self.master):
            part.kill()
