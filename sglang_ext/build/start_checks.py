"""What is found out about a configuration before a model is loaded, by a server and by `swift-tiers config --check`."""

from __future__ import annotations

import logging
import os
import re
import socket

import msgspec

from swift_tiers.radix_tiering.base.config import PeerConfig, TiersConfig
from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.bus.contract.view import lease_name
from swift_tiers.radix_tiering.bus.redis.redis_server import (
    check_directory,
    default_directory,
    socket_path,
    unusable_runtime_directory,
)
from swift_tiers.radix_tiering.tiers.ssd.device_files import LaunchRanks

from .assembly import Rank, check_donor, check_machine
from .lease_directory import check_lease_directory, check_lease_name

logger = logging.getLogger(__name__)

#: Characters of a server's name on the bus.
LONGEST_NAME = 128


def check_start(
    config: TiersConfig,
    *,
    server: str,
    last: Rank,
    machines: int = 1,
    machine: int | None = None,
    memory_saver: bool = False,
    make: bool = True,
) -> None:
    """Raise ConfigError where this machine is not one for the configuration. `server`: its name on the bus, unless the
    configuration has one. `last`: the rank whose name is the longest. `machine`: which of the `machines` it is; unset,
    it is not known which ranks it has, but how many. `make`: make the directory of its leases."""
    launch = None if machine is None else LaunchRanks(last.names(machines, machine), last.names())
    check_machine(config, last.here(machines), launch)
    check_donor(config, memory_saver=memory_saver)
    check_lease_name(config, lease_name(config.bus.server or server, last.name))
    check_lease_directory(config, make=make)
    if config.bus.enabled:
        from swift_tiers.radix_tiering.bus.redis.connection import check  # a server without a bus needs no redis

        why = unusable_runtime_directory()
        if why and config.bus.url is None and config.bus.directory is None:
            logger.warning(
                "swift-tiers: XDG_RUNTIME_DIR: %s: the bus is in %s, which servers in other containers do not see; set "
                "bus.directory to a directory of this user's own",
                why,
                default_directory(),
            )
        check(config.bus)
        if machines > 1 and config.bus.url is None:
            logger.warning(
                "swift-tiers: bus.url: unset, so that each of the %d machines has a bus of its own: what is ordered on "
                "the first is done on all, and its ranks alone say what became of it; name a Redis that all reach",
                machines,
            )


def without_a_bus_that_cannot_be(config: TiersConfig) -> tuple[TiersConfig, str]:
    """The configuration without bus, and so without peers, where others have taken the embedded Redis' usual place; and
    what to say of that.

    The usual place may lie in /tmp, where any user of the machine can make it first: that must not end a start. A place
    that was named is the operator's own to mend.
    """
    bus, peer = config.bus, config.peer
    if not bus.enabled or bus.url is not None or bus.directory is not None:
        return config, ""
    try:
        check_directory(socket_path().parent)
    except ConfigError as error:
        alone = " and lending or borrowing no memory" if peer.donate or peer.borrow else ""
        silent = msgspec.structs.replace(bus, enabled=False, control=False)
        # What else is set about peers would have no effect, and be refused.
        return (
            msgspec.structs.replace(config, bus=silent, peer=PeerConfig()),
            f"serving without the bus{alone}: {error}, or set bus.url",
        )
    return config, ""


def server_name(port: int, dist_init_addr: str | None, nodes: int) -> str:
    """The name on the bus of a server that was given none.

    On one machine it is of the host, the port and this process; over several ones of what all of them are given, the
    address where they meet.
    """
    words = dist_init_addr if nodes > 1 and dist_init_addr else f"{socket.gethostname()}-{port}-{os.getpid()}"
    return re.sub(r"[^A-Za-z0-9._-]", "-", words)[-LONGEST_NAME:]
