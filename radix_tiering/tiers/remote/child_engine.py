"""An engine in a process of its own, which sees nothing of this one's but a slab of arrival memory.

Native engines hang for a minute, and have crashed their hosts (docs/remote.md). Here that costs a child, and a slab:
what an old child may still write to is never used again.
"""

from __future__ import annotations

import mmap
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np

from .engine import EngineAnswer, EngineEvent, EngineGone, EngineJob, EngineReady
from .messages import MOST_BYTES, Begin, FromChild, JobDone, Ready

#: How long a child that was killed is waited for, seconds: a guard, the kernel takes no longer.
KILL_SECONDS = 10.0


@contextmanager
def closed_on_error(connection: socket.socket) -> Iterator[None]:
    """Closes it where what follows fails."""
    try:
        yield
    except BaseException:
        connection.close()
        raise


class ChildEngine:
    """A `RemoteEngine`. Its thread "swift-remote-ear" hears the child."""

    def __init__(
        self,
        driver: str,
        engine: str,
        options: Mapping[str, Any],
        slots: int,
        stride: int,
        tell: Callable[[EngineEvent], None],
    ) -> None:
        """`driver`: "MODULE:NAME" of an `OpenDriver`, imported by the child alone. Raises OSError where no process or
        memory is to be had."""
        self._tell = tell
        self._ended = False
        memory = os.memfd_create("swift-remote", os.MFD_CLOEXEC)
        try:
            os.ftruncate(memory, slots * stride)
            self.memory = np.frombuffer(mmap.mmap(memory, slots * stride), np.uint8).reshape(slots, stride)
            self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with other, closed_on_error(self._socket):
                for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                    self._socket.setsockopt(socket.SOL_SOCKET, option, MOST_BYTES)
                    other.setsockopt(socket.SOL_SOCKET, option, MOST_BYTES)
                command = [sys.executable, "-P", "-m", "swift_tiers.radix_tiering.tiers.remote.child"]
                self._process = subprocess.Popen(
                    [*command, str(os.getpid()), str(other.fileno()), str(memory)],
                    pass_fds=(other.fileno(), memory),
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
        finally:
            os.close(memory)
        self.pid = self._process.pid
        self._thread = threading.Thread(target=self._hear, name="swift-remote-ear", daemon=True)
        self._thread.start()
        self._send(Begin(driver, engine, dict(options), slots, stride))

    def ask(self, job: EngineJob) -> bool:
        return self._send(job)

    def _send(self, message: Begin | EngineJob) -> bool:
        try:
            self._socket.send(msgspec.msgpack.encode(message), socket.MSG_DONTWAIT)
        except OSError:  # it is stopped, and its queue is full; or it has ended, which the thread hears
            return False
        return True

    def _hear(self) -> None:
        reason = ""
        decoder = msgspec.msgpack.Decoder(FromChild)
        while True:
            try:
                raw = self._socket.recv(MOST_BYTES)
                if not raw:
                    break
                message = decoder.decode(raw)
            except (OSError, msgspec.MsgspecError) as error:
                reason = str(error)
                break
            if isinstance(message, Ready):
                self._told(EngineReady())
            elif isinstance(message, JobDone):
                self._told(EngineAnswer(message.number, message.done))
            else:
                reason = message.reason
        self._kill()
        self._told(EngineGone(reason or self._how_it_ended()))

    def _told(self, event: EngineEvent) -> None:
        if not self._ended:
            self._tell(event)

    def _how_it_ended(self) -> str:
        code = self._process.returncode
        if code is not None and code < 0:
            return f"its process was ended by {signal.Signals(-code).name}"
        return f"its process ended with {code}"

    def _kill(self) -> None:
        """A stopped one, too."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(KILL_SECONDS)

    def end(self) -> None:
        if self._ended:
            return
        self._ended = True
        self._kill()
        self._thread.join(KILL_SECONDS)
        self._socket.close()
