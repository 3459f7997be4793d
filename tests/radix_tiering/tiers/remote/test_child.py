"""The engine in a process of its own: what it does there reaches no server."""

from __future__ import annotations

import json
import os
import queue
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from swift_tiers.radix_tiering.base.events import EventLog
from swift_tiers.radix_tiering.base.runner import THREADS
from swift_tiers.radix_tiering.base.units import Duration
from swift_tiers.radix_tiering.stack import TierStack
from swift_tiers.radix_tiering.tiers.remote import (
    ChildEngine,
    RemoteTier,
    child,
    child_engine,
    child_process,
    line,
    writes,
)
from swift_tiers.radix_tiering.tiers.remote.child_process import ChildMeeting
from swift_tiers.radix_tiering.tiers.remote.engine import (
    EngineAnswer,
    EngineEvent,
    EngineGone,
    EngineJob,
    EngineReady,
    Verb,
)
from swift_tiers.radix_tiering.tiers.remote.messages import Begin

from support.engine import GEOMETRY, chain, check, get, make_stack, put, settle, wait_until
from support.remote import RUN, SHAPE, remote_config, run_of, snapshot, wait_sent

#: How long a question may take here, where threads wait their turn.
QUESTION = Duration(0.5)
#: What a deadline may be missed by here: this machine is shared, and its threads wait their turn.
SLACK = 5.0


