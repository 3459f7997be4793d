"""Connections to a Redis: who may, over what, and the one line that is said when it cannot be."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import socket
import stat
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swift_tiers.radix_tiering.base.config import BusConfig
from swift_tiers.radix_tiering.base.errors import BusError, ConfigError, SwiftTiersError
from swift_tiers.radix_tiering.base.read_config import parse_config
from swift_tiers.radix_tiering.base.secret_file import read_secret
from swift_tiers.radix_tiering.bus.redis import connection
from swift_tiers.radix_tiering.bus.redis.connection import PASSWORD_VARIABLE, bus_errors, check, connect, describe
from swift_tiers.radix_tiering.bus.redis.redis_server import EmbeddedRedis

from support.redis import TLS, RealRedis, free_port, tls_proxy, wait_for

SECRET = "planted-marker"


def bus(**fields: Any) -> BusConfig:
    return parse_config({"bus": fields}).bus


def message_of(error: pytest.ExceptionInfo[BaseException]) -> str:
    """Of an error that is fit to be shown: one line, with a remedy, without a secret anywhere in its chain."""
    message = str(error.value)
    assert "\n" not in message
    assert ";" in message, f"no remedy: {message}"
    assert SECRET not in message
    assert SECRET not in "".join(traceback.format_exception(error.value))
    return message


@pytest.fixture(scope="module")
def server() -> Iterator[RealRedis]:
    with RealRedis(tcp=True) as server:
        yield server


@pytest.fixture
def fresh() -> Iterator[RealRedis]:
    """For tests that change it."""
    with RealRedis() as server:
        yield server


@pytest.fixture
def guarded(fresh: RealRedis) -> RealRedis:
    """`publisher` may write below `swift:`; without a user, nothing is allowed."""
    rights = ("~swift:*", "+hello", "+client|setname", "+set", "+get", "+ping")
    fresh.set_user("publisher", "on", f">{SECRET}", *rights)
    fresh.set_user("nobody", "on", f">{SECRET}")
    fresh.set_user("default", "off")
    return fresh


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text(f"{SECRET}\n")
    path.chmod(0o600)
    return path


@pytest.fixture(autouse=True)
def _no_password_around(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PASSWORD_VARIABLE, raising=False)


# ---- the ways to a Redis ----


def test_a_port_a_socket_and_a_database(server):
    urls = (server.url, f"redis://localhost:{server.port}/0", f"unix://{server.socket}", f"{server.url}/3")
    for number, url in enumerate(urls):
        with connect(bus(url=url), "one") as client:
            assert client.set("number", str(number)) is True
    assert server.admin.get("number") == "2"
    with server.client(db=3) as client:
        assert client.get("number") == "3"


def test_its_name_and_protocol_are_seen_by_the_server(server):
    with connect(bus(url=server.url), "host:30000:17"):
        names = {line["name"]: line for line in server.admin.client_list()}
    assert names["swift-tiers:host:30000:17"].get("resp", "2") == "2"


def test_text_that_is_none_does_no_harm(server):
    with connect(bus(url=server.url), "one") as client:
        client.set("key", b"\xff")
        assert client.get("key") == "\\xff"
        client.set("key", "\udcff")
        assert client.get("key") == "\\udcff"


def test_the_embedded_one(tmp_path_factory):
    directory = Path(tmp_path_factory.mktemp("bus")) / "d"
    config = bus(directory=str(directory))
    with pytest.raises(BusError) as caught:
        connect(config, "one")
    assert "not reachable" in message_of(caught)
    assert not directory.exists(), "made by a reader"
    embedded = EmbeddedRedis(directory)
    try:
        embedded.ensure()
        with connect(config, "one") as client:
            assert client.ping() is True
        directory.chmod(0o755)
        with pytest.raises(ConfigError, match="open to others"):
            connect(config, "one")
        directory.chmod(0o700)
    finally:
        embedded.close()


def test_the_embedded_one_has_no_password(tmp_path_factory, monkeypatch):
    """The variable is for other servers' sake: sent to a Redis without a password, it would be refused."""
    monkeypatch.setenv(PASSWORD_VARIABLE, SECRET)
    embedded = EmbeddedRedis(Path(tmp_path_factory.mktemp("bus")) / "d")
    try:
        embedded.ensure()
        with connect(bus(directory=str(embedded.path.parent)), "one") as client:
            assert client.ping() is True
    finally:
        embedded.close()


