"""What the bus writes of a snapshot: all the fields of the schema and no others, as text that says the same."""

from __future__ import annotations

import json
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_tiers.radix_tiering.base.events import Event
from swift_tiers.radix_tiering.bus.contract import records
from swift_tiers.radix_tiering.bus.contract.lease_records import lease_sums, leases_record, partners
from swift_tiers.radix_tiering.bus.contract.records import PublisherNumbers, gpu_record, reach_record
from swift_tiers.radix_tiering.bus.contract.schema import BY_NAME
from swift_tiers.radix_tiering.bus.contract.views import (
    MOST_LISTED_LEASES,
    MOST_PARTNERS,
    DirectoryView,
    StripeSetView,
    TreeView,
)
from swift_tiers.radix_tiering.figures.forms import to_text, write_table
from swift_tiers.radix_tiering.figures.telemetry import PageAnswer
from swift_tiers.radix_tiering.gpus.snapshots import Gpu, GpuSample

from support import telemetry
from support.telemetry import latency

SERVER = records.server_record(telemetry.INFO, time=1.5, pid=7, interval=0.5, clock_offset=-3600.25, control=True)
EVENT = Event(sequence=3, time=1.5, kind="device.out", fields={"device": "/ssd1", "pages": 12})

RECENT = latency(0.001, 0.002)

ONE_OF_EACH: dict[str, list[records.Record]] = {
    "info": [SERVER],
    "rank": [
        records.rank_record(
            telemetry.stack(),
            telemetry.engine(),
            PublisherNumbers(),
            lease_sums(telemetry.leases(), lambda address: "box/1/2"),
            ["device-host"],
            time=1.5,
            pid=7,
            life="7-1.500000-0000abcd",
        ),
        records.rank_record(None, None, PublisherNumbers(), lease_sums(None, str), [], time=1.5, pid=7, life="7"),
    ],
    "tier": [
        records.tier_record(telemetry.tier(), RECENT, time=1.5),
        records.device_tier_record(telemetry.engine().device, time=1.5),
    ],
    "stripe": [records.record(StripeSetView, telemetry.stack().stripe, time=1.5, set="ef" * 16)],
    "ssd": [records.ssd_record(telemetry.device(0), RECENT, time=1.5)],
    "link": [records.link_record(telemetry.stack().links["host-ssd"], 2**20, RECENT, time=1.5)],
    "gpu": [
        gpu_record(telemetry.gpu()),
        gpu_record(GpuSample(time=1.5, gpu=Gpu(index=None, uuid="GPU-0", trouble="GPU is lost"))),
    ],
    "reach": [reach_record(one, time=1.5) for one in telemetry.gpu().reaches],
    "lent": [leases_record(telemetry.leases().lent, at_donor=True, time=1.5)],
    "borrowed": [leases_record(telemetry.leases().borrowed, at_donor=False, time=1.5)],
    "tree": [records.record(TreeView, telemetry.engine().tree, time=1.5)],
    "directory": [records.record(DirectoryView, telemetry.stack().directory, time=1.5)],
    "request": [
        records.request_record(telemetry.request("one"), "1-2", time=1.5),
        records.request_record(telemetry.ended("one", 2.5), "", time=2.5),
    ],
    "events": [records.event_record(EVENT, "dp0-tp0", "7-1.500000")],
    "page": [records.page_record(PageAnswer(telemetry.FACTS, 17, bytes(32)), time=1.5)],
    "prefix": [records.prefix_record(telemetry.PREFIX, time=1.5)],
    "map": [records.map_record(telemetry.SSD_MAP)],
    "nodes": [records.nodes_record(telemetry.NODES)],
}


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_records_have_the_fields_of_the_schema(name: str) -> None:
    documented = {field.name for field in BY_NAME[name].fields}
    families = {field[:-1] for field in documented if field.endswith("*")}
    for record in ONE_OF_EACH[name]:
        plain = {field for field in record if not any(field.startswith(family) for family in families)}
        assert plain == {field for field in documented if not field.endswith("*")}
        assert all(isinstance(value, str) and "\n" not in value for value in record.values())


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_what_is_known_is_said(name: str) -> None:
    """No field of the first record, of which everything is known, is empty, but those that have nothing to say."""
    silent = {name for name, value in ONE_OF_EACH[name][0].items() if value == ""}
    nothing_to_say = {
        "ssd": {"reason"}, "request": {"ended"}, "borrowed": {"pinned_bytes"}, "map": {"reason"}, "nodes": {"reason"},
        "gpu": {"trouble"},
    }  # fmt: skip
    assert silent == nothing_to_say.get(name, set())


