"""What the next start of a server may use of the pages that an earlier one stored: real schedulers, by turns."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from swift_tiers.ops.base.model import tiny_model

from support.clocks import file_clock_moved
from support.scheduler_process import SchedulerProcess
from support.slow_link import has_found_its_pages

pytestmark = pytest.mark.timeout(600)

PROMPT = random.Random(1).choices(range(1, 250), k=400)
#: Where the child process finds the weights to change: it imports this module anew.
WEIGHTS = "SWIFT_TEST_WEIGHTS"


def flip_bit(path: Path) -> None:
    """Change one bit of a weight and restore size and time, as `rsync -t` of another checkpoint might."""
    file_clock_moved(path)
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[-5] ^= 0x40
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def change_weights_while_they_are_loaded() -> None:
    """In the child, before its scheduler starts."""
    import sglang.srt.model_executor.model_runner as module

    load = module.ModelRunner.load_model

    def load_model(self, *args, **kwargs):
        load(self, *args, **kwargs)
        flip_bit(Path(os.environ[WEIGHTS]))

    module.ModelRunner.load_model = load_model


# ---- in the scheduler's process ----


def serve(s):
    """Where the prompt's pages came from, and which weights the pages are said to be of."""
    req = s.add(PROMPT)
    s.run()
    s.settle()
    return s.details(req), s.linker.stack.namespace.weights


def test_pages_of_other_weights_are_never_found(tmp_path: Path) -> None:
    model, ssd = tiny_model(tmp_path / "model"), tmp_path / "ssd"
    ssd.mkdir()
    (weights,) = model.glob("*.safetensors")
    config = {
        "host": {"size": "16MiB"},
        "ssd": {"directories": [str(ssd)], "size_per_device": "64MiB"},
        "restore": {"strategy": "load"},
        "policy": {"restore_deadline": "60s"},
        "bus": {"enabled": False},
    }
    arguments = [
        "--model-path", str(model), "--dtype", "float32", "--max-total-tokens", "2048",
        "--enable-swift-tiers", "--swift-tiers-config", json.dumps(config),
    ]  # fmt: skip
    environment = {WEIGHTS: str(weights)}

    def start(prepare: str = ""):
        with SchedulerProcess(arguments, environment, prepare) as process:
            process(has_found_its_pages)
            return process(serve)

    details, one = start()
    assert details.get("ssd", 0) == 0
    assert start() == ({"device": 0, "host": 0, "ssd": 384}, one), "the same weights: from ssd"
    details, unnamed = start(f"{__name__}.change_weights_while_they_are_loaded")
    assert unnamed.startswith("unnamed-"), "nobody knows which of both were loaded"
    assert details.get("ssd", 0) == 0, "KV of other weights was used"
