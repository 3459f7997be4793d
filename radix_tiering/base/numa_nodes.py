"""Of which NUMA nodes this process may have memory, and how much these have.

Two things keep a process from the memory of some nodes: its cpuset (`docker run --cpuset-mems`, Kubernetes' memory
manager), which is that of all in a container, and its own policy (`numactl --membind`), by which SGLang binds each rank
to the node of its GPU. When these nodes have none left, the kernel kills a process, whatever others have.

`root`: see `usable_memory`.
"""

from __future__ import annotations

import ctypes
import platform
import re
from collections.abc import Set
from pathlib import Path
from typing import NamedTuple

from .kernel_files import text_in

_NODES = "sys/devices/system/node"
#: The number of get_mempolicy: glibc has no function for it.
_GET_MEMPOLICY = {"x86_64": 239, "aarch64": 236}.get(platform.machine())
_MPOL_BIND = 2
#: Of MPOL_F_NUMA_BALANCING and MPOL_F_STATIC_NODES, flags beside a policy by which the mask remains one of nodes.
_FLAGS = 1 << 13 | 1 << 15
#: No kernel has more nodes, and it refuses a mask for fewer than it may have.
_MOST_NODES = 1024
_WORD_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)

_libc = ctypes.CDLL(None, use_errno=True)


class NodeMemory(NamedTuple):
    """Memory of some nodes together, bytes."""

    nodes: str  # their numbers, as "0,1"
    total: int
    used: int  # without what the kernel takes back before it refuses memory


def container_nodes(root: Path) -> NodeMemory | None:
    """Those that the cpuset leaves this process; None where it leaves it all."""
    return _memory_of(_allowed(root), root)


def bound_nodes(root: Path) -> NodeMemory | None:
    """Those that its own policy leaves this process; None where it leaves it all."""
    return _memory_of(policy_nodes(), root)


def policy_nodes() -> Set[int] | None:
    """The numbers of the nodes that this thread's policy binds memory to, and that of threads which it starts; None
    where it binds it to none, and where the kernel does not say, as in a container that may make no policies."""
    if _GET_MEMPOLICY is None:
        return None
    mode, mask = ctypes.c_int(), (ctypes.c_ulong * (_MOST_NODES // _WORD_BITS))()
    size = ctypes.c_ulong(_MOST_NODES)
    if _libc.syscall(ctypes.c_long(_GET_MEMPOLICY), ctypes.byref(mode), mask, size, None, ctypes.c_ulong(0)) != 0:
        return None
    if mode.value & ~_FLAGS != _MPOL_BIND:
        return None
    return {node for node in range(_MOST_NODES) if mask[node // _WORD_BITS] >> node % _WORD_BITS & 1}


def _allowed(root: Path) -> Set[int] | None:
    match = re.search(r"^Mems_allowed_list:\s*(\S+)$", text_in(root / "proc/self/status"), re.MULTILINE)
    return _numbers(match[1]) if match else None


def _numbers(text: str) -> Set[int]:
    """Those of a list of the kernel, as "0-1,4"."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def _memory_of(nodes: Set[int] | None, root: Path) -> NodeMemory | None:
    """None where there are no nodes with memory but these."""
    if nodes is None:
        return None
    there = {int(place.name[len("node") :]): _figures(place) for place in (root / _NODES).glob("node[0-9]*")}
    there = {number: figures for number, figures in there.items() if figures.get("MemTotal")}
    chosen = sorted(there.keys() & nodes)
    if len(chosen) in (0, len(there)):
        return None
    total = sum(there[node]["MemTotal"] for node in chosen)
    # What was read of files makes room for whoever needs it.
    names = ("MemFree", "Active(file)", "Inactive(file)")
    free = sum(there[node].get(name, 0) for node in chosen for name in names)
    return NodeMemory(",".join(map(str, chosen)), total, max(0, total - free))


def _figures(place: Path) -> dict[str, int]:
    """What a node says of its memory, bytes."""
    lines = re.findall(r"^Node \d+ (\S+):\s+(\d+) kB$", text_in(place / "meminfo"), re.MULTILINE)
    return {name: int(kilobytes) * 1024 for name, kilobytes in lines}
