"""Which bus a command is to look at, and how to reach it by hand."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from ...base.arguments import place_argument
from ...base.errors import USAGE, CommandError

if TYPE_CHECKING:
    from swift_tiers.radix_tiering.base.config import BusConfig


def add_bus_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", metavar="JSON|@FILE", help="what the server gets as --swift-tiers-config: the bus that it names"
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--url", help="the Redis of the bus: redis://HOST:PORT, rediss://HOST:PORT or unix:///PATH")
    where.add_argument(
        "--directory", type=place_argument, metavar="DIR", help="bus.directory of servers with an embedded Redis"
    )


def seconds_argument(text: str) -> float:
    """argparse's type for a span of time."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.1 to 3600")
    return seconds


def bus_config(options: argparse.Namespace) -> BusConfig:
    """The section `bus` that the options name. Raises ConfigError; CommandError if that bus is off."""
    from swift_tiers.radix_tiering.base.read_config import dump_config, load_config, parse_config

    content = dump_config(load_config(options.config))["bus"]
    if options.url is not None:
        content |= {"url": options.url, "directory": None}
    if options.directory is not None:
        kept = {name: content[name] for name in ("enabled", "prefix")}
        content = {**kept, "directory": os.path.abspath(os.path.expanduser(options.directory))}
    config = parse_config({"bus": content}).bus
    if not config.enabled:
        raise CommandError("bus.enabled is false: a server with this configuration says nothing", USAGE)
    return config


def redis_cli_words(config: BusConfig) -> list[str]:
    """The command line that opens this bus, without password. Raises CommandError where there is no redis-cli."""
    from swift_tiers.radix_tiering.bus.redis.connection import address_of
    from swift_tiers.radix_tiering.bus.redis.redis_binary import find_cli

    binary = find_cli()
    if binary is None:
        raise CommandError("no redis-cli on PATH and none in the installation; install the package redis-tools")
    address = address_of(config)
    words = [str(binary)]
    if address.path:
        words += ["-s", address.path]
    else:
        words += ["-h", address.host, "-p", str(address.port)]
    if address.database:
        words += ["-n", str(address.database)]
    if address.tls:
        words.append("--tls")
        files = {"--cacert": config.ca_file, "--cert": config.certificate_file, "--key": config.key_file}
        if config.certificate_file is not None and config.key_file is None:
            files["--key"] = config.certificate_file
        words += [word for flag, file in files.items() if file for word in (flag, os.path.expanduser(file))]
    if config.username is not None:
        words += ["--user", config.username]
    return words


def redis_cli_hint(config: BusConfig) -> str:
    """How redis-cli gets the password, if this bus asks for one; else nothing."""
    from swift_tiers.radix_tiering.bus.redis.connection import PASSWORD_VARIABLE

    if config.password_file is not None:
        return f'it takes the password from REDISCLI_AUTH: export REDISCLI_AUTH="$(cat {config.password_file})"'
    if config.url is not None and (config.username is not None or os.environ.get(PASSWORD_VARIABLE)):
        return f'it takes the password from REDISCLI_AUTH: export REDISCLI_AUTH="${PASSWORD_VARIABLE}"'
    return ""
