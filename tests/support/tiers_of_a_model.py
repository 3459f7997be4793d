"""What a model answers from each tier, in SGLang's real scheduler: the same, if its pages are all that a prefix is.

Functions whose first parameter is a `StepScheduler` run in its process.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.slow_link import Link, costs_are_unknown, extends, has_found_its_pages, prompt, quiet, to_ssd

#: Of each question the answer, and where its prefix came from.
Answers = dict[str, tuple[list[int], dict[str, int]]]

PAGE = 16
DEVICE_TOKENS = 4096
ANSWER = 12

_QUESTION = prompt(1, 400)
QUESTIONS = {
    "a question": _QUESTION,
    "its next turn": _QUESTION + prompt(2, 120),
    "a branch": _QUESTION[:250] + prompt(3, 100),
    "in two chunks": prompt(4, 700),
}
PLACES = ("device", "host", "ssd")
ALL = slice(None)


def cached(question: list[int], page: int = PAGE) -> int:
    """Tokens of a question that are in whole pages before its last token."""
    return (len(question) - 1) // page * page


def arguments_of(model: Path, *more: str, page: int = PAGE) -> list[str]:
    """Of a server that computes in chunks shorter than some of the questions."""
    return [
        "--model-path", str(model), "--dtype", "float32", "--max-total-tokens", str(DEVICE_TOKENS), "--page-size",
        str(page), "--max-running-requests", "8", "--chunked-prefill-size", "512", *more,
    ]  # fmt: skip


def with_tiers(directory: Path, **changes: Any) -> list[str]:
    """More arguments: tiers that hold all pages of all questions, on SSD beyond the server's end, and load them,
    whatever was learned of costs on a machine that has other things to do."""
    config = {
        "host": {"size": "32MiB"},
        "ssd": {"directories": [str(directory)], "size_per_device": "64MiB", "stripe_unit": "8KiB"},
        "policy": {"restore_deadline": "60s"},
        "restore": {"strategy": "load", "chunk": 64},
        "bus": {"enabled": False},
        **changes,
    }
    return ["--enable-swift-tiers", "--swift-tiers-config", json.dumps(config)]


def answers_of(s) -> dict[str, list[int]]:
    """Each question's answer where nothing of it is cached anywhere."""
    found = {}
    for name, question in QUESTIONS.items():
        forget(s)
        req = s.add(question, ANSWER)
        s.run()
        assert req.cached_tokens == 0
        found[name] = list(req.output_ids)
    return found


def forget(s) -> None:
    """On the device, and in the tiers if there are any."""
    has_tiers = getattr(s.cache, "linker", None) is not None
    if has_tiers:
        s.settle()
    s.step()  # SGLang sees that it has nothing to do
    assert s.scheduler.flush_cache()
    if has_tiers:
        s.linker.stack.flush("all")


def leave_in(s, place: str) -> None:
    """What has been computed, in that tier alone, or nowhere."""
    if place == "nowhere":
        forget(s)
    elif place != "device":
        s.empty_device()
    if place == "ssd":
        s.linker.stack.flush("memory")


def answered_from(s, place: str) -> Answers:
    """Each question, where all of it is in one tier at most."""
    found = {}
    for name, question in QUESTIONS.items():
        s.generate(question, ANSWER)
        leave_in(s, place)
        req = s.add(question, ANSWER)
        s.run()
        found[name] = list(req.output_ids), s.details(req)
    quiet(s)
    return found


def again(s, name: str) -> tuple[list[int], dict[str, int]]:
    """A question's answer, and where its prefix came from, wherever that is."""
    req = s.add(QUESTIONS[name], ANSWER)
    s.run()
    return list(req.output_ids), s.details(req)


def why_not_layer_by_layer(s) -> str:
    return s.cache.linker.layer_wise.refused


@contextmanager
def loading_zeros(pool, part: str = "all", planes: slice = ALL) -> Iterator[None]:
    """What is loaded into a pool in host memory is zeroed: in front of the layers of its pages ("front"), of all
    `planes` there; in their layers ("layers") or in both."""
    copy_in = pool.copy_in

    def zeroed(pages, slab, slots, layer_done, after=()):
        def zero(layer, mark):
            front = pool._fronts[planes] if layer == 0 and part != "layers" else []
            for plane in (*front, *(pool._arrays[layer] if part != "front" else ())):
                plane[pages] = 0
            layer_done(layer, mark)

        copy_in(pages, slab, slots, zero, after)

    pool.copy_in = zeroed
    try:
        yield
    finally:
        pool.copy_in = copy_in


def answered_over_zeros(
    s, part: str = "all", ask: Callable[[], None] = lambda: None, *, planes: slice = ALL
) -> list[int]:
    """The question's answer where `part` of what is loaded is zeroed, see `loading_zeros`: another one, if it depends
    on that at all. `ask`: called before it is asked."""
    question, pool = QUESTIONS["a question"], s.linker.pool
    forget(s)
    s.generate(question, ANSWER)
    s.empty_device()
    with loading_zeros(pool, part, planes):
        ask()
        req = s.add(question, ANSWER)
        s.run()
    assert s.details(req)["host"] == cached(question, pool.page_size)
    forget(s)  # what was computed over zeros must not be found by others
    return list(req.output_ids)


def met_in_the_middle(s, question: list[int], pages_a_step: int) -> tuple[list[tuple[int, int]], dict[str, int]]:
    """A question that is computed from the front while its pages come up from the back: its forwards, and where its
    prefix came from."""
    planner = s.linker.stack.planner
    (answer,) = to_ssd(s, question)
    choice, planner.choice = planner.choice, "token-wise"
    try:
        with Link(s) as link:
            req = s.add(question)
            s.linker.stack.restorer.wait_idle()
            log = extends(s, link, pages_a_step)
    finally:
        planner.choice = choice
        costs_are_unknown(s)  # a link puts back those that have been learnt
    assert list(req.output_ids) == answer
    quiet(s)
    return log, s.details(req)


def check_meeting(process: Any, pages_a_step: int, page: int = PAGE) -> None:
    """It is answered as ever, and neither of both does everything."""
    question = prompt(50 + pages_a_step, 600)
    log, details = process(met_in_the_middle, question, pages_a_step)
    assert 0 < details["ssd"] < cached(question, page)
    assert sum(length for _, length in log) + details["ssd"] == len(question)


def check_place(process: Any, place: str, expected: dict[str, list[int]], page: int = PAGE) -> None:
    """Every question is answered as expected where its prefix is in that tier, and from there alone."""
    _check_answers(process(answered_from, place), place, expected, page)


def check_ranks_alike(ranks: Any, expected: dict[str, list[int]], page: int = PAGE) -> None:
    """On each, from every tier."""
    ranks(costs_are_unknown)
    for place in PLACES:
        for found in ranks(answered_from, place):
            _check_answers(found, place, expected, page)


def check_after_a_restart(process: Any, expected: dict[str, list[int]], page: int = PAGE) -> None:
    """A server that has begun anew over the files of the one before, which has kept all questions."""
    process(costs_are_unknown)
    process(has_found_its_pages)
    for name in ("a question", "in two chunks"):
        where = {"device": 0, "host": 0, "ssd": cached(QUESTIONS[name], page)}
        assert process(again, name) == (expected[name], where)


def _check_answers(found: Answers, place: str, expected: dict[str, list[int]], page: int) -> None:
    for name, (answer, details) in found.items():
        assert answer == expected[name], (place, name)
        assert details == {"device": 0, "host": 0, "ssd": 0, place: cached(QUESTIONS[name], page)}, (
            place,
            name,
            details,
        )