class Server:
    """A stack whose engine is a child with `support.directory_driver`."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.children: list[ChildEngine] = []
        settings = {"directory": str(directory), **options}

        def open_engine(tell: Callable[[Any], None]) -> ChildEngine:
            make = partial(ChildEngine, "support.directory_driver:open_directory", "directory", settings)
            self.children.append(make(8, SHAPE.stride, tell))
            return self.children[-1]

        events = EventLog(THREADS.time)
        self.tier = RemoteTier(
            SHAPE,
            remote_config(lookup_deadline=QUESTION),
            open_engine,
            page_tokens=GEOMETRY.tokens,
            read_seconds=1.0,
            events=events,
        )
        self.stack: TierStack = make_stack(64, clock=time.monotonic, others=[self.tier], events=events)

    def wait_ready(self) -> Server:
        wait_until(lambda: self.tier.snapshot().ready, "the child is never ready")
        return self

    def reasons(self) -> list[object]:
        kinds = ("remote.cannot_be_opened", "remote.engine_gone")
        return [event.fields["reason"] for event in self.stack.events.since() if event.kind in kinds]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Server]:
    tests = str(Path(__file__).parents[3])
    monkeypatch.setenv("PYTHONPATH", tests + os.pathsep + os.environ.get("PYTHONPATH", ""))
    return partial(Server, tmp_path)


def test_what_one_child_wrote_another_reads_and_none_is_left(server: Callable[..., Server], tmp_path: Path) -> None:
    first = server().wait_ready()
    keys = run_of("a", 3)
    put(first.stack, keys)
    wait_sent(first.stack)
    first.stack.close()
    with pytest.raises(ProcessLookupError):
        os.kill(first.children[0].pid, 0)
    second = server().wait_ready()
    wait_until(lambda: get(second.stack, keys) == 3 * RUN, "what the first one wrote is never read")
    check(second.stack)


@pytest.mark.parametrize("spins", [False, True])
def test_threads_that_wait_by_asking_take_no_processor_that_somebody_wants(
    server: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spins: bool
) -> None:
    """With a client that spins, the tier took half of two cores from the node that it waited for."""
    # What gets no processor where everybody wants one is late, and is not given up here.
    monkeypatch.setattr(writes, "WRITE_SECONDS", 300.0)
    monkeypatch.setattr(line, "JOB_SECONDS", 300.0)
    first, keys = server(spins=spins).wait_ready(), run_of("a", 3)
    put(first.stack, keys)
    wait_sent(first.stack)
    waits = os.SCHED_IDLE if spins else os.SCHED_OTHER
    assert json.loads((tmp_path / "policies").read_text()) == {"exists": os.SCHED_OTHER, "put": waits}
    second = server(spins=spins).wait_ready()
    # Where everybody wants a processor, those that wait by asking get none in time.
    wait_until(lambda: get(second.stack, keys) == 3 * RUN, "what the first one wrote is never read")
    assert json.loads((tmp_path / "policies").read_text()) == {"exists": os.SCHED_OTHER, "get": waits}


@pytest.mark.parametrize("how", [signal.SIGSEGV, signal.SIGSTOP, "get hangs", "get raises"])
def test_no_answer_late_and_no_byte_wrong_whatever_becomes_of_it(
    server: Callable[..., Server], tmp_path: Path, how: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "JOB_SECONDS", 2.0)
    first, second = server().wait_ready(), server().wait_ready()
    keys, others = run_of("a", 2), run_of("b", 2)
    for chains in (keys, others):
        put(first.stack, chains)
    wait_sent(first.stack)
    if isinstance(how, str):
        (tmp_path / "trouble").write_text(how)
    else:
        os.kill(second.children[0].pid, how)
    began = time.monotonic()
    restore = settle(second.stack, second.stack.restore(keys))
    assert time.monotonic() - began < 1.0 + SLACK
    assert restore.pages == 0
    second.stack.restorer.release(restore)
    (tmp_path / "trouble").unlink(missing_ok=True)
    if how in (signal.SIGSEGV, signal.SIGSTOP):
        # A stopped one is noticed by what it does not answer, and replaced after a while.
        wait_until(
            lambda: get(second.stack, chain("c", *range(RUN))) == 0 and len(second.children) == 2, "no new child"
        )
        second.wait_ready()
        assert snapshot(second.stack).lives == 2
        wait_until(lambda: get(second.stack, others) == 2 * RUN, "the new one is not asked")
    check(second.stack)


class Ranks:
    """Of one server on one machine: engines that meet, each with what it was told."""

    def __init__(self, directory: Path, places: int, **options: Any) -> None:
        self.meeting = ChildMeeting(str(directory), places, directory / "meeting")
        self.settings = {"directory": str(directory), **options}
        self.told: list[queue.Queue[EngineEvent]] = []
        self.engines: list[ChildEngine] = []

    def begin(self, slots: int = 2) -> ChildEngine:
        told: queue.Queue[EngineEvent] = queue.Queue()
        driver = "support.directory_driver:open_directory"
        engine = ChildEngine(driver, "directory", self.settings, slots, 4096, told.put, self.meeting)
        self.told.append(told)
        self.engines.append(engine)
        return engine

    def hear(self, rank: int) -> EngineEvent:
        return self.told[rank].get(timeout=60)

    def do(self, rank: int, verb: Verb, name: str, slot: int) -> list[bool]:
        assert self.engines[rank].ask(EngineJob(1, verb, [name], [slot] if verb != "exists" else []))
        answer = self.hear(rank)
        assert isinstance(answer, EngineAnswer)
        return list(answer.done)


@pytest.fixture
def ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Ranks]]:
    tests = str(Path(__file__).parents[3])
    monkeypatch.setenv("PYTHONPATH", tests + os.pathsep + os.environ.get("PYTHONPATH", ""))
    made: list[Ranks] = []

    def make(places: int, **options: Any) -> Ranks:
        made.append(Ranks(tmp_path, places, **options))
        return made[-1]

    yield make
    for one in made:
        for engine in one.engines:
            engine.end()


def test_ranks_of_a_machine_have_one_child_and_slots_of_their_own(ranks: Callable[..., Ranks], tmp_path: Path) -> None:
    three = ranks(3)
    first, second, third = (three.begin() for _ in range(3))
    assert {second.pid, third.pid} == {first.pid}
    assert all(isinstance(three.hear(rank), EngineReady) for rank in range(3))
    for rank, engine in enumerate(three.engines):
        engine.memory[:] = rank + 1
    assert [int(engine.memory.sum()) for engine in three.engines] == [2 * 4096 * rank for rank in (1, 2, 3)]
    for rank in range(3):
        assert three.do(rank, "put", f"of-{rank}", slot=1) == [True]
    assert three.do(0, "get", "of-2", slot=0) == [True]
    assert set(first.memory[0]) == {3}
    assert set(second.memory[0]) == {2}, "another rank's slot was written to"
    assert three.do(1, "exists", "of-3", slot=0) == [False]


@pytest.mark.parametrize("who", [0, 1])
def test_when_their_child_dies_or_is_given_up_all_of_them_hear_it_and_begin_anew(
    ranks: Callable[..., Ranks], who: int
) -> None:
    """Whoever began it."""
    two = ranks(2)
    pid = {two.begin().pid for _ in range(2)}.pop()
    assert all(isinstance(two.hear(rank), EngineReady) for rank in range(2))
    os.kill(pid, signal.SIGSTOP)
    two.engines[who].end()
    assert two.told[who].empty(), "it has been told of its own end"
    assert isinstance(two.hear(1 - who), EngineGone)
    again = ranks(2)
    other = {again.begin().pid for _ in range(2)}
    assert len(other) == 1
    assert other != {pid}
    assert all(isinstance(again.hear(rank), EngineReady) for rank in range(2))


def test_they_begin_at_once_and_one_of_them_owns_it(ranks: Callable[..., Ranks]) -> None:
    """Threads stand for processes: who binds is drawn by the kernel. The child ends with the one that began it."""
    four = ranks(4)
    with ThreadPoolExecutor(4) as threads:
        pids = set(threads.map(lambda _: four.begin().pid, range(4)))
        assert len(pids) == 1
        assert all(isinstance(four.hear(rank), EngineReady) for rank in range(4))


def test_an_engine_that_cannot_be_opened_is_no_ranks(ranks: Callable[..., Ranks]) -> None:
    """The second one may come when the first one's has ended already, and is told by one of its own."""
    two = ranks(2, refuses=True)
    for rank in range(2):
        two.begin()
        gone = two.hear(rank)
        assert isinstance(gone, EngineGone)
        assert "no store answers at this address" in gone.reason


