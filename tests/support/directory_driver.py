"""A driver for the remote tier's child: objects as files of a directory. It imports nothing that takes its time."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np


class DirectoryDriver:
    def __init__(self, options: dict[str, object], memory: np.ndarray) -> None:
        self._directory = Path(str(options["directory"]))
        self._memory = memory
        if options.get("refuses"):
            raise ConnectionError("no store answers at this address")
        self._trouble = self._directory / "trouble"
        self.spins = bool(options.get("spins"))
        self._tells = "spins" in options
        self._policies: dict[str, int] = {}
        if options.get("alone"):  # it shares nothing
            self._directory = self._directory / str(os.getpid())
            self._directory.mkdir()

    def exists(self, names: Sequence[str]) -> int:
        self._have_trouble("exists")
        there = [(self._directory / name).exists() for name in names]
        return there.index(False) if False in there else len(there)

    def get(self, names: Sequence[str], slots: Sequence[int]) -> list[bool]:
        self._have_trouble("get")
        return [self._get(self._directory / name, slot) for name, slot in zip(names, slots, strict=True)]

    def _get(self, path: Path, slot: int) -> bool:
        if not path.exists():
            return False
        raw = np.fromfile(path, np.uint8)
        self._memory[slot][: len(raw)] = raw
        return True

    def put(self, names: Sequence[str], slots: Sequence[int]) -> list[bool]:
        self._have_trouble("put")
        for name, slot in zip(names, slots, strict=True):
            self._memory[slot].tofile(self._directory / f".{name}.{os.getpid()}")
            os.replace(self._directory / f".{name}.{os.getpid()}", self._directory / name)
        return [True] * len(names)

    def _have_trouble(self, verb: str) -> None:
        """What a file `trouble` says: "get hangs", "exists raises". With an option `spins`, `policies` is told whose
        turn the thread's is."""
        if self._tells:
            self._policies[verb] = os.sched_getscheduler(0)
            (self._directory / "policies").write_text(json.dumps(self._policies))
        what = self._trouble.read_text() if self._trouble.exists() else ""
        while what == f"{verb} hangs":
            time.sleep(3600)
        if what == f"{verb} raises":
            raise OSError("the store says no")


def open_directory(engine: str, options: dict[str, object], memory: np.ndarray) -> DirectoryDriver:
    return DirectoryDriver(options, memory)
