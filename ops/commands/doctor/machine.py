"""Kernel, memory and limits of this machine, or of the container that we are in."""

from __future__ import annotations

import os
import platform
import re
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from swift_tiers.radix_tiering.base.config import HostConfig, SsdConfig, TiersConfig
from swift_tiers.radix_tiering.base.kernel_files import number_in, text_in
from swift_tiers.radix_tiering.base.units import format_size
from swift_tiers.radix_tiering.base.usable_memory import (
    available_memory,
    bound_limit,
    container_room,
    memory_limits,
    total_memory,
)

from .finding import Check, Finding, note, ok, warning, wrong

#: First kernels with what we use: a timed wait in io_uring, rings that do not count as locked memory, and memory that
#: is made resident in one call.
URING_KERNEL, UNCOUNTED_KERNEL, POPULATE_KERNEL = (5, 11), (5, 12), (5, 14)
#: Limit on open files that SGLang sets for itself, if it may.
SGLANG_FILES = 65535
#: Below this many open files, connections are refused under load; below the second, a server does not come up.
FEW_FILES, TOO_FEW_FILES = 4096, 512
#: Locked memory that the rings of a server need where the kernel counts it, bytes.
RING_BYTES = 1 << 20
#: Shared memory below which SGLang's processes and NCCL have been seen to run out, bytes. Docker's default is 64 MiB.
SMALL_SHM = 1 << 30
#: A host tier that leaves less than this share of the free memory is a warning: weights and requests need some too.
SPARE_SHARE = 0.1
#: An automatic host tier below this is hardly worth having, bytes.
SMALL_HOST = 1 << 30
_PROBE_BYTES = 32 << 20
#: Where the kernel says how large a huge page is.
_HUGE_PAGE_BYTES = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
_SECCOMP_FILTER = "2"


class Memory(NamedTuple):
    """Memory as a server sees it, bytes."""

    total: int
    available: int
    container_room: float  # what the container may still use; infinite where there is no limit
    nodes: str = ""  # the numbers of NUMA nodes, as "0,1", which have no more free than that, and no others may be used


def checks(config: TiersConfig) -> Iterator[Check]:
    version = kernel_version(platform.release())
    yield Check("kernel", lambda: kernel(platform.system(), platform.release()))
    yield Check("io_uring", lambda: io_uring(config.ssd, _probe_ring(), _seccomp()))
    # Slow the first time: it imports torch.
    yield Check("host memory", lambda: host_memory(config.host, _memory(), _automatic_size()), 60.0)
    yield Check("huge pages", lambda: huge_pages(_huge_page_setting(), huge_share, number_in(_HUGE_PAGE_BYTES)), 15.0)
    yield Check("locked memory", lambda: locked_memory(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0], version))
    yield Check("open files", lambda: open_files(*resource.getrlimit(resource.RLIMIT_NOFILE)))
    yield Check("/dev/shm", lambda: shared_memory(Path("/dev/shm")))


def kernel_version(release: str) -> tuple[int, int]:
    """`6.18.44-generic` as (6, 18); (0, 0) for what does not look like a release."""
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def kernel(system: str, release: str) -> Finding:
    text = f"{system} {release}"
    if system != "Linux":
        return wrong(text, "use Linux: the tiers stand on its direct I/O and memory calls")
    if kernel_version(release) < URING_KERNEL:
        return warning(f"{text}: no usable io_uring", "upgrade to Linux 5.11 or later; until then threads do the I/O")
    if kernel_version(release) < POPULATE_KERNEL:
        return note(f"{text}: the host tier is made resident page by page, a slower start", "Linux 5.14 or later")
    return ok(text)


def io_uring(config: SsdConfig, reason: str | None, seccomp: bool) -> Finding:
    """`reason`: why a ring could not be used, None if it could. `seccomp`: this process is behind a filter."""
    if reason is None:
        return ok("a ring works")
    remedy = _uring_remedy(reason, seccomp)
    if config.engine == "io_uring":
        return wrong(f"{reason}; ssd.engine asks for it", f'{remedy}, or set ssd.engine to "auto"')
    if config.engine == "threads" or not (config.directories or config.devices):
        return note(f"{reason}; not needed by this configuration", remedy)
    return warning(f"{reason}; threads do the I/O, with more CPU time", remedy)


def _uring_remedy(reason: str, seccomp: bool) -> str:
    if "io_uring_disabled" in reason:
        return "sysctl -w kernel.io_uring_disabled=0"
    if seccomp and ("EPERM" in reason or "ENOSYS" in reason):
        return (
            "allow io_uring_setup and io_uring_enter in the container's seccomp profile "
            "(docker and podman: --security-opt seccomp=PROFILE.json, to try it seccomp=unconfined; "
            "Kubernetes: securityContext.seccompProfile)"
        )
    if "ulimit -l" in reason:
        return "raise `ulimit -l` (docker: --ulimit memlock=-1; systemd: LimitMEMLOCK=infinity)"
    return "upgrade to Linux 5.11 or later, with CONFIG_IO_URING"


def host_memory(config: HostConfig, memory: Memory, automatic: int) -> Finding:
    """`automatic`: the size that is taken where none is configured, bytes."""
    free = min(memory.available, memory.container_room)
    limit = " in this container" if memory.container_room <= memory.available else ""
    if memory.nodes:
        limit = f" on NUMA node(s) {memory.nodes}, and none may be had of others"
    size = automatic if config.size is None else int(config.size)
    text = (
        f"host.size {format_size(size)}{' (automatic)' if config.size is None else ''}, "
        f"{format_size(int(free))} of {format_size(memory.total)} free{limit}"
    )
    if size > free:
        return wrong(text, f"set host.size below {format_size(int(free))}, or end what uses the memory")
    if config.size is None and size < SMALL_HOST:
        return warning(text, "end what uses the memory, or set host.size")
    if free - size < free * SPARE_SHARE:
        return warning(f"{text}: little is left for everything else", "make host.size smaller")
    return ok(text)


