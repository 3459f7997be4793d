"""Where the sockets of a server's leases lie."""

from __future__ import annotations

import os
from pathlib import Path

from swift_tiers.radix_tiering.base.bounds import donation_bounds
from swift_tiers.radix_tiering.base.config import TiersConfig
from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.base.private_directory import open_private_directory
from swift_tiers.radix_tiering.bus.redis.redis_server import socket_path


def lease_directory(config: TiersConfig) -> Path:
    """That of a configuration, whether it is there or not. Raises ConfigError for one that cannot have sockets."""
    if config.peer.directory is not None:
        return Path(config.peer.directory).expanduser().absolute()
    return socket_path(config.bus.directory).parent


def check_lease_directory(config: TiersConfig) -> None:
    """Make the directory of a server that lends. Raises ConfigError where it could not listen there.

    One that borrows alone needs none: it goes to where its donors listen.
    """
    if donation_bounds(config.peer.donate) is None:
        return
    directory = lease_directory(config)
    os.close(open_private_directory(directory, "peer.directory", create=True))
    if not os.access(directory, os.W_OK):  # on a file system that is mounted for reading alone
        raise ConfigError(f"peer.directory: {directory} cannot be written to; name one that can be")
