"""What NVML would say of a simulated server's GPU: cards without NVLink, over whose PCIe the tiers' copies go."""

from __future__ import annotations

from typing import Any

import msgspec

from swift_tiers.radix_tiering.bus.contract.gpu_views import GpuView, ReachView
from swift_tiers.radix_tiering.gpus.snapshots import ALLOWED

from ...base.devices.hardware import GPUS
from .script import PLANS
from .server import DemoPlan, DemoServer

#: Between two looks, as those of a server.
LOOK_SECONDS = 2.0
#: Of the models, which have some eight billion parameters in two bytes each.
WEIGHTS_BYTES = 16 * 10**9
#: Beside the tiers' copies: tokens, and what the runtime moves. A share of them, and bytes per second.
MORE, ALWAYS = 1.03, 2e6


class DemoGpu:
    """The GPU of one life of a server."""

    def __init__(self, server: DemoServer, age: float) -> None:
        """`age`: how old everything is that is told at a look, seconds."""
        self._server = server
        self._age = age
        self._looked = float("-inf")
        self._before: tuple[float, int, int] | None = None  # when, and what had gone to and from host memory
        self._view: GpuView | None = None

    def view(self) -> GpuView:
        """As of the last look, with its age."""
        now = self._server.clock.now
        if self._view is None or now - self._looked >= LOOK_SECONDS:
            self._view, self._looked = self._look(now), now
        return msgspec.structs.replace(self._view, age_seconds=now - self._looked + self._age)

    def reaches(self) -> tuple[ReachView, ...]:
        """Those of the other servers on its machine."""
        gpu = self.view()
        return tuple(
            ReachView(
                **_home(gpu),
                gpu=_uuid(plan),
                name=_name(plan),
                nvlinks=0,
                switched=False,
                pcie="host bridge",
                read=ALLOWED,
                write=ALLOWED,
                nvlink="not supported",
            )
            for plan in _neighbours(self._server.plan)
        )

    def _look(self, now: float) -> GpuView:
        server = self._server
        plan, links = server.plan, server.tiers.links
        sent, received = (links[name].bytes for name in ("device-host", "host-device"))
        then, sent_then, received_then = self._before or (now, sent, received)
        self._before = now, sent, received
        passed = max(now - then, LOOK_SECONDS)
        total, used = int(GPUS[plan.gpu].memory_bytes), plan.device_bytes + WEIGHTS_BYTES
        return GpuView(
            server=plan.name,
            rank=server.rank,
            time=server.wall() - self._age,
            age_seconds=self._age,
            index=sum(other.host == plan.host for other in PLANS[: PLANS.index(plan)]),
            uuid=_uuid(plan),
            name=_name(plan),
            pci=f"0000:{0x1B + PLANS.index(plan):02x}:00.0",
            mig=False,
            memory_total_bytes=total,
            memory_used_bytes=used,
            memory_free_bytes=total - used,
            busy_share=min(1.0, 0.04 + 0.19 * len(server.requests)),
            pcie_sent_bytes_per_second=ALWAYS + MORE * (sent - sent_then) / passed,
            pcie_received_bytes_per_second=ALWAYS + MORE * (received - received_then) / passed,
            reaches=tuple(_uuid(other) for other in _neighbours(plan)),
        )


def _neighbours(plan: DemoPlan) -> list[DemoPlan]:
    return [other for other in PLANS if other.host == plan.host and other is not plan]


def _uuid(plan: DemoPlan) -> str:
    return f"GPU-0000000{PLANS.index(plan)}-de30-de30-de30-000000000000"


def _name(plan: DemoPlan) -> str:
    return f"NVIDIA {plan.gpu}"


def _home(gpu: GpuView) -> dict[str, Any]:
    return {"server": gpu.server, "rank": gpu.rank, "time": gpu.time, "age_seconds": gpu.age_seconds}
