"""What a console shows, without a screen."""

from __future__ import annotations

from inspect import signature

import msgspec
import pytest

from swift_tiers.console.app import ConsoleApp
from swift_tiers.console.feeds.feed import ViewAnswers, ViewQuestion
from swift_tiers.console.feeds.recording import RecordingFeed
from swift_tiers.console.looker import Looker
from swift_tiers.console.model.glyphs import UNICODE
from swift_tiers.console.model.palette import Palette
from swift_tiers.console.model.place import Place, PlaceStep
from swift_tiers.console.session import Reply, Session
from swift_tiers.console.widgets.grid import Grid
from swift_tiers.radix_tiering.base.runner import THREADS

from support.console_screen import NOW
from support.console_world import WorldFeed


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def session(feed: WorldFeed, clock: Clock) -> Session:
    return Session(feed, Grid(), Palette(), UNICODE, 0.5, not feed.steers, clock, lambda: NOW)


@pytest.mark.parametrize("kind", [ConsoleApp, Looker, RecordingFeed])
def test_the_consoles_clock_goes_on_while_the_machine_sleeps(kind: type) -> None:
    """After a night with the lid closed, what is on the screen is of yesterday."""
    assert signature(kind).parameters["monotonic"].default == THREADS.boot_time


def test_a_moment_grows_old_until_the_next_look() -> None:
    feed, clock = WorldFeed(), Clock()
    one = session(feed, clock)
    assert one.moment.snapshot is None
    assert one.offers() == ()
    one.take_look(feed.look(), clock.now)
    clock.now += 2.0
    one.grow_old()
    assert one.moment.age == 2.0
    one.take_loss("Redis is gone")
    assert (one.lost, one.moment.lost, one.moment.age) == ("Redis is gone", "Redis is gone", 2.0)
    one.take_look(feed.look(), clock.now)
    assert (one.lost, one.moment.lost, one.moment.age) == ("", "", 0.0)


def test_what_comes_while_it_is_paused_is_watched_and_not_shown() -> None:
    feed, clock = WorldFeed(), Clock()
    one = session(feed, clock)
    one.take_look(feed.look(), clock.now)
    one.paused, shown = True, one.moment
    clock.now += 5.0
    one.take_look(feed.look(), clock.now)
    one.grow_old()
    one.take_loss("Redis is gone")
    assert one.moment is shown
    assert one.lost == "Redis is gone"
    one.paused = False
    one.grow_old()
    assert one.moment.age == 0.0, "the last look is as old as that, not the one that was shown"


def test_an_answer_stays_where_servers_fail_to_answer_again() -> None:
    feed, clock = WorldFeed(), Clock()
    one = session(feed, clock)
    one.take_look(feed.look(), clock.now)
    one.navigation.enter(
        Place("blocks", (PlaceStep("server", "alpha"), PlaceStep("rank", "dp0-tp0"), PlaceStep("tier", "device")))
    )
    (question,) = one.view.questions(one.scene())
    answers = feed.ask(question)
    assert one.take_answers(question, Reply(answers, clock.now)) is None
    clock.now += 3.0
    former = one.take_answers(question, Reply(ViewAnswers(), clock.now, "nobody answers"))
    assert former == Reply(answers, 100.0)
    assert one.answers == {question: Reply(answers, 100.0, "nobody answers")}
    assert one.scene().answers[question].age == 3.0
    other = ViewQuestion("page", "00", None)
    one.take_answers(other, Reply(ViewAnswers(), clock.now))
    assert other not in one.answers, "the view does not ask for it"


def test_nothing_is_offered_to_who_only_reads() -> None:
    clock = Clock()
    offered = []
    for feed in (WorldFeed(), WorldFeed(steers=False)):
        one = session(feed, clock)
        one.take_look(feed.look(), clock.now)
        one.navigation.enter(Place("overview", (PlaceStep("server", "alpha"),)))
        offered.append([offer.key for offer in one.offers()])
    assert offered[0]
    assert not offered[1]


def test_a_moment_of_a_server_that_obeys_nothing_offers_nothing() -> None:
    feed, clock = WorldFeed(), Clock()
    one = session(feed, clock)
    look = feed.look()
    deaf = tuple(
        msgspec.structs.replace(state, server=msgspec.structs.replace(state.server, control=False))
        for state in look.snapshot.servers
    )
    one.take_look(
        msgspec.structs.replace(look, snapshot=msgspec.structs.replace(look.snapshot, servers=deaf)), clock.now
    )
    assert one.offers() == ()
