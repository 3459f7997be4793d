"""Requests that are computed from the front while their pages come up from the back, in SGLang's real scheduler.

Functions whose first parameter is a `StepScheduler` run in the scheduler's process; the tests below call them there.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time

import pytest

from swift_tiers.radix_tiering.restore.cost import ComputeCost, CostModel, SourceCost
from swift_tiers.radix_tiering.restore.flight import Step

from support.new_weights import other_weights, sessions
from support.overlapping import overlapping
from support.scheduler_process import SchedulerProcess
from support.slow_link import (
    Link,
    abort_one,
    extends,
    nothing_left,
    prompt,
    quiet,
    strategy,
    to_ssd,
    token_wise,
    told_the_same,
)

PAGE = 16
CHUNK = 64
DEVICE_TOKENS = 4096


# ---- in the scheduler's process ----


def met_in_the_middle(s, pages_a_step):
    question = prompt(1)
    (answer,) = to_ssd(s, question)
    with Link(s) as link:
        req = s.add(question)
        s.linker.stack.restorer.wait_idle()
        log = extends(s, link, pages_a_step)
    assert list(req.output_ids) == answer
    quiet(s)
    return log, s.details(req), s.linker.stack.snapshot().restores.restores_split


def others_go_on(s):
    """A request decodes while another one waits for its last page; both are as ever."""
    question, other = prompt(2), prompt(102, 40)
    expected = to_ssd(s, question, other)[0]
    long = s.generate(other, 40)
    s.empty_memory()
    decoding = s.add(other, 40)
    s.run(until=lambda: len(decoding.output_ids) > 2)
    with Link(s) as link:
        req = s.add(question)
        s.linker.stack.restorer.wait_idle()
        before = None
        for _ in range(200):
            s.step()
            course = s.cache.linker.on_course(req)
            if course is not None and course.restore.held is not None:
                before = before or len(decoding.output_ids)
                if len(decoding.output_ids) >= before + 3:
                    break
        assert before is not None, "it never held: this tests nothing"
        assert len(decoding.output_ids) >= before + 3, "nobody else went on"
        chunks = extends(s, link, 4)
    assert list(decoding.output_ids) == long
    assert list(req.output_ids) == expected
    assert chunks, "it went on"
    quiet(s)


def others_leave_room(s):
    """Requests that are admitted behind its short chunks must not take the room that the rest of it needs: SGLang
    computes a chunk whether or not there is room, and ends with the server where there is none."""
    question = prompt(30, 2400)
    others = [prompt(300 + number, 900) for number in range(3)]
    (expected,) = to_ssd(s, question)
    answers = [s.generate(other, 30) for other in others]
    s.empty_device()
    with Link(s) as link:
        req = s.add(question)
        s.linker.stack.restorer.wait_idle()
        s.step()
        assert s.scheduler.chunked_req is req, "it is not on its course: this tests nothing"
        beside = [s.add(other, 30) for other in others]  # whose pages are in host memory: they take room at once
        extends(s, link, 1)
    assert list(req.output_ids) == expected
    assert [list(one.output_ids) for one in beside] == answers
    quiet(s)


@contextlib.contextmanager
def room_that_others_will_need(*tokens):
    """In each scheduling round, by turns, SGLang reckons with so many tokens beyond what running requests will need; a
    float, as it does. None: as it is."""
    from swift_tiers.sglang_ext.way.restoring import RestoringAdder

    rooms = itertools.cycle(tokens)
    made = RestoringAdder.__init__

    def make(self, *args, **kwargs) -> None:
        made(self, *args, **kwargs)
        room, budget = next(rooms), self.memory_budget
        if room is not None:
            budget.total_offset += budget.remaining_total - room

    RestoringAdder.__init__ = make
    try:
        yield
    finally:
        RestoringAdder.__init__ = made


def chunks_end_with_a_page(s, rooms):
    """SGLang cuts a chunk at any token where running requests will need the rest of the device. Pages that come up
    follow whole ones: behind half a page they would lie at other positions, and what is computed after them in slots
    of other requests."""
    question, other = prompt(40), prompt(41, 40)
    (answer,) = to_ssd(s, question)
    expected = s.generate(other, 60)
    s.empty_memory()
    decoding = s.add(other, 60)
    s.run(until=lambda: len(decoding.output_ids) > 2)
    with Link(s) as link:
        req = s.add(question)
        s.linker.stack.restorer.wait_idle()
        s.step()
        assert s.cache.linker.on_course(req) is not None, "it is not on its course: this tests nothing"
        with room_that_others_will_need(*rooms):
            log = extends(s, link, 1, until=lambda: not link.kept)
        log += extends(s, link, 4)
    assert list(req.output_ids) == answer
    assert list(decoding.output_ids) == expected
    quiet(s)
    assert s.generate(question) == answer, "what it left in the tree is wrong"
    s.empty_device()
    assert s.generate(question) == answer, "what it left in the tiers is wrong"
    quiet(s)
    return log


def all_of_it_is_computed(s, tokens):
    """Where all ranks agree that nothing is worth waiting for: its forwards."""
    question, wrapper = prompt(60 + tokens, tokens), s.cache.linker
    (answer,) = to_ssd(s, question)
    with Link(s) as link:
        wrapper.agree = lambda request, front: Step(front, request.pages)
        req = s.add(question)
        s.linker.stack.restorer.wait_idle()
        log = extends(s, link, 0)
        del wrapper.agree
    assert list(req.output_ids) == answer
    quiet(s)
    return log


def ends_early(s, how):
    """The request is aborted while it is computed, or while it waits for a page."""
    from sglang.srt.managers.io_struct import AbortReq

    question = prompt(3)
    (answer,) = to_ssd(s, question)
    before = s.linker.stack.snapshot().restores
    with Link(s) as link:
        req = s.add(question)
        s.linker.stack.restorer.wait_idle()
        for _ in range(200):
            s.step()
            course = s.cache.linker.on_course(req)
            there = course is not None
            if there and (how == "computing" or course.restore.held is not None):
                break
        assert there, "it was not on its way: this tests nothing"
        s.scheduler.abort_request(AbortReq(rid=req.rid))
        extends(s, None, 0)
        assert not s.linker.requests
        assert link.kept
    s.run()
    quiet(s)
    after = s.linker.stack.snapshot().restores
    assert after.restores_split == before.restores_split
    assert after.restores_cancelled - before.restores_cancelled == 1
    assert s.generate(question) == answer
    quiet(s)


def a_page_fails(s):
    """Pages that cannot be read are computed, those around them are used."""
    question = prompt(4)
    (answer,) = to_ssd(s, question)
    with Link(s) as link:
        req = s.add(question)
        s.linker.stack.restorer.wait_idle()
        link.deliver(2)
        assert link.fail(1) == 1
        log = extends(s, link, 3)
    assert list(req.output_ids) == answer
    quiet(s)
    return log, s.details(req)


def weights_change_between_two_chunks(s):
    """What comes up afterwards was computed with weights that are gone; so was what has come up, and is not taken yet.
    SGLang itself goes on from where it was."""
    question = prompt(91)
    to_ssd(s, question)
    begin, end = sessions(s)
    link_of_host = s.linker.stack.links["host-device"]
    with other_weights(s) as update, Link(s) as link:
        req = s.add(question)
        s.linker.stack.restorer.wait_idle()
        extends(s, None, 0, until=lambda: s.cache.linker.on_course(req) is not None)
        assert link.deliver(4) == 4
        assert begin()
        assert update(flush=False)
        assert end()
        before, computed = link_of_host.pages, req.extend_end
        log = extends(s, link, 4)
        assert link_of_host.pages == before, "pages of the old weights were loaded"
    assert s.details(req).get("ssd", 0) == 0
    assert sum(length for _, length in log) == len(question) - computed
    quiet(s)


def the_room_ends_while_it_waits(s):
    """For pages that do not come, while another one decodes: far more than SGLang expected, as long as it may end by
    itself. SGLang gives that one's room to no chunked request, and takes none back from it: it would end it."""
    from sglang.srt.managers.io_struct import AbortReq

    question, before = prompt(96, 2400), s.linker.stack.events.emitted
    (answer,) = to_ssd(s, question)
    s.scheduler.new_token_ratio_tracker.current = 0.1
    decodes = s.add(prompt(97, 900), 3000)
    decodes.sampling_params.ignore_eos, decodes.eos_token_ids = False, set()
    s.run(until=lambda: len(decodes.output_ids) > 4)
    with Link(s) as link:
        req = s.add(question)
        s.linker.stack.restorer.wait_idle()
        s.run(until=lambda: s.cache.linker.on_course(req) is not None)
        s.run(until=lambda: decodes.to_finish or (req.finished() and len(decodes.output_ids) > 1000))
        assert link.kept, "its pages came: this tests nothing"
    assert not decodes.to_finish, decodes.to_finish
    assert list(req.output_ids) == answer
    said = s.linker.stack.events.since(before)
    wrong = [event.fields for event in said if event.kind == "linker.error"]
    assert not wrong, f"the engine did not know that it waits no longer: {wrong}"
    s.scheduler.abort_request(AbortReq(rid=decodes.rid))
    s.run()
    quiet(s)


