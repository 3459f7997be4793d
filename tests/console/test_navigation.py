"""Moving through the views."""

from __future__ import annotations

import pytest

from swift_tiers.console.model.actions import ActionError, read_action
from swift_tiers.console.model.navigation import Navigation
from swift_tiers.console.model.place import Place, PlaceStep
from swift_tiers.console.model.sieve import Sieve
from swift_tiers.console.model.table import Sorting

VIEWS = ("overview", "blocks", "events")
ALPHA = Place("overview", (PlaceStep("server", "alpha"),))


def test_in_and_back_out_again() -> None:
    navigation = Navigation(VIEWS)
    tier = Place("blocks", (PlaceStep("server", "alpha"), PlaceStep("tier", "host")))
    navigation.enter(ALPHA)
    navigation.enter(tier)
    assert [name for name, _ in navigation.crumbs] == ["alpha", "host"]
    assert navigation.server == "alpha"
    assert navigation.back()
    assert navigation.place == ALPHA
    assert navigation.back()
    assert navigation.place == Place("overview")
    assert not navigation.back()


def test_a_crumb_leads_to_its_level() -> None:
    navigation = Navigation(VIEWS)
    navigation.enter(
        Place("blocks", (PlaceStep("server", "alpha"), PlaceStep("tier", "host"), PlaceStep("page", "ab")))
    )
    assert navigation.crumbs[1] == ("host", Place("blocks", (PlaceStep("server", "alpha"), PlaceStep("tier", "host"))))


def test_a_view_keeps_its_place() -> None:
    navigation = Navigation(VIEWS)
    navigation.enter(ALPHA)
    navigation.turn("events")
    navigation.turn("overview")
    assert navigation.place == ALPHA
    navigation.turn("overview")
    assert navigation.place == Place("overview"), "its digit again leads to its top"
    navigation.next(-1)
    assert navigation.place.view == "events"


def test_places_of_one_kind_are_sifted_alike() -> None:
    navigation = Navigation(VIEWS)
    navigation.enter(ALPHA)
    navigation.sieve, navigation.sorting = Sieve("ssd"), Sorting("used")
    navigation.enter(Place("overview", (PlaceStep("server", "beta"),)))
    assert navigation.sieve.text == "ssd"
    assert navigation.sorting == Sorting("used")
    navigation.turn("overview")
    assert not navigation.sieve


def test_one_server_only() -> None:
    navigation = Navigation(VIEWS)
    navigation.enter(ALPHA)
    navigation.limit("beta")
    assert navigation.place == Place("overview")
    assert navigation.server == "beta"


@pytest.mark.parametrize(
    ("line", "name", "words"),
    [
        ("blocks", "view", ("blocks",)),
        ("bl alpha", "view", ("blocks", "alpha")),
        ("q", "quit", ()),
        ("q!", "quit", ()),
        ("exp csv out.csv", "export", ("csv", "out.csv")),
        ("control alpha drain-device 2", "control", ("alpha", "drain-device", "2")),
        ("filter !ssd", "filter", ("!ssd",)),
    ],
)
def test_what_is_typed(line: str, name: str, words: tuple[str, ...]) -> None:
    assert read_action(line, VIEWS) == (name, words)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("", "nothing was typed"), ("nonsense", "is not known; there are overview"), ("se", "could be server, seek"),
        ("rate", "usage: rate SECONDS"), ("blocks a b", r"usage: blocks \[SERVER\]"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_said(line: str, why: str) -> None:
    with pytest.raises(ActionError, match=why):
        read_action(line, VIEWS)
