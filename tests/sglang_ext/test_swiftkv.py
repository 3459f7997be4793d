"""SwiftKV models in SGLang's real scheduler, against a reference in plain torch that has no cache and drops no token.

Functions whose first parameter is a `StepScheduler` run in the scheduler's process; the tests below call them there.
"""

from __future__ import annotations

import pytest

from support import flashinfer_on_cpu, ngram_on_cpu, speculating_on_cpu
from support.backends_of_gpus import OF_GPUS
from support.scheduler_process import SchedulerProcess
from support.slow_link import costs_are_unknown, has_found_its_pages, prompt
from support.swiftkv_models import LAYERS, VOCABULARY, Reference, as_published, tiny_swiftkv
from support.tiers_of_a_model import (
    ANSWER,
    PLACES,
    QUESTIONS,
    answered_over_zeros,
    answers_of,
    arguments_of,
    cached,
    check_meeting,
    check_place,
    with_tiers,
)

#: Largest difference of a log probability in float32.
CLOSE = 1e-4
#: Family, layers with KV of their own, later layers that share.
KINDS = [
    ("qwen3", 4, 2),
    pytest.param(("llama", 4, 1), marks=pytest.mark.exhaustive),
    pytest.param(("qwen2", 6, 4), marks=pytest.mark.exhaustive),
    pytest.param(("llama", 1, 8), marks=pytest.mark.exhaustive),
    pytest.param(("qwen3", 2, 16), marks=pytest.mark.exhaustive),
]


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: "-".join(map(str, kind)))
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def model(kind, tmp_path_factory):
    family, first, group = kind
    return tiny_swiftkv(tmp_path_factory.mktemp("model"), family, first=first, group=group)


@pytest.fixture(scope="module")
def reference(model):
    return Reference(model)


@pytest.fixture(scope="module")
def arguments(model, tmp_path_factory):
    """Of a server with tiers, whose files outlive it, and which computes prompts together with answers."""
    return arguments_of(model, "--enable-mixed-chunk", *with_tiers(tmp_path_factory.mktemp("ssd")))


@pytest.fixture(scope="module")
def served(arguments):
    with SchedulerProcess(arguments) as process:
        process(costs_are_unknown)
        yield process


def counted(s):
    """A list that gets (rows in, rows that go on) of every forward from now on."""
    model, seen = s.scheduler.tp_worker.model_runner.model, []
    if hasattr(model, "seen_by_test"):
        return model.seen_by_test
    layers = model.model.layers
    layers[0].register_forward_pre_hook(lambda layer, args: seen.append([len(args[1]), 0]))

    def last(layer, args):
        seen[-1][1] = len(args[1])

    layers[-1].register_forward_pre_hook(last)
    model.seen_by_test = seen
    return seen


def asked(s, question, tokens, start=-1):
    """An answer, the log probabilities of all tokens at each place, those of the prompt, and the rows computed."""
    seen = counted(s)
    seen.clear()
    req = s.add(question, tokens, return_logprob=True, top_logprobs_num=VOCABULARY, logprob_start_len=start)
    s.run()
    top = zip(req.logprob.output_top_logprobs_val, req.logprob.output_top_logprobs_idx, strict=True)
    everything = [[value for _, value in sorted(zip(ids, values, strict=True))] for values, ids in top]
    of_prompt = [float(value) for value in (req.logprob.input_token_logprobs_val or [])[1:]]
    return list(req.output_ids), everything, of_prompt, [tuple(rows) for rows in seen], req.cached_tokens


def asked_together(s, questions, tokens):
    """One that is answering already, and others that come in between: answers, kinds of batches, and the
    rows computed."""
    seen = counted(s)
    reqs = [s.add(questions[0], 4 * tokens)]
    s.run(until=lambda: len(reqs[0].output_ids) > 2)
    seen.clear()
    reqs += [s.add(question, tokens) for question in questions[1:]]
    modes = set()
    while any(not req.finished() for req in reqs):
        batch = s.step()
        if batch:
            modes.add(batch.forward_mode.name)
    s.run()
    return [list(req.output_ids) for req in reqs], sorted(modes), [tuple(rows) for rows in seen]


def check_against(reference, question, answer, everything):
    import torch

    expected = reference.logprobs(question + answer)[len(question) - 1 : -1]
    assert answer == expected.argmax(-1).tolist()
    assert (torch.tensor(everything) - expected).abs().max() < CLOSE


