"""The hand on the process that lends: what is heard of one that fails, hangs or ends, and that none is left."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from swift_tiers.ops.commands.gpu_proof import donor_process
from swift_tiers.ops.commands.gpu_proof.donor_process import DonorProcess, LendingError
from swift_tiers.ops.commands.gpu_proof.lending_donor import DonorOptions

READY = 'print(\'{"ready": "GPU-0"}\', flush=True)'
ANSWERS = f"import sys\n{READY}\nfor line in sys.stdin: "


@contextmanager
def running(script: str) -> Iterator[DonorProcess]:
    with tempfile.TemporaryDirectory(prefix="swift-proof-") as directory:
        options = DonorOptions(directory, "d", 0, planes=2, plane_bytes=512, pages=4)
        with DonorProcess(options, [sys.executable, "-c", script]) as donor:
            yield donor
        assert donor._process.returncode is not None
        assert donor._process.stdin is not None
        assert donor._process.stdin.closed


def test_it_is_asked_and_answers_and_ends_with_its_input() -> None:
    with running(ANSWERS + 'print(\'{"heard": "%s"}\' % line.strip(), flush=True)') as donor:
        donor.wait_ready()
        assert donor.ask("recall") == {"heard": "recall"}
        assert donor.ask("restock") == {"heard": "restock"}
        donor.end()
        assert donor._process.returncode == 0


def test_what_it_could_not_do_is_raised() -> None:
    with running(ANSWERS + 'print(\'{"failure": "nothing came back"}\', flush=True)') as donor:
        donor.wait_ready()
        with pytest.raises(LendingError, match=r"^recall: nothing came back$"):
            donor.ask("recall")


@pytest.mark.parametrize("before", ["wait_ready", "ask"])
def test_one_that_ends_is_quoted(before: str) -> None:
    script = "import sys\n" + (READY if before == "ask" else "") + "\nsys.exit('out of memory')"
    with running(script) as donor:
        if before == "ask":
            donor.wait_ready()
            os.waitid(os.P_PID, donor._process.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(LendingError, match=r"^the process that lends has ended by itself: out of memory$"):
            donor.ask("recall") if before == "ask" else donor.wait_ready()


def test_one_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(donor_process, "_ANSWER_SECONDS", 0.05)
    with running(f"import signal\n{READY}\nwhile True: signal.pause()") as donor:
        donor.wait_ready()
        with pytest.raises(LendingError, match="did not answer within"):
            donor.ask("recall")
        assert Path(f"/proc/{donor._process.pid}").exists()


def test_one_that_is_killed_leaves_nothing() -> None:
    with running(ANSWERS + "pass") as donor:
        donor.wait_ready()
        donor.kill()
        assert donor._process.returncode == -9
