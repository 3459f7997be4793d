"""The remote tier against the engine's own client and plain TCP: the same bytes, in the same run, by turns.

A Mooncake Store of one master and one node runs on this machine, over TCP. Ours is the tier as a server has it: pages
are packed into objects, with a header and a checksum of each, cross to the child and from there to the node, and back
they are compared page by page. The client has registered memory and puts and gets the same bytes in objects of the
same size, with neither. TCP is one connection over loopback.
"""

from __future__ import annotations

import queue
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ...base.errors import CommandError
from ..demo.store import LocalStore
from .report import Figure, finish, parser, ratio, spread, take_turns

#: Of a page, and of an object as large as the configuration has it.
PAGE_BYTES, OBJECT_BYTES = 1 << 20, 4 << 20
#: Pages of a run: as many as 512 tokens may be.
RUN = 32
#: Objects that the client asks for together.
TOGETHER = 8
BOUND = 0.8
#: How long anything may take, seconds: a guard.
PATIENCE_SECONDS = 300.0
#: Bytes that one call sends or receives by TCP.
PIECE = 1 << 20
NAMESPACE = bytes(16)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser("remote", __doc__, rounds=7)
    arguments.add_argument("--size", type=int, default=128, metavar="MIB", help="moved each time (%(default)s)")
    options = arguments.parse_args(argv)
    nbytes = max(RUN * PAGE_BYTES, options.size << 20) // (RUN * PAGE_BYTES) * RUN * PAGE_BYTES
    with (
        tempfile.TemporaryDirectory(prefix="swift-bench-") as folder,
        LocalStore(Path(folder), 4 * nbytes) as store,
        OursAndTheirs(store, nbytes) as both,
    ):
        cases: dict[str, Callable[[], dict[str, float]]] = {
            "ours": both.ours,
            "client": both.client,
            "TCP": partial(over_tcp, both.source, both.target),
        }
        found = take_turns(cases, options.rounds)
    seconds = {f"{verb}, {name}": [one[verb] for one in found[name]] for name in cases for verb in found[name][0]}
    print(f"{nbytes >> 20} MiB in objects of {OBJECT_BYTES >> 20} MiB, {options.rounds} rounds by turns")
    for name, values in seconds.items():
        print(spread(name, [nbytes / one / 1e9 for one in values], "GB/s"))
    figures = [
        Figure(f"{verb}_of_client", ratio(seconds[f"{verb}, client"], seconds[f"{verb}, ours"]), at_least=BOUND)
        for verb in ("put", "get")
    ]
    figures += [
        Figure(f"{verb}_of_tcp", ratio(seconds["send, TCP"], seconds[f"{verb}, ours"])) for verb in ("put", "get")
    ]
    return finish("remote", figures, {"seconds": seconds, "bytes": nbytes}, options.json)


