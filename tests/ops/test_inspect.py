"""`swift-tiers inspect`: what an operator sees, against a real Redis with keys written by hand."""

from __future__ import annotations

import itertools
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from swift_tiers.radix_tiering.bus.contract.views import RequestView
from swift_tiers.radix_tiering.bus.hear import figures as units
from swift_tiers.radix_tiering.bus.hear.event_reading import Gap, StreamEvent
from swift_tiers.radix_tiering.bus.hear.event_tail import merged
from swift_tiers.radix_tiering.bus.hear.request_words import explain_request
from swift_tiers.radix_tiering.figures.story import RestoreStory

from support.bus import DEVICE, LEASES, LINK, PAGE, RANK, RID, STRIPE, TIER, TREE, HandWritten
from support.command_line import run_command
from support.redis import RealRedis, free_port, wait_for

SUBJECTS = ("servers", "tiers", "devices", "links", "leases", "tree", "requests", "events")


@pytest.fixture
def redis() -> Iterator[RealRedis]:
    with RealRedis() as server:
        yield server


@pytest.fixture
def alpha(redis: RealRedis) -> HandWritten:
    return HandWritten(redis.admin, lends=True).write()


@pytest.fixture
def beta(redis: RealRedis) -> HandWritten:
    return HandWritten(redis.admin, "beta", ranks=("dp0-tp0", "dp0-tp1")).write()


class Shown:
    """What a command gave."""

    def __init__(self, code: int, out: str, error: str) -> None:
        self.code, self.out, self.error = code, out, error

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.out.splitlines() if line.strip()]

    def row(self, *words: str) -> str:
        """The one line with all these words."""
        (line,) = (line for line in self.lines if all(word in line.split() for word in words))
        return line

    def table(self, column: str) -> list[dict[str, str]]:
        """The rows of the table that has this column, by their columns' names."""
        (at,) = (number for number, line in enumerate(self.all) if column in _cells(line) and _is_heading(line))
        names = _cells(self.all[at])
        rows = itertools.takewhile(lambda line: line.strip() and not line.startswith("and "), self.all[at + 1 :])
        return [dict(zip(names, _cells(line), strict=True)) for line in rows]

    @property
    def all(self) -> list[str]:
        return [line.rstrip() for line in self.out.splitlines()]


def _cells(line: str) -> list[str]:
    return re.split(" {2,}", line.strip())


def _is_heading(line: str) -> bool:
    return bool({"server", "donor", "node"} & set(_cells(line)))


Inspect = Callable[..., Shown]


