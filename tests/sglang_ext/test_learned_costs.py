"""A server without a profile, that has lived long enough to know what its forwards, copies and loads take: whatever it
decides by that, its answers are right, and ranks decide alike. In SGLang's scheduler, by the costs of this machine.

Functions whose first parameter is a `StepScheduler` run in the scheduler's process; the tests below call them there.
"""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from support.scheduler_process import SchedulerProcess, SchedulerRanks
from support.slow_link import RUN_SECONDS, Copies, abort_one, nothing_left, prompt, quiet, tiny_server

PAGE, TOKENS = 16, 3072
#: Its ssd brings what recomputing makes, more or less, so that either may be what a restore does.
CONFIG = {"restore": {"chunk": 64}, "host": {"size": "2MiB"}}
SSD = {"size_per_device": "64MiB", "stripe_unit": "8KiB", "throttle": "16MiB"}
#: Seconds for which copying a page takes longer: as a forward over one page, and nothing; and worlds in a row in
#: which it does, until that is believed.
LINKS, IN_A_ROW = (1.5e-2, 0.0), 6
#: Seconds that computing a token takes longer, as with a larger model: so what is fixed in a forward is known well.
TOKEN_SECONDS = 4e-4
pytestmark = pytest.mark.exhaustive

Told = list[tuple[list[int], list[int]]]


# ---- in the scheduler's process ----


def lives(s: Any, seed: int, worlds: int) -> dict[str, Any]:
    """What was learned and decided. Conversations go on while others decode, and leave device and host memory between;
    requests are aborted; copying becomes slow, and quick again."""
    dice, said, told, decided = random.Random(seed), {}, [], {}
    pool, planner = s.linker.pool, s.linker.stack.planner
    copy_in, asked, compute = pool._copy_in, planner.copied_first, s.scheduler.run_batch

    def copied(pages: Any, slab: Any, slots: Any, *rest: Any) -> None:
        Copies.begins(slots)
        copy_in(pages, slab, slots, *rest)

    def copied_first(*given: Any) -> Any:
        answer = asked(*given)
        decided[answer] = decided.get(answer, 0) + 1
        return answer

    def computed(batch: Any, *rest: Any) -> Any:
        result = compute(batch, *rest)
        time.sleep(TOKEN_SECONDS * sum(batch.extend_lens or ()))
        return result

    pool._copy_in, planner.copied_first, s.scheduler.run_batch = copied, copied_first, computed
    try:
        for world in range(worlds):
            Copies.clear()
            Copies.seconds_each = LINKS[world // IN_A_ROW % 2]
            _one_world(s, dice, said, told)
            s.empty_device()
            _comes_back(s, dice, *told[-1])
            (s.empty_device if dice.random() < 0.75 else s.empty_memory)()
    finally:
        Copies.clear()
        del planner.copied_first, s.scheduler.run_batch
        pool._copy_in = copy_in
    quiet(s)
    return {
        "told": told,
        "computing": planner.costs.compute is not None,
        "sources": sorted(planner.costs.sources),
        "copying": planner.here_seconds() is not None,
        "copied first": decided,
        "copied": s.linker.stack.restorer.snapshot().restores_copied_first,
    }


def _one_world(s: Any, dice: random.Random, said: dict[int, list[int]], told: Told) -> None:
    """A request decodes for long; meanwhile some conversations go on, whose questions and answers are `told`."""
    decoding = s.add(prompt(dice.randrange(1000, 2000), 40), 40)
    s.run(until=lambda: len(decoding.output_ids) > 2)
    asked, aborted = [], set()
    for who in dice.sample(range(4), dice.randrange(2, 4)):
        history = said.setdefault(who, prompt(who // 2, dice.randrange(300, 600)))
        asked.append((who, [*history, *prompt(dice.randrange(10**6), dice.randrange(8, 64))]))
    reqs, limit = [], time.monotonic() + RUN_SECONDS
    while time.monotonic() < limit:
        if len(reqs) < len(asked) and dice.random() < 0.3:
            reqs.append(s.add(asked[len(reqs)][1], 8))
        if reqs and dice.random() < 0.005:
            abort_one(s, dice, reqs, aborted)
        batch = s.step()
        if len(reqs) == len(asked) and nothing_left(s, batch):
            break
    else:
        raise AssertionError("not done")
    for (who, question), req in zip(asked, reqs, strict=True):
        answer = list(req.output_ids)
        assert len(answer) == 8 or req.rid in aborted
        told.append((question, answer))
        said[who] = [*question, *answer] if len(question) < 900 else question[:300]


def _comes_back(s: Any, dice: random.Random, question: list[int], answer: list[int]) -> None:
    """It is asked again while another one decodes, and its pages are in host memory alone."""
    decoding = s.add(prompt(dice.randrange(2000, 3000), 40), 30)
    s.run(until=lambda: len(decoding.output_ids) > 2)
    req = s.add(question, 8)
    s.run()
    assert list(req.output_ids)[: len(answer)] == answer


def answers(s: Any, questions: list[list[int]]) -> list[list[int]]:
    """Of one that has no tiers."""
    return [s.generate(question, 8) for question in questions]


# ---- here ----


def has_learned_and_is_right(lived: dict[str, Any], plain: Any) -> None:
    assert lived["computing"]
    assert lived["sources"] == ["ssd"]
    assert lived["copying"]
    assert set(lived["copied first"]) == {False, True}, f"always decided alike: {lived['copied first']}"
    assert lived["copied"]
    told: Told = lived["told"]
    for (_, answer), expected in zip(told, plain([question for question, _ in told]), strict=True):
        assert answer == expected[: len(answer)]


def test_whatever_it_decides_its_answers_are_right(tmp_path_factory: pytest.TempPathFactory) -> None:
    ssd = {**SSD, "directories": [str(tmp_path_factory.mktemp("ssd"))]}
    arguments = tiny_server(tmp_path_factory, {**CONFIG, "ssd": ssd}, page=PAGE, tokens=TOKENS)
    with SchedulerProcess(arguments) as scheduler:
        lived = scheduler(lives, 1, 4 * IN_A_ROW)
    with SchedulerProcess(without_tiers(arguments)) as without:
        has_learned_and_is_right(lived, lambda questions: without(answers, questions))


def test_ranks_decide_alike(tmp_path_factory: pytest.TempPathFactory) -> None:
    ssd = {**SSD, "directories": [str(tmp_path_factory.mktemp("ssd"))]}
    arguments = tiny_server(tmp_path_factory, {**CONFIG, "ssd": ssd}, page=PAGE, tokens=TOKENS)
    with SchedulerRanks(2, arguments) as ranks:
        first, second = ranks(lives, 2, 4 * IN_A_ROW)
    assert first["told"] == second["told"]
    with SchedulerRanks(2, without_tiers(arguments)) as ranks:
        has_learned_and_is_right(first, lambda questions: ranks(answers, questions)[0])


def without_tiers(arguments: list[str]) -> list[str]:
    return arguments[: arguments.index("--enable-swift-tiers")]
