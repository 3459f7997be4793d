"""What the demo asks: turns of real agent sessions, in an order that lets prefixes sink through every tier."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from swift_tiers.radix_tiering.base.page import BLOCK_BYTES, round_up

from ...base.arguments import check_between
from ...base.errors import CommandError

DATA = Path(__file__).parent / "data"
#: The sessions in the order in which `load_sessions` takes them: neighbours become a pair, so a long one stands beside
#: a short one.
SESSIONS = (
    "07c6a78a27294b41a7c09a1907af143d",
    "abe6103153a804525aa167d60cc30912",
    "5e964bd93f8c35ab4430fd68b91abf13",
    "5518cbf6b5c90e74800c7cdaf91da2f7",
    "dc4b66869afd786bc4b341ef1119ca53",
    "ae5bc34ffaf6e553cc320e6499db0d47",
)
#: Turns that the shortest of the recorded sessions has.
MAX_TURNS = 5
#: With fewer there is nothing left to ask after the restart.
MIN_TURNS = 3
#: With fewer sessions host memory could hold them all.
MIN_SESSIONS = 3
#: Turns that each session takes in its first visit; in later visits it takes one.
FIRST_VISIT = 2
#: Tokens that a chat template may add to a prompt: a system message, and the marks of its messages.
TEMPLATE_TOKENS = 96
#: Tokens of a page unless the servers are told otherwise.
PAGE_TOKENS = 16
#: Stripe units of this size, bytes, or of half a page where that is less, so that a page lies on two devices at least.
LARGEST_UNIT = 256 * 2**10
#: Bytes of a device file below which its own tables would take much of it.
SMALLEST_DEVICE = 32 * 2**20


class DemoTurn(NamedTuple):
    """One request: the `turn`-th (from 1) of session `session` (from 0)."""

    session: int
    turn: int
    text: str


class TurnPlan(NamedTuple):
    """The turns in the order in which they are asked."""

    before: list[DemoTurn]  # the restart
    after: list[DemoTurn]

    @property
    def turns(self) -> list[DemoTurn]:
        return [*self.before, *self.after]


def load_sessions(sessions: int, turns: int) -> list[list[str]]:
    """The inputs of the first `turns` requests of the first `sessions` sessions. Raises CommandError."""
    check_between("--sessions", sessions, MIN_SESSIONS, len(SESSIONS))
    check_between("--turns", turns, MIN_TURNS, MAX_TURNS)
    loaded = []
    for name in SESSIONS[:sessions]:
        with open(DATA / f"{name}.jsonl", encoding="utf-8") as lines:
            loaded.append([json.loads(line)["input"] for line, _ in zip(lines, range(turns), strict=False)])
    return loaded


def make_plan(sessions: Sequence[Sequence[str]]) -> TurnPlan:
    """The order of the turns; every session has as many.

    Two sessions talk, there and back (A B B A), then the next pair does; later they come back for a turn each, pair
    after pair, in rounds. So a turn directly after one of its own session finds its prefix on the device; one after
    the other session of its pair finds it in host memory, which holds a pair; and one after another pair finds what
    host memory had to drop on ssd only. The restart comes between two visits, about half-way; after it, everything is
    on ssd first.
    """
    pairs = [range(first, min(first + 2, len(sessions))) for first in range(0, len(sessions), 2)]
    rounds = [range(FIRST_VISIT), *(range(turn, turn + 1) for turn in range(FIRST_VISIT, len(sessions[0])))]
    visits: list[list[DemoTurn]] = []
    for turns in rounds:
        for pair in pairs:
            visit: list[DemoTurn] = []
            for turn in turns:
                there_or_back = reversed(pair) if turn == 1 else pair
                visit += [DemoTurn(session, turn + 1, sessions[session][turn]) for session in there_or_back]
            visits.append(visit)
    cut = (len(visits) + 1) // 2
    before = [turn for visit in visits[:cut] for turn in visit]
    return TurnPlan(before, [turn for visit in visits[cut:] for turn in visit])


class ModelShape(NamedTuple):
    """What the sizes of the tiers depend on."""

    token_bytes: int  # of KV of one token, all layers, in float32
    context: int  # tokens


def read_shape(model: Path) -> ModelShape:
    """From a Hugging Face model directory. Raises CommandError."""
    try:
        config = json.loads((model / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise CommandError(f"--model-path: {model}: no readable config.json there ({error})") from None
    config = config.get("text_config", config)
    try:
        heads = config["num_attention_heads"]
        kv_heads = config.get("num_key_value_heads") or heads
        head_dim = config.get("head_dim") or config["hidden_size"] // heads
        token_bytes = config["num_hidden_layers"] * 2 * kv_heads * head_dim * 4
        return ModelShape(token_bytes, config["max_position_embeddings"])
    except KeyError as error:
        raise CommandError(f"--model-path: {model}/config.json has no {error}: this model is not supported") from None


def token_counter(model: Path) -> Callable[[str], int]:
    """How many tokens a text has for the model in that directory. Raises CommandError."""
    from tokenizers import Tokenizer

    path = model / "tokenizer.json"
    if not path.is_file():
        raise CommandError(f"--model-path: {model} has no tokenizer.json: convert its tokenizer (transformers can)")
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    return lambda text: len(tokenizer.encode(text).ids)


class DemoSizes(msgspec.Struct, frozen=True, kw_only=True):
    """How large everything is."""

    prompt_tokens_max: int  # of the longest prompt, an upper bound
    device_tokens: int  # --max-total-tokens of both servers
    host_bytes: int
    ssd_devices: int
    ssd_bytes_per_device: int
    stripe_unit_bytes: int


def choose_sizes(counts: Sequence[Sequence[int]], shape: ModelShape, devices: int, answer_tokens: int) -> DemoSizes:
    """Tiers just large enough for what each of them is to show.

    `counts[s][t]`: tokens of turn t of session s, without the chat template. Raises CommandError.
    """
    last = [max(session) + TEMPLATE_TOKENS + answer_tokens for session in counts]
    if max(last) > shape.context:
        raise CommandError(
            f"the longest prompt has about {max(last)} tokens, the model takes {shape.context}: use fewer --turns"
        )
    # The device holds the longest prompt and a little of another one.
    device = round_up(max(last) + 64, 64)
    # Host memory holds the sessions of one pair whole, and one page in sixteen more: restored ones are still pinned.
    host = max(sum(last[first : first + 2]) for first in range(0, len(last), 2)) * 17 // 16
    # The ssds hold everything, and half as much again: nothing is to be evicted from them.
    ssd = sum(last) * 3 // 2
    page_bytes = PAGE_TOKENS * shape.token_bytes
    unit = min(LARGEST_UNIT, round_up(page_bytes // 2, BLOCK_BYTES))
    stored_bytes = -(-page_bytes // unit) * (unit + BLOCK_BYTES)
    return DemoSizes(
        prompt_tokens_max=max(last),
        device_tokens=device,
        host_bytes=round_up(host // PAGE_TOKENS * round_up(page_bytes, BLOCK_BYTES), 2**20),
        ssd_devices=devices,
        ssd_bytes_per_device=round_up(max(ssd // PAGE_TOKENS * stored_bytes // devices, SMALLEST_DEVICE), 2**20),
        stripe_unit_bytes=unit,
    )