def test_a_new_connection_sends_what_every_redis_knows_and_no_more(fresh):
    """What it may send is a part of the rights that docs/bus.md lists. redis-py would add CLIENT SETINFO, which cannot
    be granted before Redis 7.2 and is logged as a denial there."""
    fresh.admin.config_set("slowlog-log-slower-than", 0)
    connect(bus(url=fresh.url), "one").close()
    fresh.admin.config_set("slowlog-log-slower-than", -1)
    sent = [entry["command"] for entry in fresh.admin.slowlog_get(100) if entry["client_name"] == b"swift-tiers:one"]
    assert sent == [b"HELLO 2", b"CLIENT SETNAME swift-tiers:one"]


# ---- passwords ----


@pytest.mark.parametrize("ending", ["", "\n", "\r\n"])
def test_a_password_from_a_file(guarded, password_file, ending):
    password_file.write_bytes(f"{SECRET}{ending}".encode())
    config = bus(url=guarded.url, username="publisher", password_file=str(password_file))
    with connect(config, "one") as client:
        assert client.set("swift:key", "value") is True


def test_a_password_from_the_environment_comes_second(guarded, password_file, monkeypatch):
    monkeypatch.setenv(PASSWORD_VARIABLE, SECRET)
    with connect(bus(url=guarded.url, username="publisher"), "one") as client:
        assert client.ping() is True
    monkeypatch.setenv(PASSWORD_VARIABLE, "wrong")
    with connect(bus(url=guarded.url, username="publisher", password_file=str(password_file)), "one") as client:
        assert client.ping() is True


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_a_password_that_was_read_from_a_file_into_the_environment(guarded, monkeypatch, ending):
    monkeypatch.setenv(PASSWORD_VARIABLE, f"{SECRET}{ending}")
    with connect(bus(url=guarded.url, username="publisher"), "one") as client:
        assert client.ping() is True


def test_a_password_for_the_default_user(fresh, password_file):
    fresh.set_user("default", "on", f">{SECRET}", "~*", "+@all")
    with connect(bus(url=fresh.url, password_file=str(password_file)), "one") as client:
        assert client.acl_whoami() == "default"


def test_a_user_without_a_password(fresh):
    fresh.set_user("open", "on", "nopass", "~*", "+@all")
    with connect(bus(url=fresh.url, username="open"), "one") as client:
        assert client.acl_whoami() == "open"


def test_a_changed_password_is_taken_up(guarded, password_file):
    config = bus(url=guarded.url, username="publisher", password_file=str(password_file))
    connect(config, "one").close()
    guarded.admin.execute_command("ACL", "SETUSER", "publisher", "resetpass", ">another")
    with pytest.raises(BusError, match="refused"):
        connect(config, "one")
    password_file.write_text("another")
    connect(config, "one").close()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: path.chmod(0o604), ["may be read by others", "mode 0604", "chmod 600", "defaultMode"]),
        (lambda path: path.unlink(), ["No such file"]),
        (lambda path: path.unlink() or path.mkdir(0o700), ["not a regular file"]),
        (lambda path: path.unlink() or os.mkfifo(path, 0o600), ["not a regular file"]),
        (lambda path: path.write_text(""), ["does not hold a password"]),
        (lambda path: path.write_text("\n"), ["does not hold a password"]),
        (lambda path: path.write_text(f"{SECRET}\n{SECRET}\n"), ["does not hold a password"]),
        (lambda path: path.write_text(SECRET * 1000), ["does not hold a password"]),
        (lambda path: path.write_bytes(b"\xff\xfe" + SECRET.encode()), ["does not hold a password"]),
    ],
)
def test_password_files_that_are_refused(server, password_file, spoil, words):
    spoil(password_file)
    config = bus(url=server.url, password_file=str(password_file))
    for attempt in (lambda: connect(config, "one"), lambda: check(config)):
        with pytest.raises(ConfigError) as caught:
            attempt()
        message = message_of(caught)
        assert message.startswith(f"bus.password_file: {password_file}")
        assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("owner", "mode", "allowed"),
    [
        (1000, 0o600, True),
        (1000, 0o400, True),
        (1000, 0o640, False),
        (1000, 0o604, False),
        (0, 0o600, True),
        (0, 0o440, True),  # as Kubernetes mounts a secret with defaultMode 0440
        (0, 0o640, True),
        (0, 0o644, False),
        (0, 0o660, False),
    ],
)
def test_whose_password_files_are_private(password_file, monkeypatch, owner, mode, allowed):
    real = os.fstat

    def fstat(fd: int) -> os.stat_result:
        told = list(real(fd))
        told[stat.ST_MODE], told[stat.ST_UID] = stat.S_IFREG | mode, owner
        return os.stat_result(told)

    monkeypatch.setattr("swift_tiers.radix_tiering.base.secret_file.os.fstat", fstat)
    if allowed:
        assert read_secret("bus.password_file", str(password_file), "a password") == SECRET
    else:
        with pytest.raises(ConfigError, match="may be read by others"):
            read_secret("bus.password_file", str(password_file), "a password")


