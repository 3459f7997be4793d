"""What a tier is: a place beneath the device where copies of pages lie.

A new tier is a class that fulfils this, one line where tiers are assembled, and one section of configuration. Which
pages it has is not its business: the page table knows that (`table.tier_copies`). A tier has places for them, and moves
bytes. Host memory is not one of these: it is where bytes come from and go to.

Any thread may call; but for `close`, and what says otherwise, nothing here waits. Every write and read is answered
exactly once, on a thread of the tier's own, never from within the call, and within `Tier.answers`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from itertools import takewhile
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..base.config import PolicyConfig, TiersConfig
from ..base.page import HeldPages, PageRecord, page_digest
from ..base.slot_map import TierMap
from ..figures.counters import LinkCounters
from ..table.policy import AdmissionPolicy, AdmitAlways, admission_policy
from ..table.tier_copies import Copy, Keeper, Part


class ReadOutcome(Enum):
    """How a read ended. Only OK means that `into` holds the page; every other outcome is a miss."""

    OK = "ok"
    IO_ERROR = "io error"
    DEVICE_GONE = "device gone"
    CANCELLED = "cancelled"
    FLUSHED = "namespace flushed"
    # Of a tier whose copies are hints: somebody else has removed it, or it did not come in time.
    ABSENT = "absent"
    LATE = "late"
    # What was read is not the page asked for:
    MAGIC = "corrupt: magic"
    KEY = "corrupt: key"
    NAMESPACE = "corrupt: namespace"
    LENGTH = "corrupt: length"
    GENERATION = "corrupt: generation"
    PLACE = "corrupt: place"
    CHECKSUM = "corrupt: checksum"

    @property
    def ok(self) -> bool:
        return self is ReadOutcome.OK

    @property
    def expected(self) -> bool:
        """It may always come to this, and nothing is wrong."""
        return self in (ReadOutcome.CANCELLED, ReadOutcome.ABSENT)

    @property
    def corrupt(self) -> bool:
        """What was read is not the page asked for, or is damaged."""
        return self.value.startswith("corrupt")

    def __str__(self) -> str:
        return self.value


class Written(NamedTuple):
    """What a write has made."""

    place: Any  # where the copy lies, as reads want it
    digest: bytes  # checksum of the bytes that were written


#: Why a page is not written whose bytes in memory are no longer those of its checksum.
DAMAGED = "the bytes in memory are not the page's"
#: ... and of one that may be written a moment later: nothing has left service, so that to try at once is to fail again.
NOT_NOW = "this machine had no memory for the request"


class Write(NamedTuple):
    """One page to write. A durable tier that is given its checksum writes no other bytes, and answers DAMAGED: what it
    has written is found again after a crash, whatever became of it before."""

    record: PageRecord
    place: Any  # from `Tier.reserve`
    data: np.ndarray  # uint8 [the page, and on to a whole 4 KiB block], unchanged until `done`
    digest: bytes | None  # its checksum, as far as known
    done: Callable[[Written | None, str], None]  # None: it is not there, for this reason, and its place is free again


class Read(NamedTuple):
    """One page to read."""

    record: PageRecord
    copy: Copy
    into: np.ndarray  # uint8, as `Write.data`; the page only after OK
    done: Callable[[ReadOutcome], None]
    saving: bool = False  # to save the page from a part that is to leave: such reads go first


class Chain(NamedTuple):
    """Pages that follow each other, and that a tier of hints is asked for."""

    namespace: bytes  # its digest
    depth: int  # pages before the first of them
    keys: Sequence[bytes]


def as_many_as_free(take: Callable[[int], Any | None], lengths: Sequence[int]) -> list[Any]:
    """What `Tier.reserve` answers where `take(length)` gives one place, or None: up to the first that there is not."""
    return list(takewhile(lambda place: place is not None, map(take, lengths)))


#: Told how a read into landing memory has ended, and the slot there, which is the hearer's; -1 unless OK.
LandDone = Callable[[ReadOutcome, int], None]


class TierListener(Protocol):
    """Is told by a tier, on the tier's own thread, what becomes of its parts: leases, devices."""

    def room(self) -> None:
        """There is more room than before."""
        ...

    def leaving(self, part: Part, until: float) -> Iterator[None]:
        """Nothing new goes to this part. What is to be saved of it is read with `Read.saving`, before `until` by the
        tier's clock; then `Tier.give_up` returns the part.

        It is found out what that is in steps, which the tier takes to the end, after `gone`, too: between two of them
        it reads what the last one has asked for, or the time would pass with finding out alone."""
        ...

    def full(self, part: Part, reason: str) -> None:
        """Nothing new can be written to this part, which serves what it has."""
        ...

    def gone(self, part: Part, reason: str) -> None:
        """Nothing of this part can be read any more. `Tier.let_go` follows."""
        ...

    def back(self, part: Part) -> None:
        """A part that had gone, and was let go of, takes pages again."""
        ...


