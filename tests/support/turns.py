"""Turns of conversations with models that need more than KV of a prefix: a state, or a window, at its end.

Functions whose first parameter is a `StepScheduler` run in its process.
"""

from __future__ import annotations

import random
import threading
from array import array
from collections import Counter
from contextlib import contextmanager
from typing import Any

from support.slow_link import broken, costs_are_unknown, has_found_its_pages, prompt, quiet
from support.tiers_of_a_model import ANSWER, PAGE, forget, leave_in, loading_zeros

#: Prompts, and how many tokens they have: one that is computed in one piece, and one in two.
QUESTIONS = {"in one chunk": prompt(201, 150), "in two chunks": prompt(202, 300)}


def turn_after(s, name):
    """A question with its answer, and a few tokens more: nothing washes out what its state says."""
    question = QUESTIONS[name]
    return [*question, *s.generate(question, ANSWER)[:ANSWER], *prompt(203, 3)]


def turns_from(s, place):
    """The answers to turns whose prefix is in that tier alone, or nowhere, and where it came from."""
    found = {}
    for name in QUESTIONS:
        forget(s)
        turn = turn_after(s, name)
        leave_in(s, place)
        req = s.add(turn, ANSWER)
        s.run()
        found[name] = list(req.output_ids), s.details(req)
    if place != "nowhere":
        quiet(s)
    return found


@contextmanager
def loading_zero_states(states, kind=0):
    """Of that kind, in the order in which a pool has them."""
    copy_in = states.copy_in

    def zeroed(slots, slab, pages, after=()):
        copy_in(slots, slab, pages, after)
        group = states.groups[kind]
        for plane in range(len(group.flat)):
            group.plane_pages(plane)[slots] = 0

    states.copy_in = zeroed
    try:
        yield
    finally:
        states.copy_in = copy_in


def turn_over_zeros(s, part):
    """Where a part of what is loaded is zeroed: the state's of kind `part`, or the KV."""
    name, pool = "in one chunk", s.linker.pool
    forget(s)
    turn = turn_after(s, name)
    leave_in(s, "host")
    with loading_zeros(pool, "layers") if part == "KV" else loading_zero_states(pool.states, part):
        req = s.add(turn, ANSWER)
        s.run()
    assert s.details(req)["host"] > 0
    forget(s)
    return list(req.output_ids)


def turn_in_a_graph(s):
    """The answer to a turn where SGLang has captured the layers that keep states in a graph, which asks for none of
    them: a state is copied once somebody has asked for a layer, or a model has read one."""
    pools, counter, states = s.scheduler.req_to_token_pool, s.linker.loader.counter, s.linker.pool.states
    begun, wait_until, copy_in = threading.Event(), counter.wait_until, states.copy_in
    forget(s)
    turn = turn_after(s, "in one chunk")
    leave_in(s, "host")
    counter.wait_until = lambda layer: (begun.set(), wait_until(layer))[1]
    pools.mamba2_layer_index = lambda layer: (begun.set(), pools.mamba_map[layer])[1]
    states.copy_in = lambda *parts: (begun.wait(), copy_in(*parts))[1]
    try:
        req = s.add(turn, ANSWER)
        s.run()
    finally:
        begun.set()
        del counter.wait_until, pools.mamba2_layer_index, states.copy_in
    assert s.details(req)["host"] > 0
    return list(req.output_ids)


def turns_at_once(s, place, fails):
    """The answers to both turns, and to a prompt that nobody has, which are asked for at once; `fails`: once, what is
    loaded for them cannot be copied. How they end."""
    forget(s)
    turns = [turn_after(s, name) for name in QUESTIONS]
    leave_in(s, place)
    with broken(s, "pool.states.copy_in", 1, fails) as copies:
        asked = [s.add(one, ANSWER) for one in (*turns, prompt(460, 90))]
        s.run()
    assert copies.calls, "nothing was loaded"
    quiet(s)
    return [(type(one.finished_reason).__name__, list(one.output_ids)) for one in asked]


def turns_that_stay(s):
    """Turns whose prefixes have been computed, and are kept."""
    forget(s)
    turns = {name: turn_after(s, name) for name in QUESTIONS}
    s.settle()
    return turns


def answered(s, turn):
    req = s.add(turn, ANSWER)
    s.run()
    return list(req.output_ids), s.details(req)


def branches(s, place):
    """Four prompts that share their beginning, one after the other: the last one when what they have in common is in
    that tier alone. What it has from where."""
    forget(s)
    shared = prompt(500, 12 * PAGE)
    for number in range(3):
        s.generate([*shared, *prompt(501 + number, 100)], 2)
    leave_in(s, place)
    req = s.add([*shared, *prompt(510, 100)], 2)
    s.run()
    return s.details(req)


