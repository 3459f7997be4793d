"""The embedded Redis: one for all servers of a user on this machine, where no other is configured."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import time
import weakref
from pathlib import Path

from ...base.errors import BusError, ConfigError
from ...base.private_directory import SOCKET_PATH_BYTES, open_private_directory
from . import redis_child
from .redis_binary import child_environment, find_server

#: Memory that Redis may take; beyond it, it refuses what would need more (OOM). A server's state takes a few MiB.
MEMORY_BYTES = 256 * 2**20
#: The most that the log file, and anything else that Redis writes, may grow to.
FILE_BYTES = 2**20
#: How long a new Redis may take until it listens. It takes some 50 ms.
START_SECONDS = 5.0
#: ... and for one that was killed to have ended.
END_SECONDS = 5.0

_DIRECTORY_FIELD = "bus.directory"
_SOCKET = "redis.sock"
_LOCK = "redis.lock"
_LOG = "redis.log"


class EmbeddedRedis:
    """A participant in the embedded Redis of one directory; at any time one of them owns it, that is, runs it.

    Owner is who holds the lock file. When the owner ends, however it ends, the kernel releases the lock and kills its
    Redis; the next participant that calls `ensure` takes over with an empty one, so each must be ready to write its
    state anew. Redis listens on a unix socket in the directory and nowhere else, and keeps nothing on disk.

    `ensure` and `close` are to be called by one thread at a time, and `ensure` by **a thread that lives as long as the
    bus is wanted**: what makes the kernel kill Redis is the end of the thread that started it, not of its process.
    """

    def __init__(self, directory: str | Path | None = None) -> None:
        """Looks at nothing yet. Raises ConfigError if the directory's name is too long for a socket."""
        self.path = socket_path(directory)
        self._lock: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        _participants.add(self)

    def ensure(self) -> bool:
        """True if this participant owns a Redis that listens; False if another does, or is about to.

        To be called before every attempt to connect, and every second or so between (0.1 ms): it refuses a directory
        that others could reach into, starts Redis anew where it has ended, and gives it up where the lock file was
        removed and another participant has taken over. Waits for no other participant, only for its own Redis to
        listen, at most `START_SECONDS`. Raises ConfigError for the directory, BusError where no Redis can be started.
        """
        try:
            directory = open_private_directory(self.path.parent, _DIRECTORY_FIELD, create=True)
            try:
                return self._ensure(directory)
            finally:
                os.close(directory)
        except OSError as error:
            self.close()
            raise BusError(
                f"embedded Redis in {self.path.parent}: cannot be started ({error.strerror}); "
                "name another bus.directory, or set bus.url"
            ) from None
        except (BusError, ConfigError):
            self.close()
            raise

    def close(self) -> None:
        """End what this participant owns; safe to call twice. Its Redis has no chance to object: it is killed."""
        self._end_process()
        if self._lock is not None:
            if self._lock_is_in_place():
                self.path.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None

    def _ensure(self, directory: int) -> bool:
        if self._lock is not None and not self._lock_is_in_place():
            self.close()
        if self._lock is None:
            self._lock = _take_lock(directory)
            if self._lock is None:
                return False
            if not self._lock_is_in_place():
                self.close()
                return False
        if self._process is None or self._process.poll() is not None or not _listens(self.path):
            self._end_process()
            self._start(directory)
        return True

    def _end_process(self) -> None:
        if self._process is None:
            return
        # Not SIGTERM: on that, Redis removes the file at its socket's name, which may be its successor's by now.
        self._process.kill()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            pass  # stuck in the kernel; the next process that is started here reaps it
        self._process = None

    def _start(self, directory: int) -> None:
        # The socket of a Redis before this one, which may even listen for a moment yet.
        self.path.unlink(missing_ok=True)
        command = [sys.executable, "-I", "-S", redis_child.__file__, str(os.getpid()), str(FILE_BYTES)]
        command += [str(find_server()), *self._options()]
        log = os.open(_LOG, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600, dir_fd=directory)
        try:
            if os.fstat(log).st_size > FILE_BYTES // 2:
                os.ftruncate(log, 0)
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.path.parent,
                env=child_environment(),
                # Ctrl-C in a terminal is for the owner, which says on the bus that it ends.
                start_new_session=True,
            )
            self._await_listening(self._process, log)
        finally:
            os.close(log)

    def _options(self) -> list[str]:
        options = {
            "port": "0",
            "unixsocket": str(self.path),
            "unixsocketperm": "700",
            "daemonize": "no",
            "databases": "1",
            "save": "",
            "appendonly": "no",
            "maxmemory": str(MEMORY_BYTES),
            "maxmemory-policy": "noeviction",
            "loglevel": "warning",
            "logfile": "",  # its standard output, which is the log file here
        }
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        # A reader that reads no more (a stopped MONITOR) is let go before what it has not read fills the memory.
        return [*words, "--client-output-buffer-limit", "normal", "32mb", "8mb", "10"]

    def _await_listening(self, process: subprocess.Popen[bytes], log: int) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not _listens(self.path):
            code = process.poll()
            if code is not None or time.monotonic() > deadline:
                how = f"does not listen after {START_SECONDS:g} s" if code is None else f"ended with code {code}"
                raise BusError(
                    f"embedded Redis in {self.path.parent}: {how} ({_last_line(log)}); "
                    f"see {_LOG} there, or set bus.url to a Redis of your own"
                )
            time.sleep(0.005)

    def _lock_is_in_place(self) -> bool:
        """Whether the lock that is held is still the directory's: who cleans up /tmp may have removed the file."""
        if self._lock is None:
            return False
        try:
            named = os.stat(self.path.parent / _LOCK, follow_symlinks=False)
        except OSError:
            return False
        return os.path.samestat(named, os.fstat(self._lock))

    def _forget(self) -> None:
        """In a forked child: it neither holds the lock, which it would keep after the owner's end, nor owns Redis."""
        if self._lock is not None:
            os.close(self._lock)
        self._lock = self._process = None


