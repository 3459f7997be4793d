"""Models whose layers are computed one by one: they leave the KV of a whole forward, in SGLang's real scheduler.

Functions whose first parameter is a `StepScheduler` run in the scheduler's process; the tests below call them there.
"""

from __future__ import annotations

from array import array

import pytest

from swift_tiers.sglang_ext.way.layer_wise import COMPARED

from support.models import tiny_gemma
from support.scheduler_process import SchedulerProcess
from support.slow_link import Link, Watch, extends, prompt, to_ssd
from support.swiftkv_models import LAYERS, tiny_swiftkv
from support.tiers_of_a_model import arguments_of, with_tiers

LENGTH = 400
#: Of the largest value there. SGLang adds up residuals in another order where it computes layers one by one.
CLOSE = 1e-4


def rows(s, question):
    """The KV of a question on the device: K and V of each layer, a row a token."""
    import torch
    from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
    from sglang.srt.mem_cache.radix_cache import RadixKey

    found = s.cache._match_tree(MatchPrefixParams(key=RadixKey(array("q", question))))
    indices = s.cache.path_device_indices(found.last_device_node)
    pool = s.scheduler.token_to_kv_pool_allocator.get_kvcache()
    each = [buffer[indices].flatten(1) for buffer in (*pool.k_buffer, *pool.v_buffer)]
    return torch.stack(each).float()


def differences(s, allowed):
    """How far KV that is computed layer by layer is from that of a whole forward, and both answers. `allowed`: even if
    this server would not do it."""
    layer_wise, question = s.cache.linker.layer_wise, prompt(1, LENGTH)
    if allowed:
        layer_wise.refused = ""
    (answer,) = to_ssd(s, question)
    s.linker.stack.flush("all")
    s.generate(question)
    whole = rows(s, question)
    to_ssd(s, question)
    with Link(s) as link, Watch(s) as watch:  # no page arrives before all of its layers have been computed
        req = s.add(question)
        s.linker.stack.restorer.wait_idle()
        extends(s, link, 0)
    by_layers = rows(s, question)
    assert by_layers.shape == whole.shape
    return watch.met, float((by_layers - whole).abs().max() / whole.abs().max()), [answer, list(req.output_ids)]


def serving(model, folder):
    return SchedulerProcess(arguments_of(model, *with_tiers(folder, restore={"strategy": "layer-wise"})))


# `test_layer_wise.py` is over a Qwen 3 already.
@pytest.mark.parametrize(
    "architecture",
    [pytest.param(one, marks=[pytest.mark.exhaustive] if one == "Qwen3ForCausalLM" else []) for one in COMPARED],
)
def test_layers_leave_what_a_whole_forward_leaves(architecture, tmp_path) -> None:
    family = architecture.removesuffix("ForCausalLM").lower()
    with serving(tiny_swiftkv(tmp_path / "model", family, base=True), tmp_path) as process:
        computed, difference, answers = process(differences, False)
    assert computed == [LAYERS]
    assert difference < CLOSE
    assert answers[0] == answers[1]


@pytest.mark.exhaustive
def test_it_is_seen_where_they_do_not(tmp_path) -> None:
    """Gemma 3, whose layers SGLang computes one by one without what it adds up."""
    with serving(tiny_gemma(tmp_path / "model"), tmp_path) as process:
        computed, difference, _ = process(differences, True)
    assert len(computed) == 1
    assert difference > 100 * CLOSE
