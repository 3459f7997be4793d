"""Models that draft for the served one, over the tiers, in SGLang's real scheduler: their KV lies in the pages, too.

What they draft is verified, so no wrong row of theirs changes an answer; it is seen in what they draft alone. SGLang
has no kernels for it on a CPU: see `support.speculating_on_cpu` for what runs in their place.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from swift_tiers.ops.base.model import tiny_model
from swift_tiers.sglang_ext.pools.kept import index_planes

from support import speculating_on_cpu, states_on_cpu
from support.backends_of_gpus import OF_GPUS
from support.models import tiny_delta, tiny_eagle, tiny_eagle3, tiny_gemma, tiny_hybrid, tiny_latent_mtp, tiny_mtp
from support.scheduler_process import SchedulerProcess, SchedulerRanks
from support.slow_link import costs_are_unknown, prompt, quiet, strategy, to_ssd
from support.speculating_on_cpu import draft_for, drafted
from support.tiers_of_a_model import (
    ANSWER,
    PAGE,
    PLACES,
    QUESTIONS,
    answered_over_zeros,
    answers_of,
    arguments_of,
    cached,
    forget,
    leave_in,
    with_tiers,
)
from support.turns import check_conversations, conversations

ENVIRONMENT = {**speculating_on_cpu.ENVIRONMENT, **states_on_cpu.ENVIRONMENT}
TURNS = 14
#: The question that follows an answer of more than two pages.
AFTER_AN_ANSWER = "a turn after an answer"


class Drafting(NamedTuple):
    """A way of drafting by a model."""

    algorithm: str
    draft: str  # how the model that drafts is made
    front: float  # what it keeps of a page, in layers of the model
    beside: str = ""  # what the served model keeps beside KV of all tokens, or in its place

    @property
    def layers(self) -> int:
        """Of the served model's, those with KV of all tokens."""
        return 2 if self.beside in ("windows", "deltas") else 4

    @property
    def keeps_a_state(self) -> bool:
        """A window is one, too."""
        return self.beside in ("windows", "deltas", "states")

    @property
    def prepare(self) -> str:
        """A scheduler's process in which it drafts."""
        return f"support.speculating_on_cpu.install {BESIDE[self.beside][0]}"

    @property
    def page(self) -> int:
        """Tokens: SGLang gives models with an index no other."""
        return 64 if self.beside == "an index" else PAGE


#: How what a served model keeps beside its KV is prepared in a scheduler's process, and its server's arguments.
BESIDE = {
    "": ("", []),
    "windows": ("support.windowed_models.register", ["--chunked-prefill-size", "256"]),
    "deltas": ("support.delta_on_cpu.with_states_of_pages", states_on_cpu.ARGUMENTS),
    "states": ("support.states_on_cpu.with_states_of_pages", states_on_cpu.ARGUMENTS),
    "latent rows": ("", []),
    "an index": ("support.sparse_on_cpu.install", ["--attention-backend", "swift_cpu"]),
}


#: Those whose prefixes SGLang names by pairs of tokens, as EAGLE's, whose rows are wider than the model's, and with a
#: pool that it tells of in one way, and in the other; and a plain model with plain names, which both show in parts.
KINDS = [
    Drafting("EAGLE", "eagle", 2),
    pytest.param(Drafting("EAGLE", "eagle", 2, "windows"), marks=pytest.mark.exhaustive),
    pytest.param(Drafting("EAGLE", "eagle", 2, "states"), marks=pytest.mark.exhaustive),
    pytest.param(Drafting("EAGLE3", "eagle3", 1), marks=pytest.mark.exhaustive),
    pytest.param(Drafting("NEXTN", "mtp", 1), marks=pytest.mark.exhaustive),
    pytest.param(Drafting("NEXTN", "mtp", 1, "latent rows"), marks=pytest.mark.exhaustive),
    # A row of 192 bytes a token, and of each of five layers 132 of an index.
    pytest.param(Drafting("NEXTN", "mtp", 1 + 5 * 132 / 192, "an index"), marks=pytest.mark.exhaustive),
    pytest.param(Drafting("NEXTN", "mtp", 1, "deltas"), marks=pytest.mark.exhaustive),
    pytest.param(Drafting("STANDALONE", "itself", 4), marks=pytest.mark.exhaustive),
]


