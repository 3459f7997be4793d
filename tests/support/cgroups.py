"""Trees of /proc and /sys as processes in containers see them."""

from __future__ import annotations

from pathlib import Path

GIB = 2**30
MOUNT_1 = "35 31 0:32 {top} {point} rw,relatime - cgroup cgroup rw,memory"
MOUNT_2 = "41 31 0:38 {top} {point} rw,relatime - cgroup2 cgroup2 rw"


class MachineTree:
    """A machine's files, of which a test writes those it is about."""

    def __init__(self, root: Path, available: int = 400 * GIB, total: int = 512 * GIB) -> None:
        self.root = root
        self.write("proc/meminfo", f"MemTotal: {total >> 10} kB\nMemFree: 1 kB\nMemAvailable:  {available >> 10} kB\n")

    def write(self, path: str, text: str) -> None:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def process(self, groups: str, *mounts: str) -> None:
        """What this process is in, and what is mounted for it."""
        self.write("proc/self/cgroup", groups + "\n")
        self.write(
            "proc/self/mountinfo", "".join(f"{line}\n" for line in ("22 1 8:1 / / rw - ext4 /dev/sda rw", *mounts))
        )

    def node(self, number: int, total: int, free: int, cached: int = 0) -> None:
        """A NUMA node of which so much is used, but for what is free and what is `cached` of files."""
        names = {"MemTotal": total, "MemFree": free, "Active(file)": cached // 2, "Inactive(file)": cached // 2}
        lines = [f"Node {number} {name}:{size >> 10:>16} kB\n" for name, size in names.items()]
        self.write(
            f"/sys/devices/system/node/node{number}/meminfo", "".join(lines) + f"Node {number} HugePages_Total: 0\n"
        )

    def allowed(self, nodes: str) -> None:
        """The nodes that this process's cpuset leaves it."""
        self.write("proc/self/status", f"Name:\tpython\nMems_allowed:\t00000003\nMems_allowed_list:\t{nodes}\n")

    def limit_1(self, directory: str, limit: int, used: int = 0, cached: int = 0) -> None:
        """A group's limit, in version 1 of cgroups; `cached` of what is used is page cache."""
        self.write(f"{directory}/memory.limit_in_bytes", f"{limit}\n")
        self.write(f"{directory}/memory.usage_in_bytes", f"{used}\n")
        lines = f"inactive_file 0\nactive_file 0\ntotal_inactive_file {cached // 2}\ntotal_active_file {cached // 2}\n"
        self.write(f"{directory}/memory.stat", lines)

    def limit_2(self, directory: str, limit: int | str, used: int = 0, cached: int = 0) -> None:
        """The same in version 2."""
        self.write(f"{directory}/memory.max", f"{limit}\n")
        self.write(f"{directory}/memory.current", f"{used}\n")
        lines = f"anon {used - cached}\nfile {cached}\ninactive_file {cached // 2}\nactive_file {cached // 2}\n"
        self.write(f"{directory}/memory.stat", lines)


def pod(root: Path, limit: int, used: int = 0, cached: int = 0) -> Path:
    """The root of a container of its own group, as most are."""
    machine = MachineTree(root)
    machine.process("0::/", MOUNT_2.format(top="/", point="/sys/fs/cgroup"))
    machine.limit_2("/sys/fs/cgroup", limit, used, cached)
    return root


def two_nodes(root: Path, free: int = 200 * GIB) -> MachineTree:
    """A machine of two NUMA nodes of 256 GiB, of which the first has so much free, and the second one 200."""
    machine = MachineTree(root)
    machine.node(0, 256 * GIB, free // 2, cached=free // 2)
    machine.node(1, 256 * GIB, 200 * GIB)
    return machine
