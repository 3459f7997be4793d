"""How large the host tier becomes, and which sizes are refused, before the model is loaded and after."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from swift_tiers.radix_tiering.base import numa_nodes
from swift_tiers.radix_tiering.base.config import HostConfig, TiersConfig
from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.base.units import Size
from swift_tiers.radix_tiering.base.usable_memory import MemoryClaim, memory_limits
from swift_tiers.sglang_ext.build import assembly
from swift_tiers.sglang_ext.build.host_size import Coming, automatic_host_size, check_host_size, rank_host_size

from support.cgroups import GIB, MachineTree, pod, two_nodes

PAGE = 2 << 20


def of(size: int) -> HostConfig:
    return HostConfig(size=Size(size))


def test_more_than_the_container_may_use_is_refused_before_the_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the machine has."""
    root = pod(tmp_path, 64 * GIB)
    monkeypatch.setattr(assembly, "check_host_size", partial(check_host_size, root=root))
    with pytest.raises(
        ConfigError, match=r"^host.size: 100GiB is more than the 64GiB .* container .*; make it smaller"
    ):
        assembly.check_machine(TiersConfig(host=of(100 * GIB)), ranks=2)
    assembly.check_machine(TiersConfig(host=of(60 * GIB)), ranks=2)


def test_more_than_the_machine_has_is_refused_before_the_model_is_loaded(tmp_path: Path) -> None:
    root = MachineTree(tmp_path).root
    with pytest.raises(ConfigError, match=r"^host.size: 600GiB is more than this machine's 512GiB; make it smaller"):
        check_host_size(of(600 * GIB), root)
    check_host_size(of(500 * GIB), root)
    check_host_size(HostConfig(), root)


def test_all_that_there_is_is_refused_before_the_model_is_loaded(tmp_path: Path) -> None:
    """It would leave nothing for the server itself."""
    with pytest.raises(ConfigError, match=r"^host.size: 64GiB is all of the 64GiB that this container may use; make"):
        check_host_size(of(64 * GIB), pod(tmp_path / "pod", 64 * GIB))
    with pytest.raises(ConfigError, match=r"^host.size: 512GiB is all of this machine's 512GiB; make it smaller"):
        check_host_size(of(512 * GIB), MachineTree(tmp_path).root)


def test_more_than_is_free_in_the_container_is_refused(tmp_path: Path) -> None:
    """By the time that it is taken, by the first rank and for all of them: 20 GiB for each of two ranks are 40. Where
    20 are free the second one would be killed, or end, once the first has taken its part."""
    root = pod(tmp_path, 64 * GIB, used=44 * GIB)
    with pytest.raises(
        ConfigError, match=r"^host.size: 40GiB for 2 of 2 .* 20GiB that are free in this container; make it smaller"
    ):
        rank_host_size(of(40 * GIB), 2, PAGE, Coming(2), root)
    assert rank_host_size(of(20 * GIB), 2, PAGE, Coming(2), root) == 10 * GIB


def test_what_a_rank_has_that_came_first_is_not_asked_for_again(tmp_path: Path) -> None:
    """The second rank finds 20 GiB free of 40, and needs no more. If others took some of that, it says so."""
    assert rank_host_size(of(40 * GIB), 2, PAGE, Coming(2), pod(tmp_path / "first", 64 * GIB, 24 * GIB)) == 20 * GIB
    last = Coming(1, found=20 * GIB)
    assert rank_host_size(of(40 * GIB), 2, PAGE, last, pod(tmp_path / "then", 64 * GIB, 44 * GIB)) == 20 * GIB
    full = pod(tmp_path / "full", 64 * GIB, 45 * GIB)
    with pytest.raises(ConfigError, match=r"^host.size: 20GiB for 1 of 2 rank.s. is more than the 19GiB that are free"):
        rank_host_size(of(40 * GIB), 2, PAGE, last, full)
    with pytest.raises(ConfigError, match=r"^host memory: 20GiB for 1 of 2 .*; set host.size, or end what uses"):
        rank_host_size(HostConfig(), 2, PAGE, last, full)


