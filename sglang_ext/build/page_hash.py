"""SGLang's chained page hash, ready before the first request and on machines without a compiler.

SGLang compiles its hash extension at the first request, on the scheduler's thread (seconds), and fails there if there
is no compiler or no OpenSSL headers. Here it is built at start instead; where it cannot be, or where others could have
put what is built, the same function in Python takes its place, about five times slower and equal to the bit.
"""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np

from swift_tiers.radix_tiering.base.compiled import open_to_others

logger = logging.getLogger(__name__)

#: Tells pages with 64-bit tokens from others: an odd number of bytes before the tokens.
_WIDE_TAG = b"\xff"
#: The name under which SGLang has torch build it.
_EXTENSION = "hicache_hash_cpp"

_compiled: bool | None = None


def prepare_page_hash() -> bool:
    """Build or load the compiled hash; False if this process has to do with the Python one. Seconds, the first time."""
    global _compiled
    if _compiled is None:
        from sglang.srt.mem_cache.cpp_utils import native_hash

        _compiled = False
        try:
            if why := _open_to_others():
                logger.warning(
                    "swift-tiers: SGLang's compiled page hash is not loaded: %s; using a slower one in Python. "
                    "Set TORCH_EXTENSIONS_DIR to a directory of this user alone (mode 0700) to speed it up",
                    why,
                )
                return False
            native_hash._load_native_hash_module()
            _compiled = True
        except Exception as error:  # noqa: BLE001 - whatever is missing, the answer is the same
            logger.warning(
                "swift-tiers: SGLang's page hash cannot be compiled (%s); using a slower one in Python. "
                "Install g++, ninja and the OpenSSL headers to speed it up",
                " ".join(str(error.__cause__ or error).split())[:200],
            )
    return _compiled


def _open_to_others() -> str:
    """Why others may have put there what torch would build and load; empty where they cannot."""
    from torch.utils import cpp_extension

    # Directories that the user's own group may write are what a umask of 002 gives a user with a group of its own.
    return open_to_others(Path(cpp_extension._get_build_directory(_EXTENSION, verbose=False)), own_group=os.getegid())


def around_native_hash(original: Any, token_ids: Any, prior_digest: bytes | None, page_size: int | None = None) -> Any:
    """Hook around SGLang's `get_native_hash`."""
    if prepare_page_hash():
        try:
            return original(token_ids, prior_digest, page_size)
        except IndexError:
            pass  # a negative id, which any client may send: what is raised here would end the server
    from sglang.srt.mem_cache.cpp_utils.native_hash import _native_hash_input

    raw, length, unit_width, is_bigram = _native_hash_input(token_ids)
    return page_hashes(raw, length, unit_width, is_bigram, prior_digest, page_size)


def page_hashes(
    raw: Any, length: int, unit_width: int, is_bigram: bool, prior_digest: bytes | None, page_size: int | None
) -> str | list[str]:
    """The hex SHA-256 chain over pages of `page_size` tokens (one digest over all for None).

    `raw`: array of 4- or 8-byte integers; a token is `unit_width` of them, or, with `is_bigram`, a pair of
    neighbours. Each digest is over the digest before it and the tokens as 32-bit little-endian words, or, where one
    does not fit, a tag and 64-bit words. Negative ids, for which SGLang's has no hash, are words beyond all others.
    """
    words = np.frombuffer(raw, dtype=np.uint32 if raw.itemsize == 4 else np.uint64)
    narrow = words.astype("<u4", copy=False)
    wide = bool(words.dtype == np.uint64 and len(words) and int(words.max()) >= 2**32)
    digests = []
    digest = prior_digest or b""
    step = page_size if page_size is not None else max(length, 1)
    for start in range(0, length if page_size is not None else 1, step):
        units = min(step, length - start)
        first, last = (start, start + units) if is_bigram else (start * unit_width, (start + units) * unit_width)
        reach = last + 1 if is_bigram and units else last
        is_wide = wide and int(words[first:reach].max(initial=0)) >= 2**32
        source = words if is_wide else narrow
        piece = np.stack([source[first:last], source[first + 1 : last + 1]], 1) if is_bigram else source[first:last]
        digest = hashlib.sha256(digest + (_WIDE_TAG if is_wide else b"") + piece.tobytes()).digest()
        digests.append(digest.hex())
    return digests if page_size is not None else digests[0]
