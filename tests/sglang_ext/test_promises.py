"""What waiting requests are promised, in SGLang's real scheduler, on a device that is full and loses pages at any time.

Functions whose first parameter is a `StepScheduler` run in the scheduler's process; the tests below call them there.
"""

from __future__ import annotations

import random
import time

import pytest

from support.scheduler_process import SchedulerProcess
from support.slow_link import Link, prompt, quiet, strategy, to_ssd, token_wise, told_the_same

PAGE = 16
DEVICE_TOKENS = 1024
PATIENCE = 270.0


# ---- in the scheduler's process ----


class Loads:
    """Looks at every load that is started: each page that is copied has to be there, and to be the right one."""

    def __init__(self, s) -> None:
        self.loader, self.begin = s.linker.loader, s.linker.loader.start
        self.stack = s.linker.stack
        self.pages = 0

    def __enter__(self):
        self.loader.start = self._start
        return self

    def __exit__(self, *_: object) -> None:
        del self.loader.start

    def _start(self, loads):
        with self.stack.table.lock:
            for load in loads:
                assert load.restore is not None, "a load could not be queued"
                held = load.restore.claimed[load.first : load.first + len(load.places)]
                for page, place in zip(held, load.places.numbers.tolist(), strict=True):
                    assert place == page.slot >= 0, "a page was promised that is not held"
                    assert page.pins > 0, "it could leave while it is copied"
                self.pages += len(held)
        return self.begin(loads)


def evict(s, tokens):
    """SGLang takes so much of the device from prefixes that nobody uses, as it does for a request that needs room."""
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams

    s.cache.evict(EvictParams(num_tokens=tokens))


def to_the_end(s, link, reqs):
    """With pages coming in as they are asked for."""
    limit = time.monotonic() + PATIENCE
    while not all(req.finished() for req in reqs):
        assert time.monotonic() < limit, "not done"
        link.deliver(100)
        s.step()


