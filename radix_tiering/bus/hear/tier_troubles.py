"""What is wrong with a tier: damaged pages, pages that it does not take, and too little that may be evicted."""

from __future__ import annotations

from collections.abc import Iterator

from ..contract.views import TierView
from .figures import count, size, text
from .trouble import Mark, Trouble

#: A tier is nearly full from this share of its limit on. Where this share of its pages is pinned, there is hardly
#: anything that may be evicted.
NEARLY_FULL, PINNED = 0.9, 0.9
#: Reasons for not taking pages in that come from a lack or a fault, and what to do; the others are in the nature of
#: things.
SICK_REFUSALS = {
    "full": "all that was there was in use: if it grows, make the tier larger, or let fewer requests run at once",
    "no device takes pages": "all are out of service or drained: see `inspect devices`, readmit them, or add one",
    "no room for promotion": "all of host memory was in use: make host.size larger",
    "too many wait to be copied": "pages are computed faster than they are copied out: see the link device-host",
    "the weights changed": "the device has KV of weights that are gone, and nothing of it is kept: send /flush_cache",
    "write failed": "see which of its devices is out, and the kernel's log (dmesg)",
}


def tier_troubles(tier: TierView) -> Iterator[Trouble]:
    if tier.checksum_failures:
        remedy = "see `inspect devices`" if tier.tier == "ssd" else "test this machine's memory"
        yield Trouble(
            Mark.WRONG,
            tier,
            f"{count(tier.checksum_failures)} pages were damaged: dropped, never served",
            remedy,
            tier.tier,
            counted=tier.checksum_failures,
        )
    yield from _refusals(tier)
    pinned = tier.pages and (tier.pinned_pages or 0) >= PINNED * tier.pages
    if tier.tier != "device" and pinned and _nearly_full(tier):
        yield Trouble(
            Mark.WARNING,
            tier,
            f"{count(tier.pinned_pages)} of {count(tier.pages)} pages are pinned",
            "hardly anything can be evicted: make it larger, or unpin",
            tier.tier,
        )
    if tier.unread_pages:
        yield Trouble(
            Mark.NOTE,
            tier,
            f"{count(tier.unread_pages)} pages that a restart has kept are misses until they are entered",
            part=tier.tier,
        )
    if tier.limit_bytes is not None and tier.capacity_bytes is not None and tier.limit_bytes < tier.capacity_bytes:
        yield Trouble(
            Mark.NOTE,
            tier,
            f"capped at {size(tier.limit_bytes)} of {size(tier.capacity_bytes)} by an operator",
            part=tier.tier,
        )


def _refusals(tier: TierView) -> Iterator[Trouble]:
    """Each sick reason by itself, so that one that is over is not kept alive by others that go on."""
    refused = {reason: pages for reason, pages in tier.refused.items() if pages}
    for reason in sorted(refused.keys() & SICK_REFUSALS):
        what = f"pages not taken in: {text(reason)} {count(refused[reason])}"
        yield Trouble(Mark.WARNING, tier, what, SICK_REFUSALS[reason], tier.tier, counted=refused[reason])
    others = {reason: pages for reason, pages in sorted(refused.items()) if reason not in SICK_REFUSALS}
    if others:
        reasons = ", ".join(f"{text(reason)} {count(pages)}" for reason, pages in others.items())
        what = f"pages not taken in: {reasons}"
        yield Trouble(Mark.NOTE, tier, what, part=tier.tier, counted=sum(others.values()))


def _nearly_full(tier: TierView) -> bool:
    """Whether something must be evicted for what comes next."""
    limit = tier.capacity_bytes if tier.limit_bytes is None else tier.limit_bytes
    return limit is not None and tier.used_bytes is not None and tier.used_bytes >= NEARLY_FULL * limit
