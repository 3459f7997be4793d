"""Real processes that lend to each other: started, asked, stopped and killed."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from swift_tiers.radix_tiering.lending.leases import ipc_address

from support.redis import wait_for

PAGE = 4096
#: A guard against hanging, not a measure.
PATIENCE = 60.0


class Child:
    """One process that runs a script beside this file, `lease_child.py` or another one that talks as it does."""

    def __init__(self, role: str, options: dict[str, Any], script: str) -> None:
        command = [sys.executable, str(Path(__file__).with_name(script)), role, json.dumps(options)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.heard: list[dict[str, Any]] = []  # and not expected yet
        self._unread = b""
        self.expect("ready")

    def tell(self, *words: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, words)).encode() + b"\n")
        self.process.stdin.flush()

    def ask(self, *words: object, answer: str = "") -> dict[str, Any]:
        self.tell(*words)
        return self.expect(answer or str(words[0]))

    def expect(self, what: str, **fields: Any) -> dict[str, Any]:
        """The oldest line that says this and was not expected before, or the next one."""
        deadline = time.monotonic() + PATIENCE
        assert self.process.stdout is not None
        while True:
            for said in self.heard:
                if said["what"] == what and all(said.get(name) == value for name, value in fields.items()):
                    self.heard.remove(said)
                    return said
            if not select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise AssertionError(f"waited {PATIENCE:g} s for {what} {fields}; heard {self.heard}")
            more = os.read(self.process.stdout.fileno(), 65536)
            if not more:
                raise AssertionError(f"ended before {what} {fields}; heard {self.heard}")
            *lines, self._unread = (self._unread + more).split(b"\n")
            self.heard += [json.loads(line) for line in lines]

    def stop(self) -> None:
        """Have it do nothing more; every one of its threads has stopped when this returns."""
        self.process.send_signal(signal.SIGSTOP)
        wait_for(self._stands_still, "a process to stop")

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def _stands_still(self) -> bool:
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/stat")
        try:
            return all(task.read_text().rpartition(")")[2].split()[0] == "T" for task in tasks)
        except OSError:
            return False  # a thread has just ended

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


class ChildProcesses:
    """A directory with sockets, and the processes there. A context manager."""

    def __init__(self, prefix: str, script: str) -> None:
        # Shorter than pytest's own directories: a socket's path is at most 107 bytes.
        self._directory = tempfile.TemporaryDirectory(prefix=prefix)
        self.directory = Path(self._directory.name)
        self._script = script
        self._children: list[Child] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for child in self._children:
            if child.process.returncode is None:
                child.kill()
        self._directory.cleanup()

    def address(self, donor: str) -> str:
        return ipc_address(self.directory, donor)

    def _start(self, role: str, options: dict[str, Any]) -> Child:
        child = Child(role, options, self._script)
        self._children.append(child)
        return child


class Children(ChildProcesses):
    """With shared memory in files."""

    def __init__(self, runs: int = 2) -> None:
        super().__init__("swift-lease-", "lease_child.py")
        self.runs = runs

    def donor(self, name: str = "d", **timing: float) -> Child:
        """A donor with `runs` runs of one page to lend. Its memory is a new file for each life."""
        memory = self.directory / f"{name}.memory"
        memory.unlink(missing_ok=True)
        memory.write_bytes(bytes(PAGE * self.runs))
        options = {"name": name, "memory": str(memory), "address": self.address(name), "runs": self.runs}
        return self._start("donor", {**options, "timing": timing})

    def borrower(self, name: str = "b", donors: tuple[str, ...] = ("d",)) -> Child:
        memory = self.directory / f"{donors[0]}.memory"
        if not memory.exists():
            memory.write_bytes(bytes(PAGE * self.runs))
        options = {"name": name, "memory": str(memory), "donors": {donor: self.address(donor) for donor in donors}}
        return self._start("borrower", options)