def test_a_password_file_may_be_a_link(guarded, password_file, tmp_path):
    (tmp_path / "link").symlink_to(password_file)
    connect(bus(url=guarded.url, username="publisher", password_file=str(tmp_path / "link")), "one").close()


def test_secrets_are_nowhere(guarded, password_file, caplog):
    caplog.set_level(logging.DEBUG)
    config = bus(url=guarded.url, username="publisher", password_file=str(password_file))
    with connect(config, "one") as client:
        client.ping()
        pool = client.connection_pool
        places = [repr(client), repr(pool), str(vars(client)), str(pool.connection_kwargs), str(vars(pool))]
        held = pool.get_connection()
        places += [repr(held), str(vars(held))]
        pool.release(held)
        places += [repr(config), describe(config), caplog.text]
    assert not [place for place in places if SECRET in place]
    assert "publisher" in describe(config)


def test_secrets_are_not_in_the_command_line(guarded, password_file):
    """Of a process that is connected with one."""
    code = (
        "import sys\n"
        "from swift_tiers.radix_tiering.bus.redis.connection import connect\n"
        "from swift_tiers.radix_tiering.base.read_config import load_config\n"
        "client = connect(load_config(sys.argv[1]).bus, 'one')\n"
        "print(client.ping(), flush=True)\n"
        "sys.stdin.read()\n"
    )
    content = f'{{"bus": {{"url": "{guarded.url}", "username": "publisher", "password_file": "{password_file}"}}}}'
    command = [sys.executable, "-c", code, content]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        assert SECRET.encode() not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
        process.communicate()


# ---- what a Redis refuses ----


def test_no_password_where_one_is_needed(guarded):
    with pytest.raises(BusError) as caught:
        connect(bus(url=guarded.url), "one")
    assert "asks for a password; set bus.password_file" in message_of(caught)


def test_a_wrong_password(guarded, password_file, monkeypatch):
    password_file.write_text(f"{SECRET}-but-wrong")
    for user in ("publisher", "unknown"):
        with pytest.raises(BusError) as caught:
            connect(bus(url=guarded.url, username=user, password_file=str(password_file)), "one")
        assert "refused" in message_of(caught)
        assert "correct bus.username and bus.password_file" in message_of(caught)
    monkeypatch.setenv(PASSWORD_VARIABLE, f"{SECRET}-but-wrong")
    with pytest.raises(BusError) as caught:
        connect(bus(url=guarded.url), "one")
    assert f"correct ${PASSWORD_VARIABLE}" in message_of(caught)


def test_a_password_that_nobody_asked_for(server, password_file):
    with pytest.raises(BusError) as caught:
        connect(bus(url=server.url, password_file=str(password_file)), "one")
    assert "correct bus.password_file" in message_of(caught)


