"""Commands while Redis fails: what was done is never said not to have been, and what was not sent is said at once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from swift_tiers.radix_tiering.base.errors import CommandUnclearError, RedisFaultError, RedisRefusedError
from swift_tiers.radix_tiering.base.read_config import parse_config
from swift_tiers.radix_tiering.bus.contract.commands import Flush
from swift_tiers.radix_tiering.bus.contract.round_trips import Question, RoundTrips
from swift_tiers.radix_tiering.bus.contract.schema import Keys
from swift_tiers.radix_tiering.bus.contract.views import CommandView, ServerView
from swift_tiers.radix_tiering.bus.hear.commanding import send_command
from swift_tiers.radix_tiering.bus.redis.connection import bus_errors

from support.bus import HandWritten
from support.redis import RealRedis

PATIENCE = "swift_tiers.radix_tiering.bus.hear.commanding.PATIENCE_SECONDS"


class Failing(RoundTrips):
    """What is asked reaches Redis, but the answers to these questions are lost, so many times each; `after_a_word`: all
    that come after the first that says something of the command."""

    def __init__(self, server: RealRedis, after_a_word: bool = False, **lost: float) -> None:
        config = parse_config({"bus": {"url": server.url}}).bus
        super().__init__(server.client(), Keys("swift"), partial(bus_errors, config))
        self.lost = lost
        self.after_a_word = after_a_word

    def ask(self, questions: Mapping[str, Question]) -> tuple[dict[str, Any], float]:
        answers = super().ask(questions)
        for name in questions:
            if self.lost.get(name, 0) > 0:
                self.lost[name] -= 1
                raise RedisFaultError("no answer within 1 s")
        if self.after_a_word and answers[0].get("outcome"):
            self.lost["outcome"] = float("inf")
        return answers


@pytest.fixture
def alpha(redis: RealRedis) -> HandWritten:
    return HandWritten(redis.admin).write()


def command(bus: RoundTrips, timeout: float = 60.0) -> CommandView:
    server = ServerView(server="alpha", alive=True, control=True, ranks=("dp0-tp0",), clock_offset_seconds=0.0)
    _, now = bus.ask({})
    return send_command(bus, server, "ann", Flush(), timeout, now)


@pytest.mark.parametrize("lost", [{"sent": 1}, {"outcome": 3}, {"sent": 1, "outcome": 3}])
def test_faults_of_redis_are_waited_out(redis: RealRedis, alpha: HandWritten, lost: dict[str, float]) -> None:
    with alpha.obeying():
        assert command(Failing(redis, **lost)).state == "done"
    assert len(alpha.client.xrange(alpha.key("control"))) == 1, "it was sent once"


@pytest.mark.parametrize("lost", [{"sent": 1}, {"outcome": float("inf")}])
def test_without_a_word_after_a_fault_nothing_is_known(
    redis: RealRedis, alpha: HandWritten, lost: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PATIENCE, 0.1)
    with pytest.raises(CommandUnclearError, match="whether it has obeyed is not known") as caught:
        command(Failing(redis, **lost), timeout=0.1)
    ((_, entry),) = alpha.client.xrange(alpha.key("control"))
    assert caught.value.state == "not known"
    assert "no answer within 1 s" in str(caught.value)
    assert f"hgetall swift:alpha:command:{entry['id']}" in str(caught.value)


def test_without_a_fault_nobody_has_answered(
    redis: RealRedis, alpha: HandWritten, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PATIENCE, 0.1)
    with pytest.raises(CommandUnclearError, match="nobody answered within 0") as caught:
        command(Failing(redis), timeout=0.1)
    assert caught.value.state == "not answered"


@pytest.mark.parametrize(
    ("after_a_word", "state", "said"),
    [(False, "not finished", "has not finished it"), (True, "not known", "has accepted the command")],
)
def test_what_was_accepted_and_is_not_over(
    redis: RealRedis, alpha: HandWritten, after_a_word: bool, state: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PATIENCE, 2.0)  # to accept it
    monkeypatch.setattr("swift_tiers.radix_tiering.bus.hear.commanding.FINISH_SECONDS", 0.1)
    bus = Failing(redis, after_a_word)
    with alpha.obeying("accepted", ranks={}), pytest.raises(CommandUnclearError, match=said) as caught:
        command(bus, timeout=0.1)
    assert caught.value.state == state
    assert "hgetall swift:alpha:command:" in str(caught.value)


def test_what_redis_refuses_was_not_sent_and_is_said_at_once(redis: RealRedis, alpha: HandWritten) -> None:
    redis.fill()
    with pytest.raises(RedisRefusedError, match="memory is full"):
        command(Failing(redis), timeout=3600.0)
    assert not alpha.client.exists(alpha.key("control"))
