"""The process that lends: started, told what to do, killed."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from swift_tiers.radix_tiering.base.errors import SwiftTiersError
from swift_tiers.radix_tiering.lending.leases import ipc_address

from .lending_donor import DonorOptions

#: What is run, with its options as one more argument.
COMMAND = (sys.executable, "-m", "swift_tiers.ops.commands.gpu_proof.lending_donor")
#: Until it lends, and until it has answered, seconds: guards against hanging.
_START_SECONDS, _ANSWER_SECONDS = 60.0, 30.0
#: Of what it said before it ended.
_TAIL_CHARACTERS = 600


class LendingError(SwiftTiersError):
    """The one side or the other did not do its part."""


class DonorProcess:
    """A context manager. One thread."""

    def __init__(self, options: DonorOptions, command: Sequence[str] = COMMAND) -> None:
        self.options = options
        self.address = ipc_address(Path(options.directory), options.name)
        self._errors = Path(options.directory) / f"{options.name}.log"
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [*command, json.dumps(options._asdict())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        self._unread = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()

    def wait_ready(self) -> None:
        """Until it lends. Raises LendingError."""
        self._answer(_START_SECONDS)

    def ask(self, word: str) -> dict[str, Any]:
        """Raises LendingError."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{word}\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        said = self._answer(_ANSWER_SECONDS)
        if "failure" in said:
            raise LendingError(f"{word}: {said['failure']}")
        return said

    def kill(self) -> None:
        """In the middle of whatever it does."""
        self._process.kill()
        self._process.wait()
        self._close()

    def end(self) -> None:
        """Let it take everything back and end. Idempotent."""
        if self._process.poll() is None:
            self._close_input()
            try:
                self._process.wait(_ANSWER_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._close()

    def _answer(self, seconds: float) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        assert self._process.stdout is not None
        while b"\n" not in self._unread:
            if not select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise LendingError(f"the process that lends did not answer within {seconds:g} s")
            more = os.read(self._process.stdout.fileno(), 65536)
            if not more:
                raise self._ended()
            self._unread += more
        line, self._unread = self._unread.split(b"\n", 1)
        said: dict[str, Any] = json.loads(line)
        return said

    def _ended(self) -> LendingError:
        self._process.wait()
        said = self._errors.read_text(errors="replace").strip()[-_TAIL_CHARACTERS:]
        return LendingError(f"the process that lends has ended by itself: {said or 'it said nothing'}")

    def _close(self) -> None:
        self._close_input()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _close_input(self) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # of what it was told last
            self._process.stdin.close()