def test_a_user_without_rights(guarded, password_file):
    with pytest.raises(BusError) as caught:
        connect(bus(url=guarded.url, username="nobody", password_file=str(password_file)), "one")
    assert "not permitted" in message_of(caught)
    assert "docs/bus.md" in message_of(caught)


@pytest.mark.parametrize(
    "command",
    [lambda client: client.set("other:key", "of a prompt"), lambda client: client.lpush("swift:l", "of a prompt")],
)
@pytest.mark.parametrize("transaction", [True, False])
def test_a_right_that_is_missing(guarded, password_file, command, transaction):
    config = bus(url=guarded.url, username="publisher", password_file=str(password_file))
    guarded.set_user("publisher", "on", f">{SECRET}", "~swift:*", "+@connection", "+@transaction", "+set", "+get")
    with connect(config, "one") as client, client.pipeline(transaction=transaction) as pipeline:
        pipeline.set("swift:key", "of a prompt " * 50)
        command(pipeline)
        with pytest.raises(BusError) as caught, bus_errors(config):
            pipeline.execute()
    message = message_of(caught)
    assert "not permitted" in message
    assert "prompt" not in message, "values may be anything"
    assert len(message) < 500


def test_memory_that_is_full(fresh):
    config = bus(url=fresh.url)
    with connect(config, "one") as client:
        client.set("key", "value")
        fresh.fill()
        for command in (lambda: client.set("key", "more"), client.pipeline().set("key", "more").execute):
            with pytest.raises(BusError) as caught, bus_errors(config):
                command()
            assert "memory is full" in message_of(caught)
            assert "maxmemory" in message_of(caught)
        assert client.get("key") == "value"


def test_memory_that_fills_up():
    with RealRedis(maxmemory=2**22) as server:
        config = bus(url=server.url)
        with connect(config, "one") as client, client.pipeline(transaction=False) as pipeline:
            for number in range(64):
                pipeline.set(f"key {number}", "x" * 2**16)
            with pytest.raises(BusError, match="memory is full"), bus_errors(config):
                pipeline.execute()
            assert client.get("key 0") == "x" * 2**16


def test_a_replica(fresh):
    fresh.admin.replicaof("127.0.0.1", free_port())
    config = bus(url=fresh.url)
    with connect(config, "one") as client, pytest.raises(BusError) as caught, bus_errors(config):
        client.set("key", "value")
    assert "name the primary" in message_of(caught)


def test_one_that_loads(monkeypatch):
    monkeypatch.setattr(connection, "TIMEOUT_SECONDS", 20.0)
    with RealRedis(arguments=("--rdbcompression", "no")) as server:
        with server.admin.pipeline(transaction=False) as pipeline:
            for number in range(1000):
                pipeline.set(f"key {number}", "x" * 2**16)
            pipeline.execute()
        # 10 ms for each key, looking for commands after each 2 MiB: it is busy for 10 s, and answers every 0.3 s.
        server.restart("--key-load-delay", "10000", empty=False)
        config = bus(url=server.url)
        with connect(config, "one") as client, pytest.raises(BusError) as caught, bus_errors(config):
            client.get("key 1")
    assert "is loading its data; wait" in message_of(caught)


def test_a_redis_that_is_too_old(fresh, monkeypatch):
    monkeypatch.setattr(connection, "LOWEST_VERSION", (99, 1))
    with pytest.raises(BusError, match=r"is version \d+\.\d+\.\d+; upgrade it to 99\.1 or newer") as caught:
        connect(bus(url=fresh.url), "one")
    message_of(caught)
    # Before 6.0 there was no HELLO.
    fresh.restart("--rename-command", "HELLO", "")
    with pytest.raises(BusError, match=r"is older than Redis 6\.0; upgrade it") as caught:
        connect(bus(url=fresh.url), "one")
    message_of(caught)


def test_a_cluster(fresh):
    fresh.restart("--cluster-enabled", "yes")
    with pytest.raises(BusError, match="is a Redis Cluster, which is not supported; name a single server"):
        connect(bus(url=fresh.url), "one")


def test_any_other_refusal(server):
    config = bus(url=server.url)
    with connect(config, "one") as client:
        client.set("text", "text")
        with pytest.raises(BusError) as caught, bus_errors(config):
            client.xadd("text", {"a": "b"})
    assert "WRONGTYPE" in message_of(caught)


