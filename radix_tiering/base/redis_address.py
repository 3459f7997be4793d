"""Where a Redis is: what `bus.url` may say, and nothing else."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from .errors import ConfigError

_FORMS = 'use "redis://HOST:PORT", "rediss://HOST:PORT" (TLS) or "unix:///PATH"'


class Address(NamedTuple):
    """A Redis server on the network (`host` and `port`) or on a unix socket (`path`)."""

    host: str = ""
    port: int = 6379
    database: int = 0
    tls: bool = False
    path: str = ""  # of a unix socket; empty: on the network

    def __str__(self) -> str:
        if self.path:
            return f"unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"redis{'s' if self.tls else ''}://{host}:{self.port}/{self.database}"


def parse_url(url: str) -> Address:
    """The address behind `bus.url`.

    A URL ends up in command lines, in `/server_info` and in logs, so one that carries a user or a password is refused.
    Options after a `?` are refused too: clients know some that carry a password or turn certificate checks off.

    Raises ConfigError, whose message never repeats the URL.
    """
    scheme, _, rest = url.partition("://")
    if scheme not in ("redis", "rediss", "unix"):
        # Also a URL without its scheme may carry a password, so that is looked for first.
        _refuse_credentials(url)
        raise ConfigError(f"bus.url: is not the address of a Redis; {_FORMS}")
    if scheme == "unix":
        # A file's name may have an @ in it.
        _refuse_credentials(rest.partition("/")[0])
        _refuse_credentials(rest.partition("?")[2])
        if not rest.startswith("/") or "?" in rest:
            raise ConfigError('bus.url: a socket is an absolute path and nothing else; use "unix:///PATH"')
        return Address(path=unquote(rest))
    _refuse_credentials(rest)
    if "?" in rest or "#" in rest:
        raise ConfigError("bus.url: options after the address are not supported; see `swift-tiers config --explain`")
    try:
        parts = urlsplit(url)
        port = 6379 if parts.port is None else parts.port
        host, database = parts.hostname or "", int(parts.path.strip("/") or 0)
    except ValueError:
        host, port, database = "", 0, 0
    if not host or not port or database < 0:
        raise ConfigError(f"bus.url: is not the address of a Redis; {_FORMS}, and /NUMBER for another database")
    return Address(host=host, port=port, database=database, tls=scheme == "rediss")


def _refuse_credentials(text: str) -> None:
    """An `@` has no other meaning here; a `/`, `?` or `#` in a password makes URL parsers see it elsewhere."""
    user, at, _ = text.rpartition("@")
    if at and ":" in user:
        raise ConfigError("bus.url: contains a password; put it into a file and name it in bus.password_file")
    if at:
        raise ConfigError("bus.url: contains a user; name it in bus.username")
    if "password=" in text.lower():
        raise ConfigError("bus.url: contains a password; put it into a file and name it in bus.password_file")
