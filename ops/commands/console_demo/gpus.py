"""What NVML would say of a simulated server's GPU: cards without NVLink, over whose PCIe the tiers' copies go."""

from __future__ import annotations

import msgspec

from swift_tiers.radix_tiering.base.runner import Runner
from swift_tiers.radix_tiering.gpus.snapshots import ALLOWED, Gpu, GpuSample, Reach, ReachSample
from swift_tiers.radix_tiering.stack import TierStack

from ...base.devices.hardware import GPUS
from ...base.simulated.scheduler import Scheduler

#: Between two looks, as those of a server.
LOOK_SECONDS = 2.0
#: Of the models, which have some eight billion parameters in two bytes each.
WEIGHTS_BYTES = 16 * 10**9
#: Beside the tiers' copies: tokens, and what the runtime moves. A share of them, and bytes per second.
MORE, ALWAYS = 1.03, 2e6


class DemoCard(msgspec.Struct, frozen=True):
    """A GPU of one of the machines."""

    number: int  # of all servers
    index: int  # on its machine
    gpu: str
    kv_bytes: int

    @property
    def uuid(self) -> str:
        return f"GPU-0000000{self.number}-de30-de30-de30-000000000000"

    @property
    def name(self) -> str:
        return f"NVIDIA {self.gpu}"


class DemoGpu:
    """The GPU of one life of a server. The publisher's thread."""

    def __init__(
        self, card: DemoCard, neighbours: list[DemoCard], stack: TierStack, scheduler: Scheduler, runner: Runner
    ) -> None:
        """`neighbours`: the other GPUs of its machine."""
        self._card = card
        self._neighbours = neighbours
        self._stack = stack
        self._scheduler = scheduler
        self._runner = runner
        self._sample: GpuSample | None = None
        self._looked = float("-inf")
        self._before: tuple[float, int, int] | None = None  # when, and what had gone to and from host memory

    def sample(self) -> GpuSample:
        """The newest."""
        now = self._runner.monotonic()
        if self._sample is None or now - self._looked >= LOOK_SECONDS:
            self._sample, self._looked = self._look(now), now
        return self._sample

    def _look(self, now: float) -> GpuSample:
        card, links = self._card, self._stack.links
        sent, received = (links[name].bytes for name in ("device-host", "host-device"))
        then, sent_then, received_then = self._before or (now, sent, received)
        self._before = now, sent, received
        passed = max(now - then, LOOK_SECONDS)
        total, used = int(GPUS[card.gpu].memory_bytes), card.kv_bytes + WEIGHTS_BYTES
        requests = len(self._scheduler.running) + len(self._scheduler.waiting)
        return GpuSample(
            time=self._runner.time(),
            gpu=Gpu(
                index=card.index,
                uuid=card.uuid,
                name=card.name,
                pci=f"0000:{0x1B + card.number:02x}:00.0",
                trouble="",
                mig=False,
                memory_total_bytes=total,
                memory_used_bytes=used,
                memory_free_bytes=total - used,
                busy_share=min(1.0, 0.04 + 0.19 * requests),
            ),
            nvlinks=None,
            nvlink_sent_bytes=None,
            nvlink_received_bytes=None,
            nvlink_sent_bytes_per_second=None,
            nvlink_received_bytes_per_second=None,
            pcie_sent_bytes_per_second=ALWAYS + MORE * (sent - sent_then) / passed,
            pcie_received_bytes_per_second=ALWAYS + MORE * (received - received_then) / passed,
            reaches=tuple(map(self._reach, self._neighbours)),
        )

    def _reach(self, other: DemoCard) -> ReachSample:
        return ReachSample(
            reach=Reach(
                one=self._card.uuid,
                other=other.uuid,
                nvlinks=0,
                switched=False,
                pcie="host bridge",
                read=ALLOWED,
                write=ALLOWED,
                nvlink="not supported",
            ),
            name=other.name,
            nvlink_sent_bytes=None,
            nvlink_received_bytes=None,
            nvlink_sent_bytes_per_second=None,
            nvlink_received_bytes_per_second=None,
        )
