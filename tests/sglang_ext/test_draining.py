"""Prefixes that are longer than landing memory, in SGLang's real scheduler: their pages are taken as they land.

Functions whose first parameter is a `StepScheduler` run in the scheduler's process; the tests below call them there.
"""

from __future__ import annotations

import random
import time
from types import SimpleNamespace

import pytest

from support.landing_server import PAGE, SLOTS, arguments, landing_pool, lent_alone, quiet
from support.scheduler_process import SchedulerProcess
from support.slow_link import RUN_SECONDS, Copies, abort_one, alike, extends, nothing_left, prompt

LIMIT = RUN_SECONDS


# ---- in the scheduler's process ----


def steps(s, until=lambda: False) -> list[tuple[int, int]]:
    """Until all is done: (prefix, extend) of each forward over prompts."""
    return extends(s, None, 0, until, LIMIT)


def comes_whole(s):
    question = prompt(1)
    (answer,) = lent_alone(s, question)
    peer = s.linker.stack.tiers["peer"]
    req = s.add(question)
    log = steps(s)
    assert list(req.output_ids) == answer
    assert peer.links["peer-host"].pages == 0, "something came through host memory"
    quiet(s)
    return log, peer.landings, s.details(req), max(map(len, Copies.copied))


def comes_whole_though_host_memory_has_it(s):
    question = prompt(9)
    (answer,) = lent_alone(s, question, here_too=True)
    peer, used = s.linker.stack.tiers["peer"], s.linker.stack.host.used_slots
    req = s.add(question)
    log = steps(s)
    assert list(req.output_ids) == answer
    assert s.linker.stack.host.used_slots >= used
    quiet(s)
    return log, peer.landings, s.details(req)


def others_go_on(s):
    """Who decodes goes on while pages land and are taken; so does who comes next, when it has been."""
    question, second, other = prompt(2), prompt(3, 700), prompt(102, 40)
    answers = lent_alone(s, question, second)
    expected = s.generate(other, 30)
    lent_alone(s)
    decoding = s.add(other, 30)
    s.run(until=lambda: len(decoding.output_ids) > 2)
    reqs = [s.add(question), s.add(second)]
    steps(s)
    assert list(decoding.output_ids) == expected
    assert [list(req.output_ids) for req in reqs] == answers
    peer = s.linker.stack.tiers["peer"]
    assert peer.links["peer-host"].pages == 0
    quiet(s)


def on_course(s, seed):
    """A request some of whose pages are being copied, which takes until it is told otherwise."""
    question = prompt(seed)
    (answer,) = lent_alone(s, question)
    req = s.add(question)
    course = s.cache.linker
    steps(s, until=lambda: course.on_course(req) is not None)
    Copies.held = True
    request = course.on_course(req)
    steps(s, until=lambda: bool(request.loads_ahead))
    return question, answer, req, request


def nothing_is_computed_before_it_is_there(s):
    _, answer, req, _ = on_course(s, 4)
    peer, landed = s.linker.stack.tiers["peer"], None
    for _ in range(50):
        assert s.step() is None, "it computes behind what is being copied"
        time.sleep(1e-3)
        landed = peer.landings
    assert landed <= 2 * SLOTS + 2, "others have landed where it is being copied from"
    Copies.held = False
    steps(s)
    assert list(req.output_ids) == answer
    quiet(s)


def is_aborted_while_it_is_copied(s):
    """Its slots are not given back before nothing is copied there any more."""
    import threading

    from sglang.srt.managers.io_struct import AbortReq

    question, answer, req, _ = on_course(s, 5)
    s.scheduler.abort_request(AbortReq(rid=req.rid))
    free, seen = s.cache.free_kv_row, []
    s.cache.free_kv_row = lambda *given: (seen.append(bool(s.linker.loader.rows_under_way())), free(*given))
    timer = threading.Timer(0.2, lambda: setattr(Copies, "held", False))
    timer.start()
    try:
        steps(s)
    finally:
        del s.cache.free_kv_row
        timer.join()
    assert seen == [False], "slots were given back that were being copied to"
    quiet(s)
    assert s.generate(question) == answer
    quiet(s)


def a_copy_fails(s):
    """The request is answered with an error, as for any load that fails, and nothing of it is kept."""
    question, answer, req, _ = on_course(s, 7)
    Copies.fails, Copies.held = 1, False
    steps(s)
    assert req.finished()
    assert req.finished_reason.to_json()["type"] == "abort"
    quiet(s)
    assert s.generate(question) == answer
    quiet(s)


def with_another_rank(s, dice):
    """As if another rank had got less than this one, or were copying still, in half of all steps."""
    from swift_tiers.radix_tiering.restore.flight import Step

    wrapper, kind = s.cache.linker, type(s.cache.linker)

    def less(request, front):
        step = kind.agree(wrapper, request, front)
        if dice.random() < 0.5 or request.stage.name != "ON_COURSE":
            return step
        jump = dice.randint(front, step.jump)
        return Step(jump, dice.randint(jump, step.end))

    wrapper.agree = less
    wrapper.came_ahead = lambda request: kind.came_ahead(wrapper, request) and dice.random() < 0.5


