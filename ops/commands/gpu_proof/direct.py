"""(b) Pages read from a file straight into landing memory by kvikio, where it is installed."""

from __future__ import annotations

import os
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from swift_tiers.kernels.copy_queue import Accelerator
from swift_tiers.kernels.page_digest import host_page_digest

from .figures import LeftOutError, ProofCheck, ProofFigure
from .layouts import Layout

#: Of the file; what is read under way together, in pages.
_PAGES, _DEPTH = 256, 32
_GB = 1e9


def ssd_to_landing(
    layout: Layout,
    accelerator: Accelerator,
    pages: int | None = None,
) -> Iterator[ProofCheck | ProofFigure]:
    """From a file that is made for it, through what a server reads with. Raises ImportError where what a server needs
    is missing, LeftOutError where kvikio is."""
    from swift_tiers.radix_tiering.base.errors import ConfigError
    from swift_tiers.radix_tiering.base.page import round_up
    from swift_tiers.radix_tiering.tiers.host.landing import Landing
    from swift_tiers.radix_tiering.tiers.ssd.direct import DIRECT_BLOCK, KvikioFiles, find_kvikio

    pages = pages or _PAGES
    try:
        kvikio, straight = find_kvikio("on"), find_kvikio("auto") is not None
    except ConfigError as error:
        raise LeftOutError(str(error)) from None
    stride = round_up(layout.page_bytes, DIRECT_BLOCK)
    data = np.random.default_rng().integers(0, 256, (pages, stride), dtype=np.uint8)
    landing = Landing(accelerator, layout.page_bytes, (_DEPTH + 1) * stride)
    with tempfile.TemporaryDirectory(prefix="swift-tiers-proof-") as folder:
        path = Path(folder) / "pages"
        _write(path, data)
        files = KvikioFiles(kvikio, landing.memory)
        try:
            began = time.perf_counter()
            found = _read(files, landing, str(path), stride, pages)
            seconds = time.perf_counter() - began
        finally:
            files.close()
    wrong = sum(one != host_page_digest(page[: layout.page_bytes]) for one, page in zip(found, data, strict=True))
    yield ProofCheck("pages on SSD are read straight to the GPU", pages, f"{wrong} pages differ" if wrong else "")
    way = "GPUDirect Storage" if straight else "no GPUDirect Storage here: kvikio's own copies"
    rate = pages * layout.page_bytes / seconds / _GB
    yield ProofFigure(
        "transfers", f"{layout.name}: SSD to landing memory", rate, "GB/s", note=f"{way}; digests included"
    )


def _write(path: Path, data: np.ndarray) -> None:
    """On the device, and no more in memory."""
    with path.open("wb") as file:
        file.write(data.data)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read(files: Any, landing: Any, path: str, stride: int, pages: int) -> list[bytes]:
    """The digest of each page as it has landed. Raises OSError or RuntimeError; nothing is under way then."""
    under_way: deque[tuple[int, Any]] = deque()
    digests: list[bytes] = []

    def take() -> None:
        slot, read = under_way.popleft()
        if read.get() < stride:
            raise OSError(f"{path}: less was read than is there")
        digests.extend(landing.digests([slot]))
        landing.give_back(slot)

    try:
        for page in range(pages):
            slot = landing.take()
            if slot is None:
                take()
                slot = landing.take()
            under_way.append((slot, files.read(path, landing.memory[slot, :stride], page * stride)))
        while under_way:
            take()
    finally:
        for _, read in under_way:
            read.get()
    return digests
