"""Multi-head latent attention (DeepSeek, Kimi, GLM) in SGLang's real scheduler.

Functions whose first parameter is a `StepScheduler` run in the scheduler's process; the tests below call them there.
"""

from __future__ import annotations

import pytest

from support.models import reference_answer, tiny_mla
from support.scheduler_process import SchedulerProcess
from support.slow_link import prompt

PAGE = 16
DEVICE_TOKENS = 4096


def cold_and_behind_a_prefix(s, seed, tokens):
    """The answers to a prompt that is new, to the same one again, and to it in a longer one: each of them also after
    all KV has been forgotten."""
    question = prompt(seed, tokens)
    longer = question + prompt(1000 + seed, 150)
    found = []
    for one in (question, longer):
        cold = s.generate(one, 8)
        req = s.add(one, 8)
        s.run()
        assert req.cached_tokens >= (len(one) - 1) // PAGE * PAGE, "it has no prefix: this tests nothing"
        found.append((cold, list(req.output_ids)))
    s.run()
    assert s.scheduler.flush_cache()
    assert s.generate(longer, 8) == found[1][0]
    return found


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(tiny_mla(tmp_path_factory.mktemp("mla")))


@pytest.fixture(scope="module")
def base(model):
    return [
        "--model-path", model, "--dtype", "float32", "--max-total-tokens", str(DEVICE_TOKENS), "--page-size", str(PAGE),
        "--max-running-requests", "8", "--chunked-prefill-size", "1024",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def plain(base):
    """A server without tiers."""
    with SchedulerProcess(base) as process:
        yield process


@pytest.mark.parametrize("tokens", [40, 700, 1800])
def test_without_tiers_a_prompt_has_one_answer_with_a_prefix_and_without(plain, model, tokens):
    (cold, again), (longer, longer_again) = plain(cold_and_behind_a_prefix, tokens, tokens)
    assert cold == again
    assert longer == longer_again
    if tokens < 1000:  # it takes as long as it is long
        assert cold[:3] == reference_answer(model, prompt(tokens, tokens), 3)
