"""The engine of the remote tier: whether it can be opened as a server would, and brings back what it was given."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from functools import partial
from importlib import metadata
from pathlib import Path

import numpy as np

from swift_tiers.radix_tiering.base.config import RemoteConfig, TiersConfig
from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.base.page import round_up
from swift_tiers.radix_tiering.base.units import format_size
from swift_tiers.radix_tiering.restore.profiles import ProfileError, load_profile, profile_directory
from swift_tiers.radix_tiering.tiers.remote.objects import HEADER_BYTES
from swift_tiers.sglang_ext.build.hardware import hardware_name

from ...base.errors import CommandError
from ...base.remote_engine import WaitedEngine
from . import engine_ports as ports
from .finding import Check, Finding, combined, note, ok, warning, wrong

#: Seconds for opening an engine, most of which is importing SGLang's drivers, and for each answer.
OPEN_SECONDS = 120.0
#: Questions of which the median counts.
QUESTIONS = 20
#: Tokens of a prefix for which loading is compared with computing.
TYPICAL_TOKENS = 4096
#: A source that is so many times as fast as recomputing is of use beside it.
SLOWEST_OF_USE = 0.25
#: What Mooncake's library is called on PyPI, with and without CUDA, and the first release that the driver was tried on.
MOONCAKE, LOWEST_MOONCAKE = ("mooncake-transfer-engine-non-cuda", "mooncake-transfer-engine"), (0, 3, 13)


def checks(config: TiersConfig, ranks: int) -> Iterator[Check]:
    if config.remote.engine is not None:
        seconds = min(ranks, 2) * OPEN_SECONDS + 30
        yield Check("remote engine", partial(round_trip, config.remote, ranks, config.restore.profile), seconds)
        if config.remote.engine == "mooncake":
            yield Check("engine's ports", partial(ports.look, config.remote))
        yield from store(config.remote)
        yield Check("who shares", partial(sharing, config))


def round_trip(config: RemoteConfig, ranks: int = 1, profile: str | None = None) -> Finding:
    """One object is written, asked for, and read back, by a second rank too where there are several. It stays in the
    engine, which nobody can ask to remove it, and the next look finds it there."""
    from swift_tiers.sglang_ext.build.remote_side import store_directories

    stride = round_up(HEADER_BYTES + int(config.object), HEADER_BYTES)
    try:
        store_directories(config)
        with WaitedEngine(config, 4, stride, OPEN_SECONDS) as engine:
            found = [*library(config), *_try(engine, config, stride, profile)]
            if ranks > 1:
                with WaitedEngine(config, 1, stride, OPEN_SECONDS) as other:
                    found.append(_another(other, engine, stride))
            return combined(found)
    except ConfigError as error:
        return _refused(error)
    except (CommandError, OSError) as error:
        return combined([*library(config), wrong(f"{config.engine}: {error}", _remedy(config, str(error)))])


def object_name(stride: int) -> str:
    """Of the object that a look leaves, whose bytes follow from its length."""
    return f"st1-doctor-{stride}"


def _try(engine: WaitedEngine, config: RemoteConfig, stride: int, profile: str | None) -> Iterator[Finding]:
    yield ok(f"{config.engine}: opened in {engine.opened_seconds:.0f} s")
    name = object_name(stride)
    engine.memory[0] = np.random.default_rng(stride).integers(0, 256, stride, np.uint8)
    asked = sorted(engine.ask("exists", [name]).seconds for _ in range(QUESTIONS))[QUESTIONS // 2]
    yield answer_time(asked, float(config.lookup_deadline))
    put = engine.ask("put", [name], [0])
    if not all(put.done):
        yield wrong("does not take an object", "see whether it has room, and lets this user write")
    if not all(engine.ask("exists", [name]).done):
        yield wrong("does not know of an object that it took", "see whether it evicts at once: give it more room")
    got = [engine.ask("get", [name], [slot]) for slot in (1, 2, 3)]
    if not all(all(one.done) for one in got):
        yield wrong("does not give back what it took", "see its own log")
    if any(not np.array_equal(engine.memory[0], engine.memory[slot]) for slot in (1, 2, 3)):
        yield wrong("gives back other bytes than it took", "do not use it; its pages would all be misses")
    seconds = min(one.seconds for one in got)
    yield ok(
        f"{format_size(stride)} come in {seconds * 1000:.0f} ms, {stride / seconds / 1e9:.2f} GB/s; they stay there"
    )
    yield from against_recomputing(stride / seconds, profile)


def _another(other: WaitedEngine, engine: WaitedEngine, stride: int) -> Finding:
    """Whether a second child, beside the first one, is given what that has written."""
    got = other.ask("get", [object_name(stride)], [0])
    if not all(got.done) or not np.array_equal(engine.memory[0], other.memory[0]):
        return wrong(
            "a second rank does not find what the first one wrote",
            "let both use one store: name no port, file or device in remote.options that only one of them can have",
        )
    return ok("a second rank finds what the first one wrote")


def against_recomputing(bytes_per_second: float, name: str | None = None) -> Iterator[Finding]:
    """How that compares with computing the same KV, by the profiles of this machine; `name`: `restore.profile`."""
    directory = profile_directory()
    found = [] if directory is None else sorted(directory.glob("*.json"))
    paths = found if name is None else [Path(name)]
    known = 0
    for path in paths:
        try:
            profile = load_profile(path, hardware=hardware_name())
        except ProfileError:
            continue
        known += 1
        tokens, model = TYPICAL_TOKENS, profile.model
        nbytes = tokens / model.page_tokens * model.page_bytes
        factor = bytes_per_second / (nbytes / profile.costs.compute.seconds(0, tokens))
        text = f"{profile.name}: {tokens} tokens come {factor:.2g} times as fast as they are computed"
        if factor >= SLOWEST_OF_USE:
            yield ok(text)
        else:
            yield warning(text, "a restore will hardly ever load from it: find out what is slow, or leave it out")
    if not known:
        yield note(
            "how that compares with recomputing is not known", "swift-tiers profile --model-path DIR measures it"
        )


def answer_time(seconds: float, deadline: float) -> Finding:
    text = f"says in {seconds * 1000:.1f} ms what is there"
    if seconds > deadline:
        return warning(
            text,
            f"that is more than remote.lookup_deadline ({deadline * 1000:.0f} ms), and nothing would be found; "
            "raise it, or find out what keeps the engine busy",
        )
    return ok(text)


def library(config: RemoteConfig) -> Iterator[Finding]:
    """What is known of the engine's library before it is loaded."""
    from swift_tiers.sglang_ext.build.remote_side import TESTED

    if config.engine not in TESTED:
        yield warning(f"{config.engine} is passed through", f"tested with swift-tiers are {' and '.join(TESTED)}")
    if config.engine == "mooncake":
        found = next(filter(None, map(_version, MOONCAKE)), None)
        if found is None:
            yield wrong("mooncake: not installed", f"pip install {MOONCAKE[1]} (with CUDA), or {MOONCAKE[0]}")
        elif tuple(map(int, found.split(".")[:3])) < LOWEST_MOONCAKE:
            yield warning(f"Mooncake {found}", "upgrade it to 0.3.13 or newer: older ones have crashed their process")
        else:
            yield ok(f"Mooncake {found}")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _remedy(config: RemoteConfig, reason: str) -> str:
    if "libibverbs" in reason:
        return "Mooncake needs libibverbs even for TCP: apt install libibverbs1"
    if config.engine == "nixl" and "nixl" in reason:
        return "pip install nixl, which takes the wheel of torch's CUDA; it needs no GPU"
    return f"see what remote.options says, and whether {config.engine} runs there"


