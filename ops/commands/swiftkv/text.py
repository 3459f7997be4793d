"""Text on this machine in windows of tokens: what models are fitted, distilled and measured on."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from ...base.errors import USAGE, CommandError
from ...base.model import pythons_manual
from .checkpoint import ModelDirectory

_SUFFIXES = {".txt", ".md", ".rst", ".py"}
#: Of every ten blocks of so many characters of a text, the fifth is kept from fits and training, for `eval`: whatever
#: the windows' length is then.
_BLOCK, _OF, _HELD_OUT = 4096, 10, 4


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
    room = ModelDirectory(model).config.get("max_position_embeddings")
    if isinstance(room, int) and length > room:
        raise CommandError(f"swiftkv: --length: {length}; the model has room for {room} tokens", USAGE)
    configurations.register()
    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError):
        raise CommandError(
            f"swiftkv: {model} has no tokenizer that transformers can read; put the model's own (tokenizer.json) "
            "beside its weights",
            USAGE,
        ) from None
    none = torch.empty(0, length, dtype=torch.int64)
    read, held_out = [none], [none]
    for piece, is_held_out in _pieces(options.text):
        ids = torch.tensor(tokenizer(piece, add_special_tokens=False, verbose=False)["input_ids"], dtype=torch.int64)
        whole = len(ids) // length
        (held_out if is_held_out else read).append(ids[: whole * length].view(whole, length))
    found = Windows(torch.cat(read), torch.cat(held_out))
    if not len(found.read) or not len(found.held_out):
        raise CommandError(
            f"swiftkv: the text makes {len(found.read)} windows of {length} tokens to read and {len(found.held_out)} "
            "to keep for `eval`, which are too few; name more --text, or a smaller --length",
            USAGE,
        )
    return found


def _pieces(places: Sequence[Path] | None) -> Iterator[tuple[str, bool]]:
    """Stretches of the text, and whether each is kept for `eval`."""
    for text in _texts(places):
        begin = 0
        while begin < len(text):
            block = begin // _BLOCK
            is_held_out = block % _OF == _HELD_OUT
            # As far as the next block of the other kind.
            end = block + 1 if is_held_out else block + (_HELD_OUT - block) % _OF
            yield text[begin : end * _BLOCK], is_held_out
            begin = end * _BLOCK


def _texts(places: Sequence[Path] | None) -> Iterator[str]:
    if not places:
        manual = pythons_manual()
        if manual is None:
            raise CommandError("swiftkv: this Python came without its manual; name a text by --text", USAGE)
        places = [manual]
    for place in places:
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
