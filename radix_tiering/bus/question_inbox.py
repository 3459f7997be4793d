"""Questions about pages, and their answers."""

from __future__ import annotations

import re
from collections.abc import Callable

from swift_tiers.radix_tiering.bus.batch import Batch
from swift_tiers.radix_tiering.bus.faults import Faults
from swift_tiers.radix_tiering.bus.inbox import Inbox
from swift_tiers.radix_tiering.bus.records import page_record
from swift_tiers.radix_tiering.bus.schema import ANSWER_TTL, Keys
from swift_tiers.radix_tiering.counters import PageFacts

#: Questions that are taken at a time: what they cost this machine is bounded, however many are asked.
MOST_QUESTIONS = 32

_PAGE = re.compile(r"[0-9a-f]{64}")

PageLookup = Callable[[bytes], PageFacts | None]


class QuestionInbox:
    """One thread."""

    def __init__(self, keys: Keys, server: str, rank: str, facts: PageLookup, faults: Faults) -> None:
        self.answered = 0
        self.ignored = 0  # entries that ask for no page
        self.inbox = Inbox(keys.of("questions", server=server), MOST_QUESTIONS)
        self._keys = keys
        self._words = {"server": server, "rank": rank}
        self._facts = facts
        self._faults = faults

    def answer(self, batch: Batch, now: float) -> bool:
        """Queue the answers to what was read, each page once; whether there may be more to read. `now`: by this
        machine's clock."""
        entries = self.inbox.take()
        pages = [fields.get("page", "") for _, fields in entries]
        known = [page for page in pages if _PAGE.fullmatch(page)]
        self.ignored += len(pages) - len(known)
        for page in dict.fromkeys(known):
            with self._faults.at("looking up a page"):
                self._answer(batch, page, now)
        return len(entries) >= MOST_QUESTIONS

    def _answer(self, batch: Batch, page: str, now: float) -> None:
        record = page_record(self._facts(bytes.fromhex(page)), time=now)
        key = self._keys.of("page", **self._words, key=page)
        # An earlier answer may have said more.
        batch.add("UNLINK", key)
        batch.add("HSET", key, *(word for pair in record.items() for word in pair))
        batch.add("PEXPIRE", key, round(ANSWER_TTL * 1000))
        self.answered += 1
