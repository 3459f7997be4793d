"""How much memory this process may use: of the machine's, of that of every group of processes which it belongs to, and
of that of the NUMA nodes which it may have memory of.

The limit of a container, of a pod or of a service of systemd (`MemoryMax=`) is that of such a group (cgroup), or of one
above it, and the kernel kills whoever goes beyond, however much the machine has free. In `/proc/meminfo` there is
nothing of that. Groups are directories of files; where they lie, and which this process is in, differs by the version
of cgroups, and by whether a container sees its own group alone. Nodes that are a container's are a limit as well, which
all in it are under; those that a process's own policy binds it to are its own: others of its server may have others.

`root` is the root of the file system in which /proc and /sys are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from .kernel_files import number_in, text_in, unescaped
from .numa_nodes import NodeMemory, bound_nodes, container_nodes

_ROOT = Path("/")
#: From here on a limit is none: version 1 has a number of pages for that, version 2 the word "max".
_UNLIMITED = 1 << 60


class MemoryLimit(NamedTuple):
    """What a group of processes may use, of which this process is one, bytes."""

    limit: int
    used: int  # by all processes of the group, without what the kernel takes back before it refuses memory
    group: str  # the same for all who are in it, from whatever container they see it, and no other group's
    nodes: str = ""  # the numbers of NUMA nodes, as "0,1", where the limit is that they have no more

    @property
    def room(self) -> int:
        """What they may still use."""
        return max(0, self.limit - self.used)


class MemoryClaim(NamedTuple):
    """What others on this machine are about to take, which counts as used nowhere yet."""

    size: int  # bytes
    groups: frozenset[str]  # those with a limit that they are in, as `MemoryLimit.group` names them


class _CgroupFiles(NamedTuple):
    """What a version of cgroups calls the files of a group's memory, and where it usually lies."""

    limit: str
    used: str
    cache: tuple[str, ...]  # lines of `memory.stat`
    usual: tuple[str, ...]


_VERSION_1 = _CgroupFiles(
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    ("total_active_file", "total_inactive_file"),
    ("/sys/fs/cgroup/memory",),
)
_VERSION_2 = _CgroupFiles(
    "memory.max",
    "memory.current",
    ("active_file", "inactive_file"),
    ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"),
)


class _CgroupMount(NamedTuple):
    """A place where groups are seen."""

    files: _CgroupFiles
    top: PurePosixPath  # the group that lies there
    point: PurePosixPath


def available_memory(root: Path = _ROOT, claims: Sequence[MemoryClaim] = ()) -> int | None:
    """Bytes that this process can have without swapping: `common_memory`, as far as its own policy allows."""
    bound = bound_limit(root)
    rooms = [common_memory(root, claims), None if bound is None else bound.room]
    return min((room for room in rooms if room is not None), default=None)


def common_memory(root: Path = _ROOT, claims: Sequence[MemoryClaim] = ()) -> int | None:
    """Bytes that all processes of its server together can have without swapping, by the kernel's own estimate, without
    going beyond a limit, and beside the `claims` of others; None where the kernel does not say."""
    machine = _meminfo(root, "MemAvailable")
    if machine is not None:
        machine = max(0, machine - sum(claim.size for claim in claims))
    rooms = [found for found in (machine, container_room(root, claims)) if found is not None]
    return min(rooms, default=None)


def total_memory(root: Path = _ROOT) -> int | None:
    """Bytes of memory that the machine has; None where the kernel does not say."""
    return _meminfo(root, "MemTotal")


def lowest_limit(root: Path = _ROOT) -> MemoryLimit | None:
    """The lowest that this process and all others of its container are under; None: they are under none."""
    return min(memory_limits(root), key=lambda found: found.limit, default=None)


def bound_limit(root: Path = _ROOT) -> MemoryLimit | None:
    """What this process's own policy leaves it; None: it binds it to no NUMA nodes."""
    return _limit_of_nodes(bound_nodes(root))


