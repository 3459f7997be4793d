"""Where the sockets of a server's leases lie."""

from __future__ import annotations

import os
from pathlib import Path

from swift_tiers.radix_tiering.base.bounds import donation_bounds
from swift_tiers.radix_tiering.base.config import TiersConfig
from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.base.private_directory import SOCKET_PATH_BYTES, open_private_directory
from swift_tiers.radix_tiering.bus.redis.redis_server import socket_path
from swift_tiers.radix_tiering.lending.donation.arena_socket import arena_path
from swift_tiers.radix_tiering.lending.leases.addresses import ipc_address


def lease_directory(config: TiersConfig) -> Path:
    """That of a configuration, whether it is there or not. Raises ConfigError for one that cannot have sockets."""
    if config.peer.directory is not None:
        return Path(config.peer.directory).expanduser().absolute()
    return socket_path(config.bus.directory).parent


def check_lease_name(config: TiersConfig, name: str) -> None:
    """Raise ConfigError where the rank `name` of a server that lends could not have its sockets in that directory."""
    if donation_bounds(config.peer.donate) is None:
        return
    directory = lease_directory(config)
    try:
        arena_path(ipc_address(directory, name))
    except ConfigError:
        raise ConfigError(
            f"peer.directory: {directory}/{name}.lease is too long for a socket, which takes "
            f"{SOCKET_PATH_BYTES} bytes; set bus.server to a shorter name, or name a shorter directory"
        ) from None


def check_lease_directory(config: TiersConfig, *, make: bool = True) -> None:
    """Make the directory of a server that lends. Raises ConfigError where it could not listen there. Without `make`,
    one that is not there yet is only looked at from above.

    One that borrows alone needs none: it goes to where its donors listen.
    """
    if donation_bounds(config.peer.donate) is None:
        return
    directory = lease_directory(config)
    if not make and not os.path.lexists(directory):
        if not os.access(directory.parent, os.W_OK | os.X_OK):
            raise ConfigError(f"peer.directory: {directory} cannot be made by this user; name one that can be")
        return
    os.close(open_private_directory(directory, "peer.directory", create=make))
    if not os.access(directory, os.W_OK):  # on a file system that is mounted for reading alone
        raise ConfigError(f"peer.directory: {directory} cannot be written to; name one that can be")
