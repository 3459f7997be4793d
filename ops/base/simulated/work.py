"""Who asks a simulated server for what: conversations that go on, and agents that share a beginning."""

from __future__ import annotations

import math
from collections.abc import Iterator
from hashlib import sha256
from random import Random
from typing import NamedTuple, Protocol

import msgspec


def page_key(block: int) -> bytes:
    """Of a page of a simulated prompt."""
    return sha256(block.to_bytes(16, "big")).digest()


class Habit(msgspec.Struct, frozen=True, kw_only=True):
    """How a server is used. Tokens are of whole pages."""

    per_second: float  # requests
    shared_pages: int  # of a system prompt
    first_pages: tuple[int, int]  # of a conversation's first prompt, behind that: from, to
    turn_pages: tuple[int, int]  # of each further one
    answer_tokens: tuple[int, int]
    conversations: int  # that go on at one time
    new: float = 0.1  # of the requests: those that begin a conversation


class PlannedRequest(NamedTuple):
    """One request: its prompt's whole pages, tokens behind them, and what its answer is going to be."""

    keys: tuple[bytes, ...]
    rest: int  # tokens of the prompt that are no whole page
    answer_tokens: int
    talk: list[int]


class Arrivals(Protocol):
    """Who asks for what, and when. Times are of the runner's clock."""

    next_at: float  # when the next request comes; infinity: none does

    def begin(self, now: float) -> None:
        """The server serves from now on."""
        ...

    def due(self, now: float) -> Iterator[tuple[float, PlannedRequest]]:
        """Those that have come until now, each with when it came."""
        ...

    def answered(self, call: PlannedRequest, page_tokens: int) -> tuple[bytes, ...]:
        """The pages that the answer to it has made whole."""
        ...


class RequestSource:
    """Draws requests by a seed."""

    def __init__(self, habit: Habit, random: Random, first_block: int, longest: int) -> None:
        """`first_block`: pages of different servers have different numbers. `longest`: pages of a prompt at most."""
        self.habit = habit
        self._random = random
        self._block = first_block
        self._longest = longest
        self._shared = [self._new() for _ in range(habit.shared_pages)]
        self._talks: list[list[int]] = []
        self.strangers = False  # only new conversations come
        self.next_at = math.inf
        self._rush: tuple[float, Habit] | None = None  # until when, and what is usual

    def _new(self) -> int:
        self._block += 1
        return self._block

    def begin(self, now: float) -> None:
        self.next_at = now + self._pause()

    def rush(self, until: float, factor: float) -> None:
        """Until then requests come so many times as often."""
        usual = self.habit
        self.habit = msgspec.structs.replace(usual, per_second=usual.per_second * factor)
        self._rush = until, usual

    def due(self, now: float) -> Iterator[tuple[float, PlannedRequest]]:
        if self._rush is not None and now >= self._rush[0]:
            self.habit, self._rush = self._rush[1], None
        while self.next_at <= now:
            self.next_at += self._pause()
            yield now, self.draw()

    def _pause(self) -> float:
        """Seconds until the next request."""
        return self._random.expovariate(self.habit.per_second)

    def draw(self) -> PlannedRequest:
        habit, random = self.habit, self._random
        if self.strangers or len(self._talks) < habit.conversations // 4 or random.random() < habit.new:
            shared = [] if self.strangers else self._shared
            talk = [*shared, *(self._new() for _ in range(random.randint(*habit.first_pages)))]
            self._talks.append(talk)
            if len(self._talks) > habit.conversations:
                self._talks.pop(random.randrange(len(self._talks) // 2))
        else:
            # The newest go on most often; old ones come back now and then, from the tiers below.
            at = min(int(random.expovariate(2.0 / len(self._talks))), len(self._talks) - 1)
            talk = self._talks[-1 - at]
            turn = random.randint(*habit.turn_pages)
            if len(talk) + turn > self._longest:  # it begins again, with what everybody has in front
                del talk[len(self._shared) :]
            talk += (self._new() for _ in range(turn))
        answer = random.randint(*habit.answer_tokens)
        return PlannedRequest(tuple(map(page_key, talk)), random.randint(1, 60), answer, talk)

    def answered(self, call: PlannedRequest, page_tokens: int) -> tuple[bytes, ...]:
        """The pages that its answer has made whole; the conversation goes on behind them."""
        made = [self._new() for _ in range((call.rest + call.answer_tokens) // page_tokens)]
        if tuple(map(page_key, call.talk)) == call.keys:  # nobody has asked on meanwhile
            call.talk.extend(made)
        return tuple(map(page_key, made))
