"""A store that machines share, as one of them sees it: an engine in virtual time beneath the product's own remote tier.

The tier asks, reads within its deadlines, verifies and writes as it does in a server. Here an object is a name that is
there or not, and as long on its way as one line of a network takes, each way; its pages are blank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from swift_tiers.radix_tiering.base.page import page_digest
from swift_tiers.radix_tiering.base.runner import Runner
from swift_tiers.radix_tiering.tiers.remote import ObjectNames, ObjectShape
from swift_tiers.radix_tiering.tiers.remote.engine import EngineAnswer, EngineEvent, EngineJob
from swift_tiers.radix_tiering.tiers.remote.objects import ObjectHeader, parse_name, unwrap, wrap
from swift_tiers.radix_tiering.tiers.testing.model_engine import VERBS, LaneEngine


class StoreModel:
    """What is in the store. Nothing leaves it."""

    def __init__(self, runner: Runner, shape: ObjectShape, bytes_per_second: float, latency_seconds: float) -> None:
        """`latency_seconds`: of a question, and until the first byte of an object comes."""
        self.runner = runner
        self.shape = shape
        self.bytes_per_second = bytes_per_second
        self.latency_seconds = latency_seconds
        self.objects: dict[str, tuple[bytes, ...]] = {}  # the keys of each one's pages, as outside of machines
        self._names = ObjectNames(shape)

    def hold(self, namespace: bytes, keys: Sequence[bytes]) -> None:
        """Other machines have put this sequence of pages there, from its beginning on: whole objects of it."""
        pages, names = self.shape.pages, self._names
        for end in range(pages, len(keys) + 1, pages):
            held = tuple(map(names.key, keys[end - pages : end]))
            self.objects[names.name(namespace, keys[end - 1])] = held

    def open(self, slots: int) -> Callable[[Callable[[EngineEvent], None]], StoreLine]:
        """An `OpenEngine`: this machine's line to it."""
        return lambda tell: StoreLine(self, np.zeros((slots, self.shape.stride), np.uint8), tell)


class StoreLine(LaneEngine[tuple[float, EngineJob]]):
    """A `RemoteEngine`. What is asked for by one verb is done one job after the other, beside the other verbs."""

    def __init__(self, store: StoreModel, memory: np.ndarray, tell: Callable[[EngineEvent], None]) -> None:
        self._store = store
        self._clock = store.runner.monotonic
        self._digest = page_digest(np.zeros(store.shape.page_bytes, np.uint8))
        super().__init__(store.runner, memory, tell, {verb: f"store-{verb}" for verb in VERBS})

    def _note(self, job: EngineJob) -> tuple[float, EngineJob]:
        """When it was asked, and it."""
        return self._clock(), job

    def _do_next(self, noted: tuple[float, EngineJob]) -> bool:
        when, job = noted
        begins = max(self._clock(), when + self._store.latency_seconds)
        nbytes = len(job.slots) * self._store.shape.pages * self._store.shape.page_bytes
        self._store.runner.sleep(begins + nbytes / self._store.bytes_per_second - self._clock())
        self._tell(EngineAnswer(job.number, self._do(job)))
        return True

    def _do(self, job: EngineJob) -> list[bool]:
        objects = self._store.objects
        if job.verb == "put":
            for name, slot in zip(job.names, job.slots, strict=True):
                objects[name] = self._keys(name, slot)
            return [True] * len(job.names)
        there = [name in objects for name in job.names]
        for name, slot, is_there in zip(job.names, job.slots, there, strict=False):
            if is_there:
                self._write(name, slot)
        return there

    def _keys(self, name: str, slot: int) -> tuple[bytes, ...]:
        """Of the object that lies in the slot."""
        header = unwrap(self.memory[slot], self._store.shape, *parse_name(name))
        assert isinstance(header, ObjectHeader), "what is put is an object"
        return header.keys

    def _write(self, name: str, slot: int) -> None:
        """What lies in the slot is this object from now on."""
        keys, shape = self._store.objects[name], self._store.shape
        header = ObjectHeader(parse_name(name)[0], len(keys), shape.page_bytes, keys, (self._digest,) * len(keys))
        self.memory[slot] = 0
        wrap(self.memory[slot], header)
