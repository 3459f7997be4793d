"""What worlds are for: each of these defects, put into the engine, is found within so many of them.

Those that were found in the project are named so; their mends are taken back here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from swift_tiers.ops.lab.torture.plan import make_plan
from swift_tiers.ops.lab.torture.scenarios import (
    drained_by_several,
    recalled_before_what_follows,
    recalled_while_it_is_restored,
    taken_from_here_while_it_lands,
)
from swift_tiers.ops.lab.torture.world import World
from swift_tiers.radix_tiering.base.errand_thread import ErrandThread
from swift_tiers.radix_tiering.restore.flight import Flight
from swift_tiers.radix_tiering.table import kernels
from swift_tiers.radix_tiering.tiers.remote.reads import ObjectReads
from swift_tiers.radix_tiering.tiers.ssd.io_thread import IoThread
from swift_tiers.radix_tiering.way.down import Mover
from swift_tiers.radix_tiering.way.draining import Draining
from swift_tiers.radix_tiering.way.reads import Reads
from swift_tiers.radix_tiering.way.up import Restorer
from swift_tiers.radix_tiering.way.verifying import Verifier

from support.mutate import mutate

#: Worlds that are looked at, of each kind.
MOST = 400


class Edit(NamedTuple):
    """`old` becomes `new` in a method."""

    owner: type
    method: str
    old: str
    new: str


def worlds(seed: int) -> None:
    for kind in ("trouble", "calm"):
        World(make_plan(kind, seed)).run()


def drained(seed: int) -> None:
    drained_by_several(seed, False, [])


def shared(seed: int) -> None:
    World(make_plan("shared", seed)).run()


def landing_here(seed: int) -> None:
    taken_from_here_while_it_lands(seed, False, [])


class Defect(NamedTuple):
    """Edits, and what finds them."""

    name: str
    edits: list[Edit]
    finds: Callable[[int], object] = worlds


HAS = """
    units = 0
    while start + units < len(self) and self._state[start + units] in (Unit.PRESENT, Unit.DONE):
        units += 1
    return units
"""
DEFECTS = [
    Defect(
        "what comes from a store has no checksum in host memory (found: damage that was served, and written to ssd)",
        [
            Edit(
                ObjectReads, "_serve", "digest if self._fingerprint is page_digest else self._fingerprint(into)", "None"
            )
        ],
        shared,
    ),
    Defect(
        "what the device has at one look counts for good (found: pages promised that nobody had)",
        [
            Edit(Flight, "observe", "self._observed = front", "self._set(0, front, Unit.DONE)"),
            Edit(Flight, "arrived_from", "    return self._run(start, Unit.PRESENT)", HAS),
        ],
    ),
    Defect(
        "nobody learns that a page is being saved (found: a slot that leaks)",
        [
            Edit(Reads, "save", "    self._saving[page] = tier\n", ""),
            Edit(Reads, "save", "    self._waiting.setdefault(page, [])\n", ""),
        ],
        recalled_while_it_is_restored,
    ),
    Defect(
        "what lent memory alone has holds what is before it (found: nothing may leave, nothing comes in)",
        [Edit(kernels, "_may_leave", "words[r, HELD] == 0", "words[r, CHILD] < 0")],
        recalled_before_what_follows,
    ),
    Defect(
        "a page leaves landing memory while it is being copied from there",
        [
            Edit(
                Draining,
                "copies",
                "restore.copying.update(",
                "self.spare(restore, units)\n        restore.copying.update(",
            )
        ],
        drained,
    ),
    Defect(
        "a page is let go as it lands, while it is copied from host memory (found: another user's KV was copied)",
        [Edit(Draining, "spare", " or unit in restore.copying", "")],
        landing_here,
    ),
    Defect(
        "a page is let go twice",
        [Edit(Draining, "spare", "restore.spared.add(unit)", "pass")],
        drained,
    ),
    Defect(
        "a request whose device goes on waits for what others keep",
        [Edit(Draining, "room", "return 0 if self._goes_on(restore) else most", "return 0")],
        drained,
    ),
    Defect("a claim that pins nothing", [Edit(Restorer, "_hold", "self._table.pin_all(claimed)", "pass")]),
    Defect(
        "bytes in memory that differ are served",
        [Edit(Verifier, "damage", "elif digest != page.digest:", "elif False:")],
    ),
    Defect("an errand that nobody is told of", [Edit(ErrandThread, "start", "self._wake.notify_all()", "pass")]),
    Defect("transfers that nobody is told of", [Edit(IoThread, "enqueue", "self._wake.notify_all()", "pass")]),
    Defect("commands that nobody is told of", [Edit(IoThread, "post", "self._wake.notify_all()", "pass")]),
    Defect("nobody learns that all is written", [Edit(Mover, "pump", "self._idle.notify_all()", "pass")]),
]


def found(defect: Defect) -> str:
    """What the first world says that finds it; empty if none does."""
    with pytest.MonkeyPatch.context() as patch:
        for edit in defect.edits:
            mutate(patch, *edit)
        for seed in range(MOST):
            try:
                defect.finds(seed)
            except Exception as error:  # noqa: BLE001 - whatever is said, it is found
                return f"seed {seed}: {error!r}"
    return ""


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name.partition(" (")[0])
def test_worlds_find(defect: Defect) -> None:
    assert found(defect)
