"""Pages in fewer bytes on SSD (`ssd.codec`) in SGLang's real scheduler: every answer is that over pages as they are.

In bfloat16 an answer depends on where a prefix is cut: those are compared of which that is the same, from SSD.
Functions whose first parameter is a `StepScheduler` run in the scheduler's process.
"""

from __future__ import annotations

import pytest

from swift_tiers.ops.base.model import tiny_model

from support.scheduler_process import SchedulerProcess
from support.slow_link import costs_are_unknown, has_found_its_pages
from support.tiers_of_a_model import QUESTIONS, again, answered_from, arguments_of, cached, with_tiers

#: Of 16 KiB in bfloat16, which are four stripe units.
PAGE, UNIT = 32, "4KiB"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("tiny"))


def arguments_with(model, *more):
    return arguments_of(model, *more, "--dtype", "bfloat16", page=PAGE)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("ssd")


def tiers_with(model, directory, codec):
    ssd = {"directories": [str(directory)], "size_per_device": "64MiB", "stripe_unit": UNIT, "codec": codec}
    return arguments_with(model, *with_tiers(directory, ssd=ssd))


@pytest.fixture(scope="module")
def tiers(model, directory):
    with SchedulerProcess(tiers_with(model, directory, "zstd")) as process:
        process(costs_are_unknown)
        yield process


def coded(s):
    """Pages that were written in fewer units, and what they save of the devices."""
    s.settle()
    stripe = s.linker.stack.snapshot().stripe
    return stripe.coded, stripe.saved_bytes


@pytest.fixture(scope="module")
def expected(model, tmp_path_factory):
    """Each answer, and where its prefix came from, of a server that writes pages as they are."""
    with SchedulerProcess(tiers_with(model, tmp_path_factory.mktemp("plain"), "none")) as plain:
        plain(costs_are_unknown)
        found = plain(answered_from, "ssd")
        assert plain(coded) == (0, 0)
        return found


def test_answers_are_the_same_from_ssd(tiers, expected):
    assert {details["ssd"] for _, details in expected.values()} == {cached(one, PAGE) for one in QUESTIONS.values()}
    assert tiers(answered_from, "ssd") == expected
    pages, saved = tiers(coded)
    assert pages > 0
    assert saved > 0


@pytest.mark.parametrize("codec", ["zstd", "none"])
def test_answers_are_the_same_after_a_restart_whatever_is_said_then(tiers, model, directory, expected, codec):
    tiers.close()
    with SchedulerProcess(tiers_with(model, directory, codec)) as restarted:
        restarted(costs_are_unknown)
        restarted(has_found_its_pages)
        pages, saved = restarted(coded)
        assert (pages, saved > 0) == (0, True)
        for name in ("a question", "in two chunks"):
            assert restarted(again, name) == expected[name]
