"""Connections to the bus's Redis: how they are made, and what their errors mean."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from ...base.config import BusConfig
from ...base.errors import BusError, ConfigError, RedisFaultError, RedisRefusedError, shorten
from ...base.redis_address import Address, parse_url
from ...base.secret_file import read_secret
from .redis_binary import LOWEST_VERSION, parse_version
from .redis_server import check_directory, socket_path

#: The password, where `bus.password_file` names no file. Not for the embedded Redis, which has none.
PASSWORD_VARIABLE = "SWIFT_TIERS_BUS_PASSWORD"
#: How long one answer may take, and making a connection. A command that waits on purpose (XREAD BLOCK) must wait less.
TIMEOUT_SECONDS = 1.0


def connect(config: BusConfig, server: str, introduce: Callable[[Any], None] | None = None) -> redis.Redis:
    """A client of the bus, connected and checked; `close` it. Text in, text out. Any thread may use it.

    It asks for RESP2. That is all that publishing and reading need, every proxy knows it, replies have one shape in
    all versions of the client, and the server sends nothing unasked. Nothing is repeated on failure: who calls knows
    better when to try again. After an error, prefer a new client to the old one: files are read here, so that a
    password or certificate that has changed is taken up.

    `server` names this server in CLIENT LIST. `introduce`: what is done on every new connection. Raises
    ConfigError for files that cannot be used, BusError for a Redis that cannot.
    """
    address = address_of(config)
    if address.path and config.url is None:
        check_directory(socket_path(config.directory).parent)
    _check_tls_files(config)
    client = redis.Redis(
        **_transport(address, config),
        db=address.database,
        credential_provider=_credentials(config),
        client_name=f"swift-tiers:{server}",
        redis_connect_func=introduce or _introduce,  # type: ignore[arg-type]  # redis-py hands it the connection
        protocol=2,
        decode_responses=True,
        encoding_errors="backslashreplace",
        socket_timeout=TIMEOUT_SECONDS,
        socket_connect_timeout=TIMEOUT_SECONDS,
        retry=Retry(NoBackoff(), 0),
    )
    try:
        with bus_errors(config):
            _check_server(client, config)
    except BaseException:
        client.close()
        raise
    return client


def connect_once(config: BusConfig, server: str) -> redis.Redis:
    """As `connect`; a connection that has broken is not replaced unseen, as redis-py does it: the next command raises
    ConnectionEndedError.

    Whoever has written must know: behind one address there may be another Redis by then, or an older copy of it.
    """
    return connect(config, server, _IntroducedOnce())


def check(config: BusConfig) -> None:
    """Everything that can be found out without a connection: files, their modes, the embedded Redis' directory.

    Raises ConfigError.
    """
    address_of(config)
    _credentials(config)
    _check_tls_files(config)
    if config.url is None:
        check_directory(socket_path(config.directory).parent)


def address_of(config: BusConfig) -> Address:
    """Where the bus's Redis listens; of the embedded one, its socket. Raises ConfigError."""
    if config.url is None:
        return Address(path=str(socket_path(config.directory)))
    return parse_url(config.url)


def describe(config: BusConfig) -> str:
    """For logs: which Redis, as whom. Without secrets."""
    if config.url is None:
        return f"embedded Redis at {address_of(config)}"
    user = f" as user {config.username}" if config.username is not None else ""
    return f"Redis at {address_of(config)}{user}"


@contextmanager
def bus_errors(config: BusConfig) -> Iterator[None]:
    """Within it, what redis-py raises becomes a RedisFaultError: one line that says what is wrong and what to do."""
    try:
        yield
    except (RedisError, OSError) as error:
        what, remedy = _explain(error, config)
        kind = RedisRefusedError if isinstance(error, ResponseError) else RedisFaultError
        raise kind(f"{describe(config)}: {what}; {remedy}") from None


def _introduce(connection: Any) -> None:
    """What redis-py does on every new connection, less CLIENT SETINFO, with which it says its own name and version.

    A Redis before 7.2 does not know that command, so no right to it can be granted there, and the attempt is an entry
    of its ACL LOG at each connection. The names of the attributes differ from version to version of redis-py.
    """
    connection.driver_info = connection.lib_name = connection.lib_version = None
    connection.on_connect()


class ConnectionEndedError(redis.ConnectionError):
    """The one connection of a client has ended."""


class _IntroducedOnce:
    """`_introduce` for one connection alone."""

    def __init__(self) -> None:
        self._made = False

    def __call__(self, connection: Any) -> None:
        if self._made:
            raise ConnectionEndedError("the connection has ended")
        self._made = True
        _introduce(connection)


class _Password(CredentialProvider):
    """Hands user and password to redis-py, whose own records and texts then do not have them."""

    def __init__(self, username: str | None, password: str) -> None:
        self._username = username
        self._password = password

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        return (self._password,) if self._username is None else (self._username, self._password)

    def __repr__(self) -> str:
        return "<credentials>"


def _credentials(config: BusConfig) -> _Password | None:
    if config.url is None:
        return None
    if config.password_file is not None:
        password = read_secret("bus.password_file", config.password_file, "a password")
    else:
        password = _password_given()
    if not password and config.username is None:
        return None
    return _Password(config.username, password)


def _password_given() -> str:
    """That of the environment, without the end of the line with which a secret's file was read into it."""
    return os.environ.get(PASSWORD_VARIABLE, "").rstrip("\r\n")