class Obeyed(NamedTuple):
    """What a tier has done for an operator: in words, and the events that tell of it, with their fields."""

    text: str
    events: Sequence[tuple[str, dict[str, Any]]] = ()


#: Carries out an operator's order, whose argument it is given, and may wait for devices. Raises CommandRefusedError,
#: which says why it does not, or another SwiftTiersError.
TierOrder = Callable[[str], Obeyed]


class Tier(Keeper):
    """See the module."""

    # One tier of a stack at most has `hints`, and is the last one: what it has is known by asking only (`find`), since
    # others write there and remove. The page table has a copy in it while a restore wants it, and none of what is
    # written to it.

    #: With `hints`: pages of one chain that are written and found together, one behind the other, as far as the page in
    #: a depth that is a multiple of this.
    together = 1
    #: Pages that one read brings, whichever of them is asked for: those behind the last page in a depth that is a
    #: multiple of this, up to the next one.
    granule = 1
    #: Pages whose writes may be under way together.
    writes_in_flight = 16
    #: Pages that wait to be written at most, beside which more are left out; None: as many as there are.
    most_queued: int | None = None
    #: Pages that may leave for one that comes: bounds how long the page table is locked.
    most_evictions = 64
    #: Whether a page that could not be written, but for NOT_NOW, is offered again: what has failed has left service.
    tries_again = False
    #: Whether reads from a part that has gone may never be answered, so that nobody waits for them.
    may_hang = False
    #: Whether a page lands only by a digest that was learnt of it; see `learn`.
    lands_by_digest = False
    #: Why pages are refused that it would not take though everything were to leave; empty: that is not counted.
    refusal = ""
    #: Why pages are refused for which nothing there leaves; empty: that is as it should be, and not counted.
    full = "full"
    #: Events that tell of a part: it takes nothing new, is to leave, has gone, its pages have, and it is back.
    part_full, part_leaves, part_gone, part_lost, part_back = "", "", "", "", ""
    #: Within this a tier calls `done`, of as many as have ended together: a lock is held once for all of them. A tier
    #: enters it without any lock of its own.
    answers: AbstractContextManager[object] = nullcontext()

    def answer_within(self, answers: AbstractContextManager[object]) -> None:
        """Call `done` within these `answers` from now on. Before the first write or read."""
        self.answers = answers

    def still(self) -> AbstractContextManager[object]:
        """Within this no thread of the tier asks anything of a GPU. Waits for what is being done there."""
        return nullcontext()

    def tell_costs(self, loaded: Callable[[int, float], None]) -> None:
        """Tell `loaded` the bytes and seconds of reads that no restore waited for. For a tier that tries what its cost
        is before a restore has to know."""

    @property
    def checksum_unit(self) -> int | None:
        """Bytes of a page that have a checksum of their own here: that of the page is then that of theirs. None: of the
        page as a whole."""
        return None

    def fingerprint(self, page: np.ndarray) -> bytes:
        """The checksum of a page, uint8 [page bytes], as this tier makes it."""
        return page_digest(page, self.checksum_unit)

    def opened(self) -> Sequence[tuple[str, dict[str, Any]]]:
        """Events that tell what operators should know of how it was opened, and their fields."""
        return ()

    # ---- room ----

    @property
    def limit_bytes(self) -> int | None:
        """What its configuration lets it hold; None: its capacity."""
        return None

    @abstractmethod
    def takes(self, length: int) -> bool:
        """Whether it would take a page of so many bytes if everything else were to leave."""

    @abstractmethod
    def reserve(self, lengths: Sequence[int]) -> list[Any]:
        """Places for pages of these lengths, as many as there are free, the first ones first."""

    @abstractmethod
    def release(self, places: Sequence[Any]) -> None:
        """Give places back, of copies or as they were reserved. Nothing else comes there while a read is under way."""

    def admission(self, policy: PolicyConfig, tokens_per_page: int) -> AdmissionPolicy:
        """Which pages are written there: to a durable tier those that the configuration says, else all."""
        return admission_policy(policy, tokens_per_page) if self.durable else AdmitAlways()

    def want(self, nbytes: int) -> None:
        """How much could be of use. For a tier whose size others decide."""

    # ---- what only the tier itself knows, of one with `hints` ----

    def asks(self, depth: int, pages: int) -> bool:
        """Whether it would be asked now for so many pages behind the first `depth` ones. At once."""
        return False

    def find(self, chain: Chain, done: Callable[[list[Any]], None]) -> None:
        """Look for pages. `done(places)` follows soon, without locks, on any thread: of the first pages, as many as
        there may be; none where nothing is found in time. Raises RuntimeError once the tier is closed."""
        raise NotImplementedError

    def lacks(self, namespace: bytes, key: bytes) -> bool:
        """Whether the pages that end with this one are to be written, as far as is known here. At once."""
        return True

    # ---- bytes ----

    @abstractmethod
    def write(self, writes: Sequence[Write]) -> None:
        """Write pages; with `hints` those of one run (`together`), in order, whose places are None. Raises RuntimeError
        once the tier is closed, or where too many wait; ValueError for what cannot be meant; accepts nothing then."""

    @abstractmethod
    def read(self, reads: Sequence[Read]) -> None:
        """Read pages, each verified against its copy's digest or better; a copy that has none, as a hint, has it once
        `done` says OK. CANCELLED: the part it lies on is leaving or over, or there was no memory to read it. Raises as
        `write` does."""

    def land(self, record: PageRecord, copy: Copy, done: LandDone) -> bool:
        """Read a page straight into landing memory. False, and no answer, where that is not possible now. Raises as
        `write` does."""
        return False

    def learn(self, copy: Copy, page: np.ndarray, done: Callable[[], None]) -> bool:
        """Learn by what a landed page is verified, of its bytes in host memory: uint8 [page bytes], unchanged until
        `done()`. False, and no answer, where nothing of this tier lands."""
        return False

    def learnt(self, copy: Copy) -> bool:
        """Whether that is known of a copy."""
        return False

    def unlearn(self, copy: Copy) -> None:
        """What landed was not that: it is learnt anew, if the page is sound in host memory."""

    @property
    def links(self) -> Mapping[str, LinkCounters]:
        """What was copied: "FROM-TO", both ways, and by whatever else the tier tells apart."""
        return {}

    def lane(self, place: Any) -> Hashable:
        """What reads of this place wait in line for, where it sets a pace: a donor."""
        return None

    def paced_seconds(self, lane: Hashable, pages: int) -> float:
        """How long that lane, by the pace it sets just now, lets so many pages more take, after those that wait. The
        reads themselves are not in it."""
        return 0.0

    # ---- parts ----

    @property
    def partly_shut(self) -> bool:
        """Whether there are parts that take nothing more, and hold pages still."""
        return False

    def makes_room(self, place: Any) -> bool:
        """Whether something could be written once what lies at `place` has left: not where all of it lies on parts that
        take nothing more."""
        return True

    def part_facts(self, part: Part) -> dict[str, Any]:
        """The fields by which events name a part."""
        return {}

    def watch(self, listener: TierListener) -> None:
        """Tell `listener` from now on."""

    def give_up(self, part: Part) -> None:
        """Nothing of a part that is leaving is needed any more."""

    def let_go(self, part: Part) -> None:
        """No copy is known any more that lay on a part when it went: nothing there counts if it is back."""

    # ---- namespaces and restarts, of a durable tier ----

    def open(self) -> None:
        """Find out what it has, where that was left for later; until this has returned it has nothing and takes
        nothing, and `register` and `flush` are not called. Waits, for minutes where there are millions of pages. Raises
        RuntimeError where it is closed meanwhile, and is as it was then."""

    def recover(self) -> Sequence[HeldPages]:
        """What it had when it was opened. Asked once."""
        return ()

    def register(self, namespace: bytes, text: str, done: Callable[[bool], None] | None = None) -> None:
        """Let pages of a namespace be written, `text` telling people what it is. Waits for the devices; with `done`
        for nothing: `done(whether that is durable)` follows. Raises ConfigError where it cannot take one more."""
        if done is not None:
            done(True)

    def retire(self, namespace: bytes, *, comes_back: bool) -> None:
        """A namespace may make room for another one, before all others where nobody will ask for it again."""

    def flush(self, namespace: bytes) -> bool:
        """Let nothing that was written of a namespace so far be found after a restart. Waits for the devices. False
        where that could not be written down."""
        return True

    def forget_arrived(self) -> None:
        """Let go of what has come into this server's memory and is kept in case it is wanted again. Any thread."""

    # ---- operators ----

    def commands(self, config: TiersConfig) -> Mapping[str, TierOrder]:
        """What operators may order of this tier beyond what every tier does, by name. `config`: as it is now."""
        return {}

    # ---- telling ----

    def details(self) -> dict[str, Any]:
        """What it says of itself in a `StackSnapshot`, beyond what every tier says: fields and their values."""
        return {}

    def facts(self, copy: Copy) -> dict[str, Any]:
        """Where a copy is, for `PageFacts`: fields and their values."""
        return {}

    def place_facts(self, copy: Copy) -> dict[str, Any]:
        """Where a copy is, for `PagePlaces`: fields and their values."""
        return {}

    def slot_map(self, held: Callable[[], Sequence[Any]], *, time: float) -> TierMap | None:
        """What is in each slot; None where it has no slots to show. Any thread, with no lock held. `held()`: the places
        of the copies that are whole, looked at little by little; `time`: now, seconds since the epoch."""
        return None

    def close(self, held: Iterable[HeldPages] | None, timeout: float | None = None) -> None:
        """Answer everything and end. A durable tier writes down that it has `held`; None: as after a crash. After
        `timeout` seconds what does not answer is given up. Idempotent."""
