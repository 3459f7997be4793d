"""What an operator is told who is about to change a policy value: which there are, and what each is now and takes."""

from __future__ import annotations

from swift_tiers.radix_tiering.bus.contract.policy_values import policy_fields
from swift_tiers.radix_tiering.bus.contract.views import ServerView
from swift_tiers.radix_tiering.bus.hear.figures import UNKNOWN, text

#: A dialog that lists a value in each line needs so many lines of the view; beneath that, values stand side by side.
ROOM = 26


def policy_prompt(server: ServerView, height: int) -> str:
    """`height`: lines of the view."""
    fields = policy_fields(server.configuration)
    if height < ROOM:
        return f"FIELD VALUE; now: {', '.join(f'{one.name} {_now(one.now)}' for one in fields)}"
    names, values = max(len(one.name) for one in fields), max(len(_now(one.now)) for one in fields)
    lines = [f"{one.name:<{names}}  {_now(one.now):<{values}}  {one.takes}" for one in fields]
    return "\n".join(["FIELD VALUE; fields, what they are now, what they take:", *lines])


def _now(value: str) -> str:
    return text(value) or UNKNOWN
