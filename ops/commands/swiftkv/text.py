"""Text on this machine in windows of tokens: what models are fitted, distilled and measured on."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ...base.errors import USAGE, CommandError

_SUFFIXES = {".txt", ".md", ".rst", ".py"}
#: Every so many windows, one is kept from fits and training, for `eval`.
HELD_OUT = 10
#: Characters that are tokenised at once.
_PIECE = 1 << 20


class Windows(NamedTuple):
    """int64 `[windows, length]` each: none begins in one file and ends in another."""

    read: torch.Tensor  # fitted to, trained on
    held_out: torch.Tensor


def windows_of(options: argparse.Namespace, model: Path) -> Windows:
    """By `options.text` and `options.length`. Raises CommandError where that makes no window of either kind."""
    from transformers import AutoTokenizer

    from swift_tiers.sglang_ext.models import configurations

    length = options.length
    if length < 8:
        raise CommandError(f"swiftkv: --length: {length}; a window has 8 tokens at least", USAGE)
    configurations.register()
    tokenizer = AutoTokenizer.from_pretrained(model)
    found = [window for text in _texts(options.text) for window in _cut(tokenizer, text, length)]
    if len(found) < HELD_OUT:
        raise CommandError(
            f"swiftkv: the text makes {len(found)} windows of {length} tokens, and {HELD_OUT} are too few; name more "
            "--text, or a smaller --length",
            USAGE,
        )
    every = torch.tensor(found)
    kept = torch.arange(len(every)) % HELD_OUT == HELD_OUT - 1
    return Windows(every[~kept], every[kept])


def _cut(tokenizer: Any, text: str, length: int) -> Iterator[list[int]]:
    ids: list[int] = []
    for start in range(0, len(text), _PIECE):
        ids += tokenizer(text[start : start + _PIECE], add_special_tokens=False, verbose=False)["input_ids"]
    yield from (ids[start : start + length] for start in range(0, len(ids) - length + 1, length))


def _texts(places: Sequence[Path] | None) -> Iterator[str]:
    for place in places or [_manual()]:
        if place.is_dir():
            files = sorted(file for file in place.rglob("*") if file.suffix in _SUFFIXES and file.is_file())
        else:
            files = [place]
        if not files:
            raise CommandError(f"swiftkv: --text: {place} has no {', '.join(sorted(_SUFFIXES))}", USAGE)
        for file in files:
            try:
                yield file.read_text(errors="replace")
            except OSError as error:
                raise CommandError(f"swiftkv: --text: {file} cannot be read: {error}", USAGE) from None


def _manual() -> Path:
    """English text that every Python has: what `help()` shows of its topics (its own licence, PSF)."""
    spec = find_spec("pydoc_data.topics")
    if spec is None or spec.origin is None:
        raise CommandError("swiftkv: this Python came without its manual; name a text by --text", USAGE)
    return Path(spec.origin)