def in_any_order_of_two_ranks(s, seed):
    with_another_rank(s, random.Random(seed))
    try:
        in_any_order(s, seed)
    finally:
        del s.cache.linker.agree, s.cache.linker.came_ahead


def in_any_order(s, seed):
    """Requests with common prefixes, aborts, copies that fail, leases that end: answers are right, nothing is kept."""
    dice, peer = random.Random(seed), landing_pool(s)
    questions = alike(dice, seed, 3)
    answers = lent_alone(s, *questions, here_too=seed % 2 == 1)
    Copies.seconds_each = dice.choice((0.0, 1e-4))
    reqs, lost, limit = [], set(), time.monotonic() + LIMIT
    while time.monotonic() < limit:
        if len(reqs) < len(questions) and dice.random() < 0.1:
            reqs.append(s.add(questions[len(reqs)], rid=f"any-{seed}-{len(reqs)}"))
        if dice.random() < 0.01 and reqs:
            abort_one(s, dice, reqs, lost)
        if dice.random() < 0.003:
            Copies.fails = 1
        if dice.random() < 0.003 and (leases := peer.lease_slots()):
            peer.end(leases[0].key)
            peer.lend(2000)
        batch = s.step()
        if len(reqs) == len(questions) and nothing_left(s, batch):
            break
    else:
        raise AssertionError("not done")
    Copies.fails, Copies.seconds_each = 0, 0.0
    for req, answer in zip(reqs, answers, strict=True):
        output = list(req.output_ids)
        assert output == answer[: len(output)]
        aborted = req.rid in lost or req.finished_reason.to_json()["type"] == "abort"
        assert len(output) == len(answer) or aborted
    quiet(s)
    assert [s.generate(question) for question in questions] == answers
    quiet(s)


def withdrawn(s):
    """A load that is withdrawn before it began has copied nothing: its slots come back with the end of its request."""
    question = prompt(8)
    lent_alone(s, question)
    linker, restorer = s.linker, s.linker.stack.restorer
    req = s.add(question)
    steps(s, until=lambda: s.cache.linker.on_course(req) is not None)
    request = s.cache.linker.on_course(req)
    flight, until = request.restore.flight, time.monotonic() + LIMIT
    while restorer.step(request.restore, front := flight.front).jump == front:
        assert time.monotonic() < until, "nothing lands"
        time.sleep(1e-3)
    told = []
    copied, restorer.copied = restorer.copied, lambda *given: told.append(given)
    try:
        hashes = request.tail[front : front + 1]
        first, places = request.places(hashes)
        request.copies(first, len(places))
        linker._queued[req.rid] = SimpleNamespace(restore=request.restore, request=request, first=first)
        used = linker.stack.tiers["peer"].used_slots
        assert linker.cancel_queued_load(req.rid)
        assert linker.stack.tiers["peer"].used_slots == used
        assert not told, "it was told that they have been copied"
        assert first in request.restore.copying
    finally:
        restorer.copied = copied
    from sglang.srt.managers.io_struct import AbortReq

    s.scheduler.abort_request(AbortReq(rid=req.rid))
    steps(s)
    quiet(s)


# ---- here ----


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory):
    with SchedulerProcess(arguments(tmp_path_factory), prepare="support.landing_server.prepare") as process:
        yield process


def test_it_comes_whole_through_landing_memory(scheduler) -> None:
    log, landings, details, most = scheduler(comes_whole)
    assert landings == 62
    assert most <= SLOTS
    (_, first), (start, rest) = log
    assert (first, start, rest) == (PAGE, 992, 8)
    assert details["peer"] == 992 - PAGE


def test_it_comes_so_though_host_memory_has_it(scheduler) -> None:
    """As that would take longer."""
    log, landings, details = scheduler(comes_whole_though_host_memory_has_it)
    assert landings == 62
    (_, first), (start, rest) = log
    assert (first, start, rest) == (PAGE, 992, 8)
    assert details["peer"] == 992 - PAGE


def test_others_go_on(scheduler) -> None:
    scheduler(others_go_on)


def test_nothing_is_computed_behind_what_is_being_copied(scheduler) -> None:
    scheduler(nothing_is_computed_before_it_is_there)


def test_it_may_be_aborted_while_it_is_copied(scheduler) -> None:
    scheduler(is_aborted_while_it_is_copied)


def test_a_copy_may_fail(scheduler) -> None:
    scheduler(a_copy_fails)


def test_what_is_withdrawn_was_not_copied(scheduler) -> None:
    scheduler(withdrawn)


@pytest.mark.parametrize("seed", range(6))
def test_any_order_of_things(scheduler, seed: int) -> None:
    scheduler(in_any_order, seed)


@pytest.mark.parametrize("seed", range(20, 24))
def test_any_order_of_things_where_another_rank_is_behind(scheduler, seed: int) -> None:
    scheduler(in_any_order_of_two_ranks, seed)