def room_that_copies_gave_back(s):
    """One that has ended is copied out of the device, and cannot be evicted until that is over. Another one is refused
    for that meanwhile, and admitted after it, though nobody has ended since."""
    offloader, go_on = s.linker.offloader, threading.Event()
    copy_out = offloader._copy_out
    runs, ends = s.add(prompt(92), 400), s.add(prompt(93), 40)
    s.run(until=lambda: len(ends.output_ids) > 30)
    assert s.linker.wait_offloads(60)
    offloader._copy_out = lambda job: go_on.wait(60) and copy_out(job)
    try:
        waits = s.add(prompt(94, 1800), 8)
        s.run(until=ends.finished)
        s.run(until=lambda: s.scheduler.running_batch.batch_is_full or waits.output_ids)
        assert not waits.output_ids, "it had room: this tests nothing"
        go_on.set()
        s.run(until=lambda: waits.output_ids or runs.finished())
        assert waits.output_ids
        assert not runs.finished(), "it waited for somebody to end"
    finally:
        go_on.set()
        offloader._copy_out = copy_out
    s.run()
    quiet(s)


def a_source_that_is_silent_is_given_up(s):
    question = prompt(5)
    (answer,) = to_ssd(s, question)
    restorer = s.linker.stack.restorer
    deadline, restorer._deadline_seconds = restorer._deadline_seconds, 0.2
    emitted = s.linker.stack.events.emitted
    try:
        with Link(s, patient=False) as link:
            req = s.add(question)
            restorer.wait_idle()
            log = extends(s, None, 0)
            assert link.kept
    finally:
        restorer._deadline_seconds = deadline
    assert list(req.output_ids) == answer
    reasons = [
        event.fields["reason"] for event in s.linker.stack.events.since(emitted) if event.kind == "restore.behind"
    ]
    quiet(s)
    return log, reasons


