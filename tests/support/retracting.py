"""A scheduler of SGLang that retracts a request every so many rounds, as with SGLANG_TEST_RETRACT=1.

The variable is read while the scheduler's module is imported, and here that has been imported before.
"""

from __future__ import annotations

from sglang.srt.managers import scheduler

#: Forwards between two retractions.
INTERVAL = 20


def install() -> None:
    for name, value in (("TEST_RETRACT", True), ("TEST_RETRACT_INTERVAL", INTERVAL)):
        assert hasattr(scheduler, name)
        setattr(scheduler, name, value)