def huge_pages(setting: str | None, share: Callable[[], float], page_bytes: int | None = None) -> Finding:
    """`setting`: the kernel's word for transparent huge pages; `share`: measures how much of a buffer is in them, of
    which each has so many bytes (unset: the kernel does not say)."""
    switch = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
    if setting is None:
        return warning("this kernel has no transparent huge pages: SSD reads are slower", "use a kernel that has them")
    if setting == "never":
        return warning("switched off: SSD reads into host memory are slower", switch)
    if page_bytes is not None and page_bytes > _PROBE_BYTES:  # as where pages have 64 KiB
        return note(f"{setting}; each has {format_size(page_bytes)} on this kernel, more than a test buffer: not tried")
    got = share()
    text = f"{setting}; {got:.0%} of a test buffer is in huge pages"
    if got < 0.9:
        remedy = "free memory is in pieces: echo 1 > /proc/sys/vm/compact_memory, or start before other programs"
        return warning(text, remedy)
    return ok(text)


def huge_share() -> float:
    """How much of a buffer made like the host tier's memory is in huge pages, 0 to 1."""
    from swift_tiers.radix_tiering.base.memory import huge_array

    before = _huge_bytes()
    buffer = huge_array(_PROBE_BYTES)
    return min(1.0, (_huge_bytes() - before) / buffer.nbytes)


def _huge_bytes(smaps: Path = Path("/proc/self/smaps_rollup")) -> int:
    match = re.search(r"^AnonHugePages:\s+(\d+) kB", smaps.read_text(), re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def locked_memory(limit: int, kernel: tuple[int, int]) -> Finding:
    """`limit`: RLIMIT_MEMLOCK, bytes. Newer kernels do not count a ring; accelerators pin without counting."""
    text = "unlimited" if limit == resource.RLIM_INFINITY else f"limit of {format_size(limit)}"
    if limit == resource.RLIM_INFINITY or kernel >= UNCOUNTED_KERNEL:
        return ok(text if limit == resource.RLIM_INFINITY else f"{text}, does not count on this kernel")
    if limit < RING_BYTES:
        return warning(
            f"{text}, and kernels before 5.12 count io_uring's rings",
            "raise `ulimit -l` to 1024 or more (docker: --ulimit memlock=-1; systemd: LimitMEMLOCK=infinity)",
        )
    return ok(text)


def open_files(soft: int, hard: int) -> Finding:
    """RLIMIT_NOFILE. SGLang raises the soft limit to 65535, but only where the hard one allows all of that."""
    unlimited = resource.RLIM_INFINITY
    if hard == unlimited or hard >= SGLANG_FILES:
        return ok(f"limit of {soft if soft != unlimited else 'none'}; SGLang raises it to {SGLANG_FILES} itself")
    text = f"limit of {soft}, and a hard one of {hard} that SGLang cannot raise it above"
    remedy = f"raise the hard limit to {SGLANG_FILES} (`ulimit -Hn`; docker: --ulimit nofile={SGLANG_FILES})"
    if soft < TOO_FEW_FILES:
        return wrong(text, remedy)
    if soft < FEW_FILES:
        return warning(f"{text}: connections are refused under load", remedy)
    return ok(f"limit of {soft}")


def shared_memory(folder: Path, statvfs: Callable[[Path], os.statvfs_result] = os.statvfs) -> Finding:
    try:
        room = statvfs(folder)
    except OSError as error:
        return warning(
            f"{folder}: {error.strerror}", "mount a tmpfs there: SGLang's processes and NCCL share memory in it"
        )
    size, free = room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize
    text = f"{format_size(free)} of {format_size(size)} free"
    if size < SMALL_SHM:
        return warning(
            f"{text}: too small for tensor parallelism", "make it larger (docker: --shm-size=16g, or --ipc=host)"
        )
    if free < SMALL_SHM:
        return warning(f"{text}: nearly full", f"look for what dead programs have left: ls -l {folder}")
    return ok(text)


def _memory(root: Path = Path("/")) -> Memory:
    room, total, available = container_room(root), total_memory(root) or 0, available_memory(root) or 0
    limits = [limit for limit in (*memory_limits(root), bound_limit(root)) if limit is not None]
    nearest = min(limits, key=lambda limit: limit.room, default=None)
    return Memory(
        min([total, *(limit.limit for limit in limits)]),
        available,
        float("inf") if room is None else room,
        nearest.nodes if nearest is not None and nearest.room <= available else "",
    )


def _automatic_size() -> int:
    from swift_tiers.sglang_ext.build.host_size import automatic_host_size

    return automatic_host_size()


def _probe_ring() -> str | None:
    from swift_tiers.radix_tiering.tiers.ssd.arrays.uring import probe

    return probe()


def _seccomp(status: Path = Path("/proc/self/status")) -> bool:
    match = re.search(r"^Seccomp:\s+(\d)", status.read_text(), re.MULTILINE)
    return match is not None and match[1] == _SECCOMP_FILTER


def _huge_page_setting(file: Path = Path("/sys/kernel/mm/transparent_hugepage/enabled")) -> str | None:
    match = re.search(r"\[(\w+)\]", text_in(file))
    return match[1] if match else None
