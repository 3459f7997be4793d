"""What may be done about pages and tiers: pin, unpin, drop, flush, cap."""

from __future__ import annotations

from swift_tiers.radix_tiering.bus.contract.commands import AnyCommand, CommandRefusedError
from swift_tiers.radix_tiering.bus.hear.command_words import make_command
from swift_tiers.radix_tiering.bus.hear.figures import text

from .view import OfferedAction, Scene

_PINNED = "They are not evicted from where they are until they are unpinned; a flush takes them, too."
_UNPINNED = "They may be evicted again. Pins of other operators, and those of requests, stay."
_DROPPED = (
    "This page and everything that follows it is forgotten in every tier below the device. Requests that would have "
    "found it recompute; no answer changes. What a remote store has stays there, and is found again."
)
CAPPED = (
    "What a rank has beyond the limit is evicted: each of the server's ranks has a tier of its own. Without a limit it "
    "may use its whole capacity again."
)
FLUSHED = (
    "It forgets the pages of its namespace below the device: `host`, or `all` tiers. Requests recompute what they "
    "would have found; no answer changes. What a remote store has stays there, and is found again."
)


def obeys(scene: Scene, server: str | None) -> bool:
    state = scene.moment.server(server)
    return state is not None and state.server.alive and bool(state.server.control)


def page_offers(scene: Scene, server: str | None, key: str) -> tuple[OfferedAction, ...]:
    """About a page with its prefix. `key`: whole."""
    if server is None or not key or not obeys(scene, server):
        return ()
    page = f"page {key[:16]} and its prefix at {text(server)}"
    return (
        OfferedAction("p", "pin", server, f"pin {page}", _PINNED, lambda _: make_command("pin", [key])),
        OfferedAction("u", "unpin", server, f"unpin {page}", _UNPINNED, lambda _: make_command("unpin", [key])),
        OfferedAction(
            "d", "drop", server, f"drop page {key[:16]} and what follows it at {text(server)}", _DROPPED,
            lambda _: make_command("drop", [key]),
        ),
    )  # fmt: skip


def tier_offers(scene: Scene, server: str | None, tier: str) -> tuple[OfferedAction, ...]:
    """About a tier. The device belongs to SGLang, and borrowed memory to its donor."""
    if server is None or tier not in ("host", "ssd") or not obeys(scene, server):
        return ()
    asked = "host" if tier == "host" else "all"
    return (
        OfferedAction(
            "F", "flush", server, f"flush the pages of {text(server)}", FLUSHED,
            lambda typed: make_command("flush", [typed or asked]), f"host or all; Enter: {asked}",
        ),
        OfferedAction(
            "C", "cap", server, f"limit {tier} of {text(server)}",
            CAPPED,
            lambda typed: cap_command(tier, typed), "a limit of each rank as 8GiB, or none",
        ),
    )  # fmt: skip


def cap_command(tier: str, limit: str) -> AnyCommand:
    """Caps a tier, or lifts its cap where `none` was typed, and not where nothing was. Raises CommandRefusedError."""
    if not limit:
        raise CommandRefusedError(f"cap-tier {tier}: which limit? as 8GiB, or none to lift it")
    return make_command("cap-tier", [tier] if limit == "none" else [tier, limit])
