"""A model that answers with an embedding, in SGLang's real scheduler: it reads a restored prefix as others do.

Functions whose first parameter is a `StepScheduler` run in its process.
"""

from __future__ import annotations

import threading
import uuid
from array import array

import pytest

from swift_tiers.ops.base.model import tiny_model

from support.scheduler_process import SchedulerProcess
from support.slow_link import costs_are_unknown, prompt, quiet
from support.tiers_of_a_model import arguments_of, cached, with_tiers

PATIENCE = 60


def embedded(s, token_ids: list[int]):
    """SGLang's `Req`, answered."""
    from sglang.srt.managers.io_struct import TokenizedEmbeddingReqInput
    from sglang.srt.observability.req_time_stats import APIServerReqTimeStats
    from sglang.srt.sampling.sampling_params import SamplingParams

    sampling = SamplingParams(max_new_tokens=0)
    sampling.normalize(None)
    request = TokenizedEmbeddingReqInput(
        rid=uuid.uuid4().hex,
        input_text=None,
        input_ids=array("q", token_ids),
        mm_inputs=None,
        token_type_ids=None,
        sampling_params=sampling,
    )
    request.time_stats = APIServerReqTimeStats()
    s.scheduler.process_input_requests([request])
    (req,) = [req for req in s.scheduler.waiting_queue if req.rid == request.rid]
    s.run()
    return req


def copies_begin_late(s) -> None:
    """From now on nothing is copied to the device before a forward waits for it, or has ended without."""
    loader, pool, worker = s.linker.loader, s.linker.pool, s.scheduler.tp_worker
    late = threading.Event()
    start, watch, copy_in, forward = loader.start, loader.counter._watch, pool.copy_in, worker.forward_batch_embedding

    def started(loads):
        late.clear()
        return start(loads)

    def watched(index, future):
        late.set()
        watch(index, future)

    def copied(*args, **kwargs):
        assert late.wait(PATIENCE)
        return copy_in(*args, **kwargs)

    def forwarded(batch):
        result = forward(batch)
        late.set()
        return result

    loader.start, loader.counter._watch, pool.copy_in = started, watched, copied
    worker.forward_batch_embedding = forwarded


def embeddings_from(s, place: str, length: int):
    """A prompt's embedding, computed whole and over a prefix from this tier, and what that was."""
    question = prompt(40 + length, length)
    before = list(embedded(s, question).embedding)
    s.empty_device()
    for layer in s.linker.pool._arrays:
        for plane in layer:
            plane[:] = 0  # what was there before is still there, and would be as good
    if place == "ssd":
        s.linker.stack.flush("memory")
    req = embedded(s, question)
    quiet(s)
    return before, list(req.embedding), s.details(req)


def of_another_prompt(s, length: int):
    return list(embedded(s, prompt(41 + length, length)).embedding)


@pytest.fixture(scope="module")
def tiers(tmp_path_factory):
    root = tmp_path_factory.mktemp("site")
    with SchedulerProcess(arguments_of(tiny_model(root / "model"), "--is-embedding", *with_tiers(root))) as process:
        process(costs_are_unknown)
        process(copies_begin_late)
        yield process


@pytest.mark.parametrize("place", ["host", "ssd"])
@pytest.mark.parametrize("length", [400, 700], ids=["at once", "in two chunks"])
def test_an_embedding_is_the_same_over_a_restored_prefix(tiers, place, length):
    before, after, details = tiers(embeddings_from, place, length)
    assert details[place] == cached(prompt(40 + length, length))
    assert after == pytest.approx(before, abs=1e-4)
    assert tiers(of_another_prompt, length) != pytest.approx(before, abs=0.1), "the comparison would prove nothing"