def two_share_a_prefix(s):
    """Each page is read once, and computed once."""
    shared = prompt(6, 800)
    questions = [[*shared, *prompt(60 + number, 100)] for number in range(2)]
    answers = to_ssd(s, *questions)
    reads = []
    with Link(s) as link:
        begun = link.tier.read

        def counted(asked):
            reads.extend(one.record.key for one in asked)
            begun(asked)

        link.tier.read = counted
        reqs = [s.add(question) for question in questions]
        s.linker.stack.restorer.wait_idle()
        log = extends(s, link, 3)
    assert [list(req.output_ids) for req in reqs] == answers
    assert len(reads) == len(set(reads)), "a page was read twice"
    quiet(s)
    return log, [req.cached_tokens for req in reqs]


def one_behind_the_other(s, believed):
    """Two that are computed while they are loaded: the forwards in which each was computed, oldest first. `believed`:
    that they take minutes, and longer computed than loaded; else they are computed because that is wanted."""
    questions = [prompt(70), prompt(71)]
    answers = to_ssd(s, *questions)
    costs = CostModel(
        compute=ComputeCost(fixed_seconds=0.0, token_seconds=10.0 / PAGE, pair_seconds=0.0),
        sources={"ssd": SourceCost(latency_seconds=0.0, bytes_per_second=s.linker.stack.planner._page_bytes / 4.0)},
    )
    forwards = []
    with Link(s) as link, strategy(s, "auto", costs) if believed else strategy(s, "token-wise"):
        reqs = [s.add(question) for question in questions]
        s.linker.stack.restorer.wait_idle()
        while not all(len(req.output_ids) == len(answer) for req, answer in zip(reqs, answers, strict=True)):
            link.deliver(2)
            batch = s.step()
            if batch is not None and batch.forward_mode.is_extend():
                forwards.append([reqs.index(req) for req in batch.reqs])
    assert [list(req.output_ids) for req in reqs] == answers
    quiet(s)
    return forwards


