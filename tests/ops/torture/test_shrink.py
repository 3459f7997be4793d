"""A world that fails is shrunk, and what is left of it fails again, in the same way, each time."""

from __future__ import annotations

import pytest

from swift_tiers.ops.lab.torture.outcome import Outcome, live
from swift_tiers.ops.lab.torture.plan import as_words, from_words, make_plan
from swift_tiers.ops.lab.torture.shrink import shrink
from swift_tiers.radix_tiering.way.up import Restorer
from swift_tiers.radix_tiering.way.verifying import Verifier

from support.mutate import mutate

#: Edits, each of them a defect.
DEFECTS = {
    "a claim that pins nothing": (Restorer, "_hold", "self._table.pin_all(claimed)", "pass"),
    "bytes in memory that differ are served": (Verifier, "damage", "elif digest != page.digest:", "elif False:"),
}


#: Of a world that is shrunk to a third: twice as many as usual.
STEPS = 24


def first_failure() -> Outcome:
    """Of the worlds that are large enough for there to be something to leave out."""
    for seed in range(300):
        for kind in ("trouble", "lent"):
            outcome = live(make_plan(kind, seed, steps=STEPS))
            if outcome.error is not None:
                return outcome
    raise AssertionError("no world fails")


@pytest.mark.parametrize("name", DEFECTS)
def test_what_is_left_fails_again(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    mutate(monkeypatch, *DEFECTS[name])
    failed = first_failure()
    shrunk = shrink(failed)
    assert shrunk.complaint == failed.complaint
    assert shrunk.plan.size < failed.plan.size / 3
    plan = shrunk.plan
    written = make_plan(plan.kind, plan.seed, steps=plan.steps, schedule=plan.schedule)
    again = live(written.keeping(from_words(as_words(plan.kept()))))
    assert (again.complaint, again.history, again.steps) == (shrunk.complaint, shrunk.history, shrunk.steps)
    monkeypatch.undo()
    assert live(plan).error is None, "it is the defect that it shows"


def test_what_cannot_be_shrunk_stays_as_it_is() -> None:
    whole = live(make_plan("trouble", 0))._replace(error=AssertionError("not again"))
    assert shrink(whole, most_tries=20) is whole


def test_actions_are_written_and_read() -> None:
    assert from_words(as_words({"client-0": [1, 3], "trouble-0": []})) == {"client-0": {1, 3}}
    assert from_words("") == {}
    with pytest.raises(ValueError, match="client"):
        from_words("client")
