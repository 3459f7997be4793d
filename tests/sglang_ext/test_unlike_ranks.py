"""Ranks of one server that are told different things, as machines may be whose files or folders differ.

Functions whose first parameter is a `StepScheduler` run in the process of each rank, all at once.
"""

from __future__ import annotations

import json
import time

import pytest

from support.scheduler_process import SchedulerRanks
from support.slow_link import prompt

pytestmark = pytest.mark.exhaustive


def lends(s) -> tuple[bool, bool]:
    """Whether it could, and does."""
    side = s.linker.peer_side
    return side is not None, side is not None and side.donation is not None


def policy_after_an_order(s) -> int:
    """That the first rank hears."""
    orders = s.linker.reporting.orders
    if orders.leads:
        command = {"type": "set_policy", "field": "admission_uses", "value": 3}
        orders.submit(
            {"id": "o", "author": "a test", "deadline": str(time.time() + 60), "command": json.dumps(command)}
        )
    s.scheduler.ingest_requests()
    return s.linker.stack.config.policy.admission_uses


def answer_of(s) -> list[int]:
    return s.generate(prompt(1, 300))


def test_they_start_and_do_together_what_one_hears(tmp_path):
    from swift_tiers.ops.base.model import tiny_model

    bus = tmp_path / "bus"
    bus.mkdir(mode=0o700)
    of_all = {"host": {"size": "4MiB"}}
    one = {**of_all, "bus": {"directory": str(bus), "server": "donor"}, "peer": {"donate": "0..90%"}}
    other = {**of_all, "bus": {"enabled": False}}
    arguments = [
        "--model-path", str(tiny_model(tmp_path / "model")), "--dtype", "float32", "--max-total-tokens", "2048",
        "--max-running-requests", "8", "--page-size", "16", "--enable-swift-tiers",
    ]  # fmt: skip
    each = [["--swift-tiers-config", json.dumps(config)] for config in (one, other)]
    with SchedulerRanks(2, arguments, each=each) as ranks:
        assert ranks(lends) == [(True, False), (False, False)], "all lend, or none"
        first, second = ranks(answer_of)
        assert first == second
        assert ranks(policy_after_an_order) == [3, 3]