def test_more_than_is_free_on_the_machine_is_refused(tmp_path: Path) -> None:
    root = MachineTree(tmp_path, available=20 * GIB).root
    with pytest.raises(ConfigError, match=r"^host.size: 50GiB for 2 of 2 .* 20GiB that are free; make it smaller"):
        rank_host_size(of(50 * GIB), 2, PAGE, Coming(2), root)


def test_what_others_are_about_to_take_of_the_machine_is_none_of_the_container(tmp_path: Path) -> None:
    """Unless they are in it as well, or in a group above it that has a limit."""
    root = pod(tmp_path, 64 * GIB, used=14 * GIB)
    MachineTree(root, available=100 * GIB)
    (group,) = [limit.group for limit in memory_limits(root)]
    elsewhere, here = MemoryClaim(40 * GIB, frozenset({"memory.max 1"})), MemoryClaim(10 * GIB, frozenset({group}))
    assert automatic_host_size([elsewhere], root) == 20 * GIB
    assert automatic_host_size([elsewhere, here], root) == 16 * GIB
    assert rank_host_size(of(50 * GIB), 2, PAGE, Coming(2, others=(elsewhere,)), root) == 25 * GIB
    with pytest.raises(
        ConfigError, match=r"40GiB that are free in this container beside what other servers that start"
    ):
        rank_host_size(of(50 * GIB), 2, PAGE, Coming(2, others=(elsewhere, here)), root)
    with pytest.raises(
        ConfigError, match=r"20GiB that are free beside what other servers that start are about to take"
    ):
        rank_host_size(of(50 * GIB), 2, PAGE, Coming(2, others=(elsewhere, elsewhere)), root)


def test_without_a_size_it_is_a_share_of_what_is_free_in_the_container(tmp_path: Path) -> None:
    root = pod(tmp_path, 64 * GIB, used=14 * GIB)
    assert automatic_host_size(root=root) == 20 * GIB
    assert rank_host_size(HostConfig(), 2, PAGE, Coming(2), root) == 10 * GIB


def test_more_than_a_containers_nodes_have_is_refused(tmp_path: Path) -> None:
    tree = two_nodes(tmp_path, free=100 * GIB)
    tree.allowed("0")
    with pytest.raises(
        ConfigError,
        match=r"^host.size: 256GiB is all of the 256GiB that this container may use, of NUMA node\(s\) 0; "
        r"make it smaller, or allow it more NUMA nodes \(cpuset.mems\)$",
    ):
        check_host_size(of(256 * GIB), tmp_path)
    with pytest.raises(ConfigError, match=r"^host.size: 120GiB for 2 of 2 .* the 100GiB that are free in this contain"):
        rank_host_size(of(120 * GIB), 2, PAGE, Coming(2), tmp_path)
    assert automatic_host_size(root=tmp_path) == 40 * GIB


@pytest.fixture
def bound_to_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numa_nodes, "policy_nodes", lambda: {0})


@pytest.mark.usefixtures("bound_to_the_first")
def test_a_rank_that_is_bound_to_a_node_asks_its_own_part_of_it(tmp_path: Path) -> None:
    """Others may be on other nodes; those on the same one that came before have theirs."""
    root = two_nodes(tmp_path, free=100 * GIB).root
    check_host_size(of(300 * GIB), root)
    assert rank_host_size(of(300 * GIB), 4, PAGE, Coming(4), root) == 75 * GIB
    two_nodes(tmp_path, free=25 * GIB)
    with pytest.raises(ConfigError) as refused:
        rank_host_size(of(300 * GIB), 4, PAGE, Coming(3, found=75 * GIB), root)
    assert str(refused.value) == (
        "host.size: 75GiB for each of 4 rank(s) is more than the 25GiB that are free on NUMA node(s) 0, to which this "
        "rank's memory is bound; make it smaller, or end what uses the memory, or let SGLang bind ranks to no memory "
        "(SGLANG_NUMA_BIND_V2=0)"
    )