def served(kind: Drafting, folder: Path) -> tuple[Path, Path]:
    """The model, and the one that drafts for it."""
    if kind.draft == "mtp":
        if kind.beside in ("latent rows", "an index"):
            model = tiny_latent_mtp(folder / "model", sparse=kind.beside == "an index")
        else:
            model = (tiny_delta if kind.beside == "deltas" else tiny_mtp)(folder / "model")
        return model, model
    if kind.beside == "windows":
        model = tiny_gemma(folder / "model", own_pool=True)
    elif kind.beside == "states":
        model = tiny_hybrid(folder / "model")
    else:
        model = tiny_model(folder / "model")
    drafts = {"eagle": tiny_eagle, "eagle3": tiny_eagle3}
    return model, drafts[kind.draft](folder / "draft", model) if kind.draft in drafts else model


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: f"{kind.algorithm} {kind.beside}".strip())
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def models(kind, tmp_path_factory):
    return served(kind, tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def without_tiers(kind, models):
    """A server that does not speculate; of keys that are rounded to 8 bits one that does, as some of them are others
    where tokens are computed in batches of another size."""
    prepare, more = BESIDE[kind.beside]
    arguments = arguments_of(models[0], *more, page=kind.page)
    if kind.beside == "an index":
        arguments, prepare = [*arguments, *speculation(kind, models)], kind.prepare
    with SchedulerProcess(arguments, ENVIRONMENT, prepare=prepare, fresh=True) as plain:
        yield plain


@pytest.fixture(scope="module")
def expected(without_tiers):
    return without_tiers(answers_of)


def speculation(kind, models):
    algorithm, draft = kind.algorithm, str(models[1])
    more = ("--speculative-algorithm", algorithm, "--speculative-draft-model-path", draft)
    return [*speculating_on_cpu.ARGUMENTS, *more]


def arguments_with(kind, models, directory, **changes):
    arguments = arguments_of(models[0], *with_tiers(directory, **changes), *BESIDE[kind.beside][1], page=kind.page)
    return [*arguments, *speculation(kind, models)]


@pytest.fixture(scope="module")
def drafting(kind, models, tmp_path_factory):
    arguments = arguments_with(kind, models, tmp_path_factory.mktemp("ssd"))
    with SchedulerProcess(arguments, ENVIRONMENT, kind.prepare, fresh=True) as process:
        process(costs_are_unknown)
        yield process


def parts_of_a_page(s):
    """Layers of the model, and how many of one have the size of what lies in front of them."""
    geometry = s.linker.pool.geometry
    return geometry.layers, geometry.front_bytes / geometry.layer_bytes


def of_an_answer(page):
    """Tokens of one of more than two pages."""
    return 2 * page + page // 2


def drafts_from(s, place):
    """Of each question whose prefix is in that tier alone, or nowhere: its answer, what was drafted for it, and where
    its prefix came from. The last one follows an answer, of whose tokens the draft has written its rows while it was
    drafting."""
    found = {}
    for name, question in {**QUESTIONS, AFTER_AN_ANSWER: QUESTIONS["a question"]}.items():
        forget(s)
        if name == AFTER_AN_ANSWER:
            tokens = of_an_answer(s.linker.pool.page_size)
            answer = s.generate(question, tokens)[:tokens]
            question = [*question, *answer, *prompt(95, 20)]
        else:
            s.generate(question, ANSWER)
        leave_in(s, place)
        found[name] = draft_for(s, question, ANSWER)
    quiet(s)
    return found


def drafts_over_zeros(s):
    """The same of one question, where of what is loaded the rows of the draft are zeroed."""
    of_the_draft = slice(
        len(s.linker.pool._fronts) - len(index_planes(s.scheduler.token_to_kv_pool_allocator.get_kvcache()))
    )
    answer = answered_over_zeros(s, "front", drafted.clear, planes=of_the_draft)
    return answer[:ANSWER], list(drafted)


def restored_while_it_could_be_computed(s):
    """A question on SSD that is to be computed from the front while its pages come up: where its prefix came from, and
    why it was not computed so."""
    question = QUESTIONS["a question"]
    to_ssd(s, question)
    with strategy(s, "token-wise"):
        req = s.add(question)
        request = s.linker.requests[req.rid]
        s.run()
    quiet(s)
    return s.details(req), request.facts.whole


def test_pages_have_in_front_what_the_draft_keeps(drafting, kind):
    assert drafting(parts_of_a_page) == (kind.layers, kind.front)


def test_drafts_depend_on_what_is_loaded_and_answers_do_not(drafting, expected, computed):
    answer, drafts = drafting(drafts_over_zeros)
    assert answer == expected["a question"][:ANSWER]
    assert drafts != computed["a question"][1], "the test below would prove nothing"


@pytest.fixture(scope="module")
def computed(drafting):
    """What is drafted where nothing is cached anywhere."""
    return drafting(drafts_from, "nowhere")


@pytest.fixture(scope="module")
def on_device(drafting):
    """The same where the device has all prefixes."""
    return drafting(drafts_from, "device")


@pytest.mark.parametrize("place", PLACES)
def test_answers_and_drafts_are_those_without_a_cached_prefix_from_every_tier(
    drafting, kind, expected, computed, on_device, place
):
    for name, (answer, drafts, details) in (drafting(drafts_from, place) if place != "device" else on_device).items():
        assert answer == computed[name][0], name
        assert name == AFTER_AN_ANSWER or answer == expected[name][:ANSWER], name
        assert drafts == computed[name][1], name
        # Those of an answer: a page more than its prompt has.
        least = (
            cached(QUESTIONS["a question"], kind.page) + 2 * kind.page
            if name == AFTER_AN_ANSWER
            else cached(QUESTIONS[name], kind.page)
        )
        if kind.beside in ("states", "deltas"):
            least = min(least, on_device[name][2]["device"])  # SGLang keeps none at the end of every page
        assert sum(details.values()) == details[place] >= least > 0, (name, details)


def test_nothing_is_computed_while_pages_come_up(drafting, kind):
    details, why = drafting(restored_while_it_could_be_computed)
    assert details["ssd"] == cached(QUESTIONS["a question"], kind.page)
    of_all = "the model keeps a state, which is" if kind.keeps_a_state else "a model drafts for it, from all"
    assert why.startswith(of_all)


@pytest.mark.exhaustive
def test_conversations_go_on_as_ever_whatever_is_forgotten(kind, models, without_tiers, tmp_path):
    arguments = arguments_with(kind, models, tmp_path, host={"size": "640KiB"})
    talked = without_tiers(conversations, 1, TURNS, False)[0]
    with SchedulerProcess(arguments, ENVIRONMENT, kind.prepare, fresh=True) as process:
        check_conversations(process, talked, 1, TURNS)


@pytest.mark.exhaustive
def test_ranks_draft_the_same_behind_a_prefix_from_a_tier(kind, models, tmp_path):
    """Each has its heads' part of the draft's rows."""
    arguments = arguments_with(kind, models, tmp_path)
    with SchedulerRanks(2, arguments, ENVIRONMENT, kind.prepare, fresh=True) as ranks:
        ranks(costs_are_unknown)
        computed = ranks(drafts_from, "nowhere")
        for place in ("host", "ssd"):
            for here, before in zip(ranks(drafts_from, place), computed, strict=True):
                for name, (answer, drafts, details) in here.items():
                    assert (answer, drafts) == before[name][:2], (place, name)
                    assert details[place] == sum(details.values()) > 0


#: Tokens of more than a page: interpreted kernels take their time.
SHORT_ANSWER = 24


def turn_behind_an_answer(s, question, place):
    """Of the turn after a question: its answer, what was drafted for it, and where its prefix came from, where that
    is in one tier alone, or nowhere. The prefix has rows of drafts that were right, on whatever branch they were."""
    forget(s)
    drafted.clear()
    answer = s.generate(question, SHORT_ANSWER)[:SHORT_ANSWER]
    batches = len(drafted)
    leave_in(s, place)
    *found, details = draft_for(s, [*question, *answer, *prompt(96, 10)], 4)
    quiet(s)
    return answer, batches, found, details


@pytest.mark.exhaustive
def test_a_draft_may_have_branches(tmp_path):
    """On SGLang's own attention for Triton, which knows trees of drafts. The model drafts for itself: most is right."""
    model, question = tiny_model(tmp_path / "model"), prompt(70, 40)
    (triton,) = [one for one in OF_GPUS if one.backend == "TritonAttnBackend"]
    asked = [
        *arguments_of(model, *with_tiers(tmp_path), *triton.arguments), "--speculative-algorithm", "STANDALONE",
        "--speculative-draft-model-path", str(model), "--speculative-num-steps", "3", "--speculative-eagle-topk", "2",
        "--speculative-num-draft-tokens", "6",
    ]  # fmt: skip
    with SchedulerProcess(arguments_of(model)) as plain:
        expected = plain(answer_to, question)
    prepare = "support.speculating_on_cpu.install_beside_attention"
    with SchedulerProcess(asked, ENVIRONMENT, prepare, fresh=True) as branching:
        branching(costs_are_unknown)
        _, batches, computed, _ = branching(turn_behind_an_answer, question, "nowhere")
        assert batches < SHORT_ANSWER / 2, "hardly any draft was right: this tests nothing"
        for place in ("host", "ssd"):
            answer, _, found, details = branching(turn_behind_an_answer, question, place)
            assert (answer, found) == (expected, computed), place
            assert details[place] == sum(details.values()) >= cached(question) + PAGE, place


def answer_to(s, question):
    return s.generate(question, SHORT_ANSWER)[:SHORT_ANSWER]
