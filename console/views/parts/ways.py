"""Links as ways from one place to another, of one rank or of several together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from swift_tiers.radix_tiering.bus.contract.views import LinkView, RankState

from ...model.history import LOOKS, History
from .measures import NOW_SECONDS, TIERS, added, sum_of, worst

#: What goes over each of them, and why.
MEANINGS = {
    ("device", "host"): "pages that the device computed, copied so that they outlive its memory",
    ("host", "device"): "pages that requests use again, copied into their slots",
    ("host", "ssd"): "pages written to the stripe set, beside everything else",
    ("ssd", "host"): "pages read for restores, and promoted",
    ("ssd", "device"): "pages read for restores, past host memory",
    ("peer", "host"): "pages read from memory that other servers lend",
    ("peer", "device"): "pages read from other servers' GPUs, past host memory",
    ("host", "peer"): "pages written to memory that other servers lend",
}
# Names of ranks end so; names of servers may have dashes, "host" and "device" in them.
_RANK = re.compile(r"\.dp\d+-tp\d+$")


class Way(NamedTuple):
    """From where to where; tiers, or the lease name of a donor."""

    source: str
    destination: str

    @property
    def is_donor(self) -> bool:
        """Whether it is the part of `peer` that one donor has: it is counted there, too."""
        return not {self.source, self.destination} <= set(TIERS)

    @property
    def meaning(self) -> str:
        """In words; empty for a way of which we know nothing."""
        source, destination = (end if end in TIERS else "peer" for end in self)
        return MEANINGS.get((source, destination), "")


def way_of(link: str) -> Way:
    """Of a link's name: one of its ends is `host` or `device` where the other one is a donor."""
    for end in ("host", "device"):
        other = link.removesuffix(f"-{end}")
        if other != link and (other in TIERS or _RANK.search(other)):
            return Way(other, end)
    for end in ("host", "device"):
        if link.startswith(f"{end}-"):
            return Way(end, link.removeprefix(f"{end}-"))
    source, _, destination = link.rpartition("-")
    return Way(source, destination)


class Flow(NamedTuple):
    """What goes over one way, of all links that it is made of together. None: not known."""

    name: str
    way: Way
    links: tuple[LinkView, ...]
    bytes_per_second: float | None
    transfers_per_second: float | None
    pages_per_second: float | None
    busy: float | None  # seconds of copying in a second; copies side by side count each
    p50: float | None  # seconds, the worst of the links
    p99: float | None

    def sum(self, field: str) -> float | None:
        """Of a counter, over all links."""
        return sum_of(getattr(link, field) for link in self.links)

    @property
    def speed(self) -> float | None:
        """Bytes per second of copying, since the start."""
        done, took = self.sum("bytes"), self.sum("seconds")
        return done / took if done is not None and took else None

    def rates(self, history: History, counter: str, length: int = LOOKS) -> list[float | None]:
        """Look by look, the newest last; at most `length`."""
        return added(history.rates(link, counter, length=length) for link in self.links)


def flows(ranks: Iterable[RankState], history: History) -> list[Flow]:
    """One for each way that there is: tiers from the fastest, then single donors by name."""
    links: dict[str, list[LinkView]] = {}
    for rank in ranks:
        for link in rank.links:
            links.setdefault(link.link, []).append(link)
    return sorted((flow(name, views, history) for name, views in links.items()), key=_order)


def flow(name: str, links: Sequence[LinkView], history: History) -> Flow:
    def now(counter: str) -> float | None:
        return sum_of(history.rate(link, counter, seconds=NOW_SECONDS) for link in links)

    rate = now("bytes")
    if rate is None:
        rate = sum_of(link.bytes_per_second for link in links)
    return Flow(
        name,
        way_of(name),
        tuple(links),
        rate,
        now("transfers"),
        now("pages"),
        now("seconds"),
        worst(link.recent_p50_seconds for link in links),
        worst(link.recent_p99_seconds for link in links),
    )


def _order(one: Flow) -> tuple[bool, int, int, str]:
    places = [TIERS.index(end) if end in TIERS else len(TIERS) for end in one.way]
    return one.way.is_donor, min(places), places[0], one.name