def store(config: RemoteConfig) -> Iterator[Check]:
    """Of an engine of files: who else can write to its directories."""
    from swift_tiers.sglang_ext.build.remote_side import store_directories

    with contextlib.suppress(ConfigError):  # which the engine's own check says
        if paths := store_directories(config):
            yield Check("store's directory", lambda: combined(map(writers, paths)))


def writers(path: Path) -> Finding:
    """A directory of the store: whether it is this user's, or root's, and nobody else may write to it."""
    remedy = "whoever writes there is trusted with the model's answers: "
    try:
        details = path.stat()
    except FileNotFoundError:
        return ok(f"{path}: is made by the first server, for its user alone")
    except OSError as error:
        return wrong(f"{path}: cannot be looked at ({error.strerror})", "let this user in, or name another directory")
    if details.st_uid not in (os.geteuid(), 0):
        return warning(f"{path}: belongs to uid {details.st_uid}", f"{remedy}name a directory of this user's own")
    if details.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        who = "everybody" if details.st_mode & stat.S_IWOTH else f"group {details.st_gid}"
        found = f"{path}: may be written by {who} (mode {stat.S_IMODE(details.st_mode):04o})"
        if details.st_mode & stat.S_ISVTX:
            return warning(found, f"{remedy}make a directory of its own below it, and name that")
        return warning(found, f"{remedy}run `chmod go-w` on it, unless all of them are meant to")
    return ok(f"{path}: nobody else writes there")


def sharing(config: TiersConfig) -> Finding:
    """With whom pages are shared, and who can tell what was asked."""
    from swift_tiers.sglang_ext.build.remote_side import read_salt

    try:
        salt = read_salt(config)
    except ConfigError as error:
        return _refused(error)
    where = "on the same hardware" if config.remote.share == "same-hardware" else "anywhere"
    known = "as every start reads them" if config.identity.weights == "full" else "by hub name, or read once"
    who = f"the same model {where}, its weights told by their content ({known})"
    if salt:
        return ok(f"{who}, with the same salt")
    return note(
        f"{who}; no remote.salt_file: who can reach the engine can tell whether a prompt was asked before",
        "name a secret there where tenants are not to share",
    )


def _refused(error: ConfigError) -> Finding:
    """What a start would end with."""
    found, _, remedy = str(error).rpartition("; ")
    return wrong(found, remedy)