def test_an_engine_that_cannot_be_opened_has_one_line_in_the_log(
    ranks: Callable[..., Ranks], capfd: pytest.CaptureFixture[str]
) -> None:
    """It is tried up to every minute, for as long as the server lives."""
    one = ranks(1, refuses=True)
    one.begin()
    assert isinstance(one.hear(0), EngineGone)
    one.engines[0].end()
    (line,) = capfd.readouterr().err.splitlines()
    assert "directory cannot be opened: ConnectionError('no store answers at this address')" in line
    assert "swift-tiers doctor" in line


def test_an_error_is_told_with_the_answer_and_logged_once(
    ranks: Callable[..., Ranks], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    one = ranks(1)
    engine = one.begin()
    assert isinstance(one.hear(0), EngineReady)
    for what in ("exists raises", "get raises"):
        (tmp_path / "trouble").write_text(what)
        verb: Verb = "exists" if "exists" in what else "get"
        for number in range(20):
            assert engine.ask(EngineJob(number, verb, ["one", "two"], [0, 1] if verb == "get" else []))
            error = f"{verb}: OSError('the store says no')"
            assert one.hear(0) == EngineAnswer(number, [False, False], error)
    (tmp_path / "trouble").unlink()
    assert engine.ask(EngineJob(20, "exists", ["one"], []))
    assert one.hear(0) == EngineAnswer(20, [False], "")
    lines = capfd.readouterr().err.splitlines()
    assert [line.partition(" remote: ")[2].partition(":")[0] for line in lines] == ["exists", "get"]


def test_no_more_are_let_in_than_there_are_places(ranks: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch) -> None:
    one = ranks(1)
    one.begin()
    assert isinstance(one.hear(0), EngineReady)
    monkeypatch.setattr(child_process, "time", SimpleNamespace(monotonic=count(0, 3).__next__, sleep=time.sleep))
    with pytest.raises(OSError, match="its 1 places are taken"):
        one.begin()


def descriptors() -> set[str]:
    """What this process has open."""
    links = [Path(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
    return {os.readlink(link) for link in links if link.is_symlink()}


def test_a_rank_that_cannot_be_let_in_leaves_its_place_and_no_descriptor(
    ranks: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    two = ranks(2)
    first = two.begin()
    assert isinstance(two.hear(0), EngineReady)
    before = descriptors()

    times = [0.0]  # by which it is tried again

    def no_memory(*arguments: Any) -> Any:
        times.append(2 * child_process.MEET_SECONDS)
        raise OSError("no memory is to be had")

    with monkeypatch.context() as broken:
        broken.setattr(child_process, "time", SimpleNamespace(monotonic=lambda: times[-1], sleep=time.sleep))
        broken.setattr(child_process, "_slots", no_memory)
        with pytest.raises(OSError, match="no memory is to be had"):
            two.begin()
    assert descriptors() == before
    assert two.begin().pid == first.pid
    assert isinstance(two.hear(1), EngineReady)


def test_an_engine_that_nobody_can_hear_is_none(ranks: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch) -> None:
    one, begun = ranks(1), list[int]()

    def no_thread(engine: Any) -> None:
        raise RuntimeError("can't start new thread")

    begin_or_meet = child_engine.begin_or_meet

    def noted(*arguments: Any) -> Any:
        process = begin_or_meet(*arguments)
        begun.append(process.pid)
        return process

    monkeypatch.setattr(child_engine, "begin_or_meet", noted)
    with monkeypatch.context() as broken:
        broken.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError, match="new thread"):
            one.begin()
    with pytest.raises(ProcessLookupError):
        os.kill(begun[0], 0)
    one.begin()
    assert isinstance(one.hear(0), EngineReady)


def test_the_slots_of_a_rank_that_has_ended_are_anothers_when_nothing_is_read_into_them_any_more() -> None:
    goes_on, begun = threading.Event(), threading.Event()

    class Driver:
        spins = False

        def get(self, names: Sequence[str], slots: Sequence[int]) -> list[bool]:
            begun.set()
            assert goes_on.wait(60)
            return [True]

    one = child._Child(msgspec.msgpack.encode(Begin("", "", {}, 2, 4096)), 1, -1)
    one.opened(Driver())  # type: ignore[arg-type]
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    serving = threading.Thread(target=one.serve, args=(one.add(its, 0),))
    serving.start()
    ours.send(msgspec.msgpack.encode(EngineJob(1, "get", ["one"], [0])))
    assert begun.wait(60)
    ours.close()
    serving.join(60)
    assert one._free_place() is None
    goes_on.set()
    wait_until(lambda: one._free_place() == 0, "its place is never free")
    assert its.fileno() < 0
    for lane in one._lanes.values():
        lane.shutdown()


def sockets_of(pid: int) -> set[str]:
    """Names of a process's unix sockets."""
    links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
    inodes = {link[len("socket:[") : -1] for link in links if link.startswith("socket:[")}
    rows = [row.split() for row in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return {row[7] for row in rows if row[6] in inodes and len(row) > 7}


def test_they_meet_where_no_other_user_comes_and_leave_nothing_there(
    ranks: Callable[..., Ranks], tmp_path: Path
) -> None:
    """Whoever binds the name of an abstract socket first keeps its owner off: anybody on the machine can."""
    two = ranks(2)
    two.meeting = two.meeting._replace(directory=tmp_path / ("long" * 40))  # more than the name of a socket may have
    first, second = two.begin(), two.begin()
    assert second.pid == first.pid
    assert isinstance(two.hear(0), EngineReady)
    assert sockets_of(first.pid)
    assert not [name for name in sockets_of(first.pid) if name.startswith("@")]
    assert two.meeting.directory.stat().st_mode & 0o777 == 0o700
    assert [file.stat().st_mode & 0o777 for file in two.meeting.directory.iterdir()] == [0o600] * 2
    for engine in (second, first):
        engine.end()
    assert not list(two.meeting.directory.iterdir())


def test_what_a_killed_one_has_left_there_is_removed_by_the_next_one(ranks: Callable[..., Ranks]) -> None:
    others, again = ranks(2, of="others"), ranks(2)
    others.begin()
    others.engines[0]._process._directory = None  # who began it is killed with it
    assert isinstance(others.hear(0), EngineReady)
    others.engines[0].end()
    left = set(again.meeting.directory.iterdir())
    assert len(left) == 2
    assert len({again.begin().pid, again.begin().pid}) == 1
    there = set(again.meeting.directory.iterdir())
    assert len(there) == 2
    assert not there & left


@pytest.mark.parametrize("trouble", ["open", "sockets"])
def test_where_they_cannot_meet_each_of_them_has_a_child_of_its_own(
    ranks: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, trouble: str
) -> None:
    """The usual place may lie in /tmp: whoever makes it first keeps nobody's store off."""
    two = ranks(2)
    if trouble == "open":
        two.meeting.directory.mkdir()
        two.meeting.directory.chmod(0o777)
    else:
        monkeypatch.setattr(child_process, "_socket_path", lambda directory, name: f"/proc/version/{name}")
    assert len({two.begin().pid for _ in range(2)}) == 2
    assert all(isinstance(two.hear(rank), EngineReady) for rank in range(2))
    assert two.do(0, "put", "one", slot=0) == [True]
    assert two.do(1, "get", "one", slot=1) == [True]
    said = "is open to others" if trouble == "open" else "can have no socket (Not a directory)"
    assert [said in record.getMessage() for record in caplog.records] == [True] * 2
    assert f"peer.directory (unset: bus.directory): {two.meeting.directory} " in caplog.text


def test_a_child_that_has_no_descriptor_left_lets_ranks_in_when_it_has_one_again(
    ranks: Callable[..., Ranks], capfd: pytest.CaptureFixture[str]
) -> None:
    two, said = ranks(2), list[str]()

    def log() -> str:
        said.append(capfd.readouterr().err)
        return "".join(said)

    first = two.begin()
    assert isinstance(two.hear(0), EngineReady)
    soft, hard = resource.prlimit(first.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(first.pid, resource.RLIMIT_NOFILE, (0, hard))
    with ThreadPoolExecutor(1) as thread:
        second = thread.submit(two.begin)
        wait_until(lambda: "no rank can be let in" in log(), "it goes on as if nothing had happened, or has ended")
        resource.prlimit(first.pid, resource.RLIMIT_NOFILE, (soft, hard))
        assert second.result().pid == first.pid
    assert isinstance(two.hear(1), EngineReady)
    assert log().count("no rank can be let in") == 1


def test_what_an_engine_makes_is_for_its_user_alone(ranks: Callable[..., Ranks], tmp_path: Path) -> None:
    """Engines of files make them readable to all, and directories too, as far as the umask lets them."""
    one = ranks(1, alone=True)
    old = os.umask(0o022)
    try:
        one.begin()
    finally:
        os.umask(old)
    assert isinstance(one.hear(0), EngineReady)
    assert one.do(0, "put", "one", slot=0) == [True]
    (file,) = tmp_path.rglob("one")
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_siblings_meet_and_nobody_else() -> None:
    """A process and what it starts are no siblings."""
    words = "import sys; from swift_tiers.radix_tiering.tiers.remote.child_process import ChildMeeting; "
    command = [sys.executable, "-c", words + "print(ChildMeeting.of_siblings(2, None).key)"]
    keys = {subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() for _ in range(2)}
    assert len(keys) == 1
    assert keys != {ChildMeeting.of_siblings(2, Path("/")).key}
    two, three = ChildMeeting("key", 2, Path("/")), ChildMeeting("key", 3, Path("/"))
    assert len({two.name(b"a"), two.name(b"b"), three.name(b"a")}) == 3


def test_an_engine_that_cannot_be_opened_says_why(server: Callable[..., Server]) -> None:
    alone = server(refuses=True)
    wait_until(alone.reasons, "nobody is told")
    assert "no store answers at this address" in str(alone.reasons()[0])
    assert get(alone.stack, run_of("a")) == 0
    check(alone.stack)


def test_one_that_is_met_is_killed_whatever_its_descriptor_is() -> None:
    """`select` takes none above 1,023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("no process may have so many descriptors here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        met = child_process.MetProcess.__new__(child_process.MetProcess)
        met._lock, met._process = threading.Lock(), os.pidfd_open(process.pid)
        assert met._process >= 1024
        met.kill()
        met.kill()
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        process.kill()
    assert process.wait() == -signal.SIGKILL
    assert met._process < 0
