"""Requests whose lower layers are computed while their upper ones are loaded, in SGLang's real scheduler.

Functions whose first parameter is a `StepScheduler` run in the scheduler's process; the tests below call them there.
"""

from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest

from support.backends_of_gpus import OF_GPUS
from support.scheduler_process import SchedulerProcess
from support.slow_link import (
    Link,
    Watch,
    abort_one,
    extends,
    in_memory,
    nothing_left,
    prompt,
    quiet,
    strategy,
    to_ssd,
    told_the_same,
    verified_beside,
)

PAGE, LAYERS = 16, 6
LENGTH = 500  # of a prompt: 31 whole pages, in one forward
FOUND = (LENGTH - 1) // PAGE * PAGE


def facts_of(req: Any):
    from swift_tiers.sglang_ext.tell.request_facts import RequestFacts

    return RequestFacts.of(req)


def story_of(req: Any) -> dict[str, Any]:
    import msgspec

    return msgspec.to_builtins(facts_of(req).story.told())


# ---- in the scheduler's process ----


def arrives_at(s, layer):
    """All pages arrive before that layer is computed."""
    question = prompt(layer, LENGTH)
    (answer,) = to_ssd(s, question)
    with Link(s) as link, Watch(s, layer, lambda: link.deliver(len(link.kept))) as watch:
        req = s.add(question)
        s.linker.stack.restorer.wait_idle()
        log = extends(s, None, 0)
    assert list(req.output_ids) == answer
    assert s.generate(question) == answer  # from what has been published in the tree
    quiet(s)
    return log, watch.met, s.details(req), story_of(req)


def from_host_memory(s, device_has):
    """Every page is in host memory: none was waited for, and none is copied at the admission."""
    question = prompt(20 + device_has, LENGTH)
    answer = s.generate(question)
    s.empty_device()
    if device_has:
        s.generate(question[: device_has * PAGE + 1])  # its pages are on the device again
    with Watch(s, 2) as watch:
        req = s.add(question)
        s.linker.stack.restorer.wait_idle()
        log = extends(s, None, 0)
    assert list(req.output_ids) == answer
    quiet(s)
    return log, watch.met, s.details(req), story_of(req)


def a_page_fails(s, at):
    """All the rest has come, but one page does not: every layer is computed."""
    question = prompt(40 + at, LENGTH)
    (answer,) = to_ssd(s, question)

    def then() -> None:
        link.fail(1)
        link.deliver(len(link.kept))

    with Link(s) as link, Watch(s, at, then) as watch:
        req = s.add(question)
        s.linker.stack.restorer.wait_idle()
        log = extends(s, None, 0)
    assert list(req.output_ids) == answer
    quiet(s)
    return log, watch.met, story_of(req)


def verified_meanwhile(s, damaged):
    """Every page is in host memory, where it is verified once its layers are wanted; one of them may be damaged."""
    question = prompt(70 + damaged, LENGTH)
    answer, pages = in_memory(s, question)
    pages[3][7] ^= int(damaged)
    with verified_beside(s), Watch(s, 1, s.linker.stack.restorer.wait_idle) as watch:
        req = s.add(question)
        s.linker.stack.restorer.wait_idle()
        extends(s, None, 0)
    assert list(req.output_ids) == answer
    quiet(s)
    assert s.generate(question) == answer
    return watch.met


def a_copy_fails(s, layer):
    """The device does not get that layer: it is computed, and all below it."""
    question = prompt(50 + layer, LENGTH)
    answer = s.generate(question)
    s.empty_device()
    pool, emitted = s.linker.pool, s.linker.stack.events.emitted
    copy = pool.copy_layer

    def fails(pages, slab, slots, number, after):
        if number == layer:
            for plane in pool._arrays[number]:
                plane[pages] = 255  # what a copy that breaks off may leave
            raise RuntimeError("made to fail")
        copy(pages, slab, slots, number, after)

    pool.copy_layer = fails
    try:
        with Watch(s, 1) as watch:
            req = s.add(question)
            s.linker.stack.restorer.wait_idle()
            extends(s, None, 0)
    finally:
        del pool.copy_layer
    assert list(req.output_ids) == answer
    told = [event.fields for event in s.linker.stack.events.since(emitted) if event.kind == "linker.error"]
    quiet(s)
    assert s.generate(question) == answer
    return watch.met, [fields["where"] for fields in told]


def ends_early(s, when):
    """It is aborted while it waits in the queue, or after its layers were computed."""
    from sglang.srt.managers.io_struct import AbortReq

    question = prompt(60 + (when == "queued"), LENGTH)
    (answer,) = to_ssd(s, question)
    with Link(s) as link, Watch(s) as watch:
        req = s.add(question)
        s.linker.stack.restorer.wait_idle()
        for _ in range(200):
            if when == "queued" or watch.met:
                break
            s.step()
        s.scheduler.abort_request(AbortReq(rid=req.rid))
        extends(s, None, 0)
        assert link.kept
    assert len(watch.met) == (when != "queued")
    s.run()
    quiet(s)
    assert s.generate(question) == answer
    quiet(s)


