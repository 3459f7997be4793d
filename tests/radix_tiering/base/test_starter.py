"""By what a process knows the one that started it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from swift_tiers.radix_tiering.base.starter import Starter

SPACE = 4026531836


def proc(root: Path, process: int, started: int) -> Path:
    """/proc of a container."""
    (root / "self/ns").mkdir(parents=True)
    (root / "self/ns/pid").touch()
    folder = root / str(process)
    folder.mkdir()
    # The name of a program may have anything in it.
    (folder / "stat").write_text(f"{process} (a) b (c) S 1 {' '.join(['0'] * 17)} {started} 0 0\n")
    return root


def test_it_is_the_parent_as_all_of_its_children_see_it() -> None:
    words = "from swift_tiers.radix_tiering.base.starter import Starter; print(Starter.of_this_process().key)"
    keys = {subprocess.run([sys.executable, "-c", words], capture_output=True, text=True).stdout for _ in range(2)}
    assert len(keys) == 1
    space, process, started = map(int, keys.pop().split())
    assert process == os.getpid()
    assert not Starter(space, process, started).has_ended()
    assert Starter(space, process, started + 1).has_ended()


def test_containers_count_processes_alike(tmp_path: Path) -> None:
    """The next one of a server may even have the same namespace's number."""
    parent = os.getppid()
    first = Starter.of_this_process(proc(tmp_path / "first", parent, 100))
    then = Starter.of_this_process(proc(tmp_path / "then", parent, 2500))
    assert (first.process, first.started, then.started) == (parent, 100, 2500)
    assert first.key != then.key
    again = then._replace(started=first.started)
    assert again.key != then.key
    assert again.has_ended(tmp_path / "then")
    assert not then.has_ended(tmp_path / "then")


def test_of_another_container_nothing_is_known(tmp_path: Path) -> None:
    here = proc(tmp_path / "here", 7, 100)
    assert not Starter(SPACE, 7, 2500).has_ended(here)


def test_one_that_is_not_seen_has_a_number_all_the_same(tmp_path: Path) -> None:
    """Outside of this namespace, or where /proc is none."""
    found = Starter.of_this_process(tmp_path)
    assert found == (0, os.getppid(), 0)
    assert not found.has_ended(tmp_path)


def test_one_that_is_gone_has_ended(tmp_path: Path) -> None:
    here = proc(tmp_path / "here", 7, 100)
    space = os.stat(here / "self/ns/pid").st_ino
    assert Starter(space, 8, 100).has_ended(here)
    (here / "7/stat").unlink()
    (here / "7/stat").mkdir()  # cannot be read
    assert not Starter(space, 7, 100).has_ended(here)
