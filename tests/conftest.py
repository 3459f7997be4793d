"""Fixtures shared by all rooms' tests."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import multiprocessing.util
import os
import shutil
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import settings

# `tests` is not installed: its helpers are found beside this file.
sys.path.insert(0, str(Path(__file__).parent))

from support.examples import ALL_VARIABLE, SHARE, examples, exhaustive
from support.redis import only_the_bundled
from support.threads import assert_engine_threads_ended

LEFT_OUT = pytest.StashKey[int]()
#: Bytes of memory that a process of tests has when all of them are imported.
IMPORTED = pytest.StashKey[int]()
#: Seconds after which a test hangs, of those that `--all` runs: many worlds, each some seconds, on a machine that may
#: be three times slower than others. Of the default run pyproject.toml says it.
HANGS_OF_ALL = 1500
#: Bytes of memory that a process of tests may keep from one file to the next.
MOST_KEPT = 1 << 30
#: Files that take longest, by their own time or by waiting: begun first, so that none is left to one process alone.
LONGEST = (
    "tests/sglang_ext/test_donation.py",
    "tests/ops/test_console_demo.py",
    "tests/ops/gpu_proof/test_proof.py",
    "tests/kernels/test_compiled.py",
    "tests/ops/gpu_proof/test_lending.py",
    "tests/test_wheel.py",
    "tests/ops/torture/test_neighbours.py",
)
#: With `--all` these come before them: ten minutes to half an hour each.
LONGEST_OF_ALL = (
    "tests/sglang_ext/test_drafts.py",
    "tests/ops/simulate/test_command.py",
    "tests/ops/test_smoke.py",
    "tests/radix_tiering/test_worlds.py",
    "tests/ops/torture/test_ranks.py",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all", action="store_true", help="also the tests that are marked `exhaustive`, and every random example"
    )
    parser.addoption(
        "--late", action="store_true", help="threads of the engine get their turns late, in the tests' own process"
    )


@pytest.hookimpl(tryfirst=True)  # before pytest-timeout, which reads its variable
def pytest_configure(config: pytest.Config) -> None:
    """Before any test file is read, since some of them look for Redis, or say how many examples they want."""
    if config.getoption("--all"):
        os.environ[ALL_VARIABLE] = "1"
        os.environ.setdefault("PYTEST_TIMEOUT", str(HANGS_OF_ALL))
    if config.getoption("--late"):
        from support import late_threads

        late_threads.install()
    # Two processes share the tests. Models so small gain nothing by more threads, and threads that wait for each other
    # at every step, on cores that others want too, make them slower by a factor of ten.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # A machine that does something else for a moment fails no test: pytest-timeout sees to those that hang.
    settings.register_profile("swift", deadline=None, max_examples=examples(100))
    settings.load_profile("swift")
    logging.setLogRecordFactory(_without_frames)
    if not hasattr(config, "workerinput"):
        _have_a_place_for_temporary_files()
    decoys = tempfile.TemporaryDirectory(prefix="swift-decoys-")
    only_the_bundled(Path(decoys.name))
    config.add_cleanup(decoys.cleanup)
    config.stash[LEFT_OUT] = 0


def _have_a_place_for_temporary_files() -> None:
    """All that is made beside pytest's own directories, by whatever process, is gone with the tests: a server of SGLang
    leaves half a dozen sockets and files, and they start hundreds. Its name is short, as a socket's has to be."""
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # what failed can be looked at
    os.environ["TMPDIR"] = tempfile.tempdir = place = tempfile.mkdtemp(prefix="st-")
    Path(place).chmod(0o1777)  # everybody's, as what it stands for
    # In this process alone, and behind what `multiprocessing` takes away of its own, at -100.
    multiprocessing.util.Finalize(None, shutil.rmtree, (place, True), exitpriority=-200)


