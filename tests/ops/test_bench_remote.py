"""`swift-tiers bench remote` where the store cannot be opened; `tests/e2e/test_mooncake.py` shows that it measures."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from swift_tiers.ops.base.errors import CommandError
from swift_tiers.ops.commands.bench import remote
from swift_tiers.radix_tiering.base.events import EventLog


@pytest.mark.parametrize(
    ("reasons", "told"),
    [
        ([], "it has said nothing for 0 s"),
        (["no master at 127.0.0.1:1", "libibverbs.so.1 is missing"], "libibverbs.so.1 is missing"),
    ],
)
def test_why_the_store_is_not_open_is_told(monkeypatch: pytest.MonkeyPatch, reasons: list[str], told: str) -> None:
    monkeypatch.setattr(remote, "PATIENCE_SECONDS", 0.0)
    both = remote.OursAndTheirs.__new__(remote.OursAndTheirs)
    closed: list[bool] = []
    both._events = EventLog(lambda: 1.0)
    both._tier = SimpleNamespace(snapshot=lambda: SimpleNamespace(ready=False), close=lambda: closed.append(True))
    for reason in reasons:
        both._events.emit("remote.cannot_be_opened", reason=reason)
    with pytest.raises(CommandError, match=f"the child does not open the store: {told}"):
        both.__enter__()
    assert closed