def partly_in_memory(s):
    """The front is in host memory, the rest on ssd: the front is copied, computing begins behind it."""
    question = prompt(7)
    answer = s.generate(question)
    s.empty_memory()
    with strategy(s, "load"):
        s.generate(question[:401])  # its pages are in host memory again
    s.empty_device()
    with Link(s) as link:
        req = s.add(question)
        s.linker.stack.restorer.wait_idle()
        log = extends(s, link, 3)
    assert list(req.output_ids) == answer
    quiet(s)
    return log, s.details(req)


def all_comes_before_it_is_admitted(s):
    """After SGLang has looked for its pages."""
    question = prompt(27)
    (answer,) = to_ssd(s, question)
    wrapper = s.cache.linker
    agree, delivered = wrapper.agree, []

    def late(request, front):
        while not delivered and s.linker.stack.restorer.present(request.restore, 0) < request.pages:
            link.deliver(100)
        delivered.append(front)
        return agree(request, front)

    with Link(s) as link:
        wrapper.agree = late
        try:
            req = s.add(question)
            s.linker.stack.restorer.wait_idle()
            log = extends(s, None, 0)
        finally:
            wrapper.agree = agree
    assert delivered[0] == 0
    assert list(req.output_ids) == answer
    quiet(s)
    return log, s.details(req)


class NoRoom:
    """The device has no room for pages from below, so many times."""

    def __init__(self, s, times: int) -> None:
        self.component = s.cache.linker._components[0]
        self.times, self.refused = times, 0

    def __enter__(self):
        from sglang.srt.mem_cache.unified_cache.components import LinkerTransferPhase

        build = self.component.build_external_linker_transfer

        def refuse(phase, node, keys):
            if phase is LinkerTransferPhase.LOAD and self.refused < self.times:
                self.refused += 1
                return None
            return build(phase, node, keys)

        self.component.build_external_linker_transfer = refuse
        return self

    def __exit__(self, *_: object) -> None:
        del self.component.build_external_linker_transfer


def no_room_at_first(s, in_memory):
    """For the pages that it was to begin with, or for those that it was to jump over."""
    question = prompt(9 + in_memory)
    answer = s.generate(question)
    s.empty_memory()
    if in_memory:
        with strategy(s, "load"):
            s.generate(question[:401])
        s.empty_device()
    with NoRoom(s, 1 if in_memory else 5) as room, Link(s) as link:
        req = s.add(question)
        s.linker.stack.restorer.wait_idle()
        log = extends(s, link, 3)
    assert room.refused == room.times
    assert list(req.output_ids) == answer
    quiet(s)
    return log, s.details(req)