def test_only_layers_with_kv_of_their_own_are_stored(served, kind):
    _, first, group = kind
    stored = first + -(-(LAYERS - first) // group)
    assert served(shape) == (stored, stored)


def shape(s):
    return s.scheduler.token_to_kv_pool_allocator.get_kvcache().layer_num, s.linker.pool.geometry.layers


@pytest.mark.parametrize("tokens", [1, 40, 700])
def test_prompts_are_answered_as_the_reference_does(served, reference, tokens):
    """700 tokens are two chunks; of each, one token goes on."""
    question = prompt(100 + tokens, tokens)
    answer, everything, _, rows, cached_tokens = served(asked, question, 6)
    check_against(reference, question, answer, everything)
    assert cached_tokens == 0
    chunks = [512, tokens - 512] if tokens > 512 else [tokens]
    assert rows == [(chunk, 1) for chunk in chunks] + [(1, 1)] * 5
    # And once more, behind its own prefix.
    answer, everything, _, rows, cached_tokens = served(asked, question, 6)
    check_against(reference, question, answer, everything)
    assert cached_tokens == cached(question)
    assert rows[0] == (tokens - cached_tokens, 1)


def test_log_probabilities_of_a_prompt(served, reference):
    """All tokens of a chunk go on in which some are asked for."""
    question, start = prompt(200, 700), 600
    answer, everything, of_prompt, rows, _ = served(asked, question, 2, start)
    check_against(reference, question, answer, everything)
    expected = reference.logprobs(question)
    wanted = [float(expected[place - 1, question[place]]) for place in range(start + 1, 700)]
    assert of_prompt == pytest.approx(wanted, abs=CLOSE)
    assert rows == [(512, 1), (188, 188), (1, 1)]


def learnt_from(s, question, start):
    """Tokens of the forwards of a prompt that costs are learnt from; nothing else is in the batch."""
    costs, seen = s.linker.stack.costs, []
    known, costs.computed = costs.computed, lambda spans, seconds: seen.extend(spans)
    try:
        asked(s, question, 2, start)
    finally:
        costs.computed = known
    return seen


def test_costs_are_learnt_where_prompts_stop_at_a_middle_layer(served):
    assert served(learnt_from, prompt(210, 90), -1) == [(0, 90)]
    assert served(learnt_from, prompt(211, 90), 0) == [], "all tokens went through all layers"


def test_prompts_and_answers_in_one_batch(served, reference):
    questions = [prompt(300 + number, 60 + 150 * number) for number in range(4)]
    answers, modes, rows = served(asked_together, questions, 5)
    assert "MIXED" in modes
    assert any(computed > later > 1 for computed, later in rows), rows
    for question, answer in zip(questions, answers, strict=True):
        assert answer == reference.logits(question + answer)[len(question) - 1 : -1].argmax(-1).tolist()


def asked_while_some_are_retracted(s, questions, tokens):
    """Answers, and how many of them were taken off the device in between."""
    reqs = [s.add(question, tokens) for question in questions]
    s.run()
    return [list(req.output_ids) for req in reqs], sum(req.retracted_stain for req in reqs)


def test_what_was_retracted_goes_on_as_it_began(tmp_path):
    """Tokens that it has answered already are computed as a prompt's are, of which one goes on."""
    model = tiny_swiftkv(tmp_path / "model", "qwen3", group=2)
    reference = Reference(model)
    questions = [prompt(320 + number, 60 + 150 * number) for number in range(4)]
    arguments = arguments_of(model, "--enable-mixed-chunk", *with_tiers(tmp_path))
    with SchedulerProcess(arguments, prepare="support.retracting.install") as process:
        answers, retracted = process(asked_while_some_are_retracted, questions, 48)
    assert retracted > 0, "this tests nothing"
    for question, answer in zip(questions, answers, strict=True):
        assert answer == reference.logits(question + answer)[len(question) - 1 : -1].argmax(-1).tolist()


@pytest.fixture(scope="module")
def expected(served, reference):
    """Answers where nothing is cached anywhere, the first of which are the reference's."""
    found = served(answers_of)
    for name in ("a question", "its next turn"):
        logits = reference.logits(QUESTIONS[name] + found[name])
        assert found[name] == logits[len(QUESTIONS[name]) - 1 : -1].argmax(-1).tolist()
    return found


def test_answers_depend_on_what_is_loaded(served, expected):
    assert served(answered_over_zeros) != expected["a question"], "the tests below would prove nothing"


@pytest.mark.parametrize("place", PLACES)
def test_answers_are_the_same_from_every_tier(served, expected, place):
    check_place(served, place, expected)


@pytest.mark.parametrize("pages_a_step", [1, 8])
def test_it_is_computed_while_its_pages_come_up(served, pages_a_step):
    check_meeting(served, pages_a_step)


def test_it_is_never_computed_layer_by_layer(served):
    assert "SwiftKV" in served(why_not_layer_by_layer)


def why_not_layer_by_layer(s):
    return s.cache.linker.layer_wise.refused


def identity(s):
    from swift_tiers.radix_tiering.restore.profiles import ModelIdentity

    namespace = s.linker.stack.namespace
    return namespace.digest().hex(), ModelIdentity.of(namespace)


def again(s, name):
    req = s.add(QUESTIONS[name], ANSWER)
    s.run()
    return list(req.output_ids), s.details(req)


def fill(s, name):
    answer = s.generate(QUESTIONS[name], ANSWER)
    s.settle()
    return answer


def test_pages_outlive_their_server_and_are_found_by_no_other_model(tmp_path):
    """The model that it was made from has pages of the same form, and is asked the same. The checkpoint is as those
    that are published, in files, names and fields."""
    (tmp_path / "ssd").mkdir()
    model, base = as_published(tiny_swiftkv(tmp_path / "model")), tiny_swiftkv(tmp_path / "base", base=True)
    arguments = arguments_of(model, *with_tiers(tmp_path / "ssd"))
    with SchedulerProcess(arguments) as process:
        answer = process(fill, "a question")
        name, profile = process(identity)
        turn = process(asked, QUESTIONS["its next turn"], 2)
    check_against(Reference(model), QUESTIONS["its next turn"], *turn[:2])
    with SchedulerProcess(arguments_of(base, *with_tiers(tmp_path / "ssd"))) as process:
        assert process(identity)[0] != name
        assert process(identity)[1] != profile, "what one costs would be told of the other"
        assert process(again, "a question")[1] == {}
    with SchedulerProcess(arguments) as restarted:
        restarted(costs_are_unknown)
        restarted(has_found_its_pages)
        assert restarted(identity) == (name, profile)
        assert restarted(again, "a question") == (
            answer,
            {"device": 0, "host": 0, "ssd": cached(QUESTIONS["a question"])},
        )


def test_how_layers_are_shared_is_part_of_what_a_page_is():
    """`num_key_value_layers` and `key_value_group_size` change KV, also where they leave the pool's form as it is."""
    from swift_tiers.sglang_ext.build.identity import config_digest
    from swift_tiers.sglang_ext.models.configurations import LlamaSwiftKVConfig

    kinds = [(first, group) for first in (2, 4) for group in (1, 2, 4, 8, 16)]
    digests = {
        config_digest(LlamaSwiftKVConfig(num_key_value_layers=first, key_value_group_size=group).to_dict())
        for first, group in kinds
    }
    assert len(digests) == len(kinds)


def test_a_checkpoint_that_lacks_a_tensor_is_not_served(tmp_path):
    from safetensors.torch import load_file, save_file

    model = tiny_swiftkv(tmp_path)
    weights = load_file(model / "model.safetensors")
    lost = "model.layers.5.self_attn.v_proj_swiftkv.weight"
    del weights[lost]
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(AssertionError, match=rf"ValueError: the checkpoint lacks 1 tensors .*, {lost} among"):
        SchedulerProcess(arguments_of(model))


@pytest.mark.exhaustive
def test_a_checkpoint_that_its_configuration_does_not_describe_is_not_served(tmp_path):
    """Such a one would be served with other KV than it was made for; beside the test of a tensor that is lacking."""
    model = tiny_swiftkv(tmp_path, group=1)
    config = (model / "config.json").read_text()
    (model / "config.json").write_text(config.replace('"key_value_group_size": 1', '"key_value_group_size": 2'))
    with pytest.raises(AssertionError, match="that layer has no keys and values of its own"):
        SchedulerProcess(arguments_of(model))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "more",
    [("--attention-backend", "torch_native"), ("--page-size", "1")],
    ids=lambda more: more[-1],
)
def test_answers_with_other_arguments(tmp_path, more):
    """Beside `test_prompts_are_answered_as_the_reference_does`."""
    model = tiny_swiftkv(tmp_path / "model", "qwen3", group=2)
    reference, question = Reference(model), prompt(400, 600)
    with SchedulerProcess([*arguments_of(model), *more, *with_tiers(tmp_path)]) as process:
        process(costs_are_unknown)
        for _ in range(2):
            answer, everything, _, rows, _ = process(asked, question, 6)
            assert rows[0][1] == 1
            check_against(reference, question, answer, everything)
        found = process(answers_of)
        for place in PLACES:
            if more[-1] != "1":  # the questions' places are in pages of 16
                check_place(process, place, found)