@pytest.fixture
def inspect(redis: RealRedis, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Inspect:
    """Runs the command on this Redis, with tables of this many columns."""

    def run(*words: str, url: str = redis.url, columns: int = 260) -> Shown:
        monkeypatch.setenv("COLUMNS", str(columns))
        return Shown(*run_command(capsys, "inspect", *words, *(["--url", url] if url else [])))

    return run


# ---- with nothing wrong ----


@pytest.mark.parametrize("subject", SUBJECTS)
def test_nothing_wrong(inspect: Inspect, alpha: HandWritten, subject: str) -> None:
    shown = inspect(subject)
    assert shown.code == 0, shown.error
    assert "alpha" in shown.out
    assert not any(word in shown.out for word in ("WRONG", "warning", "LOST", "no room here"))
    content = inspect(subject, "--json").out
    if subject == "events":
        assert [json.loads(line)["kind"] for line in content.splitlines()] == ["stripe.opened"]
    else:
        assert json.loads(content)["troubles"] == []


def test_servers(inspect: Inspect, alpha: HandWritten) -> None:
    shown = inspect("servers")
    (row,) = shown.table("model path")
    assert row["state"] == "ok"
    assert {"/models/SmolLM2", "127.0.0.1:30000", "yes", "0.1.0 (sglang 0.5.23)", "500 ms"} <= set(row.values())
    (rank,) = shown.table("publishing")
    assert [rank[name] for name in ("running", "waiting", "restores", "whole", "split")] == ["2", "1", "40", "34", "6"]
    assert rank["engine"] == "io_uring"


def test_tiers(inspect: Inspect, alpha: HandWritten) -> None:
    shown = inspect("tiers")
    tiers = {row["tier"]: row for row in shown.table("damaged")}
    names = ("full", "used", "hit", "pages", "p50", "p99", "evicted", "written", "read")
    assert [tiers["host"][name] for name in names] == [
        "50%", "512MiB", "90%", "1456", "16 ms", "130 ms", "40", "1.863GiB", "953.7MiB",
    ]  # fmt: skip
    assert [tiers["device"][name] for name in ("p50", "p99")] == ["-", "-"], "no restore reads from the device"
    (directory,) = shown.table("below the device")
    assert (directory["below the device"], directory["several tiers"]) == ("2020", "956")


def test_devices(inspect: Inspect, alpha: HandWritten) -> None:
    row = inspect("devices").row("alpha", "/ssd1/swift-tiers-dp0-tp0.stripe")
    assert row.startswith("ok ")
    for words in ("0.13 ms", "12%", "1GiB", "8GiB", "953.7MiB", "1.863GiB"):
        assert words in row
    alpha.hash("stripe", {**STRIPE, "reads:corrupt: checksum": 3, "reads:io error": 0})
    (stripe_set,) = inspect("devices").table("free units")
    assert stripe_set["reads"] == "corrupt: checksum 3, ok 800"


def test_a_server_without_an_ssd_tier(inspect: Inspect, alpha: HandWritten) -> None:
    alpha.client.delete(alpha.key("stripe"))
    assert "no server here has an ssd tier" in inspect("devices").out
    assert json.loads(inspect("devices", "--json").out)["devices"] == []


def links(shown: Shown) -> dict[tuple[str, str], dict[str, str]]:
    return {(row["from"], row["to"]): row for row in shown.table("copies/s")}


def test_links_and_tree(inspect: Inspect, alpha: HandWritten) -> None:
    assert links(inspect("links"))["ssd", "host"]["speed of one/s"] == "1.863GiB"
    (tree,) = inspect("tree").table("evictable")
    assert [tree[name] for name in ("tokens", "reuse in all", "found in it", "prompt tokens", "evicted", "nodes")] == [
        "8000", "70%", "70k", "100k", "12k", "120",
    ]  # fmt: skip


def test_links_of_single_donors(inspect: Inspect, alpha: HandWritten) -> None:
    found = links(inspect("links"))
    for way in (("peer", "host"), ("host", "peer"), ("beta.dp0-tp0", "host"), ("host", "beta.dp0-tp0")):
        row = found[way]
        assert (row["rate/s"], row["p50"], row["p99"]) == ("1MiB", "4.1 ms", "16 ms"), "its rate just now"


def test_gpus_beneath_the_links(inspect: Inspect, alpha: HandWritten) -> None:
    assert "GPU" not in inspect("links").out
    assert json.loads(inspect("links", "--json").out)["gpus"] == []
    alpha.write_gpu("dp0-tp0")
    shown = inspect("links")
    (gpu,) = shown.table("NVLinks")
    names = ("state", "rank", "GPU", "name", "NVLinks", "NVLink sent/s", "memory", "busy")
    assert [gpu[name] for name in names] == ["ok", "dp0-tp0", "0", "NVIDIA H200", "4", "3MiB", "120GiB", "37%"]
    linked, apart = shown.table("reaches")
    assert (linked["reaches"], linked["by"], linked["access"]) == ("NVIDIA H200 GPU-1", "NVLink x4", "ok")
    assert (apart["by"], apart["access"]) == ("PCIe, system, no peer access", "chipset not supported")
    assert apart["NVLink sent"] == "?", "what NVML does not count is not known"
    content = json.loads(inspect("links", "--json").out)
    assert content["gpus"][0]["nvlink_sent_bytes"] == 10**9
    assert [one["nvlinks"] for one in content["reaches"]] == [4, 0]


def test_a_lost_gpu(inspect: Inspect, alpha: HandWritten) -> None:
    alpha.write_gpu("dp0-tp0", trouble="GPU is lost", nvlinks="", memory_used_bytes="", reaches="")
    shown = inspect("links")
    assert shown.lines[0].startswith("WRONG alpha dp0-tp0 GPU 0: its driver has no figures of it: GPU is lost")
    (gpu,) = shown.table("trouble")
    assert (gpu["NVLinks"], gpu["trouble"]) == ("?", "GPU is lost")


PAIR = ("donor", "borrower", "leases", "lent", "returning", "pinned", "borrowed", "ends in", "epoch")
LEASE = ("donor", "lease", "borrower", "bytes", "at the donor", "at the borrower", "ends in", "pinned")


def values(row: dict[str, str], names: tuple[str, ...]) -> list[str]:
    return [row[name] for name in names]


def test_leases(inspect: Inspect, alpha: HandWritten) -> None:
    shown = inspect("leases")
    (rank,) = shown.table("lends to")
    names = ("rank", "lends", "of", "at most", "borrows", "lends to", "borrows from")
    assert values(rank, names) == ["dp0-tp0", "6MiB", "10MiB", "-", "2MiB", "beta.dp0-tp0", "beta.dp0-tp0"]
    assert [values(row, PAIR) for row in shown.table("recalls")] == [
        ["alpha.dp0-tp0", "beta.dp0-tp0", "3", "6MiB", "2MiB", "2MiB", "-", "100 ms", "3f09a1c2"],
        ["beta.dp0-tp0", "alpha.dp0-tp0", "1", "-", "0B", "-", "2MiB", "1.7 s", "77a0b1c2"],
    ]
    assert [values(row, LEASE) for row in shown.table("at the borrower in")] == [
        ["alpha.dp0-tp0", "13", "beta.dp0-tp0", "2MiB", "recalled", "-", "100 ms", "-"],
        ["alpha.dp0-tp0", "14", "beta.dp0-tp0", "2MiB", "lent", "-", "1.8 s", "pinned"],
        ["beta.dp0-tp0", "5", "alpha.dp0-tp0", "2MiB", "-", "active", "1.7 s", "-"],
        ["alpha.dp0-tp0", "12", "beta.dp0-tp0", "2MiB", "lent", "-", "1.8 s", "-"],
    ], "what is not plainly lent comes first"


def test_both_sides_of_a_lease_are_one_row(inspect: Inspect, alpha: HandWritten, beta: HandWritten) -> None:
    rank = {**RANK, "lent_bytes": 0, "lendable_bytes": 0, "borrowed_bytes": 2**22, "borrows_from": "alpha.dp0-tp0"}
    beta.hash("rank", rank)
    table = "13:2097152:closing:0.1 14:2097152:active:1.6"
    beta.hash("borrowed", {**LEASES, "bytes": 2**22, "pinned_bytes": "", "table": table}, donor="alpha.dp0-tp0")
    shown = inspect("leases")
    pairs = {(row["donor"], row["borrower"]): row for row in shown.table("recalls")}
    assert pairs["alpha.dp0-tp0", "beta.dp0-tp0"]["borrowed"] == "4MiB", "what the borrower has of it"
    leases = {row["lease"]: (row["at the donor"], row["at the borrower"]) for row in shown.table("at the borrower in")}
    assert (leases["13"], leases["14"]) == (("recalled", "closing"), ("lent", "active"))
    content = json.loads(inspect("leases", "--json").out)
    assert [(view["server"], view["donor"], view["borrower"]) for view in content["leases"]] == [
        ("alpha", "alpha.dp0-tp0", "beta.dp0-tp0"),
        ("alpha", "beta.dp0-tp0", "alpha.dp0-tp0"),
        ("beta", "alpha.dp0-tp0", "beta.dp0-tp0"),
    ]
    assert [rank["lent_bytes"] for rank in content["ranks"]] == [3 * 2**21, 0]


def test_leases_are_limited(inspect: Inspect, alpha: HandWritten) -> None:
    shown = inspect("leases", "--limit", "1")
    assert [row["lease"] for row in shown.table("at the borrower in")] == ["13"]
    assert "and 3 more; --limit shows more" in shown.out
    assert "more" not in inspect("leases").out


def test_leases_that_the_bus_does_not_list_are_counted_and_no_limit_shows_them(
    inspect: Inspect, alpha: HandWritten
) -> None:
    alpha.hash("lent", {**LEASES, "leases": 1000}, borrower="beta.dp0-tp0")
    shown = inspect("leases", "--limit", "3").out
    assert "and 1 more; --limit shows more of them" in shown
    assert "and 997 of which the bus has no more than their number" in shown


def test_the_worst_leases_are_those_that_are_shown(inspect: Inspect, alpha: HandWritten) -> None:
    """One that is over and still lent, although it is in no other state than most are."""
    over = {**LEASES, "leases": 1, "table": "1:2097152:lent:-60.0", "pinned_bytes": 0}
    alpha.write_leases("dp0-tp0", lends_to="beta.dp0-tp0,gamma.dp0-tp0")
    alpha.hash("lent", over, borrower="gamma.dp0-tp0")
    shown = inspect("leases", "--limit", "1")
    (row,) = shown.table("at the borrower in")
    assert (row["borrower"], row["lease"]) == ("gamma.dp0-tp0", "1")


def test_a_bus_where_nobody_lends(inspect: Inspect, beta: HandWritten) -> None:
    shown = inspect("leases")
    assert shown.code == 0
    assert "nobody lends here; see peer.donate and peer.borrow" in shown.out
    assert json.loads(inspect("leases", "--json").out)["leases"] == []


def test_requests_of_tensor_ranks_are_one_row(inspect: Inspect, beta: HandWritten) -> None:
    beta.request("late", "dp0-tp0", ago=1)
    shown = inspect("requests")
    assert "dp0-tp0 +1" in shown.row("beta", f"{RID[:12]}…")
    assert "+1" not in shown.row("beta", "late")
    content = json.loads(inspect("requests", "--json").out)["requests"]
    assert [(one["rid"], one["rank"]) for one in content] == [(RID, "dp0-tp0"), (RID, "dp0-tp1"), ("late", "dp0-tp0")]


def test_requests_that_ended_are_limited(inspect: Inspect, alpha: HandWritten) -> None:
    for number in range(5):
        alpha.request(f"ended{number}", state="finished", ago=100 - number, ended=alpha.now() - 90 + number)
    shown = inspect("requests", "--limit", "2")
    ended = [row["request"] for row in shown.table("first token") if row["state"] == "finished"]
    assert ended == ["ended4", "ended3"]
    assert "and 3 more; --limit shows more" in shown.out
    assert "running" in shown.out


def test_one_request(inspect: Inspect, beta: HandWritten) -> None:
    shown = inspect("request", RID[:4])
    assert shown.code == 0, shown.error
    assert shown.row("computed", "64").split() == ["computed", "-", "64", "(9%)", "64", "(9%)"]
    for words in (
        ["prompt", "tokens", "-", "736", "736"], ["found", "on", "the", "device", "-", *["192", "(26%)"] * 2],
        ["loaded", "from", "host", "-", *["480", "(65%)"] * 2], ["output", "tokens", "-", "12", "12"],
        ["took", "-", *["210", "ms"] * 2], ["queued", "-", *["250", "ms"] * 2],
        ["first", "token", "after", "-", *["400", "ms"] * 2], ["ended", "after", "-", "-", "-"],
        ["pages", "-", "46", "46"], ["restore", "-", "completed", "completed"], ["state", "-", "running", "running"],
    ):  # fmt: skip
        assert words in [line.split() for line in shown.lines]
    assert f"last page of its prompt: {'ef' * 32}" in shown.lines
    assert "device 12, host 30, compute 4" in shown.out
    assert "dp0-tp0: on the device now: 17-40 3 90-110" in shown.lines
    assert "dp0-tp1: on the device now: 17-40 3 90-110" in shown.lines
    assert "first token after 400 ms: 210 ms (52%) waiting for pages from below the device" in shown.out
    content = json.loads(inspect("request", "--json", RID).out)
    assert [one["rank"] for one in content["requests"]] == ["dp0-tp0", "dp0-tp1"]
    assert "most of it went into waiting for pages" in content["why"][1]


def test_a_request_that_is_not_there_or_not_clear(inspect: Inspect, alpha: HandWritten) -> None:
    alpha.request("0123other")
    shown = inspect("request", "0123")
    assert shown.code == 1
    assert f"several begin so, among them {RID}, 0123other" in shown.error
    assert inspect("request", "0123o").code == 0
    shown = inspect("request", "nothing")
    assert shown.code == 1
    assert "no server here knows it" in shown.error


def test_a_page(inspect: Inspect, alpha: HandWritten, beta: HandWritten) -> None:
    with alpha.answering(), beta.answering(held=0):
        shown = inspect("page", PAGE.upper())
        content = json.loads(inspect("page", PAGE, "--json").out)
    assert shown.lines[0] == f"page {PAGE}"
    assert shown.lines[1].endswith(f"namespace {'cd' * 8}")
    held = next(line for line in shown.lines if line.startswith("alpha dp0-tp0  computed here"))
    used, *others = held.split("  ")[2:]
    assert used.startswith("used 3 times, last ")  # some seconds, and what it takes until it is printed
    assert others == ["pins 0", "", "page 12, 1 behind it", "360KiB", f"checksum {'ef' * 8}…", "generation 9"]
    places = [" ".join(line.split()[2:]) for line in shown.lines if line.startswith("alpha   dp0-tp0")]
    for place in (
        "host slot 77", "device slot 21", "peer beta.dp0-tp0 lease 12 slot 3", "ssd unit 0 of 2: device 0, slot 17",
        "ssd unit 1 of 2: device 1, slot 4", f"page before {'12' * 19}",
    ):  # fmt: skip
        assert any(one.startswith(place) for one in places), place
    assert "beta dp0-tp1  on the device only; not stored below" in shown.lines
    assert [one["held"] for one in content["answers"]] == [True, False, False]


def test_a_map(inspect: Inspect, alpha: HandWritten, beta: HandWritten) -> None:
    with alpha.answering(), beta.answering():
        shown = inspect("map", "device", "--server", "alpha")
        content = json.loads(inspect("map", "ssd", "--json").out)
        missing = inspect("map", "peer", "--server", "alpha")
        none = inspect("map", "nosuch", "--json")
        striped = inspect("map", "ssd", "--server", "alpha")
    assert shown.lines[0].startswith("device of alpha dp0-tp0: 152 slots of 360KiB, 53.44MiB")
    assert shown.lines[1] == "· free 120  ▒ cached 30  ▚ pinned 2"
    assert shown.lines[2] == f"      1  {'·' * 120}{'▒' * 30}▚▚", "from slot 1"
    assert "there is no such tier here" in missing.out
    assert (none.code, none.out) == (1, "")
    assert "map of nosuch: nobody has one: there is no such tier here; see `inspect tiers`" in none.error
    assert content["answers"][0]["cells"] == [["cached", 4], ["free", 1], ["out", 6]]
    # Two slots to a sign, the last of each device only one: 9 and 11 slots.
    assert striped.lines[0].startswith("ssd of alpha dp0-tp0: 20 slots of 256KiB")
    assert striped.lines[1:3] == ["· free ~1  ▒ cached ~8  × out ~11", "device 0: 9 slots  device 1: 11 slots"]
    assert striped.lines[3].startswith("a sign is 2 slots")
    assert striped.lines[4:6] == ["device 0  ▒▒▒▒·", "device 1  ××××××"]


def test_a_prefix(inspect: Inspect, alpha: HandWritten) -> None:
    with alpha.answering():
        shown = inspect("prefix", PAGE.upper())
        content = json.loads(inspect("prefix", PAGE, "--json").out)
    assert shown.lines[0] == f"the sequence that page {PAGE} ends"
    assert "the last 3 of 5000 pages are told" in shown.out
    assert "█ device 1  ▒ host 1  × nowhere 1  ? not told 4997" in shown.lines
    assert [line.split() for line in shown.lines if line.startswith(("4998", "4999", "5000"))] == [
        ["4998", "×", "nowhere", "-", "-", "-", "-", "-", "0", "79952-79967", "12" * 8],
        ["4999", "▒", "host", "-", "-", "-", "3", "0:5", "1:9", "2", "79968-79983", "34" * 8],
        ["5000", "█", "device", "-", "17", "beta.dp0-tp0/12/4", "-", "-", "2", "79984-79999", PAGE[:16]],
    ]
    assert content["answers"][0]["table"][1] == [4999, "34" * 8, None, 3, "", [[0, 5], [1, 9]]]


def test_nodes(inspect: Inspect, alpha: HandWritten) -> None:
    with alpha.answering():
        shown = inspect("nodes", "--limit", "3")
        content = json.loads(inspect("nodes", "--limit", "3", "--json").out)
    assert re.match("ok +alpha +dp0-tp0 +8000 .* 120 ", shown.lines[1])
    assert "the 3 largest of 3 nodes" in shown.out
    (at,) = (number for number, line in enumerate(shown.lines) if line.startswith("node "))
    rows = [line.replace("└ ", "└").split() for line in shown.lines[at + 1 :]]
    assert [[*row[:2], *row[3:6]] for row in rows] == [
        ["7", "4096", "1024", "3", "1"],
        ["└9", "3072", "3072", "1", "0"],
        ["11", "64", "64", "1", "0"],
    ], "9 is behind 7"
    assert rows[0][6:8] == ["12.5", "s"]
    assert [row[-1] for row in rows] == [PAGE[:16], "-", "34" * 8]
    assert [node[0] for node in content["answers"][0]["table"]] == [7, 9, 11]


def test_a_page_that_some_or_all_do_not_answer_for(inspect: Inspect, alpha: HandWritten, beta: HandWritten) -> None:
    with alpha.answering():
        shown = inspect("page", PAGE)
    assert shown.code == 0
    assert shown.lines[0] == "WRONG beta dp0-tp0: did not answer"
    shown = inspect("page", "12" * 32, "--server", "beta")
    assert (shown.code, shown.out) == (1, "")
    assert "nobody answered (asked beta dp0-tp0, beta dp0-tp1)" in shown.error


def test_an_event_of_a_clock_that_is_far_out(inspect: Inspect, alpha: HandWritten) -> None:
    alpha.event("device.out", at=-1e18, device="/ssd1")
    (line,) = (line for line in inspect("events").lines if "device.out" in line)
    assert line.startswith("at an unknown time")


def test_events_are_the_newest_of_all_servers_by_time(inspect: Inspect, alpha: HandWritten, redis: RealRedis) -> None:
    other = HandWritten(redis.admin, "other", offset=-3600.0).write()
    alpha.event("device.out", device="/ssd1", reason="I/O error")
    other.event("page.corrupt", sequence=5, tier="host")
    lines = inspect("events").lines
    assert [line.split()[1] if line.startswith("LOST") else line.split()[2] for line in lines] == [
        "alpha", "other", "alpha", "other", "other",
    ]  # fmt: skip
    assert "device.out  device=/ssd1 reason=I/O error" in lines[2]
    assert "events 2 to 4 (3)" in lines[3]
    assert "#5  page.corrupt  tier=host" in lines[4]
    assert lines[4][:13] == lines[2][:13], "shown by one clock, though theirs are an hour apart"
    assert [line.split()[2] for line in inspect("events", "--limit", "1").lines] == ["other"]
    assert [line.split()[2] for line in inspect("events", "--server", "alpha").lines] == ["alpha", "alpha"]
    items = [json.loads(line) for line in inspect("events", "--json").out.splitlines()]
    assert [item["type"] for item in items] == ["event", "event", "event", "gap", "event"]


# ---- what is wrong ----


def troubled(alpha: HandWritten, what: str) -> None:
    if what == "gone":
        alpha.heartbeat(ago=300)
        alpha.die()
    elif what == "late":
        alpha.heartbeat(ago=30)
    elif what == "skewed":
        alpha.offset = -3600.0
        alpha.write()
    elif what == "rank gone":
        alpha.client.delete(alpha.key("rank"))
    elif what == "failed loads":
        alpha.hash("rank", {**RANK, "failed_loads": 3})
    elif what == "hung threads":
        alpha.hash("rank", {**RANK, "hung_threads": 2})
    elif what == "another release":
        alpha.hash("rank", {**RANK, "lend_other_releases": 7, "lend_faults": 1})
    elif what == "short restores":
        alpha.hash("rank", {**RANK, "restores_expired": 8, "restores_cut_short": 2})
    elif what == "late restores":
        alpha.hash("rank", {**RANK, "restores_late": 9})
    elif what == "lost pages":
        alpha.hash("rank", {**RANK, "lost_pages": 12})
    elif what == "lost events":
        alpha.hash("rank", {**RANK, "events_lost": 9, "publish_failures": 4})
    elif what == "remote store":
        gone = {"remote_engine": "cannot be opened", "remote_engine_asked": 0, "remote_questions": 100}
        alpha.hash("rank", {**RANK, **gone, "remote_errors": 5, "remote_bad": 2, "remote_lost": 3, "remote_late": 11})
    elif what == "remote store not asked":
        alpha.hash("rank", {**RANK, "remote_engine": "not asked", "remote_engine_asked": 0})
    elif what == "damaged":
        alpha.hash("tier", {**TIER, "checksum_failures": 2}, tier="ssd")
    elif what == "refused":
        alpha.hash("tier", {**TIER, "refused:full": 7, "refused:prefix not held": 1}, tier="host")
    elif what == "pinned":
        alpha.hash("tier", {**TIER, "pinned_pages": 1400, "used_bytes": 1000 * 2**20}, tier="host")
    elif what == "capped":
        alpha.hash("tier", {**TIER, "limit_bytes": 2**20}, tier="host")
    elif what == "missing":
        alpha.hash("stripe", {**STRIPE, "missing": 1})
    elif what == "device out":
        alpha.hash("ssd", {**DEVICE, "service": "out", "reason": "no answer for 30 s"}, number="1")
    elif what == "draining":
        alpha.hash("ssd", {**DEVICE, "service": "draining"}, number="1")
    elif what == "corrupt":
        alpha.hash("ssd", {**DEVICE, "corrupt_units": 5, "write_errors": 6}, number="1")
    elif what == "slow":
        alpha.hash("ssd", {**DEVICE, "recent_p99_seconds": 1.5}, number="1")
    elif what in ("donor gone", "borrower gone"):
        other = HandWritten(alpha.client, "beta").write()
        other.heartbeat(ago=300)
        other.die()
        alpha.write_leases("dp0-tp0")
    elif what == "late lease":
        alpha.hash("lent", {**LEASES, "table": "12:2097152:lent:-4.2"}, borrower="beta.dp0-tp0")
    elif what == "lending capped":
        alpha.write_leases("dp0-tp0", lend_limit_bytes=2**30)
    elif what == "large tree":
        alpha.hash("tree", {**TREE, "complete": 0})
    elif what == "cut short":
        alpha.request(RID, restore="cut short", recomputed_tokens=300)
    elif what == "expired":
        alpha.request(RID, restore="expired", recomputed_tokens=700)
    elif what == "waiting":
        alpha.request(RID, state="waiting", ago=50, queue_seconds="", first_token_seconds="")
    elif what == "aborted":
        alpha.request(RID, state="aborted")
    else:
        raise AssertionError(what)


@pytest.mark.parametrize(
    ("what", "subject", "mark", "said"),
    [
        ("gone", "servers", "warning", "gone; last heard of 5 min"),
        ("gone", "tiers", "warning", "gone; last heard of 5 min"),
        ("late", "servers", "warning", "has said nothing for 3"),  # 30 s, and what it takes until somebody looks
        ("skewed", "servers", "warning", "its clock is 1 h behind Redis'"),
        ("rank gone", "servers", "WRONG", "its rank dp0-tp0 says nothing"),
        ("hung threads", "servers", "WRONG", "2 of its threads hang"),
        ("another release", "servers", "warning", "7 letters came from servers of another release"),
        ("failed loads", "servers", "WRONG", "3 copies to the device failed"),
        ("short restores", "servers", "warning", "10 of 40 restores gave less than was found (8 ran out of time)"),
        ("late restores", "servers", "warning", "9 of 40 restores fell behind their estimates"),
        ("lost pages", "servers", "note", "12 pages that were found did not come up"),
        ("lost events", "servers", "warning", "dropped 9 events"),
        ("remote store", "servers", "warning", "remote: its remote store cannot be opened"),
        ("remote store", "servers", "warning", "remote: its remote store answered 5 times with an error"),
        ("remote store", "servers", "warning", "remote: 2 objects of its remote store were not what they should be"),
        ("remote store", "servers", "warning", "remote: its remote store answered 11 times too late"),
        ("remote store", "servers", "note", "remote: 3 objects of its remote store had gone"),
        ("remote store not asked", "servers", "warning", "remote: its remote store is not asked"),
        ("damaged", "tiers", "WRONG", "ssd: 2 pages were damaged"),
        ("refused", "tiers", "warning", "host: pages not taken in: full 7"),
        ("refused", "tiers", "note", "host: pages not taken in: prefix not held 1"),
        ("pinned", "tiers", "warning", "host: 1400 of 1456 pages are pinned"),
        ("capped", "tiers", "note", "host: capped at 1MiB of 1GiB"),
        ("missing", "devices", "WRONG", "1 of its devices were not found"),
        ("device out", "devices", "WRONG", "is out of service: no answer for 30 s"),
        ("draining", "devices", "note", "is draining"),
        ("corrupt", "devices", "WRONG", "5 stripe units were not what was written"),
        ("corrupt", "devices", "warning", "0 reads and 6 writes failed"),
        (
            "slow",
            "devices",
            "warning",
            "is slow: in the last minute its slowest hundredth took 1.5 s, the others' 1 ms",
        ),
        ("donor gone", "leases", "warning", "borrowed from beta.dp0-tp0: its donor is gone"),
        ("borrower gone", "leases", "warning", "lent to beta.dp0-tp0: its borrower is gone"),
        ("late lease", "leases", "WRONG", "1 leases are past their time, the first for 4.2 s"),
        ("lending capped", "leases", "note", "lends at most 1GiB, by an operator"),
        ("large tree", "tree", "note", "too large to be walked"),
        ("expired", "requests", "warning", "700 tokens were recomputed"),
        ("cut short", "requests", "warning", "300 tokens were recomputed"),
        ("waiting", "requests", "warning", "has been waiting for 5"),  # 50 s and a little
        ("aborted", "requests", "note", "was aborted"),
    ],
)
def test_what_is_wrong_comes_first_with_its_place(
    inspect: Inspect, alpha: HandWritten, redis: RealRedis, what: str, subject: str, mark: str, said: str
) -> None:
    HandWritten(redis.admin, "aaa").write()  # before it by name, and in order
    troubled(alpha, what)
    shown = inspect(subject)
    assert shown.code == 0, shown.error
    (line,) = (line for line in shown.lines if said in line)
    assert line.startswith(f"{mark} alpha")
    assert not any("aaa" in line for line in shown.lines[: shown.lines.index(line)])
    if (what, subject) != ("gone", "tiers"):
        headings = [number for number, line in enumerate(shown.lines) if _cells(line)[0] in ("state", "mark")]
        first_rows = [_cells(shown.lines[number + 1])[:2] for number in headings]
        assert any(row[0] != "ok" and row[1].startswith("alpha") for row in first_rows), "its row comes first, too"
    content = json.loads(inspect(subject, "--json").out)
    assert any(said in one["what"] or said in f"{one['place']}: {one['what']}" for one in content["troubles"])
    assert {"mark", "place", "what", "remedy"} == set(content["troubles"][0])


def test_a_remote_store_has_a_table_where_there_is_one(inspect: Inspect, alpha: HandWritten) -> None:
    assert "remote store" not in inspect("servers").out
    asked = {"remote_engine": "asked", "remote_engine_asked": 1, "remote_questions": 100, "remote_late": 9}
    alpha.hash("rank", {**RANK, **asked})
    shown = inspect("servers")
    assert "its remote store" not in shown.out
    (row,) = shown.table("remote store")
    assert (row["state"], row["remote store"], row["questions"], row["late"]) == ("ok", "asked", "100", "9")


@pytest.mark.parametrize(("restore", "subject"), [("cut short", "inspect tiers"), ("expired", "inspect devices")])
def test_what_was_recomputed_leads_to_its_cause(
    inspect: Inspect, alpha: HandWritten, restore: str, subject: str
) -> None:
    alpha.request(RID, restore=restore)
    (trouble,) = json.loads(inspect("requests", "--json").out)["troubles"]
    assert trouble["remedy"].startswith(f"`{subject}`")


def test_a_returned_lease_whose_time_is_over_is_not_wrong(inspect: Inspect, alpha: HandWritten) -> None:
    """Its donor has not answered yet; nothing of it is read."""
    alpha.hash("borrowed", {**LEASES, "table": "5:2097152:returned:-3.0"}, donor="beta.dp0-tp0")
    shown = inspect("leases")
    assert "over by 3.0 s" in shown.out
    assert "past their time" not in shown.out


def test_devices_of_equal_speed_are_not_slow(inspect: Inspect, alpha: HandWritten) -> None:
    for number in "01":
        alpha.hash("ssd", {**DEVICE, "recent_p99_seconds": 1.5}, number=number)
    assert "is slow" not in inspect("devices").out


# ---- finding the bus, and failing to ----


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "inspect: what?"),
        (["nonsense"], "invalid choice"),
        (["request"], "which one? Give its RID"),
        (["restore"], "which one? Give its RID"),
        (["page"], "which one? Give its KEY"),
        (["page", "abc"], "is no page's key"),
        (["prefix", "abc"], "is no page's key"),
        (["map"], "which one? Give its TIER"),
        (["map", "no tier"], "'no tier' is no name of a tier; `inspect tiers` says which there are"),
        (["nodes", "7"], "takes no '7'"),
        (["tiers", "host"], "takes no 'host'"),
        (["tiers", "--watch", "0"], "not a number of seconds"),
        (["tiers", "--limit", "0"], "not a number from"),
        (["tiers", "--url", "redis://x", "--directory", "y"], "not allowed with"),
        (["tiers", "--url", "http://x"], "bus.url"),
        (["tiers", "--url", "redis://user:secret@x"], "bus.url: contains a password"),
        (["tiers", "--config", '{"bus": {"enabled": false}}'], "bus.enabled is false"),
        (["tiers", "--config", '{"bus": 1}'], "bus"),
    ],
)
def test_a_wrong_usage_is_one_line_and_2(inspect: Inspect, words: list[str], said: str) -> None:
    shown = inspect(*words, url="")
    assert shown.code == 2
    assert said in shown.error
    assert "secret" not in shown.error
    assert shown.error.count("\n") == 1
    assert shown.out == ""


