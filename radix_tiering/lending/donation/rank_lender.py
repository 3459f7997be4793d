"""How the ranks of one server lend: one of them decides, and all do the same at the same step.

The ranks of a server with tensor parallelism run a scheduler each, in lockstep: the same requests, the same tree, the
same allocator. So memory may leave their pools, or come back, only on all of them and at the same step. But each rank
has borrowers, letters and a clock of its own.

So ranks agree (`RankLender`): now and then, counted in steps of the scheduler, which are the same on all of them, each
says what it knows, and the least of it holds for all. What has come back from borrowers is the pool's again once it is
back on every rank, and what has come back on one is taken back on all. Then the first rank's `Lender` decides as that
of a server with one rank does, by what was agreed; what it does to its pool and its donor is put down in words, and
every other rank does the same to its own.

Each collective is entered by all ranks, whatever goes wrong on one of them: how many there are, and of what length,
follows from steps and from what was agreed. An error of ours is said at the next agreement; then everything is taken
back. Where pools are not equal any more, which only an error in one of them can bring about, every rank raises before
anything is computed: ranks that compute different batches may hang, or answer wrongly.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

from ..leases.effects import Back, BorrowerJoined, BorrowerLeft, DonorEffect, Reclaimed
from ..leases.messages import Extent, Party
from ..leases.runs import RunState
from .extents import Span
from .lender import LOOK_SECONDS, Lender, Sized
from .rank_runs import PoolsDifferError, RankRuns, Word
from .sizing import ElasticSizer

#: The least of what all ranks say of each value; each of them says as many.
Least = Callable[[Sequence[int]], list[int]]

#: What a rank says that has nothing to say, as a value of which the least counts.
NOTHING = 2**62
#: Steps between two agreements at most; of those in which something was computed, which may begin to take long at any
#: time, one counts as many.
MOST_STEPS, COMPUTED = 64, 16
#: Numbers of runs that are asked for in one agreement at most, from the first on that has come back anywhere: it ends
#: within a lease's term, and then those behind it are asked for.
MOST_RUNS = 1024
#: Numbers of the first rank's words that go with their count; what is beyond goes in a collective of its own.
ROOM = 31
#: Words after which ranks look whether their pools are equal.
_CHANGE_POOLS = (Word.EVICT, Word.TAKE, Word.PUT_BACK)
#: How long nothing is decided after an error of ours, seconds.
FAULT_SECONDS = 1.0


class _Said(NamedTuple):
    """What a rank says, and the least of it. Who leads says the time, and how soon the next agreement is to be."""

    now: int = NOTHING  # microseconds of the first rank's clock
    sound: int = 1  # 0: something of ours has failed since the last agreement
    lends: int = 1  # 0: somebody else has recalled leases
    needed: int = 0  # bytes that borrowers would like beyond what is at their disposal
    idle: int = 0  # bytes at their disposal
    first_back: int = NOTHING  # of the runs that have come back
    last_back: int = NOTHING  # of these, below 0: the less, the later
    free: int = NOTHING  # pages of the pool
    taken: int = NOTHING  # the same, below 0
    patient: int = NOTHING  # 0: the first rank waits for memory
    peak: int = NOTHING  # bytes; see `Lender.peak_bytes`


class RankLender:
    """One rank's part. It is made on every rank, of the same sizes, and `step` is called on all of them alike.

    Scheduler's thread, but for `rest` and what is read of it.
    """

    def __init__(
        self,
        number: int,
        ranks: int,
        runs: RankRuns,
        sizer: ElasticSizer,
        least: Least,
        *,
        clock: Callable[[], float],
        demand: Callable[[], int],
        kept: Callable[[], int],
        forget: Callable[[], None],
        failed: Callable[[str, Exception], None],
        taken_back: Callable[[int, float], None] = lambda pages, seconds: None,
        sized: Callable[[Sized], None] = lambda sized: None,
    ) -> None:
        """`number` of so many `ranks`, from 0; 0 leads. `clock`: seconds, monotonic; the first rank's counts.
        `demand`, `kept`: as of `Lender`, called on every rank at every agreement, by the time `now` that was agreed on.
        `forget`: begins anew whatever `demand`, `kept` and evictions go by beyond what SGLang has alike on all ranks;
        called on all of them after an error on any. `failed`: told of errors of ours."""
        self._number = number
        self._ranks = ranks
        self._runs = runs
        self._sizer = sizer
        self._least = least
        self._clock = clock
        self._demand, self._kept, self._forget = demand, kept, forget
        self._tell = failed
        #: The time of the last agreement, seconds; the same on all ranks.
        self.now = 0.0
        #: The largest demand of the window, bytes. Any thread may read it.
        self.peak_bytes = 0
        self._tokens = self._kept_tokens = 0
        self._sound, self._rest = True, False
        self._steps = self._weight = 0  # since the last agreement
        self._every = 1
        self._hurry = False
        self._lead: _Leading | None = None
        if not number:
            self._lead = _Leading(
                runs, sizer, demand=lambda: self._tokens, kept=lambda: self._kept_tokens, taken_back=taken_back,
                sized=sized,
            )  # fmt: skip

    @property
    def window_seconds(self) -> float:
        """Over which the largest demand counts."""
        return self._sizer.window_seconds

    @property
    def lent_pages(self) -> int:
        """Pages out of this rank's pool."""
        return self._runs.pages

    def stumbled(self) -> None:
        """Something that lending goes by has failed on this rank: it is said at the next agreement."""
        self._sound = False

    # ---- told on every rank at the same step ----

    def arrived(self) -> None:
        """A request has arrived."""
        self._hurry = True
        if self._lead is not None:
            self._lead.lender.arrived()

    def refused(self) -> None:
        """See `Lender.refused`."""
        self._hurry = True
        if self._lead is not None:
            self._lead.lender.refused()

    def cap(self, limit_bytes: int | None) -> None:
        """See `Lender.cap`. The first rank's word is what counts, in the next agreement."""
        if self._lead is not None:
            self._lead.lender.cap(limit_bytes)

    def close(self) -> None:
        """Lend nothing more. Idempotent."""
        if self._lead is not None:
            self._lead.lender.close()

    def step(self, *, computed: bool) -> None:
        """A step of the scheduler begins; in the one before it something was `computed`, or nothing. Raises what the
        collectives raise, and PoolsDifferError, on every rank, where pools are not equal."""
        self._steps += 1
        self._weight += COMPUTED if computed else 1
        if self._hurry or self._steps >= self._every or self._weight >= MOST_STEPS:
            self._agree()

    # ---- any thread ----

    def rest(self) -> None:
        """See `Lender.rest`."""
        self._rest = True

    # ---- an agreement ----

    def _agree(self) -> None:
        free = self._free()
        facts = (self._guarded("facts", self._facts) or _Said(sound=0))._replace(free=free, taken=-free)
        unit = self._guarded("unit", lambda: self._runs.unit(self._sizer.most_lent * self._runs.layout.page_bytes)) or 0
        units = [unit if number == self._number else NOTHING for number in range(self._ranks)]
        least = self._least([*facts, *units])
        said, units = _Said(*least[: len(facts)]), least[len(facts) :]
        self._take_in(said)
        ended: list[int] = []
        if said.first_back < NOTHING:
            ended = self._agree_on_returns(said.first_back, -said.last_back)
        words: list[int] = []
        if self._lead is not None:
            self._guarded("lead", lambda: self._decide(said, units, ended))
            words = self._lead.take_words()
        words = self._hear(words)
        said_words = list(_parsed(words))
        if self._lead is None:
            for word, values in said_words:
                self._guarded(word.name.lower(), lambda word=word, values=values: self._runs.do(word, values))  # type: ignore[misc]
        if any(word in _CHANGE_POOLS for word, _ in said_words):
            free = self._free()
            least = self._least([free, -free])
            _check_equal(least[0], -least[1])

    def _free(self) -> int:
        """Pages of the pool."""
        free: int = self._guarded("free pages", lambda: self._runs.pool.free_pages) or 0
        return free

    def _facts(self) -> _Said:
        runs, lead = self._runs, self._lead
        runs.hear()
        self._tokens, self._kept_tokens = self._demand(), self._kept()
        said = _Said(
            sound=int(self._sound),
            lends=int(not self._rest),
            needed=runs.needed_bytes,
            idle=runs.idle_bytes,
            first_back=min(runs.back, default=NOTHING),
            last_back=-max(runs.back, default=-NOTHING),
        )
        self._sound, self._rest = True, False
        if lead is None:
            return said
        patient = int(not runs.coming)
        return said._replace(now=int(self._clock() * 1e6), patient=patient, peak=lead.lender.peak_bytes)

    def _take_in(self, said: _Said) -> None:
        """What was agreed decides when the next agreement is."""
        now = said.now / 1e6 if said.now < NOTHING else self.now
        pace = max(0.0, now - self.now) / max(1, self._steps)
        self.now = now
        self.peak_bytes = said.peak if said.peak < NOTHING else self.peak_bytes
        steps = MOST_STEPS if pace * MOST_STEPS <= LOOK_SECONDS else max(1, int(LOOK_SECONDS / pace))
        self._every = steps if said.patient else 1
        self._steps = self._weight = 0
        self._hurry = False
        if not said.sound:
            self._guarded("forget", self._forget)
            self._guarded("withdraw", lambda: self._runs.withdraw(list(self._runs.runs)))
        _check_equal(said.free, -said.taken)

    def _agree_on_returns(self, first: int, last: int) -> list[int]:
        """The runs between these that have come back on every rank; those that have on some are withdrawn on all."""
        asked = range(first, min(last + 1, first + MOST_RUNS))
        back = [int(self._runs.is_back(run)) for run in asked]
        least = self._least([*back, *(-one for one in back)])
        everywhere, somewhere = least[: len(back)], least[len(back) :]
        # What is here no more, as elsewhere, has ended before.
        ended = [run for run, one in zip(asked, everywhere, strict=True) if one and run in self._runs.runs]
        begun = [run for run, one in zip(asked, somewhere, strict=True) if one]
        self._guarded("end", lambda: self._runs.end(ended))
        self._guarded("withdraw", lambda: self._runs.withdraw(set(begun) - set(ended) - self._runs.coming))
        return ended

    def _decide(self, said: _Said, units: list[int], ended: list[int]) -> None:
        """On the first rank."""
        lead = self._lead
        assert lead is not None
        lead.heard(said, units, ended)
        try:
            lead.decide(self.now, sound=bool(said.sound))
        except Exception:
            lead.retreat(self.now)
            raise

    def _hear(self, words: list[int]) -> list[int]:
        """The first rank's words; those of others are none."""
        head = [len(words), *words[:ROOM]] if self._lead is not None else []
        said = self._least(head + [NOTHING] * (1 + ROOM - len(head)))
        count, heard = said[0], said[1:]
        if count > ROOM:
            rest = words[ROOM:] if self._lead is not None else [NOTHING] * (count - ROOM)
            heard += self._least(rest)
        return heard[:count]

    def _guarded(self, where: str, what: Callable[[], Any]) -> Any:
        """What it returns; None where it fails, which is said at the next agreement."""
        try:
            return what()
        except Exception as error:  # noqa: BLE001 - the others wait
            self._sound = False
            self._tell(where, error)
            return None