@pytest.mark.usefixtures("bound_to_the_first")
def test_without_a_size_all_ranks_fit_on_a_node_that_they_are_bound_to(tmp_path: Path) -> None:
    """Where it has half of what is free they have what they would have without."""
    root = two_nodes(tmp_path, free=200 * GIB).root
    assert automatic_host_size(root=root) == 160 * GIB
    two_nodes(tmp_path, free=100 * GIB)
    assert rank_host_size(HostConfig(), 4, PAGE, Coming(4), root) == 20 * GIB
    two_nodes(tmp_path, free=8 << 20)
    with pytest.raises(
        ConfigError, match=r"^host memory: 80% of the 8MiB that are free on NUMA node\(s\) 0, .* too little: 1.6MiB for"
    ):
        rank_host_size(HostConfig(), 4, PAGE, Coming(4), root)


def test_a_size_that_holds_no_page_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^host.size: 1MiB for each rank holds no page of 2MiB; make it larger"):
        rank_host_size(of(2 << 20), 2, PAGE, Coming(2), MachineTree(tmp_path).root)


def test_weights_that_were_read_leave_room(tmp_path: Path) -> None:
    root = pod(tmp_path, 64 * GIB, used=63 * GIB, cached=49 * GIB)
    assert automatic_host_size(root=root) == 20 * GIB
    assert rank_host_size(of(40 * GIB), 1, PAGE, Coming(1), root) == 40 * GIB


def test_a_container_that_is_full_is_named_where_no_size_was_set(tmp_path: Path) -> None:
    root = pod(tmp_path, 64 * GIB, used=64 * GIB - (8 << 20))
    with pytest.raises(ConfigError) as refused:
        rank_host_size(HostConfig(), 2, PAGE, Coming(2), root)
    assert str(refused.value) == (
        "host memory: 40% of the 8MiB that are free of the 64GiB that this container may use is too little: "
        "1.6MiB for each rank holds no page of 2MiB; raise the container's limit of memory, or set host.size"
    )


def test_a_machine_that_is_full_is_named_where_no_size_was_set(tmp_path: Path) -> None:
    root = MachineTree(tmp_path, available=8 << 20).root
    with pytest.raises(ConfigError, match=r"40% of the 8MiB that are free is too little.*; end what uses the memory"):
        rank_host_size(HostConfig(), 2, PAGE, Coming(2), root)


def test_a_stack_is_made_of_that_size(monkeypatch: pytest.MonkeyPatch) -> None:
    from support.engine import namespace

    def refuse(*_):
        raise ConfigError("asked")

    monkeypatch.setattr(assembly, "rank_host_size", refuse)
    with pytest.raises(ConfigError, match="asked"):
        assembly.open_stack(namespace(), TiersConfig(), assembly.Rank(0, 1, 0, 1))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            of(1 << 30),
            r"^host\.size: 1GiB for each rank cannot be had: 4096 bytes cannot be made resident: make it less$",
        ),
        (HostConfig(), r"^host memory: 1GiB for each rank cannot be had: 4096 .*: make it less, or set host\.size$"),
    ],
)
def test_memory_that_is_not_to_be_had_after_all_is_a_matter_of_the_configuration(
    config: HostConfig, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from support.engine import namespace

    def refuse(geometry, size):
        raise MemoryError("4096 bytes cannot be made resident: make it less")

    monkeypatch.setattr(assembly, "rank_host_size", lambda *_: 1 << 30)
    monkeypatch.setattr(assembly, "HostTier", refuse)
    with pytest.raises(ConfigError, match=said):
        assembly.open_stack(namespace(), TiersConfig(host=config), assembly.Rank(0, 1, 0, 1))
