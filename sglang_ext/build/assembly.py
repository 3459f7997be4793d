"""From a server's arguments and configuration to the tier stack of one of its ranks."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from msgspec import structs

from swift_tiers.kernels.cuda_runtime import cuda_runtime
from swift_tiers.radix_tiering.base.config import RestoreConfig, SsdConfig, TiersConfig
from swift_tiers.radix_tiering.base.errors import ConfigError, StripeSetBusyError
from swift_tiers.radix_tiering.base.events import EventLog
from swift_tiers.radix_tiering.base.page import Namespace, PageGeometry, page_digest
from swift_tiers.radix_tiering.base.runner import THREADS
from swift_tiers.radix_tiering.base.units import format_size
from swift_tiers.radix_tiering.restore.live import LiveCosts
from swift_tiers.radix_tiering.restore.profiles import ModelIdentity, ProfileError, find_profile, load_profile
from swift_tiers.radix_tiering.stack import TierStack
from swift_tiers.radix_tiering.tiers.host.host_tier import HostTier
from swift_tiers.radix_tiering.tiers.host.landing import Landing
from swift_tiers.radix_tiering.tiers.ssd.arrays.throttled import ThrottledArray
from swift_tiers.radix_tiering.tiers.ssd.claiming import check_content, check_device
from swift_tiers.radix_tiering.tiers.ssd.device_files import (
    DeviceFiles,
    LaunchRanks,
    UnusedFile,
    check_directories,
    device_files_in,
    unused_files,
)
from swift_tiers.radix_tiering.tiers.ssd.direct import find_kvikio
from swift_tiers.radix_tiering.tiers.ssd.files import HELD_SECONDS, open_array, open_device_file
from swift_tiers.radix_tiering.tiers.ssd.ssd_tier import SsdTier
from swift_tiers.radix_tiering.tiers.tier import Tier

from ..pools.device_pool import DevicePool
from ..pools.landing import open_direct, open_landing, wanted_kvikio
from ..tell.log_lines import LogLines
from .hardware import hardware_name
from .host_size import check_host_size, not_to_be_had, rank_host_size
from .memory_turn import MemoryTurn
from .remote_side import check_remote, open_remote, shared_scope

if TYPE_CHECKING:
    from .peer_side import PeerSide

logger = logging.getLogger(__name__)

#: What makes SGLang's tree; by this hook it is ours.
TREE_FACTORY = "sglang.srt.mem_cache.registry.create_unified_radix_cache"
#: Threads that verify pages in host memory, or a quarter of the cores, if that is less: four read more than a link
#: carries.
MOST_CHECK_THREADS = 4
#: How often a long scan at start reports, seconds.
PROGRESS_SECONDS = 2.0


class Rank(NamedTuple):
    """Which of a server's schedulers this is."""

    tensor: int
    tensor_size: int
    data: int
    data_size: int

    @property
    def name(self) -> str:
        """Distinguishes the device files of one server's ranks."""
        return f"dp{self.data}-tp{self.tensor}"

    def here(self, machines: int) -> int:
        """Ranks of its server on each of so many machines."""
        return -(-self.total // machines)

    @property
    def identity(self) -> str:
        """The part of the model that this rank computes. Data-parallel ranks compute the same."""
        return f"tp{self.tensor}/{self.tensor_size}"

    def identity_of(self, geometry: PageGeometry) -> str:
        """The same, where KV is of this geometry: of some (MLA) all ranks have all of it."""
        return f"tp*/{self.tensor_size}" if self.has_all_of(geometry) else self.identity

    def has_all_of(self, geometry: PageGeometry) -> bool:
        """Whether every rank has the same KV, of several."""
        return geometry.is_whole and self.tensor_size > 1

    def shares(self, geometry: PageGeometry) -> bool:
        """Whether it is this rank that writes what others can read: of several that have the same KV, the first."""
        return not self.has_all_of(geometry) or self.tensor == 0

    def names(self, machines: int = 1, machine: int = 0) -> tuple[str, ...]:
        """Of all ranks of its server, or of those on one of so many machines."""
        tensors = range(self.tensor_size)
        if machines > 1:
            share = max(1, self.tensor_size // machines)
            tensors = tensors[machine * share % self.tensor_size :][:share]
        return tuple(
            self._replace(tensor=tensor, data=data).name for data in range(self.data_size) for tensor in tensors
        )

    def names_beside(self, machines: int) -> tuple[str, ...]:
        """Of all ranks of its server on its own machine, one of so many."""
        return self.names(machines, self.tensor // max(1, self.tensor_size // machines))

    @property
    def total(self) -> int:
        """Ranks of this server on all machines together."""
        return self.tensor_size * self.data_size


def current_rank() -> Rank:
    """The rank of this scheduler process. Raises ConfigError where `Rank.identity` would not say which KV it has.

    Whatever a user asks for, a model may have SGLang split its attention in more ways than `--tp-size` says.
    """
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    heads, tokens = getattr(parallel, "attn_tp_size", parallel.tp_size), getattr(parallel, "attn_dcp_size", 1)
    # Data-parallel attention: so many groups of ranks, each of which has requests, and KV, of its own.
    groups = getattr(parallel, "attn_dp_size", 1)
    if heads * groups != parallel.tp_size or tokens != 1:
        raise ConfigError(
            f"--enable-swift-tiers: SGLang splits KV otherwise than by heads over all {parallel.tp_size} ranks here "
            f"(attention: {heads} ranks by heads, {tokens} by tokens), which is not supported; use --tp-size alone"
        )
    group = getattr(parallel, "attn_dp_rank", None) or 0
    replica = getattr(parallel, "dp_rank", None) or 0
    return Rank(parallel.tp_rank % heads, heads, replica * groups + group, parallel.dp_size * groups)


def last_rank(view: Any) -> Rank:
    """The one with the highest numbers of the server that SGLang's arguments `view` describe."""
    groups = max(view.attn_dp_size, view.dp_size if view.enable_dp_attention else 1)
    replicas = 1 if view.enable_dp_attention else view.dp_size
    heads = max(1, view.tp_size // groups)
    return Rank(heads - 1, heads, replicas * groups - 1, replicas * groups)


def check_hooked() -> None:
    """Raises ConfigError in a process to which SGLang has not loaded its plugins: the tree there is SGLang's own, by
    which nothing would ever come to the tiers or from them."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    if TREE_FACTORY not in HookRegistry._patched:
        raise ConfigError(
            "--enable-swift-tiers: SGLang has begun this rank without its plugins; start the server by "
            "`python -m sglang.launch_server`, or remove the flag"
        )


def build_tiers(
    server_args: Any, params: Any, pool: DevicePool, config: TiersConfig
) -> tuple[TierStack, PeerSide | None]:
    """The tier stack of this rank over its device pool, and what it lends and borrows; the latter is to be closed after
    the stack.

    Raises ConfigError, FormatError or StripeSetBusyError, all with a remedy.
    """
    from .identity import server_namespace

    check_hooked()
    rank = current_rank()
    kvcache = params.token_to_kv_pool_allocator.get_kvcache()
    part = rank.identity_of(pool.geometry) if config.remote.engine is not None else rank.identity
    namespace = server_namespace(server_args, kvcache, pool.geometry, part, config.identity.weights)
    scope = shared_scope(config, server_args)
    if pool.states is not None:
        # They are copied to the device from host memory alone.
        namespace = structs.replace(namespace, dtype=f"{namespace.dtype}, states of {pool.states.kinds}")
        kvikio = landing = None
    else:
        kvikio = wanted_kvikio(config, pool)
        landing = open_landing(config, pool) if kvikio is not None or config.peer.borrow else None
    more: dict[str, Any] = {
        "landing": landing,
        "kvikio": kvikio,
        "scope": scope,
        "machines": server_args.nnodes,
        "copies_beside": pool.accelerator is not None,
    }
    if not config.peer.donate and not config.peer.borrow:
        return open_stack(namespace, config, rank, **more), None
    from .peer_side import PeerSide

    side = PeerSide(config, rank.name, pool, kvcache, landing, number=rank.tensor, ranks=rank.tensor_size)
    try:
        stack = open_stack(namespace, config, rank, side.borrow, **more)
    except BaseException:
        side.close()
        raise
    stack.lease_hand = side.hand()
    if side.tier is not None:
        stack.on_neighbours = side.tier.neighbours
    return stack, side


def open_stack(
    namespace: Namespace,
    config: TiersConfig,
    rank: Rank,
    borrow: Callable[[Callable[[np.ndarray], bytes], EventLog], Tier | None] = lambda fingerprint, events: None,
    *,
    landing: Landing | None = None,
    kvikio: Any = None,
    scope: str = "",
    machines: int = 1,
    copies_beside: bool = False,
) -> TierStack:
    """Allocate the host tier, open the devices; what they hold is found while serving. `borrow`: makes the peer tier of
    a rank that borrows, given the checksum of a page. `landing`: where pages come to the GPU past host memory,
    `kvikio`: from the devices too. `scope`: see `shared_scope`. `machines`: over which the ranks are spread.
    `copies_beside`: see `HostConfig.verifies`."""
    geometry = namespace.geometry
    here = rank.here(machines)
    # The size, too: a process may start a server a second time, with another one.
    with MemoryTurn(config.bus.directory, f"{config.bus.server} {config.host.size}", here) as turn:
        size = turn.size(partial(rank_host_size, config.host, here, geometry.stride_bytes))
        try:
            host = HostTier(geometry, size)
        except MemoryError as error:
            raise not_to_be_had(config.host, size, error) from error
    lock_pages(host.slab)
    ssd = open_ssd(config.ssd, rank, machines)
    logger.info(
        "swift-tiers: host tier of %s (%d pages of %s%s)%s, namespace %s",
        format_size(host.capacity_bytes),
        host.slots,
        format_size(geometry.page_bytes),
        f", as {geometry.codec} instead of {format_size(geometry.device_page_bytes)}: lossy" if geometry.codec else "",
        f", ssd tier on {_in_service(ssd)} by {ssd.description}, whose pages are looked for while serving"
        if ssd is not None
        else "",
        namespace.digest().hex(),
    )
    if ssd is not None and (direct := open_direct(kvikio, ssd, landing)) is not None:
        ssd.land_by(direct)
    fingerprint = ssd.fingerprint if ssd is not None else page_digest
    events = EventLog(THREADS.time, hear=LogLines().hear)
    peer = borrow(fingerprint, events)
    remote = open_remote(
        config,
        geometry,
        scope=scope,
        writes=rank.shares(geometry),
        fingerprint=fingerprint,
        events=events,
        ranks=rank.here(machines),
    )
    tiers = [tier for tier in (peer, ssd, remote) if tier is not None]  # in the order in which they are read
    return TierStack(
        namespace,
        config,
        host,
        tiers,
        events=events,
        costs=known_costs(namespace, config.restore),
        landing=landing,
        fill_behind=True,
        copies_beside=copies_beside,
        check_threads=max(1, min(MOST_CHECK_THREADS, len(os.sched_getaffinity(0)) // 4)),
    )


def known_costs(namespace: Namespace, config: RestoreConfig) -> LiveCosts:
    """What recomputing and loading cost by this model's profile on this hardware; to be learnt where there is none.

    Raises ConfigError for a profile that is named and cannot be used; one that is found by itself is left out then,
    with a log entry.
    """
    model, hardware = ModelIdentity.of(namespace), hardware_name()
    if config.profile is not None:
        return LiveCosts(load_profile(Path(config.profile), model, hardware).costs)
    try:
        profile = find_profile(model, hardware)
    except ProfileError as error:
        logger.warning("swift-tiers: going on without a profile: %s", error)
        profile = None
    if profile is None:
        logger.info("swift-tiers: no profile of this model on %s: costs are learnt from requests", hardware)
    return LiveCosts(profile.costs if profile is not None else None)


def lock_pages(array: np.ndarray) -> None:
    """Pin memory where there is an accelerator that copies from it."""
    if torch.version.cuda is not None and torch.cuda.is_available():
        error = cuda_runtime().page_lock(array.ctypes.data, array.nbytes)
        if error:
            logger.warning("swift-tiers: host memory cannot be pinned (CUDA error %d): copies are slower", error)


def unlock_pages(array: np.ndarray) -> None:
    """Take `lock_pages` back, once nothing is copied from there or to there any more."""
    if torch.version.cuda is not None and torch.cuda.is_initialized():
        cuda_runtime().page_unlock(array.ctypes.data)


def open_ssd(config: SsdConfig, rank: Rank, machines: int = 1) -> SsdTier | None:
    """The SSD tier of one rank of a server on so many machines, its device files made if need be; None if no directory
    or device is named."""
    if not config.directories and not config.devices:
        return None
    files = DeviceFiles(rank.name, rank.here(machines), config, rank.names_beside(machines))
    paths = files.paths()
    files.make_missing()
    array: Any = open_array(paths, engine=config.engine)
    if config.throttle is not None:
        array = ThrottledArray(array, float(config.throttle))
    names = [str(path) for path in paths]
    tier = SsdTier(
        array,
        names,
        int(config.stripe_unit),
        codes=config.codec != "none",
        coders=config.codec_threads,
        progress=_scan_progress(paths),
        behind=True,
        make_device=files.make,
    )
    there = zip(paths, array.sizes, tier.snapshot()[1], strict=True)
    _tell_what_stays(config, tier.stripes.unit_bytes, [(path, size) for path, size, now in there if now.in_service])
    return tier


def _in_service(ssd: SsdTier) -> str:
    """`2 devices`, or `1 of 2 devices` where others were left out."""
    devices = ssd.snapshot()[1]
    there = sum(device.in_service for device in devices)
    of = f" of {len(devices)}" if there < len(devices) else ""
    return f"{there}{of} device{'s' if len(devices) > 1 else ''}"


def _tell_what_stays(config: SsdConfig, unit_bytes: int, devices: Iterable[tuple[Path, int]]) -> None:
    """Log which settings are for new devices, and others than those that are there have."""
    asked = {"ssd.stripe_unit": (int(config.stripe_unit), unit_bytes)}
    for path, size in devices:
        if config.size_per_device is not None and size and not path.is_block_device():
            asked[f"ssd.size_per_device ({path})"] = (int(config.size_per_device), size)
    for name, (wanted, there) in asked.items():
        if wanted != there:
            logger.warning(
                "swift-tiers: %s: %s is for new devices, and stays %s here; to change it, stop the server and delete "
                "its device files, with all that they keep",
                name,
                format_size(wanted),
                format_size(there),
            )


def _scan_progress(paths: Sequence[Path]) -> Callable[[int, int, int], None]:
    """Says every few seconds how far the scan of a stripe set is that was not closed in order."""
    next_line = time.monotonic() + PROGRESS_SECONDS

    def progress(device: int, done: int, slots: int) -> None:
        nonlocal next_line
        if time.monotonic() >= next_line:
            next_line = time.monotonic() + PROGRESS_SECONDS
            logger.info("swift-tiers: looking for pages on %s: %d of %d slots", paths[device], done, slots)

    return progress


def check_machine(config: TiersConfig, ranks: int, launch: LaunchRanks | None = None) -> None:
    """Everything about a configuration that can be found out before a model is loaded. `ranks`: on this machine.
    `launch`: see `check_directories`; device files that are none of these ranks' are logged. Raises ConfigError.

    Leaves nothing behind: device files are opened only if they exist, and closed again. At a launch it waits a moment
    for a server that has just been killed to let go of them.
    """
    check_host_size(config.host)
    if config.ssd.gpu_direct == "on":
        find_kvikio("on")
    check_directories(config.ssd, ranks, launch)
    for index, device in enumerate(config.ssd.devices):
        if ranks > 1:
            raise ConfigError(
                f"ssd.devices[{index}]: {device!r} cannot be shared by {ranks} ranks; "
                "make a file system on it and name that under ssd.directories"
            )
        if not os.access(device, os.R_OK | os.W_OK):
            raise ConfigError(f"ssd.devices[{index}]: {device!r} is missing or not writable for this user")
        try:
            check_device(Path(device))
        except ConfigError as error:
            raise ConfigError(f"ssd.devices[{index}]: {error}") from None
    for path in _existing_devices(config.ssd):
        elsewhere = launch is not None and launch.runs_elsewhere(path)
        try:
            open_device_file(path, 0.0 if launch is None or elsewhere else HELD_SECONDS).close()
            if not path.is_block_device():  # these were looked at above
                check_content(path)
        except StripeSetBusyError as error:
            if not elsewhere:  # else that machine has the directory, too, and its ranks have started
                raise ConfigError(f"ssd: {error}") from None
    if launch is not None:
        _tell_what_nobody_uses(unused_files(config.ssd, launch))
    if config.restore.profile is not None:
        load_profile(Path(config.restore.profile))
    check_remote(config)


def _tell_what_nobody_uses(files: Sequence[UnusedFile]) -> None:
    for whose, elsewhere, where, remedy in (
        ("of a server with another --tp-size or --dp-size", False, "", "or start with that one again"),
        ("other machines run these ranks now", True, " on this machine", "unless one of those has this directory, too"),
    ):
        if some := [file for file in files if file.elsewhere == elsewhere]:
            logger.warning(
                "swift-tiers: ssd.directories: no rank of this server%s uses %s, %s together: %s; remove them to have "
                "their room, %s",
                where,
                ", ".join(map(str, some)),
                format_size(sum(file.size for file in some)),
                whose,
                remedy,
            )


def check_donor(config: TiersConfig, *, memory_saver: bool) -> None:
    """Raise ConfigError where `peer.donate` is set and this server is of a kind that cannot lend so far."""
    if not config.peer.donate:
        return
    from sglang.srt.platforms import current_platform

    from ..platform.cpu_platform import PortableCpuPlatform

    on_cpu = isinstance(current_platform, PortableCpuPlatform)
    if not on_cpu and not current_platform.is_cuda():
        raise ConfigError("peer.donate: is supported on NVIDIA GPUs and the portable CPU platform only; remove it")
    if not on_cpu and config.peer.pool_layout == "block-major":
        raise ConfigError("peer.pool_layout: block-major is supported on the portable CPU platform only; remove it")
    if memory_saver:
        raise ConfigError("peer.donate: cannot be combined with --enable-memory-saver, which takes the pool away")


def _existing_devices(config: SsdConfig) -> list[Path]:
    candidates = [Path(device) for device in config.devices]
    for directory in config.directories:
        candidates += device_files_in(Path(directory))
    return candidates