def others_run(s):
    """A request decodes, one arrives with it, one is shorter than a page: each has its forwards, and its answer."""
    from swift_tiers.sglang_ext.way.layer_wise import LayerWise

    questions = [prompt(70, LENGTH), prompt(71, 40), prompt(72, 300), prompt(73, 9)]
    answers = to_ssd(s, *questions)
    decoding = s.generate(questions[1], 40)
    s.empty_memory()
    busy = s.add(questions[1], 40)
    s.run(until=lambda: len(busy.output_ids) > 2)
    alone, expects = [], LayerWise.expects

    def expect(layer_wise, batch):
        expected = expects(layer_wise, batch)
        if expected:
            alone.append(batch.batch_size)
        return expected

    LayerWise.expects = expect
    try:
        reqs = [s.add(question) for question in (questions[0], *questions[2:])]
        s.linker.stack.restorer.wait_idle()
        s.run()
    finally:
        LayerWise.expects = expects
    assert list(busy.output_ids) == decoding
    assert [list(req.output_ids) for req in reqs] == [answers[0], *answers[2:]]
    quiet(s)
    return alone, [story_of(req)["strategy"] for req in reqs if facts_of(req).story is not None]


def by_what_it_costs(s, copy_seconds):
    """`auto`, all of it in host memory, where computing a prompt takes a second and copying it so long."""
    from swift_tiers.radix_tiering.restore.cost import ComputeCost, CostModel, SourceCost

    question = prompt(95, LENGTH)
    answer = s.generate(question)
    s.empty_device()
    rate = s.linker.pool.geometry.page_bytes * (FOUND // PAGE) / copy_seconds
    costs = CostModel(
        compute=ComputeCost(fixed_seconds=0.0, token_seconds=1 / FOUND, pair_seconds=0.0),
        sources={"host": SourceCost(latency_seconds=0.0, bytes_per_second=rate)},
    )
    with strategy(s, "auto", costs), Watch(s) as watch:
        req = s.add(question)
        s.linker.stack.restorer.wait_idle()
        extends(s, None, 0)
    assert list(req.output_ids) == answer
    quiet(s)
    return watch.met, s.details(req), story_of(req)


def two_at_once(s):
    """Both have all of their pages in host memory: one is computed layer by layer, the other says why it is not."""
    questions = [prompt(96, LENGTH), prompt(97, LENGTH)]
    answers = [s.generate(question) for question in questions]
    s.empty_device()
    with Watch(s) as watch:
        reqs = [s.add(question) for question in questions]
        s.linker.stack.restorer.wait_idle()
        s.run()
    assert [list(req.output_ids) for req in reqs] == answers
    quiet(s)
    return len(watch.met), [story_of(req) for req in reqs]


def too_long(s):
    """What does not fit in one forward is restored in another way, visibly."""
    question = prompt(80, 1000)
    (answer,) = to_ssd(s, question)
    with Watch(s) as watch:
        req = s.add(question)
        s.linker.stack.restorer.wait_idle()
        extends(s, None, 0)
    assert list(req.output_ids) == answer
    assert not watch.met
    quiet(s)
    return story_of(req)


def servers_that_cannot(s):
    """What this one would say if it were otherwise in one respect."""
    from types import SimpleNamespace
    from unittest import mock

    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    from swift_tiers.sglang_ext.way import layer_wise
    from swift_tiers.sglang_ext.way.layer_wise import why_never

    runner, layers = s.scheduler.tp_worker.model_runner, s.linker.pool.geometry.layers

    def reason(*, kv_layers=layers, mixed=False, spec=SpeculativeAlgorithm.NONE, split=False, **of_runner):
        scheduler = SimpleNamespace(is_mixed_chunk=mixed, spec_algorithm=spec)
        known = {name: getattr(runner, name) for name in ("model", "model_config", "is_generation")}
        with mock.patch.object(layer_wise, "get_parallel", return_value=SimpleNamespace(attn_dp_enabled=split)):
            return why_never(scheduler, SimpleNamespace(**{**known, **of_runner}), kv_layers)

    return [
        why_never(s.scheduler, runner, layers),
        reason(),
        reason(kv_layers=layers - 1),
        reason(model=object()),
        reason(is_generation=False),
        reason(mixed=True),
        reason(spec=SpeculativeAlgorithm.EAGLE),
        reason(split=True),
    ]


def requests_that_cannot(s):
    from types import SimpleNamespace
    from unittest import mock

    from swift_tiers.sglang_ext.way.offloads import Offloader

    layer_wise = s.cache.linker.layer_wise

    def reason(logprobs=False, states=False):
        return layer_wise.why_not(SimpleNamespace(return_logprob=logprobs, return_hidden_states=states))

    found = [reason(), reason(logprobs=True), reason(states=True)]
    with mock.patch.object(Offloader, "device_alone", True):  # as on a GPU without tiers beneath host memory
        return [*found, reason()]


def no_room(s):
    """The device refuses it at first; then it is as ever."""
    from sglang.srt.managers.schedule_policy import AddReqResult, PrefillAdder

    question = prompt(90, LENGTH)
    (answer,) = to_ssd(s, question)
    select, refused = PrefillAdder._select_prefill_admission, []

    def refuse(adder, req, **shape):
        if len(refused) < 3:
            refused.append(req.host_hit_length)
            return AddReqResult.NO_TOKEN
        return select(adder, req, **shape)

    PrefillAdder._select_prefill_admission = refuse
    try:
        with Link(s) as link, Watch(s, 3, lambda: link.deliver(len(link.kept))) as watch:
            req = s.add(question)
            s.linker.stack.restorer.wait_idle()
            extends(s, None, 0)
    finally:
        PrefillAdder._select_prefill_admission = select
    assert list(req.output_ids) == answer
    assert len(refused) == 3
    quiet(s)
    return watch.met


def any_order(s, seed):
    """Several requests, pages that arrive and fail between any two layers, ranks that have copied less."""
    from swift_tiers.sglang_ext.way.layer_wise import Copying, LayerWise

    dice = random.Random(seed)
    shared = prompt(900 + seed, 240)
    questions = [
        [*(shared if dice.random() < 0.5 else []), *prompt(910 + seed * 10 + n, dice.randrange(20, 260))]
        for n in range(6)
    ]
    answers = to_ssd(s, *questions)
    asked, agreed, aborted = Copying.to_compute, LayerWise._agree, set()

    def things_happen(copying):
        if dice.random() < 0.5:
            dice.shuffle(link.kept)
            link.deliver(dice.randrange(1, 40))
        if dice.random() < 0.03:
            link.fail(1)
        return asked(copying)

    def another_has_less(layer_wise, copying):
        mine = agreed(layer_wise, copying)
        return mine if dice.random() < 0.6 else dice.randint(mine, LAYERS)

    Copying.to_compute, LayerWise._agree = things_happen, another_has_less
    try:
        with Link(s) as link, Watch(s, -1) as watch:
            reqs, limit = [], time.monotonic() + 270
            while time.monotonic() < limit:
                if len(reqs) < len(questions) and dice.random() < 0.3:
                    reqs.append(s.add(questions[len(reqs)], rid=f"layers-{seed}-{len(reqs)}"))
                if dice.random() < 0.3:
                    link.deliver(dice.randrange(1, 20))
                if dice.random() < 0.01 and reqs:
                    abort_one(s, dice, reqs, aborted)
                batch = s.step()
                if len(reqs) == len(questions) and nothing_left(s, batch):
                    break
            else:
                raise AssertionError("not done")
    finally:
        Copying.to_compute, LayerWise._agree = asked, agreed
    told_the_same(s, questions, reqs, answers, aborted)
    return watch.met


# ---- the tests ----


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    from swift_tiers.ops.base.model import tiny_model

    model = tiny_model(tmp_path_factory.mktemp("model"), layers=LAYERS)
    config = {
        "host": {"size": "8MiB"},
        "ssd": {
            "directories": [str(tmp_path_factory.mktemp("ssd"))],
            "size_per_device": "64MiB",
            "stripe_unit": "8KiB",
        },
        "policy": {"restore_deadline": "60s"},
        "restore": {"strategy": "layer-wise"},
        "bus": {"enabled": False},
    }
    return [
        "--model-path", str(model), "--dtype", "float32", "--page-size", str(PAGE), "--max-total-tokens", "4096",
        "--max-running-requests", "8", "--chunked-prefill-size", "512",
        "--enable-swift-tiers", "--swift-tiers-config", json.dumps(config),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def scheduler(arguments: list[str]):
    with SchedulerProcess(arguments) as process:
        yield process


@pytest.mark.exhaustive
@pytest.mark.parametrize("of_gpus", OF_GPUS, ids=lambda value: value.backend)
def test_over_backends_of_gpus(arguments: list[str], of_gpus) -> None:
    """They plan for a forward of which only some layers are computed."""
    with of_gpus.serving(arguments) as process:
        for layer in (3,) if of_gpus.slow else (0, 3, LAYERS):
            log, met, details, _ = process(arrives_at, layer)
            assert met[0] in (layer, min(layer + 1, LAYERS))
            assert log == [(0, FOUND), (FOUND, LENGTH - FOUND)]
            assert details == {}


@pytest.mark.parametrize("layer", range(LAYERS + 1))
def test_the_same_tokens_at_whatever_layer_the_pages_arrive(scheduler, layer: int) -> None:
    log, met, details, story = scheduler(arrives_at, layer)
    # The layer that comes next is not copied any more once it has been thought of.
    assert len(met) == 1
    assert met[0] in (layer, min(layer + 1, LAYERS))
    assert log == [(0, FOUND), (FOUND, LENGTH - FOUND)]
    assert details == {}, "SGLang has computed them, and accounts for them so"
    assert (story["strategy"], story["why"]) == ("layer-wise", "restore.strategy is layer-wise")
    assert (story["met_layer"], story["layers"]) == (met[0], LAYERS)
    assert [tuple(run) for run in story["runs"]] == [("compute", FOUND // PAGE)]


@pytest.mark.parametrize("device_has", [0, 5])
def test_from_host_memory(scheduler, device_has: int) -> None:
    log, met, details, story = scheduler(from_host_memory, device_has)
    assert log == [(device_has * PAGE, FOUND - device_has * PAGE), (FOUND, LENGTH - FOUND)]
    assert met[0] in (0, 1, 2, 3)
    assert details.get("host", 0) == 0
    assert story["met_layer"] == met[0]


@pytest.mark.parametrize("damaged", [False, True])
def test_pages_that_are_verified_meanwhile(scheduler, damaged: bool) -> None:
    (met,) = scheduler(verified_meanwhile, damaged)
    assert met == LAYERS if damaged else met in (1, 2)


@pytest.mark.parametrize("at", [0, 3])
def test_where_a_page_fails_every_layer_is_computed(scheduler, at: int) -> None:
    log, met, story = scheduler(a_page_fails, at)
    assert met == [LAYERS]
    assert log == [(0, FOUND), (FOUND, LENGTH - FOUND)]
    assert story["lost_pages"]["ssd: corrupt: checksum"] == 1


@pytest.mark.parametrize("layer", [LAYERS - 1, 3])
def test_a_layer_that_cannot_be_copied_is_computed(scheduler, layer: int) -> None:
    met, told = scheduler(a_copy_fails, layer)
    assert met == [layer + 1]
    assert told == ["layers"]


@pytest.mark.parametrize("when", ["queued", "computed"])
def test_it_may_be_aborted(scheduler, when: str) -> None:
    scheduler(ends_early, when)


def test_others_run_before_and_after_it(scheduler) -> None:
    alone, strategies = scheduler(others_run)
    assert alone, "nothing was computed layer by layer: this tests nothing"
    assert set(alone) == {1}
    assert strategies[0] == "layer-wise"


def test_it_is_chosen_where_the_link_to_the_device_is_slow(scheduler) -> None:
    met, _, story = scheduler(by_what_it_costs, 1.0)
    assert len(met) == 1
    assert story["strategy"] == "layer-wise"
    assert story["planned_layer"] == LAYERS // 2
    assert story["why"].startswith(f"computing {LAYERS // 2} of {LAYERS} layers meanwhile takes 500 ms, not ")
    assert story["met_layer"] == met[0]


def test_it_is_not_where_the_link_is_fast(scheduler) -> None:
    met, details, story = scheduler(by_what_it_costs, 0.01)
    assert met == []
    assert story["strategy"] == "load"
    assert details["host"] == FOUND


def test_who_comes_with_another_says_why_it_is_not(scheduler) -> None:
    met, (first, second) = scheduler(two_at_once)
    assert (met, first["met_layer"] is None, second["met_layer"]) == (1, False, None)
    assert second["strategy"] == "layer-wise"
    assert second["later"] == "load: others were admitted with it"


def test_what_is_too_long_says_so(scheduler) -> None:
    story = scheduler(too_long)
    assert story["strategy"] == "token-wise"
    why = "restore.strategy is layer-wise, but its 992 tokens are more than one forward takes (512)"
    assert story["why"] == why
    assert story["met_layer"] is None


def test_a_server_that_cannot_says_why(scheduler) -> None:
    assert scheduler(servers_that_cannot) == [
        "",
        "",
        "some layers of the model keep no KV",
        "object cannot compute single layers in SGLang",
        "the model generates nothing",
        "--enable-mixed-chunk lets others join its forward",
        "speculative decoding needs its whole forward",
        "attention is split over data",
    ]


def test_a_request_that_cannot_says_why(scheduler) -> None:
    assert scheduler(requests_that_cannot) == [
        "",
        *["it wants to see more of its forward than tokens"] * 2,
        "the device verifies its pages, and needs them whole",
    ]


def test_it_goes_on_where_the_device_has_no_room_at_first(scheduler) -> None:
    (met,) = scheduler(no_room)
    assert met in (3, 4)


@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_things(scheduler, seed: int) -> None:
    assert scheduler(any_order, seed)