def _check_tls_files(config: BusConfig) -> None:
    """Load them once as redis-py will do at every connection, whose errors then would not name the file."""
    try:
        if config.ca_file is not None:
            field = f"bus.ca_file: {config.ca_file}"
            ssl.create_default_context(cafile=_path(config.ca_file))
        if config.certificate_file is not None:
            field = f"bus.certificate_file: {config.certificate_file}"
            context = ssl.create_default_context()
            # The empty password is for a key that is encrypted: OpenSSL would ask the terminal for its password.
            context.load_cert_chain(os.path.expanduser(config.certificate_file), _path(config.key_file), password="")
    except ssl.SSLError:
        raise ConfigError(
            f"{field} cannot be used; certificates and keys must be PEM files, a key must not be encrypted and must "
            "belong to its certificate"
        ) from None
    except OSError as error:
        raise ConfigError(f"{field} or its key cannot be read ({error.strerror}); name files that can") from None


def _path(name: str | None) -> str | None:
    return None if name is None else os.path.expanduser(name)


def _transport(address: Address, config: BusConfig) -> dict[str, Any]:
    if address.path:
        return {"unix_socket_path": address.path}
    network: dict[str, Any] = {"host": address.host, "port": address.port, "socket_keepalive": True}
    if not address.tls:
        return network
    return network | {
        "ssl": True,
        "ssl_cert_reqs": "required",
        "ssl_check_hostname": True,
        "ssl_min_version": ssl.TLSVersion.TLSv1_2,
        "ssl_ca_certs": _path(config.ca_file),
        "ssl_certfile": _path(config.certificate_file),
        "ssl_keyfile": _path(config.key_file),
        "ssl_password": "",
    }


def _check_server(client: redis.Redis, config: BusConfig) -> None:
    """HELLO says the version to a user with few rights too, where INFO often is not allowed."""
    needed = ".".join(str(part) for part in LOWEST_VERSION)
    old = f"upgrade it to {needed} or newer, or remove bus.url to use the embedded one"
    try:
        answer: Any = client.execute_command("HELLO", 2)
    except NoPermissionError:
        raise
    except ResponseError as error:
        if "unknown command" not in str(error):
            raise
        raise BusError(f"{describe(config)}: is older than Redis 6.0; {old}") from None
    facts = answer if isinstance(answer, dict) else dict(zip(answer[::2], answer[1::2], strict=False))
    version = str(facts.get("version", ""))
    if parse_version(version) < LOWEST_VERSION:
        raise BusError(f"{describe(config)}: is version {version}; {old}")
    if facts.get("mode") == "cluster":
        raise BusError(
            f"{describe(config)}: is a Redis Cluster, which is not supported; name a single server in bus.url"
        )


def _explain(error: RedisError | OSError, config: BusConfig) -> tuple[str, str]:
    """What is wrong, and the remedy."""
    words = _words(error)
    if isinstance(error, AuthenticationError):
        given = _credentials_given(config)
        if given:
            return f"user or password refused ({words})", f"correct {given}"
        return "asks for a password", f"set bus.password_file or ${PASSWORD_VARIABLE}"
    if isinstance(error, NoPermissionError):
        return f"not permitted ({words})", "give this user the rights that docs/bus.md lists"
    if isinstance(error, OutOfMemoryError):
        return f"its memory is full ({words})", "raise its maxmemory, or lower bus.events"
    if isinstance(error, ReadOnlyError):
        return "is a replica, which cannot be written", "name the primary in bus.url"
    if isinstance(error, BusyLoadingError):
        return "is loading its data", "wait until it has"
    cause = _tls_cause(error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        remedy = "correct bus.ca_file, or the server's certificate and the host in bus.url"
        return f"its certificate is not valid ({cause.verify_message})", remedy
    if cause is not None:
        return f"TLS failed ({cause.reason or words})", "check that it speaks TLS there, and bus.certificate_file"
    tls = config.url is not None and address_of(config).tls
    if isinstance(error, RedisTimeoutError | TimeoutError):
        # A server without TLS may wait for the rest of what it takes for a command.
        speaks = ", speaks TLS there" if tls else ""
        return f"no answer within {TIMEOUT_SECONDS:g} s", f"check that it runs{speaks} and is not overloaded"
    if isinstance(error, redis.InvalidResponse):
        return f"is no Redis ({words})", "check bus.url"
    if isinstance(error, redis.ConnectionError | OSError):
        if config.url is None:
            remedy = "start a server, which starts it, or set bus.url"
        elif tls:
            remedy = "check that it runs, bus.url, and bus.certificate_file if it asks for one"
        else:
            remedy = "check that it runs, and bus.url (rediss:// if it speaks TLS)"
        return f"not reachable ({words})", remedy
    if words.startswith("WRONGTYPE"):
        return f"something else lies at a key of the bus ({words})", "remove that key, or set another bus.prefix"
    return f"refused a command ({words})", "see docs/bus.md for what it must allow"


def _credentials_given(config: BusConfig) -> str:
    if config.url is None:
        return ""
    names = ["bus.username"] if config.username is not None else []
    if config.password_file is not None:
        names.append("bus.password_file")
    elif _password_given():
        names.append(f"${PASSWORD_VARIABLE}")
    return " and ".join(names)


def _words(error: BaseException) -> str:
    """The server's own words, on one line; of an error in a pipeline without the command, whose values are long."""
    text = str(error).rpartition(" of pipeline caused error: ")[2]
    return shorten(text, 200) or type(error).__name__


def _tls_cause(error: BaseException) -> ssl.SSLError | None:
    """redis-py makes a ConnectionError of everything; what it made it of is its context."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    return cause
