"""A router that goes by SGLang's KV events: what it knows of a server by them, and what makes no sense to it."""

from __future__ import annotations

import json
import threading
from array import array
from collections import Counter
from typing import Any

import msgspec
import zmq
from sglang.srt.disaggregation.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventPublisherFactory,
    KVEventBatch,
    StorageMedium,
)
from sglang.srt.mem_cache.utils import hash_str_to_int64

from swift_tiers.radix_tiering.table import kernels
from swift_tiers.sglang_ext.build.page_hash import page_hashes

GPU, BENEATH = StorageMedium.GPU, StorageMedium.CPU


class Router:
    """A publisher of SGLang's. Two prefixes of other keys may have one hash, as SGLang makes them: so a
    block may be stored several times, and has gone when it was removed as often."""

    def __init__(self, **_: Any) -> None:
        self.blocks: dict[str, Counter[int]] = {GPU: Counter(), BENEATH: Counter()}
        self.batches: list[list[Any]] = []

    def publish(self, batch: Any) -> None:
        self.batches.append(list(batch.events))
        for event in batch.events:
            self._hear(event)

    def _hear(self, event: Any) -> None:
        if isinstance(event, AllBlocksCleared):
            for blocks in self.blocks.values():
                blocks.clear()
            return
        blocks = self.blocks[event.medium]
        if isinstance(event, BlockStored):
            assert len(event.token_ids) == len(event.block_hashes) * event.block_size, event
            before = event.parent_block_hash
            assert before is None or event.medium != BENEATH or before in blocks, f"nothing comes before {event}"
            blocks.update(event.block_hashes)
        else:
            assert isinstance(event, BlockRemoved)
            blocks.subtract(event.block_hashes)
            if event.medium == BENEATH:
                assert min(blocks.values(), default=0) >= 0, f"never stored: {event}"
            self.blocks[event.medium] = +blocks

    def shutdown(self) -> None:
        """SGLang calls it."""


class Subscriber:
    """A `Router` that hears a server by ZeroMQ, as routers do; a context manager. It reads all the time: what has come
    and was not read is lost when the server ends. One that begins anew has nothing, and counts from 0 again."""

    def __init__(self, port: int) -> None:
        self.router = Router()
        self.ever: Counter[str] = Counter()  # events of blocks that were stored there, whatever has become of them
        endpoint = f"tcp://127.0.0.1:{port}"
        self.arguments = (
            "--kv-events-config",
            json.dumps({"publisher": "zmq", "endpoint": endpoint, "bind": True, "topic": "kv"}),
        )
        self._endpoint = endpoint
        self._number = -1  # of the last message
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._wrong: list[str] = []
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._decoder = msgspec.msgpack.Decoder(KVEventBatch)

    def knows(self, medium: str) -> set[int]:
        """The blocks that the server has there, by all that has come so far."""
        with self._lock:
            assert not self._wrong, self._wrong
            return set(self.router.blocks[medium])

    def _listen(self) -> None:
        with zmq.Context.instance().socket(zmq.SUB) as socket:
            socket.linger = 0
            socket.set_hwm(0)  # whoever misses one makes no sense of the rest
            socket.subscribe(b"kv")
            socket.connect(self._endpoint)
            while not self._over.is_set():
                if socket.poll(50):
                    _, number, payload = socket.recv_multipart()
                    with self._lock:
                        self._hear(int.from_bytes(number, "big"), payload)

    def _hear(self, number: int, payload: bytes) -> None:
        if number <= self._number:
            self.router = Router()
        elif self._number >= 0 and number != self._number + 1:
            self._wrong.append(f"message {number} follows {self._number}")
        self._number = number
        batch = self._decoder.decode(payload)
        self.ever.update(event.medium for event in batch.events if isinstance(event, BlockStored))
        try:
            self.router.publish(batch)
        except AssertionError as error:
            self._wrong.append(str(error))

    def __enter__(self) -> Subscriber:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def blocks_of(token_ids: list[int], page_tokens: int) -> list[int]:
    """The whole pages of a prompt that has no key, as SGLang's events name them: by the beginning of a page's hash."""
    end = len(token_ids) // page_tokens * page_tokens
    # Not by SGLang's own, which has to be compiled first.
    keys = page_hashes(array("I", token_ids[:end]), end, 1, False, None, page_tokens)
    return [hash_str_to_int64(key) for key in keys]


def listening(arguments: list[str]) -> list[str]:
    """The arguments of a server, which will tell a `Router` of its events if it is told of nobody else."""
    if "--enable-swift-tiers" not in arguments or "--kv-events-config" in arguments:
        return arguments
    EventPublisherFactory.register_publisher("router", Router)
    return [*arguments, "--kv-events-config", '{"publisher": "router"}']


def router_of(scheduler: Any) -> Router | None:
    """Of an SGLang `Scheduler`, if that rank tells of events."""
    router = scheduler.kv_events_publisher.kv_event_publisher
    return router if isinstance(router, Router) else None


def assert_known(router: Router, scheduler: Any) -> None:
    """It knows of what is beneath the device, and was told of, neither more nor less."""
    scheduler.kv_events_publisher.publish_kv_events()
    table = scheduler.tree_cache.linker.cache_linker.stack.table
    with table.lock:
        announced = table.announced
        rows = announced._known.nonzero()[0]
        flags = table._rows.words[rows, kernels.FLAGS]
        assert (flags & (kernels.USED | kernels.DROPPED | kernels.TOLD) == kernels.USED | kernels.TOLD).all()
        known = Counter(announced._numbers[rows].tolist()) + Counter(announced._left)
    assert router.blocks[BENEATH] == known
