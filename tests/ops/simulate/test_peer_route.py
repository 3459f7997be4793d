"""The way from lent memory, through the stack that serves: over landing memory, and over host memory."""

from __future__ import annotations

import pytest
import torch

from swift_tiers.ops.base.devices.models import MODELS
from swift_tiers.ops.lab.simulate.lent import DEFAULT_LANDING
from swift_tiers.ops.lab.simulate.scenarios.conversations import (
    AS_THE_PAPER,
    DEFAULT,
    HOST,
    LARGE,
    PAGE_TOKENS,
    first_token,
)
from swift_tiers.radix_tiering.base.config import TiersConfig
from swift_tiers.radix_tiering.tiers.host.landing import Landing, landing_slots


class Memory:
    """An accelerator, as far as making landing memory asks of it."""

    def device_memory(self, rows: int, row_bytes: int) -> torch.Tensor:
        return torch.empty((rows, row_bytes), dtype=torch.uint8)


def test_landing_memory_holds_what_the_servers_own_does() -> None:
    for page_bytes in (4096, 5000, 2_359_296):
        for size in (page_bytes * 4, 32 << 20):
            assert Landing(Memory(), page_bytes, size).slots == landing_slots(page_bytes, size)
    assert TiersConfig().device.landing == DEFAULT_LANDING
    # 112 pages of 16 tokens of Qwen3-8B: 1,792 tokens.
    assert landing_slots(16 * MODELS["Qwen3-8B"].token_bytes, DEFAULT_LANDING) == 112


@pytest.mark.parametrize("name", ["LWM-7B", "Qwen3-14B"])
def test_every_page_lands_however_little_landing_memory_there_is(name: str) -> None:
    model, history = MODELS[name], 8192
    slots = landing_slots(PAGE_TOKENS * model.token_bytes, DEFAULT_LANDING)
    assert slots < history // PAGE_TOKENS / 4
    assert first_token(model, DEFAULT, history)[1] == 1.0
    # All but a page or two from the front, which were computed while the others came.
    assert first_token(model, LARGE, history)[1] == pytest.approx(1.0, abs=0.02)
    assert first_token(model, HOST, history)[1] == first_token(model, AS_THE_PAPER, history)[1] == 0.0


def test_a_servers_way_is_faster_than_host_memory_and_the_papers_is_faster_still() -> None:
    seconds = {way.name: first_token(MODELS["LWM-7B"], way, 8192)[0] for way in (HOST, AS_THE_PAPER, DEFAULT, LARGE)}
    assert seconds[AS_THE_PAPER.name] < seconds[LARGE.name] < seconds[DEFAULT.name] < seconds[HOST.name] / 2


@pytest.mark.parametrize("name", ["LWM-7B", "Qwen3-14B", "Qwen3-32B"])
@pytest.mark.parametrize("history", [8192, 32_768])
def test_where_host_memory_has_it_too_lent_memory_is_used_only_where_it_is_faster(name: str, history: int) -> None:
    """Every row of the table: bound of the project, beside SwiftCache's Figure 7."""
    model = MODELS[name]
    host, _ = first_token(model, HOST, history)
    both, landed = first_token(model, DEFAULT, history, host_too=True)
    assert both < 1.01 * host
    assert landed in (0.0, 1.0), "one way or the other"
    assert landed == 1.0 or first_token(model, DEFAULT, history)[0] > host, "what is faster was not used"