def an_error_of_ours(s, where):
    """It ends no server: the rest is computed."""
    question = prompt(12)
    (answer,) = to_ssd(s, question)
    restorer, calls = s.linker.stack.restorer, []

    def fails(*given):
        calls.append(given)
        if len(calls) == 3:
            raise RuntimeError("made to fail")
        return getattr(type(restorer), where)(restorer, *given)

    setattr(restorer, where, fails)
    try:
        with Link(s) as link:
            req = s.add(question)
            restorer.wait_idle()
            extends(s, link, 3)
    finally:
        delattr(restorer, where)
    assert len(calls) >= 3
    assert list(req.output_ids) == answer
    quiet(s)


def with_another_rank(s, dice):
    """As if another rank had got less than this one, in half of all steps."""
    from swift_tiers.radix_tiering.restore.flight import Step

    agree = type(s.cache.linker).agree

    def less(course, front):
        step = agree(s.cache.linker, course, front)
        if dice.random() < 0.5:
            return step
        jump = dice.randint(front, step.jump)
        return Step(jump, dice.randint(jump, step.end))

    s.cache.linker.agree = less


def any_order_overlapping(s, seed):
    """The same while the next batch is launched before a result is looked at."""
    assert s.scheduler.enable_overlap, "SGLang makes other batches then"
    with overlapping(s):
        return any_order(s, seed)


def any_order(s, seed, ranks=1):
    """Several requests, pages that arrive and fail in any order, requests that end early: the answers stay."""
    dice = random.Random(seed)
    if ranks > 1:
        with_another_rank(s, dice)
    try:
        return in_any_order(s, seed, dice)
    finally:
        s.cache.linker.__dict__.pop("agree", None)


@contextlib.contextmanager
def ordered_by_prefix(s):
    """SGLang matches whole prompts for this, once more than for anything else."""
    from sglang.srt.managers.schedule_policy import CacheAwarePolicy

    policy = s.scheduler.policy
    before, policy.policy = policy.policy, CacheAwarePolicy.LPM
    try:
        yield
    finally:
        policy.policy = before


def flush_in_a_pause(s):
    """As who trains a model does; SGLang refuses it while somebody is computed."""
    from sglang.srt.managers.io_struct import ContinueGenerationReqInput, PauseGenerationReqInput

    s.scheduler.pause_generation(PauseGenerationReqInput(mode="in_place"))
    flushed = s.scheduler.flush_cache()
    s.scheduler.continue_generation(ContinueGenerationReqInput())
    return flushed


def flushed_while_it_waits(s, tokens):
    """Its pages are found anew, and it computes at least one token, however many pages its prompt is."""
    question = prompt(60 + tokens, tokens)
    (answer,) = to_ssd(s, question)
    with ordered_by_prefix(s), Link(s) as link:
        req = s.add(question)
        s.linker.stack.restorer.wait_idle()
        assert flush_in_a_pause(s)
        log = extends(s, link, 1000)
    assert list(req.output_ids) == answer
    quiet(s)
    return log, s.details(req)


def in_any_order(s, seed, dice):
    if seed % 2:
        with ordered_by_prefix(s):
            return of_any_kind(s, seed, dice)
    return of_any_kind(s, seed, dice)


def of_any_kind(s, seed, dice):
    shared = prompt(900 + seed, 480)
    lengths = [dice.choice((dice.randrange(100, 900), PAGE * dice.randrange(8, 50))) for _ in range(4)]
    questions = [
        [*(shared if dice.random() < 0.5 else []), *prompt(910 + seed * 10 + n, length)]
        for n, length in enumerate(lengths)
    ]
    answers = to_ssd(s, *questions)
    aborted: set[str] = set()
    with Link(s) as link:
        reqs, limit = [], time.monotonic() + 270
        while time.monotonic() < limit:
            if len(reqs) < len(questions) and dice.random() < 0.2:
                reqs.append(
                    s.add(questions[len(reqs)], rid=f"any-{seed}-{len(reqs)}", return_logprob=dice.random() < 0.3)
                )
            if dice.random() < 0.02:
                flush_in_a_pause(s)
            if dice.random() < 0.4:
                dice.shuffle(link.kept)
                link.deliver(dice.randrange(1, 8))
            if dice.random() < 0.03:
                link.fail(1)
            if dice.random() < 0.004 and reqs:
                abort_one(s, dice, reqs, aborted)
            batch = s.step()
            if len(reqs) == len(questions) and nothing_left(s, batch):
                break
        else:
            raise AssertionError("not done")
    told_the_same(s, questions, reqs, answers, aborted)
    return s.linker.stack.snapshot().restores.restores_split