def backend_of(s):
    return type(s.scheduler.tp_worker.model_runner.attn_backend).__name__


def workspaces(s):
    return flashinfer_on_cpu.workspace_bytes


@pytest.mark.exhaustive
@pytest.mark.parametrize("base", [True, False], ids=["original", "swiftkv"])
@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama"])
def test_plans_of_flashinfer_have_the_room_that_the_original_s_have(tmp_path, monkeypatch, family, base):
    monkeypatch.delenv("SGLANG_FLASHINFER_WORKSPACE_SIZE", raising=False)
    model = tiny_swiftkv(tmp_path / "model", family, base=base)
    with OF_GPUS[1].serving(arguments_of(model)) as process:
        assert process(workspaces) == {(512 if "qwen" in family else 384) << 20}


@pytest.mark.exhaustive
@pytest.mark.parametrize("of_gpus", OF_GPUS, ids=lambda value: value.backend)
@pytest.mark.parametrize(("family", "group"), [("qwen3", 2), ("llama", 1)])
def test_backends_of_gpus_plan_twice_in_one_forward(tmp_path, family, group, of_gpus):
    """Prompts in chunks, behind what is cached, such that all tokens of go on, and beside answers."""
    model = tiny_swiftkv(tmp_path / "model", family, group=group)
    reference, question = Reference(model), prompt(410, 40)
    few = ["--chunked-prefill-size", "32", "--enable-mixed-chunk"]
    with of_gpus.serving([*arguments_of(model), *few, *with_tiers(tmp_path)]) as process:
        process(costs_are_unknown)
        assert process(backend_of) == of_gpus.backend
        for of_prompt, cached_before in (([(32, 1), (8, 1)], 0), ([(8, 1)], 32)):
            answer, everything, _, rows, cached_tokens = process(asked, question, 3)
            check_against(reference, question, answer, everything)
            assert cached_tokens == cached_before
            assert rows == [*of_prompt, (1, 1), (1, 1)]
        other = prompt(411, 50)
        answer, everything, logprobs, rows, _ = process(asked, other, 2, 0)
        check_against(reference, other, answer, everything)
        expected = reference.logprobs(other)[range(49), other[1:]]
        assert logprobs == pytest.approx(expected.tolist(), abs=CLOSE)
        assert rows[:2] == [(32, 32), (18, 18)]
        questions = [prompt(412 + number, 20 + 15 * number) for number in range(3)]
        answers, modes, rows = process(asked_together, questions, 3)
        assert "MIXED" in modes
        assert any(computed > later > 1 for computed, later in rows), rows
        for asked_for, given in zip(questions, answers, strict=True):
            assert given == reference.logits(asked_for + given)[len(asked_for) - 1 : -1].argmax(-1).tolist()