def container_room(root: Path = _ROOT, claims: Sequence[MemoryClaim] = ()) -> int | None:
    """What this process may use until it meets the first of its limits, bytes; None: it is under none. Of a limit's
    room only the `claims` of those go who are under it too: what another container takes is none of this one's."""
    rooms = (
        found.room - sum(claim.size for claim in claims if found.group in claim.groups) for found in memory_limits(root)
    )
    return min((max(0, room) for room in rooms), default=None)


def memory_limits(root: Path = _ROOT) -> list[MemoryLimit]:
    """The limits of this process's group and of all above it that are seen from here, and of its container's nodes."""
    found = [_limit_of(files, directory) for files, directory in _directories(root)]
    return [limit for limit in (*found, _limit_of_nodes(container_nodes(root))) if limit is not None]


def _limit_of_nodes(memory: NodeMemory | None) -> MemoryLimit | None:
    """Of the same nodes it is the same for all containers of the machine. What others take who have some of them, and
    others besides, counts once they have it: where the kernel is going to take it from is not known before."""
    return memory and MemoryLimit(memory.total, memory.used, f"NUMA nodes {memory.nodes}", memory.nodes)


def _meminfo(root: Path, name: str) -> int | None:
    for line in text_in(root / "proc/meminfo").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return None


def _limit_of(files: _CgroupFiles, directory: Path) -> MemoryLimit | None:
    """None where this group has none, or is not seen from here."""
    limit = number_in(directory / files.limit)
    if limit is None or limit >= _UNLIMITED:
        return None
    used = number_in(directory / files.used) or 0
    # What was read of files, as weights are, counts as used, but makes room for whoever needs it.
    return MemoryLimit(limit, max(0, used - _cached(directory / "memory.stat", files.cache)), _group(files, directory))


def _group(files: _CgroupFiles, directory: Path) -> str:
    """By the number of its directory, which is of the group itself: the path is "/" in every container that has a
    namespace of groups. The kernel counts these numbers up, so that a container that is started anew has others."""
    try:
        return f"{files.limit} {directory.stat().st_ino}"
    except OSError:
        return ""  # it went just now


def _cached(file: Path, names: tuple[str, ...]) -> int:
    """Bytes of files that are kept in memory, of tmpfs none: those stay."""
    figures = (line.split(" ") for line in text_in(file).splitlines())
    return sum(int(figure[1]) for figure in figures if figure[0] in names)


def _directories(root: Path) -> Iterator[tuple[_CgroupFiles, Path]]:
    """Those of this process's group and of all groups above it; some of them may not be there."""
    mounts = list(_mounts(root))
    for files, group in _own_groups(root):
        places = [mount for mount in mounts if mount.files is files]
        places = places or [_CgroupMount(files, PurePosixPath("/"), PurePosixPath(usual)) for usual in files.usual]
        above = [mount for mount in places if ".." not in group.parts and group.is_relative_to(mount.top)]
        for mount in above:
            below = mount.point / group.relative_to(mount.top)
            for directory in (below, *below.parents):
                yield files, root / directory.relative_to("/")
                if directory == mount.point:
                    break
        if not above:  # the group is named as it is seen from elsewhere: what lies at the top is the container's
            yield from ((files, root / mount.point.relative_to("/")) for mount in places)


def _own_groups(root: Path) -> Iterator[tuple[_CgroupFiles, PurePosixPath]]:
    """The groups that this process is in, by the name that the kernel gives them."""
    for line in text_in(root / "proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            yield _VERSION_2, PurePosixPath(path)
        elif "memory" in controllers.split(","):
            yield _VERSION_1, PurePosixPath(path)


def _mounts(root: Path) -> Iterator[_CgroupMount]:
    """Where groups that have a say about memory are mounted, as proc(5) has it."""
    for line in text_in(root / "proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.partition(" ")
        if kind == "cgroup2":
            files = _VERSION_2
        elif kind == "cgroup" and "memory" in options.rpartition(" ")[2].split(","):
            files = _VERSION_1
        else:
            continue
        top, point = (PurePosixPath(unescaped(field)) for field in left.split(" ")[3:5])
        yield _CgroupMount(files, top, point)