# ---- a Redis that is not there ----


def test_nothing_listens(tmp_path):
    for url in (f"redis://127.0.0.1:{free_port()}", f"unix://{tmp_path}/none", "redis://does-not-exist.invalid"):
        with pytest.raises(BusError) as caught:
            connect(bus(url=url), "one")
        message = message_of(caught)
        assert "not reachable" in message
        assert url.partition("://")[2] in message


def test_a_redis_that_goes_and_comes_back(fresh):
    config = bus(url=fresh.url)
    with connect(config, "one") as client:
        fresh.kill()
        for _ in range(3):
            with pytest.raises(BusError, match="not reachable"), bus_errors(config):
                client.ping()
        fresh.start()
        assert client.ping() is True, "the same client works again"


@pytest.mark.parametrize("silence", [RealRedis.sleep, RealRedis.pause])
def test_a_redis_that_does_not_answer(fresh, silence, monkeypatch):
    config = bus(url=fresh.url)

    def answers() -> bool | None:
        with contextlib.suppress(BusError), bus_errors(config):
            return bool(client.ping())
        return None

    with connect(config, "one") as client:
        # Where this machine is busy an answer may take longer than it is waited for from here on.
        client.connection_pool.connection_kwargs["socket_timeout"] = 0.1
        client.connection_pool.disconnect()
        wait_for(answers, "an answer")
        silence(fresh, 60)
        monkeypatch.setattr(connection, "TIMEOUT_SECONDS", 0.1)
        with pytest.raises(BusError, match=r"no answer within 0\.1 s") as caught, bus_errors(config):
            client.set("key", "value")
        message_of(caught)
        with pytest.raises(BusError, match=r"no answer within 0\.1 s"):
            connect(config, "two")
        fresh.restart()
        wait_for(answers, "the same client to work again")


def test_a_refused_connection_leaves_nothing_open(guarded):
    gc.collect()  # what others have left behind
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(BusError):
            connect(bus(url=guarded.url), "one")
    assert len(os.listdir("/proc/self/fd")) <= before


# ---- TLS ----


def tls(port: int, **fields: Any) -> BusConfig:
    return bus(**{"url": f"rediss://localhost:{port}", "ca_file": str(TLS / "authority.pem"), **fields})


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_tls(server, host):
    with tls_proxy(server) as port, connect(tls(port, url=f"rediss://{host}:{port}/0"), "one") as client:
        assert client.ping() is True
        connected = client.connection_pool.get_connection()
        assert connected._sock.version() in ("TLSv1.2", "TLSv1.3")
        client.connection_pool.release(connected)


def test_tls_with_a_password(guarded, password_file):
    with tls_proxy(guarded) as port:
        config = tls(port, username="publisher", password_file=str(password_file))
        with connect(config, "one") as client:
            assert client.set("swift:key", "value") is True


@pytest.mark.parametrize(
    ("certificate", "fields", "words"),
    [
        ("server", {"ca_file": str(TLS / "other-authority.pem")}, "unable to get local issuer"),
        ("server", {"ca_file": None}, "unable to get local issuer"),
        ("elsewhere", {}, "Hostname mismatch, certificate is not valid for 'localhost'"),
        ("expired", {}, "certificate has expired"),
    ],
)
def test_a_certificate_that_is_not_right(server, certificate, fields, words):
    with tls_proxy(server, certificate) as port, pytest.raises(BusError) as caught:
        connect(tls(port, **fields), "one")
    message = message_of(caught)
    assert "certificate is not valid" in message
    assert words in message
    assert "correct bus.ca_file" in message


def test_a_server_that_asks_for_a_certificate(server):
    own = {"certificate_file": str(TLS / "client.pem"), "key_file": str(TLS / "client.key")}
    with tls_proxy(server, client_authority="authority") as port:
        with connect(tls(port, **own), "one") as client:
            assert client.ping() is True
        with pytest.raises(BusError) as caught:
            connect(tls(port), "one")
        assert "bus.certificate_file" in message_of(caught)
    with tls_proxy(server, client_authority="other-authority") as port:
        with pytest.raises(BusError) as caught:
            connect(tls(port, **own), "one")
        assert "bus.certificate_file" in message_of(caught)