#: How much nearer log probabilities are to those of a reference that rounds keys and values than to those of one that
#: does not. Not `CLOSE`: what lies between two of 8 bits may be rounded the other way.
NEARER = 10


@pytest.mark.exhaustive
@pytest.mark.parametrize("group", [1, 2, 4])
def test_kv_of_eight_bits_is_what_a_reference_rounds_it_to(tmp_path, group):
    """Of layers that share and of those that do not; from the device, and from every tier."""
    import torch

    model, question = tiny_swiftkv(tmp_path / "model", "qwen3", group=group), prompt(400, 600)
    with SchedulerProcess(
        [*arguments_of(model), "--kv-cache-dtype", "fp8_e4m3", *with_tiers(tmp_path)],
    ) as process:
        process(costs_are_unknown)
        for _ in range(2):
            answer, everything, _, rows, _ = process(asked, question, 6)
            assert rows[0][1] == 1
            as_rounded, as_computed = (
                (torch.tensor(everything) - reference.logprobs(question + answer)[len(question) - 1 : -1]).abs().mean()
                for reference in (Reference(model, stored_as=torch.float8_e4m3fn), Reference(model))
            )
            assert NEARER * as_rounded < as_computed
        found = process(answers_of)
        for place in PLACES:
            check_place(process, place, found)


