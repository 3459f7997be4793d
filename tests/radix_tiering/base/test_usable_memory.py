"""What memory this process may use: of the machine, and by the limits of its groups."""

from __future__ import annotations

import inspect
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from swift_tiers.radix_tiering.base import numa_nodes
from swift_tiers.radix_tiering.base.memory import huge_array
from swift_tiers.radix_tiering.base.usable_memory import (
    MemoryClaim,
    available_memory,
    bound_limit,
    common_memory,
    container_room,
    lowest_limit,
    memory_limits,
    total_memory,
)
from swift_tiers.radix_tiering.lending.donation.arena import SharedArena

from support.cgroups import GIB, MOUNT_1, MOUNT_2, MachineTree, pod, two_nodes

UNLIMITED_1 = 9223372036854771712
SLICE = "/system.slice/swift.service"


def test_without_limits_it_is_what_the_kernel_says(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 10 kB\nMemAvailable:    7 kB\n")
    assert available_memory(tmp_path) == 7 * 1024
    assert total_memory(tmp_path) == 10 * 1024
    assert lowest_limit(tmp_path) is None
    assert container_room(tmp_path) is None
    assert available_memory(tmp_path / "missing") is None
    assert total_memory(tmp_path / "missing") is None


def test_on_this_machine_there_is_some() -> None:
    available, total = available_memory(), total_memory()
    assert available is not None
    assert total is not None
    assert 0 < available <= total


def container_2(tree: MachineTree) -> None:
    """Its own group is all that it sees."""
    tree.process("0::/", MOUNT_2.format(top="/", point="/sys/fs/cgroup"))
    tree.limit_2("/sys/fs/cgroup", 64 * GIB, 10 * GIB)


def container_2_on_the_hosts_namespace(tree: MachineTree) -> None:
    tree.process("0::/docker/1f", MOUNT_2.format(top="/", point="/sys/fs/cgroup"))
    tree.limit_2("/sys/fs/cgroup/docker/1f", 64 * GIB, 10 * GIB)


def container_2_that_is_mounted_alone(tree: MachineTree) -> None:
    tree.process("0::/docker/1f", MOUNT_2.format(top="/docker/1f", point="/sys/fs/cgroup"))
    tree.limit_2("/sys/fs/cgroup", 64 * GIB, 10 * GIB)


def container_2_named_from_elsewhere(tree: MachineTree) -> None:
    tree.process("0::/../2e", MOUNT_2.format(top="/", point="/sys/fs/cgroup"))
    tree.limit_2("/sys/fs/cgroup", 64 * GIB, 10 * GIB)


def service_of_systemd(tree: MachineTree) -> None:
    tree.process(f"0::{SLICE}", MOUNT_2.format(top="/", point="/sys/fs/cgroup"))
    tree.limit_2("/sys/fs/cgroup/system.slice", "max", 90 * GIB)
    tree.limit_2(f"/sys/fs/cgroup{SLICE}", 64 * GIB, 10 * GIB)


def slice_above_a_service(tree: MachineTree) -> None:
    tree.process(f"0::{SLICE}", MOUNT_2.format(top="/", point="/sys/fs/cgroup"))
    tree.limit_2("/sys/fs/cgroup/system.slice", 64 * GIB, 10 * GIB)
    tree.limit_2(f"/sys/fs/cgroup{SLICE}", 80 * GIB, 5 * GIB)


def container_1(tree: MachineTree) -> None:
    tree.process("4:cpu:/\n3:memory:/\n0::/", MOUNT_1.format(top="/", point="/sys/fs/cgroup/memory"))
    tree.limit_1("/sys/fs/cgroup/memory", 64 * GIB, 10 * GIB)


def pod_1_on_the_hosts_namespace(tree: MachineTree) -> None:
    group = "/kubepods/burstable/pod7/1f"
    tree.process(f"3:hugetlb,memory:{group}", MOUNT_1.format(top=group, point="/sys/fs/cgroup/memory"))
    tree.limit_1("/sys/fs/cgroup/memory", 64 * GIB, 10 * GIB)


def hybrid(tree: MachineTree) -> None:
    """Version 2 is there, without a say about memory."""
    mounts = (
        MOUNT_1.format(top="/", point="/sys/fs/cgroup/memory"),
        MOUNT_2.format(top="/", point="/sys/fs/cgroup/unified"),
    )
    tree.process("3:memory:/a/b\n0::/", *mounts)
    tree.limit_1("/sys/fs/cgroup/memory", UNLIMITED_1, 90 * GIB)
    tree.limit_1("/sys/fs/cgroup/memory/a", 64 * GIB, 10 * GIB)
    tree.limit_1("/sys/fs/cgroup/memory/a/b", UNLIMITED_1, 5 * GIB)


def unusual_place(tree: MachineTree) -> None:
    tree.process("0::/", MOUNT_2.format(top="/", point="/mnt/my\\040groups"))
    tree.limit_2("/mnt/my groups", 64 * GIB, 10 * GIB)


def without_mountinfo(tree: MachineTree) -> None:
    tree.process("0::/a")
    tree.limit_2("/sys/fs/cgroup/a", 64 * GIB, 10 * GIB)


@pytest.mark.parametrize(
    "scene",
    [
        container_2,
        container_2_on_the_hosts_namespace,
        container_2_that_is_mounted_alone,
        container_2_named_from_elsewhere,
        service_of_systemd,
        slice_above_a_service,
        container_1,
        pod_1_on_the_hosts_namespace,
        hybrid,
        unusual_place,
        without_mountinfo,
    ],
)
def test_every_limit_is_found_wherever_it_lies(scene, tmp_path: Path) -> None:
    scene(MachineTree(tmp_path))
    lowest = lowest_limit(tmp_path)
    assert lowest is not None
    assert lowest.limit == 64 * GIB
    assert container_room(tmp_path) == 54 * GIB
    assert available_memory(tmp_path) == 54 * GIB
    assert (64 * GIB, 10 * GIB) in [limit[:2] for limit in memory_limits(tmp_path)]
    assert total_memory(tmp_path) == 512 * GIB


def test_the_machine_may_have_less_than_a_limit_allows(tmp_path: Path) -> None:
    container_2(MachineTree(tmp_path, available=20 * GIB))
    assert available_memory(tmp_path) == 20 * GIB


def test_a_group_that_uses_more_than_it_may_has_no_room(tmp_path: Path) -> None:
    tree = MachineTree(tmp_path)
    container_2(tree)
    tree.limit_2("/sys/fs/cgroup", 4 * GIB, 10 * GIB)
    assert available_memory(tmp_path) == 0


def test_files_that_were_read_take_nothing_away(tmp_path: Path) -> None:
    """Weights above all; what is cached of files makes room by itself."""
    for number in (1, 2):
        root = tmp_path / str(number)
        tree = MachineTree(root)
        (container_1, container_2)[number - 1](tree)
        place = ("/sys/fs/cgroup/memory", "/sys/fs/cgroup")[number - 1]
        (tree.limit_1, tree.limit_2)[number - 1](place, 64 * GIB, 63 * GIB, cached=60 * GIB)
        assert [limit[:2] for limit in memory_limits(root)] == [(64 * GIB, 3 * GIB)]
        assert available_memory(root) == 61 * GIB


def test_what_others_are_about_to_take_counts_where_they_are(tmp_path: Path) -> None:
    """Two services below one that has a limit for both, and one for itself."""
    tree = MachineTree(tmp_path, available=100 * GIB)
    tree.process("0::/gpu.slice/one", MOUNT_2.format(top="/", point="/sys/fs/cgroup"))
    tree.limit_2("/sys/fs/cgroup/gpu.slice", 64 * GIB)
    tree.limit_2("/sys/fs/cgroup/gpu.slice/one", 40 * GIB)
    own, shared = [limit.group for limit in memory_limits(tmp_path)]
    assert own != shared
    sibling = MemoryClaim(30 * GIB, frozenset({shared, "memory.max 1"}))
    stranger = MemoryClaim(30 * GIB, frozenset({"memory.max 2"}))
    assert container_room(tmp_path, [stranger]) == 40 * GIB
    assert container_room(tmp_path, [sibling]) == 34 * GIB
    assert container_room(tmp_path, [sibling] * 3) == 0
    assert available_memory(tmp_path, [stranger] * 2) == 40 * GIB
    assert available_memory(tmp_path, [stranger] * 3) == 10 * GIB
    assert available_memory(tmp_path, [stranger] * 4) == 0


def test_nodes_of_a_container_are_a_limit(tmp_path: Path) -> None:
    """Of all who have the same; weights that were read leave room there, too."""
    tree = two_nodes(tmp_path, free=150 * GIB)
    tree.allowed("0")
    (limit,) = memory_limits(tmp_path)
    assert limit == (256 * GIB, 106 * GIB, "NUMA nodes 0", "0")
    assert lowest_limit(tmp_path) == limit
    assert container_room(tmp_path) == available_memory(tmp_path) == 150 * GIB
    same, other = (MemoryClaim(30 * GIB, frozenset({f"NUMA nodes {node}"})) for node in (0, 1))
    assert available_memory(tmp_path, [same, other]) == 120 * GIB
    assert total_memory(tmp_path) == 512 * GIB


def test_a_groups_limit_may_be_lower_than_what_its_nodes_have(tmp_path: Path) -> None:
    tree = two_nodes(tmp_path)
    container_2(tree)
    tree.allowed("1")
    assert [limit.limit for limit in memory_limits(tmp_path)] == [64 * GIB, 256 * GIB]
    assert available_memory(tmp_path) == 54 * GIB


@pytest.mark.parametrize("nodes", ["0-1", "0,1", "0-3"])
def test_all_nodes_are_no_limit(nodes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node without memory, of processors alone, is none that is missing."""
    tree = two_nodes(tmp_path)
    tree.node(2, 0, 0)
    tree.allowed(nodes)
    monkeypatch.setattr(numa_nodes, "policy_nodes", lambda: {0, 1})
    assert memory_limits(tmp_path) == []
    assert bound_limit(tmp_path) is None


def test_a_policy_leaves_a_process_less_than_its_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two_nodes(tmp_path, free=100 * GIB)
    monkeypatch.setattr(numa_nodes, "policy_nodes", lambda: {0})
    assert bound_limit(tmp_path) == (256 * GIB, 156 * GIB, "NUMA nodes 0", "0")
    assert memory_limits(tmp_path) == []
    assert common_memory(tmp_path) == 400 * GIB
    assert available_memory(tmp_path) == 100 * GIB


BINDS = """
import ctypes, os, sys
from swift_tiers.radix_tiering.base.numa_nodes import policy_nodes
assert policy_nodes() is None
mask = (ctypes.c_ulong * 16)(1)
number = {"x86_64": 238, "aarch64": 237}[os.uname().machine]
if ctypes.CDLL(None).syscall(number, int(sys.argv[1]), mask, 1024):
    sys.exit("it may make no policy")
print(policy_nodes())
"""


@pytest.mark.parametrize(("policy", "found"), [(2, "{0}"), (2 | 1 << 15, "{0}"), (1, "None"), (3, "None")])
def test_the_kernel_says_what_memory_is_bound_to(policy: int, found: str) -> None:
    """Preferred nodes and those that take turns are no limit."""
    done = subprocess.run([sys.executable, "-c", BINDS, str(policy)], capture_output=True, text=True, check=False)
    if "it may make no policy" in done.stderr:
        pytest.skip("no policies of memory may be made here")
    assert done.stdout.strip() == found, done.stderr


def test_more_cached_than_used_is_nothing_used(tmp_path: Path) -> None:
    """The two are not read at the same time."""
    tree = MachineTree(tmp_path)
    container_2(tree)
    tree.limit_2("/sys/fs/cgroup", 64 * GIB, 10 * GIB, cached=11 * GIB)
    assert container_room(tmp_path) == 64 * GIB


def test_large_buffers_and_what_is_lent_ask_for_it(tmp_path: Path) -> None:
    """By default, that is."""
    available = partial(available_memory, pod(tmp_path, 4 << 20))
    with pytest.raises(MemoryError, match="4194305 bytes of host memory asked for, 4194304 available"):
        huge_array((4 << 20) + 1, available=available)
    for asks in (huge_array, SharedArena):
        assert inspect.signature(asks).parameters["available"].default is available_memory