def _check_equal(least: int, most: int) -> None:
    """Of pages that are free on each rank. Raises PoolsDifferError."""
    if least != most:
        raise PoolsDifferError(
            f"ranks that lend together have {least} to {most} pages free, not as many as each other, after an error "
            "that the log tells of; start the server again, without peer.donate if it comes again, and report it"
        )


def _parsed(words: Sequence[int]) -> Iterator[tuple[Word, Sequence[int]]]:
    """Each word with its values."""
    at = 0
    while at < len(words):
        end = at + 2 + words[at + 1]
        yield Word(words[at]), words[at + 2 : end]
        at = end


# ---- the first rank ----


class _Leading:
    """The first rank's lender, and its words to the others."""

    def __init__(self, runs: RankRuns, sizer: ElasticSizer, **lender: Any) -> None:
        self._runs = runs
        self._words: list[int] = []
        self._said = _Said()
        self._rest_until = -math.inf
        self._effects: deque[DonorEffect] = deque()
        self._units: dict[int, Party] = {}  # by rank: its borrowers, as one
        self._unit_of: dict[int, int] = {}
        pool = _LeadPool(runs, self._say)
        self.lender = _LeadLender(
            pool, sizer, runs.layout, _LeadLending(runs, pool, self._say, lambda: self._said), self._effects,
            fence=lambda: _passed, copying=frozenset, **lender,
        )  # fmt: skip

    def take_words(self) -> list[int]:
        words, self._words = self._words, []
        return words

    def _say(self, word: Word, values: Collection[int]) -> None:
        self._words += [word, len(values), *values]

    def heard(self, said: _Said, units: list[int], ended: list[int]) -> None:
        """What was agreed, the unit of each rank's borrowers, and the runs that are back on every rank."""
        self._said = said
        if not said.lends:
            self.lender.rest()
        self._effects += [Reclaimed(run, Back.RETURNED) for run in ended if self.lender.has(run)]
        for rank, unit in enumerate(units):
            if self._unit_of.get(rank, 0) != unit:
                self._unit_of[rank] = unit
                party = Party(f"the borrowers of rank {rank}", 1 + rank)
                self._effects.append(BorrowerJoined(party, unit) if unit else BorrowerLeft(party))

    def decide(self, now: float, *, sound: bool) -> None:
        if not sound:
            self.retreat(now)
        elif now >= self._rest_until:
            self.lender.tick(now)

    def retreat(self, now: float) -> None:
        """Have everything back; nothing is decided for a while."""
        self._rest_until = now + FAULT_SECONDS
        self.lender.retreat(now)