_participants: weakref.WeakSet[EmbeddedRedis] = weakref.WeakSet()


def _forget_all() -> None:
    for participant in _participants:
        participant._forget()


os.register_at_fork(after_in_child=_forget_all)


def default_directory() -> Path:
    """`$XDG_RUNTIME_DIR/swift-tiers` where this user has such a directory, else `/tmp/swift-tiers-UID`."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and not unusable_runtime_directory():
        return Path(runtime).absolute() / "swift-tiers"
    return Path(f"/tmp/swift-tiers-{os.geteuid()}")


def unusable_runtime_directory() -> str:
    """Why the `$XDG_RUNTIME_DIR` that was given is not used; empty: it is, or there is none."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if not runtime:
        return ""
    try:
        owner = os.stat(runtime).st_uid
    except OSError as error:
        return f"{runtime} cannot be used ({error.strerror})"
    # A shell of another user (`sudo -E`) may have left its own; a volume of a pod is root's.
    return "" if owner == os.geteuid() else f"{runtime} belongs to uid {owner}"


def socket_path(directory: str | Path | None = None) -> Path:
    """Where the embedded Redis of `directory` (unset: the default one) listens. Raises ConfigError."""
    path = (default_directory() if directory is None else Path(directory).expanduser().absolute()) / _SOCKET
    length = len(os.fsencode(path))
    if length > SOCKET_PATH_BYTES:
        raise ConfigError(
            f"bus.directory: {path} is too long for a socket, {length} bytes of at most {SOCKET_PATH_BYTES}; "
            "name a shorter directory"
        )
    return path


def check_directory(directory: Path) -> None:
    """Raise ConfigError unless `directory` is absent, or is of this user alone."""
    if os.path.lexists(directory):
        os.close(open_private_directory(directory, _DIRECTORY_FIELD, create=False))


def _take_lock(directory: int) -> int | None:
    """The lock file's descriptor, locked; None if another holds it. Not inheritable, as all that Python opens."""
    lock = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=directory)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    except OSError:
        os.close(lock)
        raise
    return lock


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except BlockingIOError:
            pass  # it is busy, and its queue of connections is full
    return True


def _last_line(log: int) -> str:
    size = os.fstat(log).st_size
    text = os.pread(log, 2048, max(0, size - 2048)).decode(errors="replace").strip()
    return text.rpartition("\n")[2].strip() or "it wrote nothing"
