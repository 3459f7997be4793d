"""How letters of the lease protocol come and go: what `LeaseService` needs of a network."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection
from typing import Any, Generic, NamedTuple, TypeVar

from .effects import Send
from .messages import Letter, Party


class FromBorrower(NamedTuple):
    """For the donor's machine."""

    letter: Letter


class FromDonor(NamedTuple):
    """For the borrower's machine."""

    letter: Letter


class BorrowerGone(NamedTuple):
    """A borrower's process has ended."""

    borrower: Party


class DonorGone(NamedTuple):
    """A donor's process has ended."""

    donor: Party


class DonorRefuses(NamedTuple):
    """A donor speaks another version."""

    donor: str
    reason: str


Event = FromBorrower | FromDonor | BorrowerGone | DonorGone | DonorRefuses

Way = TypeVar("Way", bound=Any)


class Wire(ABC, Generic[Way]):
    """The ways of one server to its donors, and of borrowers to it. Letters may be lost, come twice, or late.

    `wake` and `dial` are for any thread; everything else is for the one that waits. A way (`Way`) to one donor has
    `close`, for one that is not to be used after all.
    """

    def __init__(self) -> None:
        #: How many letters were `received`, `sent`, `dropped` (nobody there, or a full queue), `garbled`, `oversized`,
        #: of an `other version`, or of `strangers`: another user's, or in another party's name.
        self.counters: Counter[str] = Counter()

    @abstractmethod
    def listen(self, address: str, party: Party) -> None:
        """Receive letters for this donor. Raises ConfigError."""

    @abstractmethod
    def dial(self, address: str) -> Way:
        """A way to a donor, whether it is there already or not, for `add`. Raises ConfigError."""

    @abstractmethod
    def add(self, donor: str, way: Way) -> None:
        """Talk to this donor from now on."""

    @abstractmethod
    def keep(self, donors: Collection[str]) -> None:
        """Close the ways to all other donors."""

    @abstractmethod
    def send(self, send: Send) -> None:
        """Send a letter, or drop it: never waits."""

    @abstractmethod
    def forget(self, borrower: Party) -> None:
        """No more letters for this life of a borrower."""

    @abstractmethod
    def wake(self) -> None:
        """Let `wait` return now. Also after `close`."""

    @abstractmethod
    def wait(self, seconds: float) -> list[Event]:
        """What has come, after at most so many seconds."""

    @abstractmethod
    def close(self) -> None:
        """End all ways; letters on their way get a moment."""
