"""What is told of how a prefix came back, against what SGLang's real scheduler did, with an ssd that is slow.

Functions whose first parameter is a `StepScheduler` run in the scheduler's process; the tests below call them there.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading

import pytest

from swift_tiers.radix_tiering.restore.cost import ComputeCost, SourceCost

from support.scheduler_process import SchedulerProcess
from support.slow_link import prompt, strategy

PAGE = 16
#: Of a prompt of 1,000 tokens.
PAGES = 62


def to_ssd(s, question: list[int]) -> list[int]:
    """The answer to a prompt, whose pages are then on ssd alone."""
    answer = s.generate(question)
    s.empty_memory()
    return answer


def ended(s, req):
    """What was told of a request at its end."""
    (one,) = (one for one in s.linker.reporting.telemetry.ended() if one.rid == req.rid)
    return one


def restored(s, question: list[int], answer: list[int], *, begun: bool = False, **fields):
    """Ask once more; what was told of it, and its story. `begun`: no page comes before it is being computed, however
    late the scheduler is to begin."""
    with nothing_arrives(s) if begun else contextlib.nullcontext() as kept:
        req = s.add(question, **fields)
        if begun:
            s.run(until=lambda: kept and s.cache.linker.on_course(req))
    s.run()
    assert list(req.output_ids) == answer[: len(req.output_ids)]
    one = ended(s, req)
    story = one.restore_story
    assert story.page_tokens == PAGE
    assert story.covered == story.found, "it was admitted: every page has come, each once"
    for tier in ("host", "ssd"):
        assert story.pages(tier) * PAGE == getattr(one, f"{tier}_tokens")
    new = one.prompt_tokens - (story.prefix_pages + story.found) * PAGE
    assert story.pages("compute") * PAGE + new == one.recomputed_tokens
    return one, story


class Known:
    """Costs by which a page that is computed takes as long as one from ssd."""

    compute = compute_at_worst = ComputeCost(fixed_seconds=0.0, token_seconds=0.001, pair_seconds=0.0)
    together = 1.0

    def __init__(self, s) -> None:
        rate = s.linker.pool.geometry.page_bytes / (PAGE * self.compute.token_seconds)
        self.sources = {"ssd": SourceCost(latency_seconds=0.0, bytes_per_second=rate)}


@contextlib.contextmanager
def nothing_arrives(s):
    """The ssd tier keeps what it is asked for until the end."""
    stripes, kept = s.linker.stack.tiers["ssd"].stripes, []
    read, stripes.read_many = stripes.read_many, kept.extend
    try:
        yield kept
    finally:
        stripes.read_many = read
        read(kept)


@contextlib.contextmanager
def failing(s, fails):
    """Reads fail for whose number, from 1, `fails` says so."""
    from swift_tiers.radix_tiering.tiers.tier import ReadOutcome

    tier, numbers = s.linker.stack.tiers["ssd"], itertools.count(1)
    read = tier.read

    def fail(one):
        with tier.answers:
            one.done(ReadOutcome.IO_ERROR)

    def read_or_fail(reads):
        for one in reads:
            if fails(next(numbers)):
                threading.Thread(target=fail, args=(one,)).start()
            else:
                read([one])

    tier.read = read_or_fail
    try:
        yield
    finally:
        tier.read = read


# ---- in the scheduler's process ----


def nobody_else_listens(s):
    """What the publisher has been told is not told again."""
    s.linker.reporting.publisher.close()


def computed_and_loaded_at_once(s):
    question = prompt(1)
    one, story = restored(s, question, to_ssd(s, question), begun=True)
    assert one.restore == "split"
    assert (story.prefix_pages, story.wanted_pages, dict(story.found_pages)) == (0, PAGES, {"ssd": PAGES})
    assert (story.strategy, story.why, story.later) == ("token-wise", "restore.strategy is token-wise", "")
    assert story.estimated_seconds is story.planned_meeting_pages is None
    assert story.runs[0][0] == "compute"
    assert story.runs[-1][0] == "ssd"
    assert 0 < story.meeting_pages < PAGES
    assert 0 < story.waited_seconds <= story.there_seconds <= one.first_token_seconds
    assert 0 < story.compute_seconds <= one.first_token_seconds
    assert 0 < story.load_seconds["ssd"] <= story.there_seconds
    assert 0 < story.copy_seconds < one.first_token_seconds
    assert (story.late, story.lost_pages, story.whole) == ("", {}, "")


def the_last_forward_counts(s):
    """The pages that are computed last are there when their forward has ended, which is when the request ends, too."""
    question = prompt(2, PAGES * PAGE + 1)
    answer = to_ssd(s, question)
    with failing(s, lambda number: True):
        req = s.add(question, 1)
        s.run()
        one = ended(s, req)
    assert list(req.output_ids) == answer[:1]
    story = one.restore_story
    assert story.runs == (("compute", PAGES),)
    assert story.meeting_pages == PAGES
    assert 0 < story.compute_seconds <= one.first_token_seconds
    assert 0 < story.there_seconds < one.ended - one.arrived + 1


def an_estimate_is_told(s):
    question = prompt(3)
    answer = to_ssd(s, question)
    with strategy(s, "auto", Known(s)):
        _, story = restored(s, question, answer)
    assert story.strategy == "token-wise"
    assert story.why.startswith("recomputing ")
    assert story.estimated_seconds == pytest.approx(PAGES * PAGE * 0.001 / 2, rel=0.1)
    assert story.estimated_load_seconds["ssd"] == pytest.approx(story.estimated_seconds, rel=0.1)
    assert story.planned_lead_pages == 0
    assert story.planned_meeting_pages == pytest.approx(PAGES / 2, abs=4)


def what_it_waits_for_whole(s):
    question = prompt(4)
    answer = to_ssd(s, question)
    one, story = restored(s, question, answer, return_logprob=True, logprob_start_len=PAGE * PAGES + 1)
    assert story.whole == "it wants log probabilities of its prompt"
    assert (story.strategy, story.runs, story.meeting_pages) == ("load", (("ssd", PAGES),), 0)
    assert one.restore == "completed"
    assert story.there_seconds == pytest.approx(one.restore_seconds, abs=1e-5)
    assert story.compute_seconds == 0


def what_lies_in_host_memory(s):
    question = prompt(5)
    answer = to_ssd(s, question)
    with strategy(s, "load"):
        s.generate(question[: 20 * PAGE + 1])
        s.empty_device()
        s.linker.reporting.telemetry.ended()
        _, story = restored(s, question, answer)
    assert dict(story.found_pages) == {"host": 20, "ssd": PAGES - 20}
    assert story.runs == (("host", 20), ("ssd", PAGES - 20))
    assert (story.strategy, story.why) == ("load", "restore.strategy is load")
    again, story = restored(s, question, answer)
    assert again.device_tokens >= PAGE * (PAGES - 1), "the device has it"
    assert story.wanted_pages == story.found == 0


def what_nobody_has(s):
    req = s.add(prompt(6))
    s.run()
    story = ended(s, req).restore_story
    assert (story.wanted_pages, story.found, story.strategy, story.runs) == (PAGES, 0, "", ())
    config = s.linker.stack.config
    import msgspec

    restore = msgspec.structs.replace(config.restore, strategy="recompute")
    s.linker.stack.config = msgspec.structs.replace(config, restore=restore)
    try:
        req = s.add(prompt(7))
        s.run()
    finally:
        s.linker.stack.config = config
    story = ended(s, req).restore_story
    assert (story.strategy, story.why) == ("recompute", "restore.strategy is recompute")


def pages_that_do_not_come(s):
    question = prompt(8)
    answer = to_ssd(s, question)
    stack = s.linker.stack
    before, emitted = stack.snapshot().restores.lost_pages, stack.events.emitted
    with strategy(s, "load"), failing(s, lambda number: number in (2, 5)):
        _, story = restored(s, question, answer)
    assert story.lost_pages["ssd: io error"] >= 1
    lost = sum(story.lost_pages.values())
    assert story.pages("compute") >= lost
    events = [event for event in stack.events.since(emitted) if event.kind == "restore.pages_lost"]
    told = {f"{event.fields['source']}: {event.fields['reason']}": event.fields["pages"] for event in events}
    assert told == story.lost_pages
    assert stack.snapshot().restores.lost_pages - before == lost


def one_that_ends_early(s):
    from sglang.srt.managers.io_struct import AbortReq

    question = prompt(9)
    to_ssd(s, question)
    with nothing_arrives(s) as kept:
        req = s.add(question)
        s.run(until=lambda: kept and s.cache.linker.on_course(req))
        s.scheduler.abort_request(AbortReq(rid=req.rid))
        s.run()
    story = ended(s, req).restore_story
    assert story.found == PAGES
    assert 0 < story.covered < PAGES
    assert story.there_seconds is story.meeting_pages is None


def one_that_goes_on_is_told_so_far(s):
    question = prompt(10)
    to_ssd(s, question)
    with nothing_arrives(s) as kept:
        req = s.add(question)
        s.run(until=lambda: kept and s.cache.linker.on_course(req))
        s.cache.sampler._next = 0.0
        s.cache.sampler.tick()
        (one,) = (one for one in s.linker.reporting.telemetry.engine().requests if one.rid == req.rid)
    story = one.restore_story
    assert story.found == PAGES
    assert 0 < story.covered < PAGES
    assert story.runs == (("compute", story.covered),)
    s.run()
    assert ended(s, req).restore_story.covered == PAGES


# ---- the tests ----


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory):
    from swift_tiers.ops.base.model import tiny_model

    config = {
        "host": {"size": "8MiB"},
        "ssd": {
            "directories": [str(tmp_path_factory.mktemp("ssd"))],
            "size_per_device": "64MiB",
            "stripe_unit": "8KiB",
            "throttle": "4MiB",
        },
        "policy": {"restore_deadline": "60s"},
        "restore": {"strategy": "token-wise", "chunk": 64, "behind": 1000},
        "bus": {"requests_interval": "60s", "directory": str(tmp_path_factory.mktemp("bus"))},
    }
    arguments = [
        "--model-path", str(tiny_model(tmp_path_factory.mktemp("model"))), "--dtype", "float32", "--page-size", "16",
        "--max-total-tokens", "4096", "--max-running-requests", "8", "--chunked-prefill-size", "512",
        "--enable-swift-tiers", "--swift-tiers-config", json.dumps(config),
    ]  # fmt: skip
    with SchedulerProcess(arguments) as process:
        process(nobody_else_listens)
        yield process


@pytest.mark.parametrize(
    "scenario",
    [
        computed_and_loaded_at_once,
        the_last_forward_counts,
        an_estimate_is_told,
        what_it_waits_for_whole,
        what_lies_in_host_memory,
        what_nobody_has,
        pages_that_do_not_come,
        one_that_ends_early,
        one_that_goes_on_is_told_so_far,
    ],
    ids=lambda scenario: scenario.__name__,
)
def test_scenario(scheduler, scenario):
    scheduler(scenario)
