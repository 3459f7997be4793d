"""The server that is measured: what it is started with, so that it touches nothing of those in service."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from swift_tiers.radix_tiering.base.config import TiersConfig
from swift_tiers.radix_tiering.base.page import round_up
from swift_tiers.radix_tiering.base.read_config import dump_config, load_config
from swift_tiers.radix_tiering.restore.plan import CHUNK_TOKENS

from ...base.errors import USAGE, CommandError
from ..demo.workload import SMALLEST_DEVICE, ModelShape, read_shape

#: Prefixes up to so many tokens are measured: longer ones follow from the terms found, and take long.
LONGEST_PREFIX = 8192
#: Tokens of a prompt beyond the prefix it begins with, at most, and of its answer.
REST_TOKENS = 64
#: What the name of the server and of scratch directories begins with.
NAME = "swift-tiers-profile"


class Setting(NamedTuple):
    """What is measured, and how the server is started for it."""

    name: str  # of the model
    arguments: list[str]  # of the server
    config: dict[str, Any]  # of its tiers
    longest: int  # prefix, tokens
    chunk: int  # tokens
    sources: tuple[str, ...]  # to be measured
    left_out: dict[str, str]  # sources that are configured and are not measured: why


@contextlib.contextmanager
def prepare(model: str, source: str | None, server_arguments: Sequence[str]) -> Iterator[Setting]:
    """The setting for `model` and what was given as `--swift-tiers-config`. Scratch directories go at the end.

    Raises CommandError, ConfigError.
    """
    directory = model_directory(model)
    config = load_config(source)
    shape = read_shape(directory)
    content = dump_config(config)
    chunk = int(content.get("restore", {}).get("chunk", CHUNK_TOKENS))
    longest = min(LONGEST_PREFIX, shape.context - REST_TOKENS) // chunk * chunk
    if longest < 2 * chunk:
        raise CommandError(
            f"--model-path: {model} takes {shape.context} tokens, too few for prefixes of two chunks of {chunk}", USAGE
        )
    sources, left_out = ["host"], {}
    with contextlib.ExitStack() as scratch:
        bus = Path(scratch.enter_context(tempfile.TemporaryDirectory(prefix="swift-tiers-bus-")))
        directories = [scratch.enter_context(_scratch_directory(Path(one))) for one in config.ssd.directories]
        if config.peer.borrow:
            sources.append("peer")  # before ssd: what is forgotten for that is forgotten at peers too
        if directories:
            sources.append("ssd")
        elif config.ssd.devices:
            left_out["ssd"] = "a profile writes to no whole block device"
        content |= {
            "host": {**content["host"], "size": _host_size(config, shape, longest)},
            "ssd": _ssd(content["ssd"], directories, shape, longest),
            # A flush of the device leaves what is below; everything that is computed goes all the way down.
            "policy": {
                **content["policy"], "flush_cache": "device", "write": "through", "ssd_admission": "always",
                "restore_deadline": "60s",
            },
            "bus": _bus(content["bus"], bus, shared=config.peer.borrow),
        }  # fmt: skip
        if config.peer.donate and not config.peer.borrow:
            content["peer"] = {**content["peer"], "directory": str(bus)}
        if "restore" in content:
            content["restore"] = {**content["restore"], "strategy": "load", "profile": None}
        arguments = [
            "--model-path", model, *server_arguments,
            # The times of a forward are in an answer only with this.
            "--enable-metrics", "--enable-swift-tiers", "--swift-tiers-config", json.dumps(content),
        ]  # fmt: skip
        name = directory.name if Path(model).is_dir() else Path(model).name
        yield Setting(name, arguments, content, longest, chunk, tuple(sources), left_out)


def model_directory(model: str) -> Path:
    """Where the files of a model are: a directory, or a hub name that is in the local cache. Raises CommandError."""
    if Path(model).is_dir():
        return Path(model).resolve()
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(model, local_files_only=True))
    except Exception:  # noqa: BLE001 - whatever it says, the model is not here
        raise CommandError(
            f"--model-path: {model} is neither a directory nor a model in the local hub cache; download it first", USAGE
        ) from None


@contextlib.contextmanager
def _scratch_directory(beside: Path) -> Iterator[Path]:
    """A directory on the same device as `beside`'s, removed at the end."""
    try:
        made = Path(tempfile.mkdtemp(prefix=f"{NAME}-", dir=beside))
    except OSError as error:
        raise CommandError(
            f"ssd.directories: {beside}: nothing can be written there ({error.strerror}); name one where it can", USAGE
        ) from None
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _host_size(config: TiersConfig, shape: ModelShape, longest: int) -> int:
    """Room for two prefixes: one, and what is still on its way out of the one before."""
    needed = round_up(2 * longest * shape.token_bytes, 2**20)
    return needed if config.host.size is None else min(needed, config.host.size)


def _ssd(content: dict[str, Any], directories: Sequence[Path], shape: ModelShape, longest: int) -> dict[str, Any]:
    """The stripe set over scratch directories, with room for a prefix and half of one; none without directories."""
    if not directories:
        return {}
    share = 3 * longest * shape.token_bytes // (2 * len(directories))
    size = round_up(max(SMALLEST_DEVICE, share), 2**20)
    if content["size_per_device"] is not None:
        size = min(size, content["size_per_device"])
    return {**content, "directories": [str(one) for one in directories], "devices": [], "size_per_device": size}


def _bus(content: dict[str, Any], directory: Path, *, shared: bool) -> dict[str, Any]:
    """A bus of its own, but for a server that borrows: it has to find its donors."""
    where = content if shared else {"directory": str(directory)}
    return {
        **where, "enabled": True, "server": f"{NAME}-{os.getpid()}", "control": True, "interval": "200ms",
        "requests_interval": "200ms",
    }  # fmt: skip
