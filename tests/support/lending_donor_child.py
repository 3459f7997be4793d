"""The process that lends in gpu-proof, over a device that is none: `lending_donor_child.py MANNER OPTIONS`.

Manners: `honest`; `careless`, which writes to what it has lent; `leaky`, whose memory changes after it came back;
`driver`, honest over a driver of CUDA that is none.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

# Beside this file are modules that must not be taken for others.
sys.path[0] = str(Path(__file__).parent.parent)

import torch  # noqa: E402

from swift_tiers.ops.commands.gpu_proof import lending_donor  # noqa: E402
from swift_tiers.ops.commands.gpu_proof.lending_donor import DonorOptions, LendingDonor  # noqa: E402
from swift_tiers.radix_tiering.lending.donation.cuda_memory import CudaDeviceMemory  # noqa: E402
from swift_tiers.radix_tiering.lending.donation.device_memory import DeviceMemory  # noqa: E402

from support.fake_cuda_driver import FakeCudaDriver  # noqa: E402
from support.fake_device import FakeDeviceMemory  # noqa: E402


class Careless(LendingDonor):
    def recall(self) -> dict[str, Any]:
        # The oldest, which is recalled last: its lease goes on.
        for part in self._parts(self._lent[min(self._lent)]):
            part.fill_(1)
        return super().recall()


class Leaky(LendingDonor):
    def restock(self) -> dict[str, Any]:
        next(self._parts(self._kept[0]))[5] = 1
        return super().restock()


def memory_of(manner: str, name: str) -> DeviceMemory:
    if manner == "driver":
        return CudaDeviceMemory(0, FakeCudaDriver(name, reaches=("GPU-0",)), torch.device("cpu"))
    return FakeDeviceMemory(name)


if __name__ == "__main__":
    manner, options = sys.argv[1], DonorOptions(**json.loads(sys.argv[2]))
    lending_donor.LendingDonor = {"careless": Careless, "leaky": Leaky}.get(manner, LendingDonor)  # type: ignore[misc]
    lending_donor.lend(memory_of(manner, f"GPU-{options.ordinal}"), options)