class _LeadLender(Lender):
    """Says which spans are of which run."""

    def has(self, run: int) -> bool:
        return run in self._runs

    def _stock(self, spans: list[Span]) -> None:
        assert isinstance(self._pool, _LeadPool)
        self._pool.of_next_run = list(spans)
        super()._stock(spans)


class _LeadPool:
    """The first rank's pool: what is done to it is said to the others."""

    def __init__(self, runs: RankRuns, say: Callable[[Word, Collection[int]], None]) -> None:
        self._runs = runs
        self._say = say
        self._names: dict[Span, int] = {}
        self.of_next_run: list[Span] = []

    @property
    def pages(self) -> int:
        return self._runs.pool.pages

    @property
    def free_pages(self) -> int:
        return self._runs.pool.free_pages

    def names(self, spans: Collection[Span]) -> list[int]:
        return [self._names[span] for span in spans]

    def arrange(self, span_pages: int) -> None:
        self._runs.pool.arrange(span_pages)
        self._say(Word.ARRANGE, [span_pages])

    def evict(self, pages: int, *, kept: bool = False) -> None:
        self._runs.pool.evict(pages, kept=kept)
        self._say(Word.EVICT, [pages, kept])

    def take(self, spans: int) -> list[Span]:
        taken = self._runs.take(spans)
        self._say(Word.TAKE, [spans, len(taken)])
        self._names |= {span: name for name, span in taken.items()}
        return list(taken.values())

    def put_back(self, spans: Collection[Span]) -> None:
        names = [self._names.pop(span) for span in spans]
        self._runs.put_back(names)
        self._say(Word.PUT_BACK, names)