def with_hidden_states(s, question):
    seen = counted(s)
    req = s.add(question, 2, return_hidden_states=True)
    s.run()
    return tuple(seen[0]), len(req.hidden_states[0])


@pytest.mark.exhaustive
def test_all_tokens_go_on_whose_hidden_states_are_asked_for(tmp_path):
    """Beside `test_log_probabilities_of_a_prompt`, which is served in the same way."""
    with SchedulerProcess(arguments_of(tiny_swiftkv(tmp_path), "--enable-return-hidden-states")) as process:
        assert process(with_hidden_states, prompt(11, 90)) == ((90, 90), 90)


@pytest.mark.exhaustive
def test_drafts_of_ngram_are_verified_as_answers_are_made(tmp_path):
    """All tokens of a verification go on. Beside `test_ngram.py`, which is of other models."""
    model = tiny_swiftkv(tmp_path / "model", "qwen3", group=2)
    with SchedulerProcess(arguments_of(model)) as plain:
        expected = plain(answers_of)
    with SchedulerProcess(
        [*arguments_of(model, *with_tiers(tmp_path)), *ngram_on_cpu.ARGUMENTS],
        environment=speculating_on_cpu.ENVIRONMENT,
        prepare="support.ngram_on_cpu.install",
        fresh=True,
    ) as speculating:
        speculating(costs_are_unknown)
        for place in PLACES:
            check_place(speculating, place, expected)
        accepted, forwards = speculating(drafts_accepted)
    assert accepted > 0, "no draft was right: this tests nothing"
    assert forwards > 0


def drafts_accepted(s):
    return tuple(ngram_on_cpu.accepted)


def exiting_together(s, questions, tokens):
    """Answers that are decoded together, with the log probabilities of all tokens, and (rows in, rows that go on) of
    each forward; of one that none goes on of, its last layer sees nothing."""
    seen = counted(s)
    seen.clear()
    reqs = [s.add(question, tokens, return_logprob=True, top_logprobs_num=VOCABULARY) for question in questions]
    s.run()
    everything = []
    for req in reqs:
        top = zip(req.logprob.output_top_logprobs_val, req.logprob.output_top_logprobs_idx, strict=True)
        everything.append([[value for _, value in sorted(zip(ids, values, strict=True))] for values, ids in top])
    return [list(req.output_ids) for req in reqs], everything, [tuple(rows) for rows in seen]


def test_an_early_exit_skips_later_layers_where_it_is_sure(tmp_path):
    """Some of a batch's tokens, all of them, or none; what is cached is read by those that follow."""
    model = tiny_swiftkv(tmp_path / "model", "qwen3", group=2, exits=0.6)
    reference = Reference(model)
    questions = [prompt(500 + number, 40 + 90 * number) for number in range(4)]
    with SchedulerProcess(arguments_of(model, "--enable-mixed-chunk", *with_tiers(tmp_path))) as process:
        process(costs_are_unknown)
        answers, everything, rows = process(exiting_together, questions, 12)
        for question, answer, logprobs in zip(questions, answers, everything, strict=True):
            check_against(reference, question, answer, logprobs)
        decoded = [(computed, later) for computed, later in rows if computed == len(questions)]
        assert any(0 < later < computed for computed, later in decoded), rows
        assert any(later == 0 for _, later in rows), rows
        # Alone, behind what is cached, and where all of a prompt goes on: the same answers.
        for question, answer in zip(questions, answers, strict=True):
            assert process(asked, question, 12, 0)[0] == answer
        found = process(answers_of)
        check_place(process, PLACES[0], found)


@pytest.mark.exhaustive
@pytest.mark.parametrize("of_gpus", OF_GPUS, ids=lambda value: value.backend)
def test_backends_of_gpus_plan_for_those_that_do_not_exit(tmp_path, of_gpus):
    """Beside `test_an_early_exit_skips_later_layers_where_it_is_sure`."""
    model = tiny_swiftkv(tmp_path / "model", "qwen3", group=2, exits=0.6)
    reference = Reference(model)
    questions = [prompt(500 + number, 20 + 10 * number) for number in range(4)]
    with of_gpus.serving([*arguments_of(model, "--enable-mixed-chunk"), *with_tiers(tmp_path)]) as process:
        process(costs_are_unknown)
        answers, everything, rows = process(exiting_together, questions, 8)
        for question, answer, logprobs in zip(questions, answers, everything, strict=True):
            check_against(reference, question, answer, logprobs)
        assert any(0 < later < computed for computed, later in rows if computed == len(questions)), rows
