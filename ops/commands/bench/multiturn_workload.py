"""What `swift-tiers bench multiturn` asks: agents that share a system prompt and take turns, each with its own history.

A prompt is the system prompt, the agent's task, and for each earlier turn what a tool returned and what the agent
said. What it said is written here, too, not taken from an answer: so every system is asked exactly the same, whatever
it answers. Prompts are token ids out of a seeded generator; two rounds have nothing in common.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ...base.errors import USAGE, CommandError

#: Shares of the longest prompt: the system prompt, and the least and most of an agent's task. The turns share the rest.
SYSTEM_SHARE = 1 / 6
TASK_SHARES = (1 / 4, 1 / 3)
#: The least and most that a turn adds, as a share of the room that it has.
TURN_SHARES = (0.6, 1.0)
#: The least and most tokens of a short prompt, and how many of them are asked where others would be asked one.
SHORT_TOKENS = (16, 64)
SHORT_FOR_ONE = 4
#: The least and most of a prompt that nobody has asked before, as a share of the longest.
FRESH_SHARES = (0.3, 1.0)
#: Blocks of a trace that may be a system prompt: requests that share no more do not continue one another.
SHARED_BLOCKS = 2
#: What follows the last block that a request of a trace shares with others, tokens.
TRACE_TAIL = 8


class RoundShape(NamedTuple):
    """How much is asked in one round."""

    agents: int
    turns: int  # of each agent
    longest: int  # tokens that no prompt exceeds


class BenchTurn(NamedTuple):
    """One request."""

    agent: int  # from 0
    turn: int  # of this agent, from 0
    prompt: list[int]


def make_round(shape: RoundShape, vocabulary: int, seed: int) -> list[BenchTurn]:
    """The turns of one round in the order in which they are asked.

    In laps: in each, every agent takes one turn, in an order of its own. So an agent comes back after a moment or after
    nearly everybody else twice, and finds its history on the device, in host memory, or on the disk.
    """
    generator = random.Random(seed)
    system = draw_tokens(generator, vocabulary, int(shape.longest * SYSTEM_SHARE))
    histories = [
        system + draw_tokens(generator, vocabulary, _draw(generator, shape.longest, TASK_SHARES))
        for _ in range(shape.agents)
    ]
    room = [(shape.longest - len(history)) // max(1, shape.turns - 1) for history in histories]
    order: list[BenchTurn] = []
    for turn in range(shape.turns):
        for agent in generator.sample(range(shape.agents), shape.agents):
            if turn:
                added = draw_tokens(generator, vocabulary, _draw(generator, room[agent], TURN_SHARES))
                histories[agent] = histories[agent] + added
            order.append(BenchTurn(agent, turn, histories[agent]))
    return order


def make_short_round(shape: RoundShape, vocabulary: int, seed: int) -> list[BenchTurn]:
    """Prompts of a few tokens, none of them a part of another: what is asked of a server whose tiers have nothing."""
    generator = random.Random(seed)
    count = SHORT_FOR_ONE * shape.agents * shape.turns
    return [
        BenchTurn(number, 0, draw_tokens(generator, vocabulary, generator.randint(*SHORT_TOKENS)))
        for number in range(count)
    ]


def make_fresh_round(shape: RoundShape, vocabulary: int, seed: int) -> list[BenchTurn]:
    """Prompts as long as conversations are, none of which has a prefix that was asked before."""
    generator = random.Random(seed)
    return [
        BenchTurn(number, 0, draw_tokens(generator, vocabulary, _draw(generator, shape.longest, FRESH_SHARES)))
        for number in range(shape.agents * shape.turns)
    ]


#: What may be asked, by name.
WORKLOADS = {"agents": make_round, "short": make_short_round, "fresh": make_fresh_round}


def read_trace(path: Path, shape: RoundShape, vocabulary: int, seed: int) -> list[BenchTurn]:
    """A round out of a Mooncake trace (`hash_ids` of blocks of tokens), or out of all `*.jsonl` of a directory.

    The first `shape.agents` conversations of at least two turns, `shape.turns` of each at most, in the trace's order. A
    block becomes the same tokens wherever it comes up, as many as let the longest prompt fit into `shape.longest`.
    Raises CommandError.
    """
    chains = _read_chains(path)
    chosen = _conversations(chains, shape.agents, shape.turns)
    if not chosen:
        raise CommandError(f"--trace: {path}: no requests that continue one another; use a conversation trace")
    block = (shape.longest - TRACE_TAIL) // max(len(chains[number]) for number in chosen)
    if block < 1:
        raise CommandError(f"--trace: {path}: its prompts have more blocks than {shape.longest} tokens; use --longest")
    turns: list[BenchTurn] = []
    seen: Counter[int] = Counter()
    for number, agent in sorted(chosen.items()):
        blocks = (draw_tokens(random.Random(f"{seed}/{name}"), vocabulary, block) for name in chains[number])
        tail = draw_tokens(random.Random(f"{seed}/{agent}/{seen[agent]}"), vocabulary, TRACE_TAIL)
        turns.append(BenchTurn(agent, seen[agent], [token for tokens in blocks for token in tokens] + tail))
        seen[agent] += 1
    return turns


def distinct_tokens(turns: Sequence[BenchTurn]) -> int:
    """How many tokens of KV a round makes that are not those of another of its prompts: its working set."""
    prefixes: set[int] = set()
    for turn in turns:
        state = 0
        for token in turn.prompt:
            state = hash((state, token))
            prefixes.add(state)
    return len(prefixes)


def _read_chains(path: Path) -> list[tuple[int, ...]]:
    """The block names of every request, in the order of time."""
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    try:
        lines = [json.loads(line) for file in files for line in file.read_text().splitlines() if line.strip()]
        return [tuple(line["hash_ids"]) for line in sorted(lines, key=lambda line: line["timestamp"])]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CommandError(
            f"--trace: {path}: not a Mooncake trace ({type(error).__name__}: {error}); "
            "each line needs timestamp and hash_ids",
            USAGE,
        ) from None


def _conversations(chains: Sequence[tuple[int, ...]], agents: int, turns: int) -> dict[int, int]:
    """Which request, by its number, belongs to which conversation, from 0."""
    # A request continues the one whose blocks it begins with, but for that one's last block, which was not full.
    waiting: dict[tuple[int, ...], list[int]] = {}  # conversations by the full blocks of their last request
    found: list[list[int]] = []
    for number, chain in enumerate(chains):
        begins = (chain[:length] for length in range(len(chain), 0, -1))
        members = next((waiting.pop(begin) for begin in begins if begin in waiting), None)
        if members is None:
            members = []
            found.append(members)
        members.append(number)
        if len(chain) > SHARED_BLOCKS:
            waiting[chain[:-1]] = members
    longer = [members[:turns] for members in found if len(members) > 1][:agents]
    return {number: agent for agent, members in enumerate(longer) for number in members}


def _draw(generator: random.Random, tokens: int, shares: tuple[float, float]) -> int:
    least, most = shares
    return max(1, generator.randint(int(tokens * least), int(tokens * most)))


def draw_tokens(generator: random.Random, vocabulary: int, count: int) -> list[int]:
    # Neither the special tokens at one end nor what was added at the other.
    return generator.choices(range(vocabulary // 16, vocabulary * 3 // 4), k=count)