def conversations(s, seed, turns, empty, times=1):
    """Answers to the turns of four conversations that share their beginnings, in an order by `seed`; by `empty` the
    device forgets all, or host memory, between some of them. `times`: so many times as long. What came from where, in
    sum."""
    draw, served, came = random.Random(seed), [], Counter()
    shared, half, own = (times * length for length in (150, 60, 40))
    texts = [prompt(211, shared) + prompt(212 + number // 2, half) + prompt(214 + number, own) for number in range(4)]
    for _ in range(turns):
        number, more = draw.randrange(4), times * draw.randrange(1, 90)
        texts[number] = texts[number] + prompt(draw.randrange(10**6), more)
        req = s.add(texts[number], 4)
        s.run()
        served.append(list(req.output_ids)[:4])  # drafts that are right may make it longer
        texts[number] = texts[number] + served[-1]
        forgets = draw.choice(["nothing", "device", "device", "memory"])
        if empty:
            came.update(s.details(req))
            if forgets == "device":
                s.empty_device()
            elif forgets == "memory":
                s.empty_memory()
    return served, dict(came)


def more_prompts_than_slots(s):
    """Answers to many short prompts at once while nothing is copied out: SGLang takes slots for their states without
    asking whether there are any."""
    forget(s)
    offloader, gate = s.linker.offloader, threading.Event()
    copy_out = offloader._copy_out
    offloader._copy_out = lambda job: (gate.wait(), copy_out(job))[1]
    try:
        asked = [s.add(prompt(400 + number, 80), 2) for number in range(40)]
        s.run(until=lambda: all(req.finished() for req in asked))
        waiting = len(s.cache.linker.pending_offloads)
    finally:
        gate.set()
        del offloader._copy_out
    quiet(s)
    return [len(req.output_ids) for req in asked], waiting


def turn_after_a_loss(s, keeps):
    """A turn after two others, whose states are in host memory; a rank that does not keep them all loses the newest.
    The answer, and what came from there."""
    from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
    from sglang.srt.mem_cache.radix_cache import RadixKey
    from sglang.srt.runtime_context import get_parallel

    from swift_tiers.radix_tiering.way import sweeps

    forget(s)
    first = prompt(540, 150)
    second = [*first, *s.generate(first, ANSWER)[:ANSWER], *prompt(541, 90)]
    third = [*second, *s.generate(second, ANSWER)[:ANSWER], *prompt(542, 3)]
    s.settle()
    s.step()
    node = s.cache.match_prefix(MatchPrefixParams(key=RadixKey(array("q", third)))).last_device_node
    hashes = [*s.cache.get_prefix_hash_values(node), *s.cache.tree_core.get_hash_values(node)]
    leave_in(s, "host")
    if get_parallel().attn_tp_rank not in keeps:
        stack, states = s.linker.stack, s.linker.pool.states
        behind = [states.keys(bytes.fromhex(page))[0] for page in hashes]
        newest = stack.last_held(behind)
        assert newest is not None, "there is none"
        for _ in sweeps.drop(stack.table, stack.table.find(stack.digest, behind[newest])):
            pass
    req = s.add(third, ANSWER)
    s.run()
    found = list(req.output_ids), s.details(req)["host"]
    quiet(s)
    return found


# ---- checked in the process of the test ----


def check_turns(process: Any, place: str, expected: dict[str, list[int]]) -> None:
    """All turns are answered as ever, and from that tier alone."""
    for name, (answer, details) in process(turns_from, place).items():
        assert answer == expected[name], (place, name)
        assert details[place] == sum(details.values()) > 0


def check_branches(process: Any, place: str) -> None:
    """What prompts have in common comes from that tier, all of it."""
    details = process(branches, place)
    assert details[place] == sum(details.values()) == 12 * PAGE


def check_turns_at_once(process: Any, expected: dict[str, list[int]], fails: bool) -> None:
    """They are answered as ever, or not at all; and a prompt that nobody has is."""
    *turns, other = process(turns_at_once, "host", fails)
    assert other[0] == "FINISH_LENGTH"
    for (how, answer), right in zip(turns, expected.values(), strict=True):
        assert answer == ([] if how == "FINISH_ABORT" else right)
    assert ("FINISH_ABORT" in [how for how, _ in turns]) == fails


def check_lagging(process: Any) -> None:
    """A server whose offloads lag goes on."""
    answers, waiting = process(more_prompts_than_slots)
    assert answers == [2] * 40
    assert waiting > 8, "they did not lag: this tests nothing"


def check_conversations(process: Any, talked: list[list[int]], seed: int, turns: int, times: int = 1) -> None:
    """They go on as ever, whatever is forgotten, and some of it comes from the tiers."""
    process(costs_are_unknown)
    answers, came = process(conversations, seed, turns, True, times)
    assert answers == talked
    assert came["host"] + came["ssd"] > 0, came


def check_restarted(process: Any, turns: dict[str, list[int]], expected: dict[str, list[int]]) -> None:
    """A server that has begun anew over the files of the one before answers from them."""
    process(costs_are_unknown)
    process(has_found_its_pages)
    for name, turn in turns.items():
        answer, details = process(answered, turn)
        assert answer == expected[name]
        assert details["ssd"] == sum(details.values()) > 0


def check_ranks(ranks: Any, expected: dict[str, list[int]]) -> None:
    """All ranks answer as ever, each from what it has itself."""
    ranks(costs_are_unknown)
    whole, rest = (ranks(turn_after_a_loss, keeps) for keeps in ((0, 1), (0,)))
    assert all(answer == whole[0][0] for answer, _ in [*whole, *rest])
    assert whole[0][1] == whole[1][1] > rest[0][1] == rest[1][1] > 0, "what all of them have still"
    for place in ("host", "ssd"):
        for found in ranks(turns_from, place):
            assert {name: answer for name, (answer, _) in found.items()} == expected
            assert all(details[place] == sum(details.values()) > 0 for _, details in found.values())
