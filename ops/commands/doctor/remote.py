"""The engine of the remote tier: whether it can be opened as a server would, and brings back what it was given."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib import metadata

import numpy as np

from swift_tiers.radix_tiering.base.config import RemoteConfig, TiersConfig
from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.base.page import round_up
from swift_tiers.radix_tiering.base.units import format_size
from swift_tiers.radix_tiering.tiers.remote.objects import HEADER_BYTES

from ...base.errors import CommandError
from ...base.remote_engine import WaitedEngine
from .finding import Check, Finding, combined, note, ok, warning, wrong

#: Seconds for opening an engine, most of which is importing SGLang's drivers, and for each answer.
OPEN_SECONDS = 120.0
#: Questions of which the median counts.
QUESTIONS = 20
#: What Mooncake's library is called on PyPI, with and without CUDA, and the first release that the driver was tried on.
MOONCAKE, LOWEST_MOONCAKE = ("mooncake-transfer-engine-non-cuda", "mooncake-transfer-engine"), (0, 3, 13)


def checks(config: TiersConfig) -> Iterator[Check]:
    if config.remote.engine is not None:
        yield Check("remote engine", partial(round_trip, config.remote), OPEN_SECONDS + 30)
        yield Check("who shares", partial(sharing, config))


def round_trip(config: RemoteConfig) -> Finding:
    """One object is written, asked for, and read back. It stays in the engine, which nobody can ask to remove it, and
    the next look finds it there."""
    stride = round_up(HEADER_BYTES + int(config.object), HEADER_BYTES)
    try:
        with WaitedEngine(config, 4, stride, OPEN_SECONDS) as engine:
            return combined([*library(config), *_try(engine, config, stride)])
    except (CommandError, OSError) as error:
        return combined([*library(config), wrong(f"{config.engine}: {error}", _remedy(config, str(error)))])


def _try(engine: WaitedEngine, config: RemoteConfig, stride: int) -> Iterator[Finding]:
    yield ok(f"{config.engine}: opened in {engine.opened_seconds:.0f} s")
    name = f"st1-doctor-{stride}"
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
    return f"see what remote.options says, and whether {config.engine} runs there"


def sharing(config: TiersConfig) -> Finding:
    """With whom pages are shared, and who can tell what was asked."""
    from swift_tiers.sglang_ext.build.remote_side import read_salt

    try:
        salt = read_salt(config)
    except ConfigError as error:
        found, _, remedy = str(error).rpartition("; ")
        return wrong(found, remedy)
    who = "the same model on the same hardware" if config.remote.share == "same-hardware" else "the same model anywhere"
    if salt:
        return ok(f"{who}, with the same salt")
    return note(
        f"{who}; no remote.salt_file: who can reach the engine can tell whether a prompt was asked before",
        "name a secret there where tenants are not to share",
    )
