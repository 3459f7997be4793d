"""The requests of one rank on the bus: those that are there now, and those that ended lately."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ...base.runner import Runner
from ...figures.forms import write_table
from ...figures.telemetry import EngineSample, RequestSample
from ..contract.records import request_record
from ..contract.schema import ENDED_REQUEST_TTL, ENDED_REQUESTS, Keys
from ..redis.batch import RedisBatch
from .mirror import Mirror

#: After so many, who waits for the interpreter, the scheduler above all, goes first.
REQUESTS_IN_A_ROW = 8


class _Text(NamedTuple):
    """What was written of a live request, and need not be made anew."""

    key: str
    table: tuple[int, ...]
    text: str


class RequestBoard:
    """One thread. Times are of this machine's clock, as in the samples."""

    def __init__(self, keys: Keys, mirror: Mirror, server: str, rank: str, runner: Runner) -> None:
        self._runner = runner
        self._keys = keys
        self._mirror = mirror
        self._words = {"server": server, "rank": rank}
        self._sample: EngineSample | None = None
        self._live: dict[str, RequestSample] = {}
        self._ended: dict[str, RequestSample] = {}  # oldest first
        self._unsaid: set[str] = set()  # ended ones that are not on the bus as such
        self._texts: dict[str, _Text] = {}  # of the live ones

    def forget(self) -> None:
        """Redis may hold none of it."""
        self._unsaid.update(self._ended)

    def publish(
        self, batch: RedisBatch, sample: EngineSample | None, ended: Iterable[RequestSample], now: float
    ) -> None:
        """`sample`: the newest one; `ended`: since the last call; `now`: by this machine's clock."""
        for request in ended:
            self._ended.pop(request.rid, None)
            self._ended[request.rid] = request
            self._unsaid.add(request.rid)
        self._forget_old(batch, now)
        if sample is not None:
            self._show_live(batch, sample)
        for rid in sorted(self._unsaid):
            self._show_ended(batch, self._ended[rid], now)
        self._unsaid.clear()
        self._list(batch)

    def leave(self, batch: RedisBatch, now: float) -> None:
        """This rank ends: only what has ended is left, for as long as it would have been anyway."""
        for rid in self._live:
            self._mirror.remove(batch, self._key(rid))
        self._live = {}
        self._list(batch, ENDED_REQUEST_TTL)
        self._mirror.release(self._set)

    @property
    def _set(self) -> str:
        return self._keys.of("requests", **self._words)

    def _key(self, rid: str) -> str:
        return self._keys.of("request", **self._words, rid=rid)

    def _show_live(self, batch: RedisBatch, sample: EngineSample) -> None:
        before = self._live
        self._live = {request.rid: request for request in sample.requests if not self._has_ended(request)}
        for rid in before.keys() - self._live.keys():
            self._texts.pop(rid, None)
            if rid not in self._ended:
                self._mirror.remove(batch, self._key(rid))
        is_new, self._sample = sample is not self._sample, sample
        for number, (rid, request) in enumerate(self._live.items()):
            former = self._texts.get(rid)
            key = self._key(rid) if former is None else former.key
            if not is_new and self._mirror.is_whole(key):
                self._mirror.keep(batch, key)
                continue
            known = ((), "") if former is None else (former.table, former.text)
            text = write_table(request.block_table, known)
            self._texts[rid] = _Text(key, request.block_table, text)
            self._mirror.write(batch, key, request_record(request, text, time=sample.time))
            if number % REQUESTS_IN_A_ROW == 0:
                self._runner.sleep(0)

    def _show_ended(self, batch: RedisBatch, request: RequestSample, now: float) -> None:
        key, ended = self._key(request.rid), request.ended or now
        text = write_table(request.block_table)
        left = max(0.001, ENDED_REQUEST_TTL - (now - ended))
        self._mirror.write(batch, key, request_record(request, text, time=ended), left)
        self._mirror.release(key)

    def _has_ended(self, request: RequestSample) -> bool:
        """Whether the sample is older than what is known. A client may use the name of an ended request again."""
        known = self._ended.get(request.rid)
        if known is None or known.arrived == request.arrived:
            return known is not None
        del self._ended[request.rid]
        self._unsaid.discard(request.rid)
        return False

    def _forget_old(self, batch: RedisBatch, now: float) -> None:
        """An ended request that is too old goes by itself, one that there is no room for is removed."""
        for rid, request in list(self._ended.items()):
            old = now - (request.ended or now) >= ENDED_REQUEST_TTL
            if not old and len(self._ended) <= ENDED_REQUESTS:
                break
            del self._ended[rid]
            self._unsaid.discard(rid)
            if rid not in self._live:
                self._mirror.remove(batch, self._key(rid))

    def _list(self, batch: RedisBatch, ttl: float | None = None) -> None:
        there = {rid: request.arrived for rid, request in [*self._ended.items(), *self._live.items()]}
        self._mirror.write_members(batch, self._set, there, ttl)