def test_families() -> None:
    tier, stripe = ONE_OF_EACH["tier"][0], ONE_OF_EACH["stripe"][0]
    assert (tier["refused:full"], stripe["reads:ok"], stripe["reads:corrupt: checksum"]) == ("3", "800", "1")


def test_a_page_that_is_not_held_has_no_other_field() -> None:
    assert records.page_record(PageAnswer(None), time=1.5) == {"time": "1.500000", "held": "0"}


def test_a_page_that_the_device_alone_has() -> None:
    said = records.page_record(PageAnswer(None, 17), time=1.5)
    assert said == {"time": "1.500000", "held": "0", "device_slot": "17"}


def test_places_of_a_page() -> None:
    assert records.page_record(PageAnswer(telemetry.FACTS), time=1.5)["ssd_placement"] == "0:17 1:4"


def test_the_server() -> None:
    assert SERVER["clock_offset_seconds"] == "-3600.250000"
    assert (SERVER["control"], SERVER["ranks"]) == ("1", "dp0-tp0")
    assert json.loads(SERVER["configuration"]) == {"host": {"size": 2**30}}


def test_the_configuration_is_that_of_the_moment() -> None:
    """Commands change it while the server runs."""
    configuration = {"policy": {"restore_deadline": "2s"}}
    info = msgspec.structs.replace(telemetry.INFO, configuration=configuration)
    configuration["policy"]["restore_deadline"] = "7s"
    configuration["host"] = {}
    said = records.server_record(info, time=1.5, pid=7, interval=0.5, clock_offset=0.0, control=True)
    assert json.loads(said["configuration"]) == {"policy": {"restore_deadline": "7s"}, "host": {}}


def test_a_request() -> None:
    record = records.request_record(telemetry.request("one"), "17-40 3 90-110", time=1.5)
    assert record["pages"] == "46"
    assert record["tiers"] == "device 12, host 30, compute 4"
    assert (record["state"], record["ended"]) == ("running", "")
    assert records.request_record(telemetry.ended("one", 2.5), "", time=2.5)["pages"] == "0"


def test_a_rank_names_its_tiers() -> None:
    """Whatever they are called."""
    assert ONE_OF_EACH["rank"][0]["tiers"] == "device,peer,host,ssd"
    stack = telemetry.stack(tiers={"remote": telemetry.tier()})
    assert records.rank_record(stack, None, PublisherNumbers(), {}, [], time=1.5, pid=7, life="7")["tiers"] == "remote"
    assert ONE_OF_EACH["rank"][1]["tiers"] == ""


# ---- leases ----


def test_the_leases_with_one_partner() -> None:
    record = ONE_OF_EACH["lent"][0]
    assert record["table"] == "12:2097152:lent:1.8:pinned 13:2097152:recalled:0.2 14:4194304:lent:1.8"
    assert (record["leases"], record["listed"], record["bytes"]) == ("3", "3", str(2**23))
    assert (record["recalled_bytes"], record["pinned_bytes"]) == (str(2**21), str(2**21))
    assert record["shortest_seconds"] == "0.250000"
    assert (record["epoch"], ONE_OF_EACH["borrowed"][0]["epoch"]) == ("7", "7"), "that of the donor, on both sides"
    assert ONE_OF_EACH["borrowed"][0]["recalled_bytes"] == "0"


def test_a_lease_that_is_over_and_was_not_noticed_shows() -> None:
    over = telemetry.lease(12, "alpha.dp0-tp0", "beta.dp0-tp0", seconds_left=-3.5)
    record = leases_record([over], at_donor=True, time=1.5)
    assert (record["shortest_seconds"], record["table"]) == ("-3.500000", "12:2097152:lent:-3.5")


