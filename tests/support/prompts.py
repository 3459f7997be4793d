"""Prompts of random tokens."""

from __future__ import annotations

import random


def prompt(seed: int, tokens: int = 700) -> list[int]:
    """A prompt that no other seed's shares a prefix with."""
    return random.Random(seed).choices(range(1, 250), k=tokens)
