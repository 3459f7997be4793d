"""What it costs to know what a model is loaded from: reading its weights, and remembering them at the next start.

Reads a file of random bytes, or the weights of `--model`, as a server's start does, first as if for the first time and
then as any later start of this user: the ratio of both is bounded. What 16 GB of weights take follows from the
processor's time, as if a core and a fast enough disk were free: they are read while the model is loaded, by one thread
of low priority in each rank, and ranks of one machine share the files.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...base.arguments import path_argument
from ...commands.bench.report import Figure, finish, parser, ratio, spread, take_turns

#: The weights whose price is told.
TOLD_BYTES = 16e9


def main(argv: Sequence[str] | None = None) -> int:
    from swift_tiers.sglang_ext.build.content_names import ContentNames
    from swift_tiers.sglang_ext.build.weights import LoadedFiles, Source

    options = parser("identity", __doc__, rounds=5)
    options.add_argument("--model", metavar="FOLDER", type=path_argument, help="its weights; without it, random bytes")
    options.add_argument("--mib", type=int, default=512, help="size of the file of random bytes (%(default)s)")
    given = options.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="swift-tiers-bench-") as folder:
        source = Source(str(given.model or _random_model(Path(folder) / "model", given.mib)))
        cache = Path(folder) / "names"
        # Its files are younger than those of servers, which are not remembered while they may still change.
        later = ContentNames(cache, clock=lambda: time.time() + 3600)
        LoadedFiles([source], later).digest(source)
        size = later.bytes_read
        times = take_turns(
            {
                "first": lambda: _times(LoadedFiles, source, ContentNames(None)),
                "later": lambda: _times(LoadedFiles, source, ContentNames(cache)),
            },
            given.rounds,
        )
    seconds = {name: [wall for wall, _ in values] for name, values in times.items()}
    processor = {name: [used for _, used in values] for name, values in times.items()}
    for name in times:
        print(spread(f"{name} start, {size / 1e9:.2f} GB", seconds[name], "s"))
        print(spread(f"{name} start, of a core", processor[name], "s"))
    speed = size / 1e9 / statistics.median(processor["first"])
    figures = [
        Figure("reading_per_core", speed, "GB/s"),
        Figure("first_start_of_16GB", TOLD_BYTES / 1e9 / speed, "s"),
        Figure("later_start", 1e3 * statistics.median(seconds["later"]), "ms"),
        Figure("later_over_first", ratio(seconds["later"], seconds["first"]), at_most=0.1),
    ]
    return finish("identity", figures, {"seconds": seconds, "processor_seconds": processor, "bytes": size}, given.json)


def _times(loaded: Callable[..., Any], source: Any, names: Any) -> tuple[float, float]:
    """Seconds, and seconds of a processor, until the digest of `source` is known."""
    started, used = time.perf_counter(), time.process_time()
    loaded([source], names).digest(source)
    return time.perf_counter() - started, time.process_time() - used


def _random_model(folder: Path, mib: int) -> Path:
    folder.mkdir()
    with open(folder / "model.safetensors", "wb") as file:
        for _ in range(mib):
            file.write(os.urandom(2**20))
    return folder


if __name__ == "__main__":
    raise SystemExit(main())