@pytest.mark.parametrize("words", [[], ["--watch"], ["--json"]])
@pytest.mark.parametrize("subject", [*SUBJECTS, "request", "restore", "page", "prefix", "map", "nodes"])
def test_a_bus_that_cannot_be_reached_is_one_line_and_1(inspect: Inspect, subject: str, words: list[str]) -> None:
    name = {"request": [RID], "restore": [RID], "page": [PAGE], "prefix": [PAGE], "map": ["host"]}.get(subject, [])
    shown = inspect(subject, *name, *words, url=f"redis://127.0.0.1:{free_port()}")
    assert (shown.code, shown.out) == (1, "")
    assert "not reachable" in shown.error
    assert shown.error.count("\n") == 1


def test_another_schema_version(inspect: Inspect, alpha: HandWritten) -> None:
    alpha.client.set("swift:schema", "9")
    shown = inspect("servers")
    assert shown.code == 1
    assert "schema version 9" in shown.error


def test_an_empty_bus(inspect: Inspect) -> None:
    for subject in SUBJECTS[:-1]:
        shown = inspect(subject)
        assert shown.code == 0
        assert shown.lines == ["no server has been on this bus within the last hour"]
    assert inspect("events").out == ""


def test_one_server_only(inspect: Inspect, alpha: HandWritten, beta: HandWritten) -> None:
    beta.write_leases("dp0-tp0")
    for subject in SUBJECTS:
        shown = inspect(subject, "--server", "beta")
        assert "beta" in shown.out
        assert "alpha" not in shown.out
    shown = inspect("servers", "--server", "gamma")
    assert shown.code == 1
    assert "there is no server gamma on this bus; there are: alpha, beta" in shown.error