def _without_frames(*arguments: Any, **named: Any) -> logging.LogRecord:
    """pytest keeps what a test logs, and an exception its frames: a whole engine for each that was injected, 11 GB in a
    test of 4,000 worlds."""
    record = logging.LogRecord(*arguments, **named)
    if record.exc_info:
        record.exc_text, record.exc_info = logging.Formatter().formatException(record.exc_info), None
    return record


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """This process is a user's whom the list of users does not know, and no variable says where its home is."""
    tmp_path_factory.getbasetemp()  # which is made for whoever runs the tests
    unknown = 4_100_000_000
    monkeypatch.setattr(os, "getuid", lambda: unknown)
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RuntimeError):
        Path.home()


@pytest.fixture(scope="module", autouse=True)
def _nothing_outlives_its_file(pytestconfig: pytest.Config) -> Iterator[None]:
    """What tests of a file have made by `support.engine` and left open is closed with it; what they have begun
    otherwise, and not ended, fails them, not whatever comes next."""
    yield
    engine = sys.modules.get("support.engine")
    try:
        if engine is None:
            assert_engine_threads_ended()
        else:
            engine.end_all()
    finally:
        give_memory_back(pytestconfig.stash[IMPORTED])


def pytest_collection_finish(session: pytest.Session) -> None:
    """What has been imported by now stays: some millions of objects, through which nobody has to look for garbage."""
    gc.collect()
    gc.freeze()
    session.config.stash[IMPORTED] = psutil.Process().memory_info().rss


def give_memory_back(imported: int) -> None:
    """What worlds and models have had, and the allocator keeps in pieces: several GB after some thousand tests, beside
    which the servers of others find none. `imported`: bytes that the process had before its tests."""
    if psutil.Process().memory_info().rss > imported + MOST_KEPT:
        gc.collect()
        with contextlib.suppress(AttributeError):  # of glibc alone
            ctypes.CDLL(None).malloc_trim(0)


@pytest.fixture
def anyio_backend() -> str:
    """Tests of coroutines run on asyncio, which Textual is made for."""
    return "asyncio"


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist, which reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not exhaustive():
        leave_out_the_exhaustive(config, items)
    if hasattr(config, "workerinput"):
        share_out(items)


def leave_out_the_exhaustive(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What only `--all` runs; its number is told in the end."""
    left_out = [item for item in items if item.get_closest_marker("exhaustive")]
    if left_out:
        items[:] = [item for item in items if not item.get_closest_marker("exhaustive")]
        config.hook.pytest_deselected(items=left_out)
        config.stash[LEFT_OUT] = len(left_out)


def share_out(items: list[pytest.Item]) -> None:
    """Where two processes share the tests, one begins with those that start servers, and has all of them; each file
    stays whole, since its tests share what they have started."""
    for item in items:
        file = item.nodeid.partition("::")[0]
        item.add_marker(pytest.mark.xdist_group("servers" if file.startswith("tests/e2e/") else file))
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    """Its place in the order: servers, then what takes longest, then all others."""
    file = item.nodeid.partition("::")[0]
    if file.startswith("tests/e2e/"):
        return 0
    longest = (*LONGEST_OF_ALL, *LONGEST) if exhaustive() else LONGEST
    return 1 + (longest.index(file) if file in longest else len(longest))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """A server that ended by itself has said why in its log, which is gone with the machine that ran the tests."""
    report = yield
    error = None if call.excinfo is None else call.excinfo.value
    if detail := getattr(error, "detail", ""):
        report.sections.append(("what other programs wrote", str(detail)))
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Of several processes, each has left out the same tests, and tells the one that began them."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left_out"] = session.config.stash[LEFT_OUT]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    if left_out := getattr(node, "workeroutput", {}).get("left_out"):
        node.config.stash[LEFT_OUT] = left_out


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.stash[LEFT_OUT]:
        terminalreporter.write_line(
            f"{config.stash[LEFT_OUT]} exhaustive tests were deselected, and one of {SHARE} random examples tried: "
            "`./swift test --all` runs everything"
        )
