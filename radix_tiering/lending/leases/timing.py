"""The timers of the protocol, and the two sums that all safety rests on.

No two clocks are ever compared. Each side measures how long something has lasted, by its own monotonic clock, whose
rate is assumed to be within `1 - drift` and `1 + drift` of true time. The borrower counts a term from the moment before
it *sent* the request or renewal that was answered. The donor counts from the moment after it *received* that, and
longer, by as much as both clocks may differ. So the donor begins later and counts longer: the borrower's view ends
first.
"""

from __future__ import annotations

import msgspec

#: Renewals that a borrower sends in one term, evenly: three in a row may be lost.
RENEWALS_PER_TERM = 5
#: A recalled lease is to be returned within this part of the bound; the rest is for the messages' way.
RECALL_PART = 0.8
#: Heartbeats that a donor which was told what is wanted of it has for offering something; it makes room for it first.
HEARTBEATS_TO_OFFER = 2


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Durations in seconds. Raises ValueError where they do not fit together."""

    term: float = 2.0  # what a grant or renewal gives
    recall_bound: float = 0.05  # from a recall to the return, if the borrower answers
    recall_retry: float = 0.01  # between two sendings of one recall
    retry: float = 0.1  # between two sendings of a hello, request or return
    heartbeat: float = 0.5  # between two heartbeats
    silence: float = 5.0  # without a word for so long: a session without leases is forgotten
    drift: float = 0.001  # bound on how much any clock's rate differs from 1
    margin: float = 0.01  # what the donor waits beyond all that

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not 0 <= value <= 3600 or (value == 0 and name not in ("drift", "margin")):
                raise ValueError(f"{name}: {value} is not between 0 and 3600 seconds; leave it at its default")
        if self.drift > 0.2:
            raise ValueError(f"drift: {self.drift} is more than 0.2; clocks that bad cannot measure a lease")
        if self.recall_retry > self.recall_bound or self.recall_bound > self.term:
            raise ValueError("needs recall_retry <= recall_bound <= term")

    def donor_deadline(self, received: float, term: float) -> float:
        """When the donor may take back what it granted or renewed; `received` by its clock."""
        return received + term * (1 + self.drift) / (1 - self.drift) + self.margin


def lease_timing(term: float, recall_bound: float, **others: float) -> Timing:
    """The timers where these two are configured: a recall is said again at least once within its bound."""
    # Plain floats: timers are told to others, and a configured duration is of a kind that cannot be encoded.
    term, recall_bound = float(term), float(recall_bound)
    recall_retry = min(Timing().recall_retry, recall_bound)
    return Timing(term=term, recall_bound=recall_bound, recall_retry=recall_retry, **others)


def borrower_end(sent: float, term: float) -> float:
    """When the borrower must stop using what it was granted; `sent` by its clock."""
    return sent + term