def test_the_bus_of_a_configuration(
    inspect: Inspect, redis: RealRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    HandWritten(redis.admin, "mine", prefix="other").write()
    file = tmp_path / "tiers.toml"
    file.write_text(f'[host]\nsize = "1GiB"\n[bus]\nurl = "{redis.url}"\nprefix = "other"\n')
    shown = inspect("servers", "--config", f"@{file}", url="")
    assert "mine" in shown.out
    elsewhere = json.dumps({"bus": {"directory": "/nowhere", "prefix": "other"}})
    assert "mine" in inspect("servers", "--config", elsewhere).out, "--url goes before it"
    shown = inspect("servers", "--config", f"@{file}", "--directory", str(tmp_path), url="")
    assert shown.code == 1
    assert f"embedded Redis at unix://{tmp_path}/redis.sock: not reachable" in shown.error
    monkeypatch.chdir(tmp_path.parent)
    shown = inspect("servers", "--directory", tmp_path.name, url="")
    assert f"embedded Redis at unix://{tmp_path}/redis.sock: not reachable" in shown.error


def test_how_to_look_by_hand(inspect: Inspect, alpha: HandWritten, tmp_path: Path) -> None:
    shown = inspect("--redis-cli")
    command = shlex.split(shown.out)
    answer = subprocess.run([*command, "hget", "swift:alpha:info", "model"], capture_output=True, text=True, timeout=20)
    assert answer.stdout.strip() == "/models/SmolLM2"
    assert shown.error == ""
    bus = {"url": "rediss://box:1234/2", "username": "reader", "password_file": "/a b", "ca_file": "/ca"}
    shown = inspect("--redis-cli", "--config", json.dumps({"bus": bus}), url="")
    assert shlex.split(shown.out)[1:] == [
        "-h", "box", "-p", "1234", "-n", "2", "--tls", "--cacert", "/ca", "--user", "reader",
    ]  # fmt: skip
    assert "REDISCLI_AUTH" in shown.error


def test_no_redis_cli(inspect: Inspect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swift_tiers.radix_tiering.bus.redis.redis_binary.find_cli", lambda: None)
    shown = inspect("--redis-cli")
    assert shown.code == 1
    assert "install the package redis-tools" in shown.error


# ---- in a terminal ----


@pytest.mark.parametrize("columns", [60, 80, 120])
@pytest.mark.parametrize("subject", SUBJECTS[:-1])
def test_tables_fit_and_say_what_they_leave_out(
    inspect: Inspect, alpha: HandWritten, subject: str, columns: int
) -> None:
    shown = inspect(subject, columns=columns)
    assert max(map(len, shown.lines)) <= columns
    assert "…" not in shown.out.replace(f"{RID[:12]}…", "").replace("efefefefefef…", ""), "no figure is cut"
    if columns < 100:
        assert "no room here for: " in shown.out


@pytest.mark.parametrize("columns", [60, 80])
@pytest.mark.parametrize("words", [("page", PAGE), ("prefix", PAGE), ("map", "ssd"), ("nodes",)])
def test_views_fit_and_say_what_they_leave_out(
    inspect: Inspect, alpha: HandWritten, words: tuple[str, ...], columns: int
) -> None:
    with alpha.answering():
        shown, wide = inspect(*words, columns=columns), inspect(*words)
    assert max(map(len, shown.lines)) <= columns
    assert "no room here for: " not in wide.out
    if words[0] == "prefix" and columns == 60:
        assert "no room here for: peer, copies, tokens, key" in shown.out
    if words[0] == "map":
        assert "device 0: 9 slots  device 1: 11 slots" in shown.out


def test_what_clients_made_up_does_not_reach_the_terminal(inspect: Inspect, alpha: HandWritten) -> None:
    alpha.request("\x1b[2Jbad\n:id", restore="expired")
    alpha.event("odd\x1b[31m", text="\x07bell")
    for words in (["requests"], ["request", "\x1b[2J"], ["events"]):
        shown = inspect(*words)
        assert shown.code == 0, shown.error
        assert "\x1b" not in shown.out
        assert "\\x1b" in shown.out
    assert "\x1b" not in inspect("request", "\x1b[3J").error


def start(redis: RealRedis, *words: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "swift_tiers.ops", "inspect", *words, "--url", redis.url]
    environment = {**os.environ, "COLUMNS": "150", "TERM": "xterm", "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        command,
        stdout=stdout,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        env=environment,
        # As from a terminal: a shell that runs the tests in the background has them ignore Ctrl-C, children too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


class Reading:
    """Gathers what comes from a file descriptor."""

    def __init__(self, descriptor: int) -> None:
        self.data = b""
        self._descriptor = descriptor
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            while data := os.read(self._descriptor, 65536):
                self.data += data
        except OSError:
            pass  # the other end of a terminal was closed

    def has(self, text: str, times: int = 1) -> None:
        wait_for(lambda: self.data.count(text.encode()) >= times, f"{text!r} in {self.data.decode(errors='replace')!r}")


def interrupt(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Ctrl-C: its exit code and what it wrote to stderr."""
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    error = process.stderr.read().decode()
    return process.wait(20), error


def test_watching_without_a_terminal(redis: RealRedis, alpha: HandWritten) -> None:
    """Over the end and the return of its Redis."""
    with start(redis, "links", "--watch", "0.2") as process:
        assert process.stdout is not None
        reading = Reading(process.stdout.fileno())
        reading.has("copies/s", 2)
        alpha.hash("link", {**LINK, "bytes": 10**9 + 2**30}, link="host-ssd")
        reading.has("1.931GiB")
        redis.kill()
        assert process.stderr is not None
        os.set_blocking(process.stderr.fileno(), False)
        said = b""

        def complained() -> bool:
            nonlocal said
            said += process.stderr.read() or b""  # type: ignore[union-attr]
            return b"not reachable" in said

        wait_for(complained, "a word about Redis")
        redis.start()
        reading.has("no server has been on this bus")
        alpha.write()
        reading.has("copies/s", 1 + reading.data.count(b"copies/s"))
        os.set_blocking(process.stderr.fileno(), True)
        code, error = interrupt(process)
    assert code == 0
    assert b"\x1b" not in reading.data
    assert "Traceback" not in said.decode() + error


def test_watching_as_json(redis: RealRedis, alpha: HandWritten) -> None:
    with start(redis, "servers", "--watch", "0.1", "--json") as process:
        assert process.stdout is not None
        reading = Reading(process.stdout.fileno())
        reading.has("\n", 3)
        assert interrupt(process) == (0, "")
    lines = reading.data.decode().splitlines()
    assert [json.loads(line)["servers"][0]["server"] for line in lines[:3]] == ["alpha"] * 3


def test_watching_in_a_terminal(redis: RealRedis, alpha: HandWritten) -> None:
    master, slave = pty.openpty()
    try:
        with start(redis, "tiers", "--watch", "0.1", stdout=slave) as process:
            reading = Reading(master)
            reading.has("Ctrl-C ends", 2)
            reading.has("\x1b[?1049h")
            alpha.hash("tier", {**TIER, "checksum_failures": 2}, tier="ssd")
            reading.has("2 pages were damaged")
            redis.kill()
            reading.has("not reachable")
            redis.start()
            reading.has("no server has been on this bus")
            assert interrupt(process) == (0, "")
            reading.has("\x1b[?1049l")
    finally:
        os.close(master)
        os.close(slave)


def test_following_events(redis: RealRedis, alpha: HandWritten) -> None:
    with start(redis, "events", "--watch") as process:
        assert process.stdout is not None
        reading = Reading(process.stdout.fileno())
        reading.has("#1  stripe.opened")
        alpha.event("device.out")
        reading.has("#2  device.out")
        beta = HandWritten(alpha.client, "beta").write()
        reading.has("beta dp0-tp0  #1")
        alpha.event("late", sequence=5)
        reading.has("LOST  alpha dp0-tp0  events 3 to 4")
        reading.has("#5  late")
        beta.event("afterwards")
        beta.die()
        reading.has("beta dp0-tp0  #2  afterwards")
        redis.restart()
        alpha.heartbeat()
        alpha.event("again", sequence=8)
        reading.has("LOST  alpha dp0-tp0  events 6 to 7")
        reading.has("#8  again")
        code, error = interrupt(process)
    assert code == 0
    assert "Traceback" not in error
    assert reading.data.count(b"#1  stripe.opened") == 2, "nothing twice"


def test_ctrl_c_before_the_first_look(redis: RealRedis, alpha: HandWritten) -> None:
    """Redis does not answer: it waits, and is interrupted; a single look says so, a watch just ends."""
    os.kill(redis.pid, signal.SIGSTOP)
    for words, code in ((["servers"], 130), (["servers", "--watch"], 0)):
        with start(redis, *words) as process:
            wait_for(lambda: connects(process.pid), "a connection")
            found, error = interrupt(process)
        assert found == code
        assert "Traceback" not in error


def connects(process: int) -> bool:
    """Whether it has opened a socket."""
    try:
        links = [os.readlink(f"/proc/{process}/fd/{name}") for name in os.listdir(f"/proc/{process}/fd")]
    except OSError:
        return False
    return any(link.startswith("socket:") for link in links)


# ---- parts ----


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "?"), (0.0, "0 s"), (0.00035, "0.35 ms"), (0.0123, "12 ms"), (2.14, "2.1 s"), (200, "3 min 20 s"),
        (300, "5 min"), (18120, "5 h 2 min"), (273600, "3 d 4 h"),
    ],
)  # fmt: skip
def test_durations(value: float | None, text: str) -> None:
    assert units.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "?"), (0, "0"), (9999, "9999"), (12345, "12.3k"), (4_560_000, "4.56M")]
)
def test_counts(value: int | None, text: str) -> None:
    assert units.count(value) == text


def test_shares() -> None:
    assert [units.share(1, 4), units.share(0, 0), units.share(None, 4)] == ["25%", "-", "?"]


def event(server: str, happened: float) -> StreamEvent:
    return StreamEvent(
        server=server,
        rank="r",
        entry="0-0",
        sequence=1,
        time=happened,
        happened=happened,
        age_seconds=0.0,
        kind="k",
        fields={},
    )


def test_gaps_stay_before_the_event_that_follows_them() -> None:
    gap = Gap(server="b", rank="r", first=1, last=2)
    items = merged([[event("a", 1.0), event("a", 3.0)], [gap, event("b", 2.0)]])
    assert [item.server for item in items] == ["a", "b", "b", "a"]
    assert items[1] is gap


def request(**fields: Any) -> RequestView:
    return RequestView(**{"server": "a", "rank": "r", "rid": "x", "state": "running", **fields})


@pytest.mark.parametrize(
    ("view", "said"),
    [
        (request(queue_seconds=3.0, restore_seconds=2.0, first_token_seconds=4.0), "went into waiting for pages"),
        (request(queue_seconds=3.0, restore_seconds=0.0, first_token_seconds=4.0), "went into waiting for its turn"),
        (
            request(queue_seconds=1.0, restore_seconds=0.0, first_token_seconds=4.0, recomputed_tokens=700),
            "went into computing 700 tokens",
        ),
        (
            request(queue_seconds=0.0, first_token_seconds=4.0, recomputed_tokens=700, prompt_tokens=736),
            "look: `inspect tiers`",
        ),
        (
            request(queue_seconds=0.0, first_token_seconds=4.0, recomputed_tokens=8, prompt_tokens=736),
            "look: `inspect requests`",
        ),
        (request(queue_seconds=1.0, restore_seconds=0.5), "no token yet"),
        (request(state="restoring"), "waits for its pages"),
        (request(state="waiting"), "waits for its turn"),
    ],
)
def test_why_a_request_is_slow(view: RequestView, said: str) -> None:
    assert any(said in line for line in explain_request(view))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"restore_seconds": 1.8, "restore_story": RestoreStory()},
            "first token after 1.9 s: 20 ms (1%) waiting for pages from below the device, "
            "0 s (0%) waiting for its turn, 1.9 s (99%) computing",
        ),
        (
            {"restore_seconds": 1.8, "restore_story": RestoreStory(held_seconds=0.93)},
            "950 ms (50%) waiting for pages from below the device, "
            "0 s (0%) waiting for its turn, 950 ms (50%) computing",
        ),
        ({"restore_seconds": 1.8, "restore_story": RestoreStory(held_seconds=9.0)}, "1.8 s (95%) waiting for pages"),
        ({"restore_seconds": 0.01, "restore_story": RestoreStory(held_seconds=0.93)}, "10 ms (1%) waiting for pages"),
        ({"restore_seconds": 1.8}, "20 ms (1%) waiting for pages"),
    ],
)
def test_a_restore_that_computes_meanwhile_is_no_part_of_the_queue(fields: dict[str, Any], said: str) -> None:
    """All parts of the time to the first token are as long as the whole."""
    view = request(queue_seconds=0.02, first_token_seconds=1.9, recomputed_tokens=5846, restore="split", **fields)
    told, *_ = explain_request(view)
    assert said in told


def test_nothing_is_said_of_what_is_not_known() -> None:
    assert list(explain_request(request(state="aborted"))) == []
    (line,) = explain_request(request(queue_seconds=0.0, restore_seconds=0.0))
    assert "most of it" not in line
