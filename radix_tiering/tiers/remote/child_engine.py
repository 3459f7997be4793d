"""An engine in a process of its own, which sees nothing of this one's but a slab of arrival memory.

Native engines hang for a minute, and have crashed their hosts (docs/remote.md). Here that costs a child, and a slab:
what an old child may still write to is never used again.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from .child_process import KILL_SECONDS, ChildMeeting, begin_or_meet
from .engine import EngineAnswer, EngineEvent, EngineGone, EngineJob, EngineReady
from .messages import MOST_BYTES, Begin, Failed, FromChild, JobDone, Ready


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
        meeting: ChildMeeting | None = None,
    ) -> None:
        """`driver`: "MODULE:NAME" of an `OpenDriver`, imported by the child alone. `meeting`: whose ranks share the
        child, which has so many slots for each; None: it is this one's alone. Raises OSError where no process or memory
        is to be had."""
        self._tell = tell
        self._ended = False
        self._process = begin_or_meet(Begin(driver, engine, dict(options), slots, stride), meeting)
        self._socket = self._process.connection
        self.memory = self._process.memory
        self.pid = self._process.pid
        self._thread = threading.Thread(target=self._hear, name="swift-remote-ear", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # as many as may be
            self._process.kill()
            self._socket.close()
            raise

    def ask(self, job: EngineJob) -> bool:
        try:
            self._socket.send(msgspec.msgpack.encode(job), socket.MSG_DONTWAIT)
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
                self._told(EngineAnswer(message.number, message.done, message.error))
            elif isinstance(message, Failed):
                reason = message.reason
        try:
            self._process.kill()
        finally:
            self._told(EngineGone(reason or self._process.how_it_ended()))

    def _told(self, event: EngineEvent) -> None:
        if not self._ended:
            self._tell(event)

    def end(self) -> None:
        if self._ended:
            return
        self._ended = True
        self._process.kill()
        self._thread.join(KILL_SECONDS)
        self._socket.close()