def computed_by_another_and_lost_again(s):
    """A waits for room; B computes the front of the same prompt, and its pages leave the device before there is any."""
    question = prompt(1, 400)
    (answer,) = to_ssd(s, question)
    large = s.add(prompt(77, 560), 420)
    # As most requests: SGLang expects less of it than it may take.
    large.sampling_params.ignore_eos, large.eos_token_ids, large.sampling_params.stop_token_ids = False, None, None
    s.run(until=lambda: len(large.output_ids) > 1)
    there = []  # pages of it on the device, as it was matched in each round
    with Link(s) as link, Loads(s):
        # It wants log probabilities of its prompt, so SGLang computes all of it: the device has 6 pages of it then.
        another = s.add([*question[:96], *prompt(78, 16)], 2, return_logprob=True, logprob_start_len=0)
        waiting = s.add(question, 4)
        s.linker.stack.restorer.wait_idle()
        limit = time.monotonic() + PATIENCE
        while not waiting.finished():
            assert time.monotonic() < limit, "it waits for ever"
            s.step()
            if waiting in s.scheduler.waiting_queue:
                there.append(s.on_device(question) // PAGE)
            if large.finished():
                link.deliver(3)
    s.run()
    assert another.finished()
    assert list(waiting.output_ids) == answer, waiting.finished_reason
    quiet(s)
    assert s.generate(question) == answer, "what was computed behind it has been stored"
    return there


def a_device_that_forgets(s, seed):
    """Requests that share prefixes, pages that come and fail in any order, aborts; and between any two steps the device
    may lose what nobody uses at that moment."""
    from sglang.srt.managers.io_struct import AbortReq

    dice = random.Random(seed)
    shared = prompt(500 + seed, 384)
    questions = [
        [*shared[: dice.choice([0, 96, 240, 384])], *prompt(510 + seed * 10 + n, dice.randrange(20, 300))]
        for n in range(7)
    ]
    answers = to_ssd(s, *questions)
    aborted: set[str] = set()
    reqs: list = []
    with Link(s) as link, Loads(s) as loads:
        limit = time.monotonic() + PATIENCE
        while len(reqs) < len(questions) or not all(req.finished() or req.rid in aborted for req in reqs):
            assert time.monotonic() < limit, "not done"
            if len(reqs) < len(questions) and dice.random() < 0.25:
                whole = {"return_logprob": True, "logprob_start_len": 0} if dice.random() < 0.25 else {}
                reqs.append(s.add(questions[len(reqs)], rid=f"forgets-{seed}-{len(reqs)}", **whole))
            if dice.random() < 0.3:
                dice.shuffle(link.kept)
                link.deliver(dice.randrange(1, 6))
            if dice.random() < 0.02:
                link.fail(1)
            if dice.random() < 0.01 and reqs:
                leaving = dice.choice(reqs).rid
                aborted.add(leaving)
                s.scheduler.abort_request(AbortReq(rid=leaving))
            if dice.random() < 0.3:
                evict(s, PAGE * dice.randrange(1, 64))
            s.step()
        s.run()
    told_the_same(s, questions, reqs, answers, aborted)
    return loads.pages


def one_id_for_two(s):
    """Clients choose ids; two tokenizers may let one id pass twice. Both prompts are equally long."""
    first, second = prompt(21, 320), prompt(22, 320)
    expected = to_ssd(s, first, second)
    with Link(s) as link, Loads(s):
        one = s.add(first, rid="42")
        s.step()
        two = s.add(second, rid="42")
        two = next(req for req in s.scheduler.waiting_queue if req is not one)
        for _ in range(3):
            s.step()
        to_the_end(s, link, [one, two])
    s.run()
    assert [list(one.output_ids), list(two.output_ids)] == expected
    s.scheduler.flush_cache()
    quiet(s)
    assert [s.generate(first), s.generate(second)] == expected, "what was stored is somebody else's"
    return s.details(one), s.details(two)


def aborted_while_its_pages_come(s):
    """A request is being computed in chunks, and aborted while the next one waits for a page that does not come."""
    from sglang.srt.managers.io_struct import AbortReq

    question = prompt(31, 800)
    (answer,) = to_ssd(s, question)
    with Link(s) as link, Loads(s):
        req = s.add(question, 4)
        limit = time.monotonic() + PATIENCE
        while not link.kept or s.scheduler.chunked_req is not req or s.step() is not None:
            assert time.monotonic() < limit, "it was never held between two chunks"
            s.step()
        s.scheduler.abort_request(AbortReq(rid=req.rid))
        s.run(until=req.finished)
        assert req.finished(), "it is waited for what nobody wants any more"
        assert link.kept, "its pages have come: this tests nothing"
    s.run()
    quiet(s)
    assert s.generate(question) == answer


def many_wait(s, waiting):
    """Requests whose pages do not come, and one behind them of which nothing is held."""
    slow = [prompt(40 + number, 64) for number in range(waiting)]
    to_ssd(s, *slow)
    with strategy(s, "load"), Link(s) as link:
        reqs = [s.add(one) for one in slow]
        fresh = s.add(prompt(39, 64))
        limit = time.monotonic() + PATIENCE
        while not fresh.finished():
            assert time.monotonic() < limit, "it waits for those before it"
            s.step()
        assert not any(req.finished() or req.output_ids for req in reqs), "they did not wait: this tests nothing"
        to_the_end(s, link, reqs)
    s.run()
    quiet(s)


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory):
    arguments = token_wise(tmp_path_factory, page=PAGE, tokens=DEVICE_TOKENS, chunk=64)
    with SchedulerProcess(arguments) as process:
        yield process


def test_pages_that_another_request_computed_are_not_promised_when_they_are_gone(scheduler) -> None:
    there = scheduler(computed_by_another_and_lost_again)
    assert max(there) > there[-1], "the device has lost nothing: this tests nothing"


@pytest.mark.parametrize(
    "seed", [0, 3, 6, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in (1, 2, 4, 5, *range(7, 16)))]
)
def test_the_device_may_forget_anything_at_any_time(scheduler, seed: int) -> None:
    assert scheduler(a_device_that_forgets, seed) > 0


def test_one_that_is_aborted_between_two_chunks_waits_for_nothing(scheduler) -> None:
    scheduler(aborted_while_its_pages_come)


def test_two_requests_of_one_id_are_two(scheduler) -> None:
    first, second = scheduler(one_id_for_two)
    assert first["ssd"] > 0, "nothing came from below: this tests nothing"
    assert not any(second.values()), "what is kept under the id is the first one's"


def test_who_needs_nothing_from_below_passes_all_who_wait(scheduler) -> None:
    scheduler(many_wait, 12)
