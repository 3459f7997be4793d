"""`swift-tiers control`: commands to servers on a real Redis that obey, refuse, or say nothing."""

from __future__ import annotations

import getpass
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from swift_tiers.ops.base.errors import CommandError
from swift_tiers.ops.commands import control_command
from swift_tiers.ops.commands.control_command import make_command
from swift_tiers.radix_tiering.base.errors import RedisFaultError
from swift_tiers.radix_tiering.bus.contract.commands import (
    COMMANDS,
    AddDevice,
    AnyCommand,
    CapLending,
    CapTier,
    DrainDevice,
    Drop,
    Flush,
    Pin,
    PinLease,
    ReadmitDevice,
    RecallLeases,
    SetPolicy,
    Unpin,
    UnpinLease,
    read_command,
    read_order,
)
from swift_tiers.radix_tiering.bus.contract.round_trips import Question, RoundTrips
from swift_tiers.radix_tiering.bus.hear.command_words import usage

from support.bus import PAGE, HandWritten
from support.command_line import run_command
from support.redis import RealRedis, free_port

Control = Callable[..., tuple[int, str, str]]


@pytest.fixture
def redis() -> Iterator[RealRedis]:
    with RealRedis() as server:
        yield server


@pytest.fixture
def alpha(redis: RealRedis) -> HandWritten:
    return HandWritten(redis.admin, ranks=("dp0-tp0", "dp0-tp1")).write()


@pytest.fixture
def control(redis: RealRedis, capsys: pytest.CaptureFixture[str]) -> Control:
    """Runs the command on this Redis: code, stdout, stderr."""

    def run(*words: str, url: str = redis.url) -> tuple[int, str, str]:
        return run_command(capsys, "control", *words, "--url", url)

    return run


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["flush"], Flush()),
        (["flush", "all"], Flush(tiers="all")),
        (["drain-device", "3"], DrainDevice(device=3)),
        (["readmit-device", "3"], ReadmitDevice(device=3)),
        (["add-device", "/ssd9/kv"], AddDevice(directory="/ssd9/kv")),
        (["pin", PAGE], Pin(page=PAGE)),
        (["unpin", "1" * 64], Unpin(page="1" * 64)),
        (["drop", PAGE], Drop(page=PAGE)),
        (["set-policy", "eviction", "lfu"], SetPolicy(field="eviction", value="lfu")),
        (["set-policy", "admission_uses", "3"], SetPolicy(field="admission_uses", value=3)),
        (["set-policy", "restore.behind", "2.5"], SetPolicy(field="restore.behind", value=2.5)),
        (["cap-tier", "host", "8GiB"], CapTier(tier="host", limit="8GiB")),
        (["cap-tier", "ssd", "2097152"], CapTier(tier="ssd", limit=2**21)),
        (["cap-tier", "ssd", "1024B"], CapTier(tier="ssd", limit="1024B")),
        (["cap-tier", "ssd", "0"], CapTier(tier="ssd", limit=0)),
        (["cap-tier", "ssd"], CapTier(tier="ssd")),
        (["recall-leases", "12"], RecallLeases(leases=12)),
        (["recall-leases", "all", "beta.dp0-tp0"], RecallLeases(leases="all", borrower="beta.dp0-tp0")),
        (["pin-lease", "12", "dp0-tp1"], PinLease(lease=12, rank="dp0-tp1")),
        (["unpin-lease", "12"], UnpinLease(lease=12)),
        (["cap-lending", "8GiB"], CapLending(limit="8GiB")),
        (["cap-lending"], CapLending()),
    ],
)
def test_every_command_arrives_as_it_was_meant(
    control: Control, alpha: HandWritten, words: list[str], command: AnyCommand
) -> None:
    with alpha.obeying():
        code, out, error = control("alpha", *words, "--author", "me@here")
    assert (code, error) == (0, "")
    assert out.startswith(f"done {words[0]} on alpha")
    ((_, entry),) = alpha.client.xrange(alpha.key("control"))
    order = read_order(entry)
    assert (order.author, order.command) == ("me@here", command)