def log_probabilities(s):
    """Those of the answer alone are no reason to wait for the whole prefix."""
    question = prompt(9)

    def told(req):
        return [round(value, 4) for value in req.logprob.output_token_logprobs_val]

    first = s.add(question, return_logprob=True)
    s.run()
    s.empty_memory()
    with Link(s) as link:
        req = s.add(question, return_logprob=True)
        log = extends(s, link, 4)
    assert (list(req.output_ids), told(req)) == (list(first.output_ids), told(first))
    quiet(s)
    return log


def falls_back(s):
    """A request that wants log probabilities of its prompt waits for its pages, visibly."""
    question = prompt(8)
    (answer,) = to_ssd(s, question)
    from swift_tiers.sglang_ext.tell.request_facts import RequestFacts

    with Link(s) as link:
        req = s.add(question, return_logprob=True, logprob_start_len=900)
        log = extends(s, link, 8)
    assert list(req.output_ids) == answer
    quiet(s)
    return log, RequestFacts.of(req).whole


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory):
    arguments = token_wise(tmp_path_factory, page=PAGE, tokens=DEVICE_TOKENS, chunk=CHUNK)
    with SchedulerProcess(arguments) as process:
        yield process


@pytest.mark.parametrize("tokens", [1000, 1024])
def test_a_flush_while_it_waits(scheduler, tokens: int) -> None:
    log, details = scheduler(flushed_while_it_waits, tokens)
    assert log
    assert details["ssd"] > 0


def test_log_probabilities_of_the_answer_alone(scheduler) -> None:
    assert len(scheduler(log_probabilities)) > 1, "it waited for the whole prefix"


@pytest.mark.parametrize("pages_a_step", [1, 4, 12, 100])
def test_it_meets_where_the_link_lets_it(scheduler, pages_a_step: int) -> None:
    log, details, split = scheduler(met_in_the_middle, pages_a_step)
    assert split
    chunks, (last_start, last_length) = log[:-1], log[-1]
    assert [start for start, _ in chunks] == [CHUNK * number for number in range(len(chunks))], "no gap, nothing twice"
    assert all(length <= CHUNK for _, length in chunks)
    met = sum(length for _, length in chunks)
    assert 0 < met < 992, "one of both has done everything"
    assert (last_start, last_length) == (992, 8)
    assert details == {"device": 0, "host": 0, "ssd": 992 - met}


def test_nothing_is_computed_of_what_comes_before_it_is_admitted(scheduler) -> None:
    log, details = scheduler(all_comes_before_it_is_admitted)
    assert log == [(992, 8)]
    assert details == {"device": 0, "host": 0, "ssd": 992}


def test_others_go_on_while_it_waits_for_a_page(scheduler) -> None:
    scheduler(others_go_on)


def test_others_leave_room_for_the_rest_of_it(scheduler) -> None:
    scheduler(others_leave_room)


@pytest.mark.parametrize("rooms", [(40.5,), (99.5, None), (7.5, 33.5), (-2.5, 17.0)])
def test_its_chunks_end_with_a_page_whatever_others_will_need(scheduler, rooms: tuple[float | None, ...]) -> None:
    log = scheduler(chunks_end_with_a_page, rooms)
    assert all(start % PAGE == 0 for start, _ in log), log


@pytest.mark.parametrize("tokens", [496, 500, 511])
def test_what_fits_in_one_forward_is_computed_in_one(scheduler, tokens: int) -> None:
    assert scheduler(all_of_it_is_computed, tokens) == [(0, tokens)]