class _LeadLending:
    """The first rank's donor, and what was agreed of all of them."""

    def __init__(
        self,
        runs: RankRuns,
        pool: _LeadPool,
        say: Callable[[Word, Collection[int]], None],
        said: Callable[[], _Said],
    ) -> None:
        self._runs = runs
        self._pool = pool
        self._say = say
        self._said = said

    def stock(self, run: int, extents: Collection[Extent]) -> None:
        names = self._pool.names(self._pool.of_next_run)
        try:
            self._runs.stock(run, names)
        except BaseException:
            self._runs.end([run])  # the lender puts its spans back
            raise
        self._say(Word.STOCK, [run, *names])

    def fenced(self, run: int) -> None:
        """Each rank waits for its own forwards."""

    def withdraw(self, wanted_bytes: int) -> None:
        now = self._said().now
        returned = self._runs.returned_bytes(now / 1e6 if now < NOTHING else 0.0)
        self._withdraw(self._runs.lending.to_withdraw(wanted_bytes - returned))

    def withdraw_unused(self) -> None:
        self._withdraw(self._runs.lending.unused())

    def _withdraw(self, runs: list[int]) -> None:
        if runs:
            self._say(Word.WITHDRAW, runs)
            self._runs.withdraw(runs)

    def set_limit(self, limit_bytes: int | None) -> None:
        self._say(Word.LIMIT, [-1 if limit_bytes is None else limit_bytes])
        self._runs.lending.set_limit(limit_bytes)

    def wanted_bytes(self, run_bytes: int) -> int:
        """Nothing before every rank has said what its borrowers would like of runs of this size."""
        if run_bytes != self._runs.run_bytes:
            self._say(Word.MEASURE, [run_bytes])
            self._runs.run_bytes = run_bytes
            return 0
        said = self._said()
        return max(0, said.needed + said.idle)

    def bytes_in(self, *states: RunState) -> int:
        """That are idle on every rank."""
        return self._said().idle


def _passed() -> bool:
    return True