def test_tls_where_there_is_none(server):
    """Redis answers, or waits for the end of the line, as the random bytes of the greeting have it."""
    with pytest.raises(BusError) as caught:
        connect(tls(server.port), "one")
    assert "speaks TLS there" in message_of(caught)


def test_tls_where_something_else_answers():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            accepted, _ = listener.accept()
            with accepted:
                accepted.recv(4096)
                accepted.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(BusError) as caught:
            connect(tls(listener.getsockname()[1], url=f"rediss://127.0.0.1:{listener.getsockname()[1]}"), "one")
        thread.join()
    assert "TLS failed (WRONG_VERSION_NUMBER); check that it speaks TLS there" in message_of(caught)


@pytest.mark.parametrize("greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH_9.6\r\n"])
def test_what_is_no_redis_is_told_to_be_none(greeting):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            accepted, _ = listener.accept()
            with accepted:
                accepted.recv(4096)
                accepted.sendall(greeting)
                accepted.recv(4096)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(BusError) as caught:
            connect(BusConfig(url=f"redis://127.0.0.1:{listener.getsockname()[1]}"), "one")
        thread.join()
    assert ": is no Redis (" in message_of(caught)
    assert message_of(caught).endswith("; check bus.url")


def test_no_tls_where_there_is_some(server):
    with tls_proxy(server) as port, pytest.raises(BusError) as caught:
        connect(bus(url=f"redis://localhost:{port}"), "one")
    assert "rediss://" in message_of(caught)


def encrypted_key(path: Path) -> None:
    path.write_bytes((TLS / "client-encrypted.key").read_bytes())


@pytest.mark.parametrize(
    ("field", "spoil", "words"),
    [
        ("ca_file", Path.unlink, "No such file"),
        ("ca_file", lambda path: path.write_text(SECRET), "must be PEM files"),
        ("certificate_file", Path.unlink, "No such file"),
        ("certificate_file", lambda path: path.write_text(SECRET), "must be PEM files"),
        ("key_file", Path.unlink, "No such file"),
        (
            "key_file",
            lambda path: path.write_bytes((TLS / "server.key").read_bytes()),
            "must belong to its certificate",
        ),
        ("key_file", encrypted_key, "must not be encrypted"),
    ],
)
def test_tls_files_that_cannot_be_used(field, spoil, words, tmp_path):
    files = {"ca_file": "authority.pem", "certificate_file": "client.pem", "key_file": "client.key"}
    for name, source in files.items():
        (tmp_path / name).write_bytes((TLS / source).read_bytes())
    config = tls(free_port(), **{name: str(tmp_path / name) for name in files})
    check(config)
    spoil(tmp_path / field)
    for attempt in (lambda: connect(config, "one"), lambda: check(config)):
        with pytest.raises(ConfigError) as caught:
            attempt()
        message = message_of(caught)
        assert message.startswith("bus.ca_file: " if field == "ca_file" else "bus.certificate_file: ")
        assert words in message


# ---- for logs ----


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"url": "redis://cache.example"}, "Redis at redis://cache.example:6379/0"),
        ({"url": "rediss://[::1]:7/2", "username": "ops"}, "Redis at rediss://[::1]:7/2 as user ops"),
        ({"url": "unix:///run/redis.sock"}, "Redis at unix:///run/redis.sock"),
        ({"directory": "/run/somewhere"}, "embedded Redis at unix:///run/somewhere/redis.sock"),
    ],
)
def test_described(fields, text):
    assert describe(bus(**fields)) == text


def test_errors_of_others_pass_through(server):
    config = bus(url=server.url)
    with pytest.raises(ZeroDivisionError), bus_errors(config):
        raise ZeroDivisionError
    with pytest.raises(BusError, match="not reachable"), bus_errors(config):
        raise ConnectionResetError(104, "Connection reset by peer")
    assert issubclass(BusError, SwiftTiersError)
