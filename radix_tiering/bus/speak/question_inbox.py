"""Questions about pages, tiers and the tree, and their answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from ...figures.telemetry import Answerer, NoAnswer, NotYet
from ..contract.faults import Faults
from ..contract.records import Record, map_record, no_record, nodes_record, page_record, prefix_record
from ..contract.schema import ANSWER_TTL, MOST_LISTED_NODES, TIER_NAME, Keys
from ..contract.views import MOST_LISTED_PAGES
from ..redis.batch import RedisBatch
from .inbox import Inbox

#: Questions that are taken at a time: what they cost this machine is bounded, however many are asked.
MOST_QUESTIONS = 32
#: Questions that wait for the engine's thread at a time; further ones push out those that have waited longest.
MOST_WAITING = 64
#: How long one waits for the engine's thread, seconds; whoever asked is gone by then.
WAITING_SECONDS = 10.0

_PAGE = re.compile(r"[0-9a-f]{64}")
_BEGUN_PAGE = re.compile(r"([0-9a-f]{2}){8,32}")
_NUMBER = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)


class _Question(NamedTuple):
    """One field of an entry."""

    name: str
    word: str


class QuestionInbox:
    """One thread."""

    def __init__(self, keys: Keys, server: str, rank: str, answerer: Answerer, faults: Faults) -> None:
        self.answered = 0
        self.ignored = 0  # entries that ask for nothing that is known here
        self.inbox = Inbox(keys.of("questions", server=server), MOST_QUESTIONS)
        self._keys = keys
        self._words = {"server": server, "rank": rank}
        self._answerer = answerer
        self._faults = faults
        self._waiting: dict[_Question, float] = {}  # since when, by this machine's clock

    @property
    def waits(self) -> bool:
        """Whether a question waits for the engine's thread."""
        return bool(self._waiting)

    def answer(self, batch: RedisBatch, now: float) -> bool:
        """Queue the answers to what was read and to what has waited, each question once; whether there may be more to
        read. `now`: by this machine's clock."""
        entries = self.inbox.take()
        for _, fields in entries:
            question = _read(fields)
            if question is None:
                self.ignored += 1
            else:
                self._waiting.setdefault(question, now)
        for question, since in list(self._waiting.items()):
            del self._waiting[question]
            try:
                with self._faults.at(f"answering a question ({question.name})"):
                    self._answer(batch, question, now)
            except NotYet:
                if 0 <= now - since < WAITING_SECONDS:
                    self._waiting[question] = since
        while len(self._waiting) > MOST_WAITING:
            del self._waiting[next(iter(self._waiting))]
        return len(entries) >= MOST_QUESTIONS

    def _answer(self, batch: RedisBatch, question: _Question, now: float) -> None:
        words, record = self._look(question, now)
        key = self._keys.of(question.name, **self._words, **words)
        # An earlier answer may have said more.
        batch.add("UNLINK", key)
        batch.add("HSET", key, *(word for pair in record.items() for word in pair))
        batch.add("PEXPIRE", key, round(ANSWER_TTL * 1000))
        self.answered += 1

    def _look(self, question: _Question, now: float) -> tuple[dict[str, str], Record]:
        """Words of the answer's key, and what it says. Raises NotYet."""
        name, word = question
        try:
            if name == "page":
                return {"key": word}, page_record(self._answerer.page(bytes.fromhex(word)), time=now)
            if name == "prefix":
                prefix = self._answerer.prefix(bytes.fromhex(word), MOST_LISTED_PAGES)
                return {"key": word}, prefix_record(prefix, time=now)
            if name == "map":
                return {"tier": word}, map_record(self._answerer.map(word))
            return {}, nodes_record(self._answerer.nodes(int(word)))
        except NoAnswer as reason:
            return {"tier": word} if name == "map" else {}, no_record(str(reason), time=now)


def _read(fields: Mapping[str, str]) -> _Question | None:
    """The question of an entry; None if it is none that is known here."""
    if len(fields) != 1:
        return None
    ((name, word),) = fields.items()
    if name == "page":
        known = bool(_BEGUN_PAGE.fullmatch(word))
    elif name == "prefix":
        known = bool(_PAGE.fullmatch(word))
    elif name == "map":
        known = bool(TIER_NAME.fullmatch(word))
    else:
        known = name == "nodes" and bool(_NUMBER.fullmatch(word)) and int(word) <= MOST_LISTED_NODES
    return _Question(name, word) if known else None
