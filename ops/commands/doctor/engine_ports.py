"""Who can reach Mooncake's parts: it has no password, so whoever can reads, writes, and may empty the store."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Iterator
from typing import NamedTuple

import psutil

from swift_tiers.radix_tiering.base.config import RemoteConfig

from .finding import Finding, combined, note, ok, warning, wrong

#: How long the master may take to take a connection, seconds.
CONNECT_SECONDS = 2.0
#: Of what a process of Mooncake's is called by; and of the service whose REST API can empty the store.
MOONCAKE, REST_SERVICE = "mooncake", "mooncake_store_service"
EVERYWHERE = ("0.0.0.0", "::", "*")


class OpenPort(NamedTuple):
    """A port of a process of Mooncake's on this machine that listens on every interface."""

    port: int
    process: str
    rest: bool


def look(config: RemoteConfig) -> Finding:
    """Whether the master can be reached, at an address that strangers cannot, and what of it is open here."""
    address = str(config.options.get("master_server_address") or "")
    if not address:
        return note("which master is asked says SGLang's environment", "name master_server_address in remote.options")
    return combined([*reached(address), *open_here(list(listening()))])


def reached(address: str) -> Iterator[Finding]:
    """Of a master, HOST:PORT."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS) as connection:
            peer = ipaddress.ip_address(connection.getpeername()[0])
    except (OSError, ValueError) as error:
        yield wrong(f"no master answers at {address}: {error}", "start mooncake_master there, or name where it is")
        return
    if peer.is_private or peer.is_loopback:
        yield ok(f"the master answers at {address}, a private address")
    else:
        yield warning(
            f"the master answers at {address}, a public address",
            "it asks nobody who they are: move it to a private network",
        )


def listening() -> Iterator[OpenPort]:
    """Such ports of processes that this user may look at."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if not any(MOONCAKE in word for word in words):
            continue
        with contextlib.suppress(psutil.Error):
            for connection in process.net_connections(kind="inet"):
                if connection.status == psutil.CONN_LISTEN and connection.laddr.ip in EVERYWHERE:
                    rest = any(REST_SERVICE in word or "mc_store_rest_server" in word for word in words)
                    yield OpenPort(connection.laddr.port, _name(words), rest)


def _name(words: list[str]) -> str:
    return next(word.rpartition("/")[2] for word in words if MOONCAKE in word)


def open_here(found: list[OpenPort]) -> Iterator[Finding]:
    """What these come to."""
    named = ", ".join(f"{one.port} ({one.process})" for one in sorted(set(found)))
    if any(one.rest for one in found):
        yield warning(
            f"listens on every interface: {named}",
            "the REST API of mooncake_store_service lets whoever reaches it empty the store: close its port to others, "
            "or start nodes as docs/compose/mooncake-node.yaml does",
        )
    elif found:
        yield note(f"listens on every interface: {named}", "let nobody but servers and nodes reach this network")
