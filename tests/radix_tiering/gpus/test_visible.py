"""Which GPU a process computes on, by CUDA's numbers and NVML's names."""

from __future__ import annotations

import msgspec
import pytest

from swift_tiers.radix_tiering.gpus.snapshots import Gpu
from swift_tiers.radix_tiering.gpus.visible import gpu_of

TAIL = "1111-2222-3333-444455556666"
NAMES = [f"{number}{number:07x}-{TAIL}" for number in range(4)]
GPUS = [Gpu(index=number, uuid=f"GPU-{name}", name="NVIDIA H200", mig=False) for number, name in enumerate(NAMES)]
MIG = f"MIG-77777777-{TAIL}"


def visible(text: str, **more: str) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": text, **more}


@pytest.mark.parametrize(
    ("environment", "order"),
    [
        ({}, [0, 1, 2, 3, None]),
        (visible("2,0"), [2, 0, None]),
        (visible("3"), [3, None]),
        (visible(" 1 , 3 "), [1, 3]),
        (visible(""), [None]),
        (visible("-1"), [None]),
        (visible("0,-1,2"), [0, None, None]),  # CUDA stops at what it does not find
        (visible("1,9,2"), [1, None, None]),
        (visible(f"GPU-{NAMES[2]},GPU-{NAMES[0]}"), [2, 0]),
        (visible(f"GPU-{NAMES[2].upper()}"), [2]),
        (visible("GPU-2,GPU-3"), [2, 3]),  # cut short, as long as only one begins so
        (visible("GPU-,0"), [None, None]),
        (visible("GPU-99,0"), [None, None]),
        (visible("nonsense"), [None]),
    ],
)
def test_renumbering(environment: dict[str, str], order: list[int | None]) -> None:
    wanted = [None if number is None else GPUS[number].uuid for number in order]
    assert [gpu_of(ordinal, None, GPUS, environment) for ordinal in range(len(order))] == wanted


def test_what_cuda_says_of_itself_decides() -> None:
    assert gpu_of(0, NAMES[3], GPUS, visible("1")) == GPUS[3].uuid
    assert gpu_of(0, f"GPU-{NAMES[3]}", GPUS, {}) == GPUS[3].uuid
    assert gpu_of(0, "what is this", GPUS, visible("1")) == GPUS[1].uuid


def test_unlike_gpus_are_not_told_apart_by_number() -> None:
    """CUDA's first one is the fastest, whatever NVML's order is, unless it is told otherwise."""
    unlike = [*GPUS[:3], msgspec.structs.replace(GPUS[3], name="NVIDIA A10")]
    assert gpu_of(0, None, unlike, {}) is None
    assert gpu_of(0, None, unlike, visible("3")) is None
    assert gpu_of(0, None, unlike, visible("3", CUDA_DEVICE_ORDER="PCI_BUS_ID")) == unlike[3].uuid
    assert gpu_of(0, None, unlike, visible(f"GPU-{NAMES[3]}")) == unlike[3].uuid
    assert gpu_of(0, NAMES[1], unlike, {}) == unlike[1].uuid


def test_mig_instances_by_name() -> None:
    assert gpu_of(0, None, GPUS, visible(MIG)) == MIG
    # Some drivers let CUDA say the name of the whole GPU.
    assert gpu_of(0, NAMES[0], GPUS, visible(MIG)) == MIG
    assert gpu_of(0, MIG.removeprefix("MIG-"), GPUS, {}) == MIG
    assert gpu_of(0, MIG, GPUS, visible("0")) == MIG


def test_which_instance_of_a_divided_gpu_is_not_guessed() -> None:
    divided = [msgspec.structs.replace(GPUS[0], mig=True), *GPUS[1:]]
    assert gpu_of(0, NAMES[0], divided, visible("0")) is None
    assert gpu_of(0, None, divided, visible("0")) is None


def test_in_a_container_nvml_counts_what_it_was_given() -> None:
    given = [msgspec.structs.replace(GPUS[2], index=0)]
    assert gpu_of(0, None, given, {}) == GPUS[2].uuid
    assert gpu_of(0, None, given, visible("0")) == GPUS[2].uuid
    assert gpu_of(1, None, given, {}) is None
    assert gpu_of(0, None, [], {}) is None


def test_a_lost_gpu_has_no_name() -> None:
    lost = [msgspec.structs.replace(GPUS[0], uuid="", trouble="GPU is lost", name=""), *GPUS[1:]]
    assert gpu_of(0, None, lost, {}) is None
    assert gpu_of(0, NAMES[1], lost, {}) == GPUS[1].uuid