@pytest.mark.parametrize("how", ["computing", "holding"])
def test_it_may_be_aborted(scheduler, how: str) -> None:
    scheduler(ends_early, how)


def test_a_page_that_fails_is_computed(scheduler) -> None:
    log, details = scheduler(a_page_fails)
    assert 0 < details["ssd"] < 992
    assert (976, 24) not in log
    # 992 - 3 pages: the third from the end has failed; it is computed alone, and the two behind it are used.
    assert any(start <= 944 < start + length for start, length in log[:-1])
    assert sum(length for _, length in log[:-1]) + details["ssd"] == 992


def test_pages_of_old_weights_are_not_for_one_that_has_begun(scheduler) -> None:
    scheduler(weights_change_between_two_chunks)


def test_who_decodes_is_not_ended_for_one_that_waits_for_pages(scheduler) -> None:
    scheduler(the_room_ends_while_it_waits)


def test_who_was_refused_while_pages_were_copied_is_admitted_when_they_are(scheduler) -> None:
    scheduler(room_that_copies_gave_back)


def test_a_source_that_is_silent_is_given_up(scheduler) -> None:
    log, reasons = scheduler(a_source_that_is_silent_is_given_up)
    assert sum(length for _, length in log) == 1000
    assert reasons == ["a page that the device waited for did not come in time"]


def test_two_that_share_a_prefix_restore_it_once(scheduler) -> None:
    log, cached = scheduler(two_share_a_prefix)
    assert all(count > 0 for count in cached)
    computed = sum(length for _, length in log)
    assert computed + sum(cached) == 1800
    assert computed < 1800 - 800


@pytest.mark.parametrize("believed", [False, True])
def test_the_next_one_begins_beside_the_last_chunk_of_the_one_before_it(scheduler, believed: bool) -> None:
    """SGLang can follow one chunked request, and does not have to follow any more the one whose last chunk this is. But
    where what it would compute comes meanwhile, it does not delay the other's first token."""
    forwards = scheduler(one_behind_the_other, believed)
    last_of_first = max(number for number, reqs in enumerate(forwards) if 0 in reqs)
    assert forwards[last_of_first] == ([0] if believed else [0, 1]), forwards
    assert forwards[last_of_first + 1] == [1]


def test_what_is_in_host_memory_comes_first(scheduler) -> None:
    log, details = scheduler(partly_in_memory)
    assert log[0][0] == 400, (log, details)
    assert details["host"] == 400
    assert details["ssd"] > 0
    assert sum(length for _, length in log) + 400 + details["ssd"] == 1000


@pytest.mark.parametrize("seed", range(6))
def test_any_order_of_things(scheduler, seed: int) -> None:
    assert scheduler(any_order, seed) > 0


@pytest.mark.parametrize("seed", range(20, 23))
def test_any_order_of_things_where_another_rank_is_behind(scheduler, seed: int) -> None:
    assert scheduler(any_order, seed, 2) > 0


@pytest.mark.parametrize("seed", [30, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(31, 42))])
def test_any_order_of_things_in_the_loop_that_gpus_have(scheduler, seed: int) -> None:
    assert scheduler(any_order_overlapping, seed) > 0


def test_what_needs_its_prefix_whole_waits_for_it(scheduler) -> None:
    log, why = scheduler(falls_back)
    assert why == "it wants log probabilities of its prompt"
    assert log == [(896, 104)]


@pytest.mark.parametrize("in_memory", [True, False])
def test_it_goes_on_where_the_device_has_no_room_at_first(scheduler, in_memory: bool) -> None:
    log, details = scheduler(no_room_at_first, in_memory)
    assert sum(length for _, length in log) + sum(details.values()) == 1000
    if in_memory:
        assert log[0][0] == 0


@pytest.mark.parametrize("where", ["step", "take"])
def test_an_error_of_ours_ends_no_server(scheduler, where: str) -> None:
    scheduler(an_error_of_ours, where)
