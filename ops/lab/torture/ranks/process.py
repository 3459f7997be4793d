"""The process in which worlds of servers happen, as whoever asks for them sees it: SGLang is loaded there alone."""

from __future__ import annotations

import atexit
import functools
import multiprocessing
import os
import traceback
from collections import Counter
from contextlib import suppress
from multiprocessing.connection import Connection

from ..plan import Plan
from .lockstep import RankFailedError

#: It has so long to end when whoever asks does.
END_SECONDS = 10.0


class ServersProcess:
    """`Servers` in a process of its own, which begins where the first world is to happen."""

    def __init__(self, kind: str) -> None:
        context = multiprocessing.get_context("forkserver")  # not a copy of whoever asks
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, kind), daemon=True)
        self._process.start()
        theirs.close()
        # Killed, as Python would do with it, it would leave behind what SGLang shares with processes of its own.
        atexit.register(self._end)

    def _end(self) -> None:
        self._connection.close()
        self._process.join(END_SECONDS)

    def live(self, plan: Plan, history: list[str]) -> tuple[int, Counter[str]]:
        """As `Servers.live`."""
        self._connection.send(plan)
        try:
            steps, happened, told, complaint = self._connection.recv()
        except EOFError:
            raise RankFailedError("the process from which ranks are forked has died") from None
        history += told
        if complaint:
            raise RankFailedError(complaint)
        return steps, happened


def _serve(theirs: Connection, kind: str) -> None:
    # SGLang's log is that of ranks that stumble on purpose.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    from .server import Servers  # loads SGLang

    servers: Servers | None = None
    with suppress(EOFError):  # whoever asks is gone
        while True:
            plan, told = theirs.recv(), list[str]()
            try:
                servers = servers or Servers(kind)
                theirs.send((*servers.live(plan, told), told, ""))
            except AssertionError as error:
                theirs.send((0, Counter(), told, str(error)))
            except Exception:  # noqa: BLE001 - told to the other side
                theirs.send((0, Counter(), told, traceback.format_exc()))


@functools.cache
def servers_of_this_process(kind: str) -> ServersProcess:
    """Of worlds of this kind, of which the first one takes half a minute longer, in which SGLang is loaded."""
    return ServersProcess(kind)
