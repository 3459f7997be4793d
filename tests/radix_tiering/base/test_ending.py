"""Parts that end one after the other in a time that they share."""

from __future__ import annotations

import pytest

from swift_tiers.radix_tiering.base.ending import Ending
from swift_tiers.radix_tiering.base.virtual import VirtualRunner


def test_what_one_part_raises_keeps_no_other_from_ending() -> None:
    runner, ended = VirtualRunner(1), []

    def part(name: str, seconds: float, fails: bool) -> None:
        runner.sleep(seconds)
        ended.append((name, ending.left()))
        if fails:
            raise RuntimeError(name)

    def main() -> None:
        nonlocal ending
        ending = Ending(10.0, runner)
        ending.end(part, "first", 4.0, True)
        ending.end(part, "second", 4.0, True)
        assert (ending.left(5.0), ending.left(1.0)) == (pytest.approx(2.0, abs=0.01), 1.0)
        ending.end(part, "third", 4.0, False)
        with pytest.raises(RuntimeError, match="first"):
            ending.over()

    ending: Ending
    runner.run(main)
    assert [(name, round(left)) for name, left in ended] == [("first", 6), ("second", 2), ("third", 0)]
