"""`swift-tiers lease`: what servers lend each other, and commands to those that lend, on a real Redis."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from swift_tiers.ops import cli
from swift_tiers.radix_tiering.bus.contract.commands import (
    AnyCommand,
    CapLending,
    PinLease,
    RecallLeases,
    UnpinLease,
    read_order,
)

from support.bus import HandWritten
from support.command_line import run_command
from support.redis import RealRedis, free_port

Lease = Callable[..., tuple[int, str, str]]


@pytest.fixture
def redis() -> Iterator[RealRedis]:
    with RealRedis() as server:
        yield server


@pytest.fixture
def alpha(redis: RealRedis) -> HandWritten:
    return HandWritten(redis.admin, "al.pha", ranks=("dp0-tp0", "dp1-tp0"), lends=True).write()


@pytest.fixture
def lease(redis: RealRedis, capsys: pytest.CaptureFixture[str]) -> Lease:
    """Runs the command on this Redis: code, stdout, stderr."""

    def run(*words: str, url: str = redis.url) -> tuple[int, str, str]:
        return run_command(capsys, "lease", *words, "--url", url)

    return run


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["recall", "al.pha", "12"], RecallLeases(leases=12)),
        (["recall", "al.pha", "all"], RecallLeases(leases="all")),
        (["recall", "al.pha.dp1-tp0", "12"], RecallLeases(leases=12, rank="dp1-tp0")),
        (
            ["recall", "--borrower", "beta.dp0-tp0", "al.pha", "all"],
            RecallLeases(leases="all", borrower="beta.dp0-tp0"),
        ),
        (["pin", "al.pha.dp0-tp0", "7"], PinLease(lease=7, rank="dp0-tp0")),
        (["unpin", "al.pha", "7"], UnpinLease(lease=7)),
        (["cap", "al.pha", "1.5GiB"], CapLending(limit=3 * 2**29)),
        (["cap", "al.pha.dp0-tp0", "0"], CapLending(limit=0, rank="dp0-tp0")),
        (["cap", "al.pha", "512KiB"], CapLending(limit="524288B")),
        (["cap", "al.pha", "none"], CapLending()),
    ],
)
def test_every_command_arrives_as_it_was_meant(
    lease: Lease, alpha: HandWritten, words: list[str], command: AnyCommand
) -> None:
    with alpha.obeying():
        code, out, error = lease(*words, "--author", "me@here")
    assert (code, error) == (0, "")
    assert out.startswith("done ")
    ((_, entry),) = alpha.client.xrange(alpha.key("control"))
    order = read_order(entry)
    assert (order.author, order.command) == ("me@here", command)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "required"),
        (["give"], "invalid choice"),
        (["recall"], "usage: lease recall DONOR LEASE|all"),
        (["recall", "al.pha"], "usage: lease recall DONOR LEASE|all"),
        (["recall", "al.pha", "every"], "'every' is no lease; it takes LEASE|all"),
        (["pin", "al.pha", "all"], "'all' is no lease; it takes LEASE"),
        (["pin", "al.pha", "0"], "'0' is no lease"),
        (["pin", "al.pha", "1", "--borrower", "beta.dp0-tp0"], "takes no --borrower"),
        (["cap", "al.pha", "much"], "'much' is not a size"),
        (["recall", "al.pha", "all", "--author", ""], "an author is 1 to 200 printable characters"),
        (["cap", "al.pha", "8"], "limit: 8 would be 8 bytes; write its unit, as 8GiB, or 0 for nothing"),
        (["cap", "al.pha", "1GiB", "--watch"], "takes no --watch"),
        (["cap", "al.pha", "1GiB", "--server", "beta"], "takes no --server"),
        (["cap", "al.pha", "1GiB", "more"], "unrecognized arguments"),
        (["list", "al.pha"], "takes no 'al.pha'; --server"),
    ],
)
def test_a_wrong_usage_is_one_line_and_2_and_nothing_is_sent(
    lease: Lease, alpha: HandWritten, words: list[str], said: str
) -> None:
    code, out, error = lease(*words)
    assert (code, out) == (2, "")
    assert said in error
    assert error.count("\n") == 1
    assert alpha.client.exists(alpha.key("control")) == 0


@pytest.mark.parametrize("name", ["gamma", "al.pha.dp7-tp0", "al", "dp0-tp0"])
def test_a_donor_that_is_not_known(lease: Lease, alpha: HandWritten, name: str) -> None:
    code, out, error = lease("recall", name, "all")
    assert (code, out) == (1, "")
    assert error == f"swift-tiers: error: lease: there is no server or rank '{name}' on this bus; there are: al.pha\n"


def test_a_donor_that_is_gone_or_does_not_obey(lease: Lease, alpha: HandWritten) -> None:
    alpha.control = False
    alpha.heartbeat()
    code, _, error = lease("recall", "al.pha", "all")
    assert code == 1
    assert "start it with bus.control = true" in error
    alpha.die()
    code, _, error = lease("recall", "al.pha", "all")
    assert code == 1
    assert "server al.pha: is gone" in error


def test_what_was_refused_is_1(lease: Lease, alpha: HandWritten) -> None:
    said = {"dp0-tp0": "refused: leases: 12 is not lent here", "dp1-tp0": "refused: leases: 12 is not lent here"}
    with alpha.obeying("refused", "leases: 12 is not lent here", ranks=said):
        code, out, _ = lease("recall", "al.pha", "12")
        json_code, content, _ = lease("recall", "al.pha", "12", "--json")
    assert (code, json_code) == (1, 1)
    assert out.startswith("REFUSED recall-leases on al.pha: leases: 12 is not lent here (command ")
    assert json.loads(content)["ranks"] == said


def test_a_bus_that_cannot_be_reached(lease: Lease) -> None:
    code, _, error = lease("recall", "al.pha", "all", url=f"redis://127.0.0.1:{free_port()}")
    assert code == 1
    assert "not reachable" in error


def test_list_is_what_inspect_shows(
    lease: Lease, alpha: HandWritten, redis: RealRedis, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = lease("list", "--json")
    assert code == 0
    assert cli.main(["inspect", "leases", "--json", "--url", redis.url]) == 0
    inspected = json.loads(capsys.readouterr().out)
    listed = json.loads(out)
    assert listed.keys() == inspected.keys()
    assert [view["table"] for view in listed["leases"]] == [view["table"] for view in inspected["leases"]]
    assert "recalled" in lease("list")[1]
    assert lease("list", "--server", "nobody")[0] == 1
