"""The remote tier over links that are slower and faster than recomputing: two pointers beside the pure ways."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from swift_tiers.radix_tiering.base.config import RestoreConfig

from ....base.devices.curve import Curve
from ....base.devices.hardware import GB, GIGABIT, GPUS, USAGE
from ....base.devices.models import MODELS
from ..machine import Call, Machine, replay
from ..tables import Cell, Table, table
from .scenario import Scenario

GPU, MODEL = "H100", "Qwen3-8B"
#: Tokens that are new behind what the store has.
NEW = 256
#: How many times as long as recomputing it loading a prefix takes.
RATIOS = (0.25, 0.5, 1.0, 2.0, 4.0)
#: Two pointers take at most so many times what the better of loading and recomputing takes.
BOUND = 1.05


class StoredPrefix(NamedTuple):
    """How a prefix lies in the store."""

    tokens: int
    page_tokens: int = 128
    object_pages: int = 1


#: Of one length; and of several in small pages, of which an object of 4 MiB holds as many as where eight ranks share
#: the model: it takes as long to come as 224 tokens, or at a quarter of the speed as 896 take to compute.
PREFIX = StoredPrefix(8_192)
PREFIXES = tuple(StoredPrefix(tokens, page_tokens=16, object_pages=14) for tokens in (2_016, 4_032, 8_064))


class LinkSeconds(NamedTuple):
    """Seconds to the first token."""

    recompute: float
    load: float
    both: float

    @property
    def of_better(self) -> float:
        return self.both / min(self.recompute, self.load)


def machine(stored: StoredPrefix, bytes_per_second: float) -> Machine:
    """One GPU, host memory, and the store."""
    gpu, model = GPUS[GPU], MODELS[MODEL]
    return Machine(
        curve=Curve(model=model, gpu=gpu, gpus=1),
        page_tokens=stored.page_tokens,
        device_bytes=gpu.memory_bytes * 0.9 - model.weight_bytes,
        host_bytes=64 * GB,
        remote_bytes_per_second=bytes_per_second,
        remote_pages=stored.object_pages,
        copy_bytes_per_second=gpu.pcie_bytes_per_second * USAGE.link,
    )


def first_token(stored: StoredPrefix, bytes_per_second: float, strategy: str) -> float:
    """Seconds of one request whose prefix another machine has put into the store."""
    tokens = stored.tokens + NEW
    call = Call(1.0, tokens, tuple(range(tokens // stored.page_tokens)), remote=stored.tokens // stored.page_tokens)
    (seconds,) = replay(machine(stored, bytes_per_second), [call], RestoreConfig(strategy=strategy)).seconds  # type: ignore[arg-type]
    return seconds


def measured(stored: StoredPrefix) -> list[tuple[float, LinkSeconds]]:
    """At links over which loading takes so many times as long as recomputing."""
    nbytes = stored.tokens * MODELS[MODEL].token_bytes
    recompute = first_token(stored, nbytes, "recompute")
    speeds = [(ratio, nbytes / (ratio * recompute)) for ratio in RATIOS]
    return [
        (ratio, LinkSeconds(recompute, first_token(stored, speed, "load"), first_token(stored, speed, "auto")))
        for ratio, speed in speeds
    ]


def rows(found: Sequence[tuple[float, LinkSeconds]]) -> list[list[Cell]]:
    """A row for each speed."""
    bits = PREFIX.tokens * MODELS[MODEL].token_bytes / GIGABIT
    return [
        [ratio, round(bits / (ratio * one.recompute)), *(round(1000 * value) for value in one), round(one.of_better, 2)]
        for ratio, one in found
    ]


def link() -> list[Table]:
    return [
        table(
            "remote-link",
            "A prefix that another machine has put into the store, over links of several speeds: time to first token",
            ["load / recompute", "Gb/s", "recompute (ms)", "load (ms)", "both (ms)", "both / better one"],
            rows(measured(PREFIX)),
            [
                f"{PREFIX.tokens:,} tokens and {NEW} new ones, {MODEL} on one {GPU}, pages of {PREFIX.page_tokens} "
                "tokens, an object each. The remote tier, the planner and the restore are the product's, in virtual "
                "time: the question to the store, arrival memory, deadlines and verified copies are in it.",
                f"Both at once, which is what `auto` chooses, takes at most {BOUND} times what the better of the two "
                "pure ways takes, at every speed; a test holds that.",
            ],
        ),
        table(
            "remote-link-objects",
            "The same where an object holds many pages: both at once over the better pure way",
            ["tokens", *(f"load / recompute {ratio:g}" for ratio in RATIOS)],
            [[stored.tokens, *(round(one.of_better, 2) for _, one in measured(stored))] for stored in PREFIXES],
            [
                f"Pages of {PREFIXES[0].page_tokens} tokens, {PREFIXES[0].object_pages} of them in an object of 4 MiB, "
                "as where eight ranks share the model. Which page of an object is asked for is the same: all of it is "
                "waited for, so objects are counted whole in what is asked for, and in what is left to the device.",
            ],
        ),
    ]


SCENARIOS = {"remote-link": Scenario("the remote tier over links of 0.25 to 4 times what recomputing takes", link)}