class OursAndTheirs:
    """The tier and a client of the engine, over one store. A context manager."""

    def __init__(self, store: LocalStore, nbytes: int) -> None:
        import numpy as np

        from swift_tiers.radix_tiering.base.config import RemoteConfig
        from swift_tiers.radix_tiering.base.events import EventLog
        from swift_tiers.radix_tiering.base.memory import huge_array
        from swift_tiers.radix_tiering.base.page import page_digest
        from swift_tiers.radix_tiering.base.units import Duration
        from swift_tiers.radix_tiering.tiers.remote import ChildEngine, ObjectShape, RemoteTier
        from swift_tiers.sglang_ext.build.remote_side import DRIVER

        self.source, self.target = huge_array(nbytes), huge_array(nbytes)
        self.source[:] = np.random.default_rng(0).integers(0, 256, nbytes, np.uint8)
        self._pages = nbytes // PAGE_BYTES
        self._digests = [page_digest(self._page(self.source, at)) for at in range(self._pages)]
        self._number = 0
        self._events = EventLog(time.time)
        shape = ObjectShape(PAGE_BYTES, OBJECT_BYTES // PAGE_BYTES, RUN)
        # No request waits for these answers: one that comes late on a busy machine is one all the same.
        config = RemoteConfig(engine="mooncake", admission="always", lookup_deadline=Duration(PATIENCE_SECONDS))
        slots = int(config.memory) // shape.stride
        self._tier = RemoteTier(
            shape,
            config,
            partial(ChildEngine, DRIVER, "mooncake", store.options, slots, shape.stride),
            page_tokens=16,
            read_seconds=PATIENCE_SECONDS,
            events=self._events,
        )
        self._client = self._open_client(store)

    def _open_client(self, store: LocalStore) -> Any:
        from mooncake.store import MooncakeDistributedStore  # type: ignore[import-not-found, import-untyped]

        client = MooncakeDistributedStore()
        master = store.options["master_server_address"]
        if client.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", master) != 0:
            raise CommandError(f"bench remote: the engine's client does not reach the store; its log: {store.log}")
        for memory in (self.source, self.target):
            client.register_buffer(memory.ctypes.data, memory.nbytes)
        return client

    def __enter__(self) -> OursAndTheirs:
        until = time.monotonic() + PATIENCE_SECONDS
        while not self._tier.snapshot().ready:
            if time.monotonic() > until:
                self._tier.close()
                raise CommandError(f"bench remote: the child does not open the store: {self._why()}")
            time.sleep(0.05)
        return self

    def _why(self) -> str:
        """As its lives have said."""
        kinds = ("remote.cannot_be_opened", "remote.engine_gone")
        reasons = [event.fields["reason"] for event in self._events.since() if event.kind in kinds]
        return str(reasons[-1]) if reasons else f"it has said nothing for {PATIENCE_SECONDS:g} s"

    def __exit__(self, *_: object) -> None:
        self._tier.close()
        self._client.close()

    @staticmethod
    def _page(memory: Any, at: int) -> Any:
        return memory[at * PAGE_BYTES : (at + 1) * PAGE_BYTES]

    def ours(self) -> dict[str, float]:
        """Seconds of a chain that is new."""
        from swift_tiers.radix_tiering.base.page import PageRecord
        from swift_tiers.radix_tiering.table.tier_copies import Copy
        from swift_tiers.radix_tiering.tiers.tier import Chain, Read, Write

        self._number += 1
        keys = [self._number.to_bytes(16, "big") + at.to_bytes(16, "big") for at in range(self._pages)]
        records = [PageRecord(key, key, NAMESPACE, at, PAGE_BYTES) for at, key in enumerate(keys, 1)]
        told: queue.SimpleQueue[Any] = queue.SimpleQueue()
        began = time.perf_counter()
        for first in range(0, self._pages, RUN):
            self._tier.write(
                [
                    Write(records[at], None, self._page(self.source, at), self._digests[at], lambda *one: told.put(one))
                    for at in range(first, first + RUN)
                ]
            )
            # As a server has it: two runs at a time.
            for _ in range(RUN if first else 0):
                self._check(told.get(timeout=PATIENCE_SECONDS)[0] is not None, "was not taken")
        for _ in range(RUN):
            self._check(told.get(timeout=PATIENCE_SECONDS)[0] is not None, "was not taken")
        put, began = time.perf_counter() - began, time.perf_counter()
        self._tier.find(Chain(NAMESPACE, 0, keys), told.put)
        places = told.get(timeout=PATIENCE_SECONDS)
        self._check(len(places) == self._pages, "is not found")
        self._tier.read(
            [
                Read(records[at], Copy(place, None, 0, whole=True), self._page(self.target, at), told.put)
                for at, place in enumerate(places)
            ]
        )
        for _ in places:
            outcome = told.get(timeout=PATIENCE_SECONDS)
            self._check(outcome.value == "ok", f"comes back as {outcome.value}")
        get = time.perf_counter() - began
        self._client.remove_all(True)  # the store is this bench's own
        return {"put": put, "get": get}

    @staticmethod
    def _check(holds: bool, what: str) -> None:
        if not holds:
            raise CommandError(f"bench remote: what the tier has sent {what}")

    def client(self) -> dict[str, float]:
        """Seconds of objects that are new, by the engine's own client."""
        self._number += 1
        count = self.source.nbytes // OBJECT_BYTES
        seconds = {}
        for verb, memory in (("put", self.source), ("get", self.target)):
            began = time.perf_counter()
            for first in range(0, count, TOGETHER):
                numbers = range(first, min(first + TOGETHER, count))
                names = [f"client-{self._number}-{number}" for number in numbers]
                places = [memory.ctypes.data + number * OBJECT_BYTES for number in numbers]
                many = self._client.batch_put_from if verb == "put" else self._client.batch_get_into
                done = many(names, places, [OBJECT_BYTES] * len(names))
                expected = 0 if verb == "put" else OBJECT_BYTES
                if any(one != expected for one in done):
                    raise CommandError(f"bench remote: the engine's own client cannot {verb}: {sorted(set(done))}")
            seconds[verb] = time.perf_counter() - began
        self._client.remove_all(True)
        return seconds


def over_tcp(source: Any, target: Any) -> dict[str, float]:
    """Seconds that one connection over loopback takes for all of `source`."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def receive() -> None:
            connection, _ = server.accept()
            with connection:
                view, at = memoryview(target), 0
                while at < len(view) and (count := connection.recv_into(view[at : at + PIECE])):
                    at += count

        receiving = threading.Thread(target=receive, name="swift-bench-tcp")
        receiving.start()
        began = time.perf_counter()
        with socket.create_connection(server.getsockname()) as sending:
            for first in range(0, len(source), PIECE):
                sending.sendall(source[first : first + PIECE])
            receiving.join()
        return {"send": time.perf_counter() - began}


if __name__ == "__main__":
    raise SystemExit(main())