def test_the_time_of_what_has_been_returned_does_not_count() -> None:
    own, donor = "alpha.dp0-tp0", "beta.dp0-tp0"
    returned = telemetry.lease(3, donor, own, state="returned", seconds_left=-1.0)
    active = telemetry.lease(4, donor, own, state="active", seconds_left=1.5)
    both = leases_record([returned, active], at_donor=False, time=1.5)
    assert (both["shortest_seconds"], both["recalled_bytes"], both["leases"]) == ("1.500000", str(2**21), "2")
    assert leases_record([returned], at_donor=False, time=1.5)["shortest_seconds"] == ""


def test_leases_of_both_sides_are_by_partner() -> None:
    snapshot = telemetry.leases()
    assert {name: len(views) for name, views in partners(snapshot.lent, snapshot.name).items()} == {
        "beta.dp0-tp0": 2,
        "gamma.dp0-tp0": 1,
    }
    assert list(partners(snapshot.borrowed, snapshot.name)) == ["beta.dp0-tp0"]


def test_leases_are_bounded_but_their_sums_are_not() -> None:
    """However many a rank lends to however many: its records stay small, and what it lends in all is right."""
    own = "alpha.dp0-tp0"
    many = [
        telemetry.lease(100 * other + number, own, f"b{other}.dp0-tp0", bytes=1000 + other)
        for other in range(3 * MOST_PARTNERS)
        for number in range(10)
    ]
    few = partners(many, own)
    assert len(few) == MOST_PARTNERS
    assert f"b{3 * MOST_PARTNERS - 1}.dp0-tp0" in few, "who holds most"
    sums = lease_sums(telemetry.leases(lent=tuple(many)), lambda address: "box/1/2")
    assert sums["lent_bytes"] == sum(view.bytes for view in many)
    assert len(str(sums["lends_to"]).split(",")) == MOST_PARTNERS
    record = leases_record([telemetry.lease(n, own, "b") for n in range(1000)], at_donor=True, time=1.5)
    assert (record["leases"], record["bytes"]) == ("1000", str(1000 * 2**21))
    assert int(record["listed"]) == len(record["table"].split()) == MOST_LISTED_LEASES


def test_who_lends_nothing_has_no_address() -> None:
    sums = lease_sums(telemetry.leases(address="", lent=(), limit_bytes=None), lambda address: "box/1/2")
    assert (sums["lease_address"], sums["lease_scope"], sums["lends_to"], sums["lent_bytes"]) == ("", "", "", 0)
    assert sums["lend_limit_bytes"] is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (True, "1"),
        (False, "0"),
        (0, "0"),
        (0.0, "0.000000"),
        (1_700_000_000.123456, "1700000000.123456"),
        (16e-6, "0.000016"),
        (math.nan, ""),
        (math.inf, ""),
        ("as it is", "as it is"),
    ],
)
def test_values(value: object, text: str) -> None:
    assert to_text(value) == text  # type: ignore[arg-type]


# ---- events ----


def test_an_event_is_one_json_object_whatever_it_holds() -> None:
    fields = {"long": "x" * 10_000, "lines": "a\nb", "bytes": b"\xff", "odd": "\udcff", "deep": [1, {"a": None}]}
    record = records.event_record(Event(1, 1.5, "odd", fields), "dp0-tp0", "7-1.500000")
    said = json.loads(record["fields"])
    assert said["lines"] == "a b"
    assert said["deep"] == [1, {"a": None}]
    assert len(record["fields"]) < 1000
    record["fields"].encode()


# ---- block tables ----


def plain_text(table: tuple[int, ...]) -> str:
    """The same, the simple way."""
    runs = zip(table[::2], table[1::2], strict=True)
    return " ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def test_block_tables_are_runs() -> None:
    assert write_table((17, 40, 3, 3, 90, 95)) == "17-40 3 90-95"
    assert write_table(()) == ""


runs = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 3)), max_size=6)


@given(st.lists(runs, min_size=1, max_size=6))
def test_a_block_table_is_written_on_from_the_one_before(tables: list[list[tuple[int, int]]]) -> None:
    known: tuple[tuple[int, ...], str] = ((), "")
    grown: tuple[int, ...] = ()
    for table in tables:
        more = tuple(page for first, length in table for page in (first, first + length))
        # It grows at its end, its last run too; or it is another one.
        grown = more if len(table) % 3 == 0 else (*grown[:-1], *(last + 1 for last in grown[-1:]), *more)
        known = grown, write_table(grown, known)
        assert known[1] == plain_text(grown)
