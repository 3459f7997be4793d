"""GPUs' memory: whether servers can lend it to each other, and whether SSDs are read straight to it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from swift_tiers.radix_tiering.base.config import PeerConfig, TiersConfig
from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.tiers.ssd.direct import find_kvikio

from .accelerators import gpu_nodes
from .finding import Check, Finding, note, ok, warning, wrong

if TYPE_CHECKING:
    from swift_tiers.radix_tiering.lending.donation.device_memory import DeviceMemory

#: Seconds: to import torch and start the driver on every GPU; to import kvikio and start its driver.
LENT_SECONDS, DIRECT_SECONDS = 90.0, 60.0


def checks(config: TiersConfig, nodes: bool | None = None) -> Iterator[Check]:
    """`nodes`: whether the system has GPUs; where not, there is nothing to say."""
    if gpu_nodes() if nodes is None else nodes:
        yield Check("lent GPU memory", lambda: lent(try_gpus(), config.peer), LENT_SECONDS)
        yield Check("SSD to GPU", partial(direct, config.ssd.gpu_direct), DIRECT_SECONDS)


def lent(tried: Mapping[int, str], peer: PeerConfig) -> Finding:
    """`tried`: by number, why a GPU's memory cannot be lent and mapped, "WHAT; REMEDY"; empty: it can."""
    if not tried:
        return note("none in use")
    can = [str(number) for number, why in tried.items() if not why]
    text = f"GPU {', '.join(can)}: exported, mapped and read in this process" if can else ""
    failed = {number: why.partition("; ") for number, why in tried.items() if why}
    if not failed:
        return ok(text)
    reasons = "; ".join(f"GPU {number} cannot be lent: {what}" for number, (what, _, _) in failed.items())
    found = "; ".join(part for part in (text, reasons) if part)
    remedy = next(remedy for _, _, remedy in failed.values())
    if peer.borrow or peer.donate:
        return warning(found, remedy or "remove peer.donate and peer.borrow")
    return note(found, remedy)


def direct(wanted: Literal["auto", "on", "off"], find: Callable[[Any], Any] = find_kvikio) -> Finding:
    """`wanted`: `ssd.gpu_direct`. `find`: as `find_kvikio`."""
    if wanted == "off":
        return note("switched off by ssd.gpu_direct: pages come through host memory")
    try:
        find("on")
    except ConfigError as error:
        what, _, remedy = str(error).partition("; ")
        if wanted == "on":
            return wrong(what, remedy)
        return note(f"{what.removeprefix('ssd.gpu_direct: ')}: pages come through host memory")
    if find("auto") is not None:
        return ok("GPUDirect Storage, by kvikio")
    found = "kvikio finds no GPUDirect Storage here"
    if wanted == "on":
        return warning(
            f"{found}: it copies through host memory itself",
            "load its driver (`modprobe nvidia-fs`; `gdscheck -p` says what is missing), or remove ssd.gpu_direct",
        )
    return note(f"{found}: pages come through host memory")


def try_gpus(open_memory: Callable[[int], Any] | None = None, count: int | None = None) -> dict[int, str]:
    """Lend a little of every GPU that torch sees to this process itself; see `lent`. `open_memory`: of a GPU by its
    number."""
    import torch

    from swift_tiers.radix_tiering.lending.donation.arena import ArenaError
    from swift_tiers.radix_tiering.lending.donation.cuda_memory import CudaDeviceMemory

    tried = {}
    for number in range(torch.cuda.device_count() if count is None else count):
        try:
            _try_out((open_memory or CudaDeviceMemory)(number))
            tried[number] = ""
        except ArenaError as error:
            tried[number] = str(error)
    return tried


def _try_out(device: DeviceMemory) -> None:
    """Export a little, map it in this process, and read there what was written here. Raises ArenaError."""
    from swift_tiers.radix_tiering.lending.donation.arena import ArenaError
    from swift_tiers.radix_tiering.lending.donation.device_arena import AttachedDevice, DeviceArena

    said = np.frombuffer(b"lent", dtype=np.uint8)
    heard = np.zeros_like(said)
    whole = np.array([[0, 0, len(said)]])
    arena = DeviceArena(device, len(said))
    try:
        attached = AttachedDevice(device, os.dup(arena.fd), arena.size)
        try:
            arena.write(said, whole)
            attached.read(whole, heard)
        finally:
            attached.close()
    finally:
        arena.close()
    if not np.array_equal(heard, said):
        raise ArenaError(f"{device.name}: what was written is not read where it is mapped; report this")