def test_every_kind_of_command_can_be_sent_and_is_explained(control: Control) -> None:
    _, help_text, _ = control("--help")
    for kind in COMMANDS:
        assert usage(kind) in help_text
        assert " ".join((kind.__doc__ or "").split()) in " ".join(help_text.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["flush", "everything"], "control flush: tiers 'everything': is none of host, all; usage: "),
        (["flush", "all", "now"], "usage: control SERVER flush [host|all]"),
        (["drain-device"], "usage: control SERVER drain-device DEVICE"),
        (["drain-device", "-1"], "device '-1': expected `int` >= 0; usage"),
        (["drain-device", "one"], "device 'one': expected `int`"),
        (["pin", "abc"], "page 'abc': is not a page's key: its 64 digits, 0-9 a-f; usage"),
        (["recall-leases", "1", "a/b"], "borrower 'a/b': is not a rank, as leases call it"),
        (["flush", "--author", "a\nb"], "an author is 1 to 200 printable characters"),
        (["set-policy", "prefix", "x"], "field 'prefix': is none of eviction, write, ssd_admission"),
        (["set-policy", "eviction", "mru"], 'policy.eviction: \'mru\' is not one of "lru" | "lfu"'),
        (["set-policy", "restore.behind", "0.5"], "restore.behind: expected `float` >= 1"),
        (["set-policy", "restore_deadline", "2"], "2 is not a duration: write it as"),
        (["cap-tier", "host", "much"], "limit: 'much' is not a size"),
        (["cap-lending", "much"], "limit: 'much' is not a size"),
        (["cap-tier", "ssd", "200"], "limit: 200 would be 200 bytes; write its unit, as 8GiB, or 0 for nothing"),
        (["cap-lending", "1.5"], "write its unit"),
        (["cap-tier", "device", "1GiB"], "tier 'device': is not a tier below the device"),
        (["recall-leases", "some"], "leases 'some': is no number, and not all"),
        (["recall-leases"], "usage: control SERVER recall-leases LEASES [BORROWER] [RANK]"),
        (["pin-lease", "0"], "lease '0': expected `int`"),
        (["pin-lease", "1", "alpha"], "rank 'alpha': is not the one rank that is meant, as dp0-tp0"),
        (["explode"], "invalid choice"),
        (["flush", "--timeout", "0"], "not a number of seconds"),
        ([], "are required: COMMAND (see"),
    ],
)
def test_a_wrong_usage_is_one_line_and_2_and_nothing_is_sent(
    control: Control, alpha: HandWritten, words: list[str], said: str
) -> None:
    code, out, error = control("alpha", *words)
    assert (code, out) == (2, "")
    assert said in error
    assert error.count("\n") == 1
    assert alpha.client.exists(alpha.key("control")) == 0


def test_what_became_of_it_at_each_rank(control: Control, alpha: HandWritten) -> None:
    ranks = {"dp0-tp0": "done: 12 pages forgotten", "dp0-tp1": "refused: \x1b[31mno room"}
    with alpha.obeying("partly", ranks=ranks):
        code, out, _ = control("alpha", "flush")
        _, content, _ = control("alpha", "flush", "--json")
    lines = out.splitlines()
    assert code == 1
    assert lines[0].startswith("PARTLY flush on alpha (command ")
    assert lines[1:] == ["  dp0-tp0  done: 12 pages forgotten", "  dp0-tp1  refused: \\x1b[31mno room"]
    view = json.loads(content)
    assert (view["state"], view["type"], view["ranks"]) == ("partly", "flush", ranks)


def test_options_may_stand_anywhere(control: Control, alpha: HandWritten) -> None:
    with alpha.obeying():
        code, out, _ = control("--author", "me", "alpha", "--timeout", "5", "flush", "--json", "all")
    assert code == 0
    assert json.loads(out)["author"] == "me"
    ((_, entry),) = alpha.client.xrange(alpha.key("control"))
    assert read_order(entry).command == Flush(tiers="all")


@pytest.mark.parametrize("state", ["refused", "expired"])
def test_what_was_not_carried_out_is_1(control: Control, alpha: HandWritten, state: str) -> None:
    with alpha.obeying(state, "there is no device 7", ranks={}):
        code, out, _ = control("alpha", "drain-device", "7")
    assert code == 1
    assert out.startswith(f"{state.upper()} drain-device on alpha: there is no device 7 (command ")


def test_a_server_that_is_not_there_or_does_not_obey(control: Control, alpha: HandWritten) -> None:
    code, _, error = control("gamma", "flush")
    assert (code, error) == (1, "swift-tiers: error: server gamma: is not known here; alive are: alpha\n")
    alpha.control = False
    alpha.heartbeat()
    code, _, error = control("alpha", "flush")
    assert code == 1
    assert "start it with bus.control = true" in error


def test_a_server_that_says_nothing(control: Control, alpha: HandWritten, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swift_tiers.radix_tiering.bus.hear.commanding.PATIENCE_SECONDS", 0.1)
    code, out, error = control("alpha", "flush", "--timeout", "0.1")
    assert (code, out) == (1, "")
    assert "nobody answered within 0.1 s" in error


def test_what_may_have_been_sent_is_said_to_be_not_known(
    control: Control, alpha: HandWritten, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swift_tiers.radix_tiering.bus.hear.commanding.PATIENCE_SECONDS", 0.1)
    ask = RoundTrips.ask

    def without_an_answer(self: RoundTrips, questions: Mapping[str, Question]) -> tuple[dict[str, Any], float]:
        answers = ask(self, questions)
        if "sent" in questions:
            raise RedisFaultError("no answer within 1 s")
        return answers

    monkeypatch.setattr(RoundTrips, "ask", without_an_answer)
    code, out, error = control("alpha", "flush", "--timeout", "0.1")
    ((_, entry),) = alpha.client.xrange(alpha.key("control"))
    assert (code, out) == (1, "")
    assert "whether it has obeyed is not known (no answer within 1 s)" in error
    assert f"hgetall swift:alpha:command:{entry['id']}" in error


def test_a_bus_that_cannot_be_reached(control: Control) -> None:
    code, _, error = control("alpha", "flush", url=f"redis://127.0.0.1:{free_port()}")
    assert code == 1
    assert "not reachable" in error


def test_the_author_is_who_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "box")
    monkeypatch.setattr(getpass, "getuser", lambda: "ann")
    assert control_command.author() == "ann@box"

    def nobody() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr(getpass, "getuser", nobody)
    assert control_command.author().endswith("@box")


def test_words_make_the_command_that_its_json_makes() -> None:
    assert make_command("pin", [PAGE]) == read_command(json.dumps({"type": "pin", "page": PAGE}))
    with pytest.raises(CommandError):
        make_command("pin", [PAGE.upper()])
