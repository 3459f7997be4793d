"""What a request says of its way to the first token, in words: where its prompt came from, and what took how long."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ..contract.views import RequestView
from .figures import NONE, UNKNOWN, count, runs, seconds, share, text

#: Runs of a block table that are shown.
BLOCK_RUNS = 40


def age(view: RequestView) -> float | None:
    """Since its arrival."""
    if view.time is None or view.arrived is None or view.age_seconds is None:
        return None
    return max(0.0, view.time - view.arrived + view.age_seconds)


def sources(view: RequestView) -> tuple[int | None, ...]:
    """Tokens of its prompt, by where they came from: device, peers, host, ssd, remote; and those that were computed."""
    below = view.peer_tokens, view.host_tokens, view.ssd_tokens, view.remote_tokens
    return view.device_tokens, *below, view.recomputed_tokens


#: What `request_facts` says.
FACTS = (
    "state", "arrived", "prompt tokens", "  found on the device", "  loaded from peers", "  loaded from host",
    "  loaded from ssd", "  loaded from remote", "  computed", "output tokens", "restore", "  took",
    "queued", "first token after", "ended after", "pages", "  where they were", "seen",
)  # fmt: skip


def request_facts(view: RequestView) -> tuple[str, ...]:
    """The values of `FACTS`, as one rank saw it."""
    lasted = None if view.ended is None or view.arrived is None else view.ended - view.arrived
    return (
        text(view.state) or UNKNOWN, f"{seconds(age(view))} ago", count(view.prompt_tokens),
        *(f"{count(tokens)} ({share(tokens, view.prompt_tokens)})" for tokens in sources(view)),
        count(view.output_tokens), text(view.restore) or UNKNOWN, seconds(view.restore_seconds),
        when(view.queue_seconds), when(view.first_token_seconds), when(lasted), count(view.pages), runs(view.tiers),
        f"{seconds(view.age_seconds)} ago",
    )  # fmt: skip


def device_slots(view: RequestView) -> str:
    """Where its pages are on the device: runs of slots."""
    shown = " ".join(
        str(first) if first == last else f"{first}-{last}" for first, last in view.block_table[:BLOCK_RUNS]
    )
    more = len(view.block_table) - BLOCK_RUNS
    return (shown or NONE) + (f" and {more} more runs" if more > 0 else "")


def when(value: float | None) -> str:
    """Empty on the bus as long as it has not come to that."""
    return NONE if value is None else seconds(value)


def explain_request(view: RequestView) -> Iterator[str]:
    """What its time to the first token went into, and where to look further."""
    if view.queue_seconds is None:
        if view.live:
            what = "waits for its pages from below the device" if view.state == "restoring" else "waits for its turn"
            yield f"nothing is computed yet: it {what}, since {seconds(age(view))}"
            yield "where to look: `inspect servers` (running and waiting requests), `inspect devices` (slow ones)"
        return
    stages = _stages(view)
    whole = sum(stage.seconds for stage in stages)
    spent = ", ".join(f"{seconds(stage.seconds)} ({share(stage.seconds, whole)}) {stage.what}" for stage in stages)
    if view.first_token_seconds is None:
        yield f"no token yet; until its computation began: {spent}"
    else:
        yield f"first token after {seconds(view.first_token_seconds)}: {spent}"
    longest = max(stages, key=lambda stage: stage.seconds)
    if longest.seconds:
        yield f"most of it went into {longest.what}; where to look: {longest.where}"


class RequestStage(NamedTuple):
    """A part of a request's way to its first token."""

    what: str
    seconds: float
    where: str  # to look if it is long


def _stages(view: RequestView) -> list[RequestStage]:
    """Those that are behind it, in order; it has at least begun to be computed."""
    queued, held = view.queue_seconds or 0.0, _held_seconds(view)
    restoring = min(view.restore_seconds or 0.0, queued)
    stages = [
        RequestStage(
            "waiting for pages from below the device",
            restoring + held,
            "`inspect devices` (slow ones), `inspect links`",
        ),
        RequestStage("waiting for its turn", queued - restoring, "`inspect servers` (running and waiting requests)"),
    ]
    if view.first_token_seconds is not None:
        what = f"computing {count(view.recomputed_tokens)} tokens of its prompt"
        if 2 * (view.recomputed_tokens or 0) >= (view.prompt_tokens or 0):
            where = "`inspect tiers` (misses, evictions), if they had been computed before"
        else:
            where = "`inspect requests` (others in the same batches), `inspect links` (its pages are copied meanwhile)"
        stages.append(RequestStage(what, max(0.0, view.first_token_seconds - queued - held), where))
    return stages


def _held_seconds(view: RequestView) -> float:
    """For how long computing stood still for pages, once it had begun. A restore that computes a part of its pages goes
    on beside that: not all of its time was waited for."""
    if view.restore_story is None or view.queue_seconds is None or view.first_token_seconds is None:
        return 0.0
    beside = min(view.restore_seconds or 0.0, view.first_token_seconds) - view.queue_seconds
    return max(0.0, min(view.restore_story.held_seconds, beside))
