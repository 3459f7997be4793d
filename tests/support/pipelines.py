"""Pipelines of real processes: started together or one alone, and what they answered."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

#: A guard against hanging, not a measure; importing torch takes its time on a busy machine.
PATIENCE = 240.0


class Pipeline:
    """The stages of one model, whose device files lie in one directory."""

    def __init__(self, directory: Path, stages: int) -> None:
        self.directory = directory
        self.stages = stages

    def run(self, role: str, numbers: Iterable[int] | None = None, *, together: bool = False) -> list[dict[str, Any]]:
        """Start these stages, all by default, each in a process of its own, and wait until all have ended; what each
        said. `role`: "store" or "restore"; `together`: having restored they compute what is left of the prompt."""
        wanted = list(range(self.stages) if numbers is None else numbers)
        children = [self._start(role, number, together) for number in wanted]
        try:
            return [self._answer(child) for child in children]
        finally:
            for child in children:
                child.kill()
                child.wait()
                child.stdout.close()  # type: ignore[union-attr]

    def saved(self, role: str, number: int, what: str = "kv") -> np.ndarray:
        """What a stage had on its device at the end of a role, or what went into it."""
        with np.load(self.directory / f"{role}-{number}.npz") as arrays:
            content: np.ndarray = arrays[what]
        return content

    def damage(self, number: int, kind: str, page: np.ndarray) -> None:
        """Flip a byte of a page on a stage's devices, which has to be there once; see `device_files`."""
        start = np.ascontiguousarray(page).tobytes()[:64]
        found = 0
        for path in sorted(self.directory.glob(f"stage{number}-{kind}-*.stripe")):
            content = bytearray(path.read_bytes())
            if (at := content.find(start)) >= 0:
                found += 1
                content[at] ^= 1
                path.write_bytes(content)
        assert found == 1, f"the page lies on {found} devices"

    def _start(self, role: str, number: int, together: bool) -> subprocess.Popen[bytes]:
        options = {"role": role, "directory": str(self.directory), "number": number, "stages": self.stages}
        command = [sys.executable, "-m", "support.pipeline_child", json.dumps({**options, "together": together})]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        return subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)

    @staticmethod
    def _answer(child: subprocess.Popen[bytes]) -> dict[str, Any]:
        output, _ = child.communicate(timeout=PATIENCE)
        assert child.returncode == 0, f"ended with {child.returncode}; said {output.decode()}"
        answer: dict[str, Any] = json.loads(output.splitlines()[-1])
        return answer
