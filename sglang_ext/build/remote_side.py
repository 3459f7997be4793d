"""The remote tier of one rank, as the configuration says: its engine, and with whom it shares pages."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from swift_tiers.radix_tiering.base.config import RemoteConfig, TiersConfig
from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.base.events import EventLog
from swift_tiers.radix_tiering.base.page import PageGeometry
from swift_tiers.radix_tiering.base.secret_file import read_secret
from swift_tiers.radix_tiering.base.units import format_size
from swift_tiers.radix_tiering.tiers.remote import ChildEngine, RemoteTier
from swift_tiers.radix_tiering.tiers.remote.child_process import ChildMeeting
from swift_tiers.radix_tiering.tiers.remote.remote_tier import arrival_slots, object_shape

from .hardware import hardware_name
from .identity import attention_backends
from .lease_directory import lease_directory

logger = logging.getLogger(__name__)

#: What the child imports.
DRIVER = "swift_tiers.sglang_ext.remote_driver:open_backend"
#: Engines that this project's tests have driven.
TESTED = ("file", "mooncake", "nixl")
#: A read that takes longer is given up, however long a request may wait.
MOST_READ_SECONDS = 5.0
#: Of what `hashlib.blake2b` takes as a key.
MOST_SALT_BYTES = 64
#: Engines that keep objects as files, with the variable by which SGLang is told where; and an option that says so, too.
DIRECTORY_VARIABLES = {
    "file": "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR",
    "nixl": "SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR",
}
DIRECTORY_OPTIONS = {"file": "file_storage_path"}
#: What SGLang takes for yes there.
_YES = (True, "true", "True")


def shared_scope(config: TiersConfig, server_args: Any) -> str:
    """What else two servers have in common that share pages: what computes the same KV to the last bit."""
    if config.remote.share == "any-hardware":
        return ""
    return f"{hardware_name()}; attention {attention_backends(server_args)}"


def check_remote(config: TiersConfig) -> None:
    """Everything about the remote tier that can be found out before a model is loaded. Raises ConfigError."""
    remote = config.remote
    if remote.engine is None:
        return
    known = known_engines()
    if remote.engine not in known:
        raise ConfigError(
            f"remote.engine: SGLang has no storage backend {remote.engine!r}; use one of {', '.join(known)}"
        )
    read_salt(config)
    arrival_slots(remote)
    store_directories(remote)


def store_directories(remote: RemoteConfig) -> list[Path]:
    """Where an engine of files keeps its objects; empty for another one. Raises ConfigError where nobody has said
    where: SGLang's own choice lies below /tmp, where whoever makes it first reads what is written, and serves KV."""
    engine = remote.engine or ""
    variable, option = DIRECTORY_VARIABLES.get(engine), DIRECTORY_OPTIONS.get(engine, "")
    if variable is None or (engine == "nixl" and _has_objects(remote)):
        return []
    # The variable goes first, as it does for SGLang.
    named = os.environ.get(variable) or str(remote.options.get(option) or "")
    paths = [Path(one.strip()) for one in (named.split(",") if engine == "nixl" else [named]) if one.strip()]
    if not paths:
        raise ConfigError(
            f"remote.engine: {engine} is told no directory, and its own lies in /tmp, where whoever is first makes it; "
            f"name one by {f'remote.options.{option}' if option else f'the environment variable {variable}'}"
        )
    return paths


def _has_objects(remote: RemoteConfig) -> bool:
    """Whether NIXL is told to use its plugin that keeps objects in place of files: the first one that is active."""
    plugins = remote.options.get("plugin")
    if not isinstance(plugins, dict):
        return os.environ.get("SGLANG_HICACHE_NIXL_BACKEND_PLUGIN") == "OBJ"
    active = (name for name, one in plugins.items() if isinstance(one, dict) and one.get("active") in _YES)
    return next(active, "").upper() == "OBJ"


def known_engines() -> tuple[str, ...]:
    """Storage backends that SGLang has, and its name for one that the options say."""
    # What it imports are names: a backend's library is imported when it is opened.
    from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

    return (*sorted(StorageBackendFactory._registry), "dynamic")


def read_salt(config: TiersConfig) -> bytes:
    """The secret of `remote.salt_file`; empty where it is unset. Raises ConfigError."""
    name = config.remote.salt_file
    if name is None:
        return b""
    salt = read_secret("remote.salt_file", name, "a secret").encode()
    if len(salt) > MOST_SALT_BYTES:
        raise ConfigError(f"remote.salt_file: {name} holds more than {MOST_SALT_BYTES} bytes; write a shorter secret")
    return salt


def open_remote(
    config: TiersConfig,
    geometry: PageGeometry,
    *,
    scope: str,
    writes: bool,
    fingerprint: Callable[[np.ndarray], bytes],
    events: EventLog,
    ranks: int = 1,
) -> RemoteTier | None:
    """The remote tier; None where no engine is named. `scope`: see `shared_scope`; `writes`: whether this rank does, or
    another one has the same pages; `fingerprint`: the checksum of a page. `ranks`: how many of this server are on this
    machine, and have one child. Raises ConfigError."""
    remote = config.remote
    if remote.engine is None:
        return None
    shape = object_shape(geometry, remote)
    slots = arrival_slots(remote, shape.stride)
    if remote.engine not in TESTED:
        logger.warning("swift-tiers: remote.engine: %s is passed through; nobody has tested it with us", remote.engine)
    logger.info(
        "swift-tiers: remote tier by %s, objects of %d pages (%s), asked for by %d tokens; opened while serving",
        remote.engine,
        shape.pages,
        format_size(shape.stride),
        shape.run * geometry.tokens,
    )
    return RemoteTier(
        shape,
        remote,
        partial(
            ChildEngine,
            DRIVER,
            remote.engine,
            remote.options,
            slots,
            shape.stride,
            meeting=ChildMeeting.of_siblings(ranks, lease_directory(config)) if ranks > 1 else None,
        ),
        page_tokens=geometry.tokens,
        read_seconds=min(float(config.policy.restore_deadline), MOST_READ_SECONDS),
        scope=scope,
        secret=read_salt(config),
        writes=writes,
        probes=True,
        fingerprint=fingerprint,
        events=events,
    )
