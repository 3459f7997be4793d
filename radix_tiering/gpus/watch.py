"""One rank's own GPU, looked at again and again: sums and rates over whatever happens to the GPU and its driver."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ..base.runner import THREADS
from .nvml import GpuLost, NoNvml, Nvml
from .snapshots import Gpu, GpuSample, NvLink, Reach, ReachSample
from .visible import gpu_of

# ---- what a counter of the hardware has grown by, though it wraps around, and begins anew when a GPU is reset ----

#: Bytes at which NVML's counters, which are in KiB, may wrap around: those of 32 bits, and of 64.
_WRAPS = (1 << 42, 1 << 74)


def growth(before: int, now: int) -> int:
    """From one look to the next, bytes. One that shrank has wrapped around if it was in the last quarter of its range
    and is in the first one; else it began anew, and has grown by what it shows."""
    if now >= before:
        return now - before
    for wrap in _WRAPS:
        if wrap - wrap // 4 <= before < wrap and now < wrap // 4:
            return wrap - before + now
    return now


class Growth:
    """The sum over several counters since the first look at each. One thread."""

    def __init__(self) -> None:
        self._last: dict[object, int] = {}
        self._sum = 0

    def add(self, counters: dict[object, int | None]) -> int | None:
        """One more look; bytes in all, None if no counter was said. One that is not said now goes on later."""
        known = {name: value for name, value in counters.items() if value is not None}
        for name, value in known.items():
            self._sum += growth(self._last.get(name, value), value)
            self._last[name] = value
        return self._sum if known else None


logger = logging.getLogger(__name__)

#: Who reaches whom is asked again after so many seconds: GPUs come and go, links fail.
WAYS_SECONDS = 60.0


class _Counted(NamedTuple):
    """Bytes since sampling began, in both directions."""

    sent: int | None = None
    received: int | None = None


class _Both:
    """The growth of links in both directions, and its rate."""

    def __init__(self) -> None:
        self._sent, self._received = Growth(), Growth()
        self._before: tuple[float, _Counted] | None = None

    def add(self, links: list[NvLink], now: float) -> tuple[_Counted, _Counted]:
        """What has gone over them in all, and how fast since the look before, bytes per second."""
        sent = self._sent.add({link.number: link.sent_bytes for link in links})
        received = self._received.add({link.number: link.received_bytes for link in links})
        # A sum without one of them would be taken for the whole.
        count = _Counted(
            None if any(link.active and link.sent_bytes is None for link in links) else sent,
            None if any(link.active and link.received_bytes is None for link in links) else received,
        )
        rate = _Counted()
        if self._before is not None and now > self._before[0]:
            then, old = self._before
            rate = _Counted(*(_per_second(*ends, now - then) for ends in zip(old, count, strict=True)))
        self._before = now, count
        return count, rate

    def pause(self) -> None:
        """There was nothing to see for a while: the next look has none before it."""
        self._before = None


def _per_second(before: int | None, now: int | None, seconds: float) -> int | None:
    return None if before is None or now is None else round((now - before) / seconds)


class GpuWatch:
    """One thread. A look takes NVML some 50 ms, most of it for PCIe's two figures."""

    def __init__(
        self,
        ordinal: int,
        cuda_uuid: str | None,
        environment: Mapping[str, str],
        *,
        open_nvml: Callable[[], Nvml] = Nvml,
        wall: Callable[[], float] = THREADS.time,
        monotonic: Callable[[], float] = THREADS.monotonic,
    ) -> None:
        """At CUDA device `ordinal` of this process; `cuda_uuid` and `environment`: see `gpu_of`. Opens nothing yet."""
        self._ordinal = ordinal
        self._cuda_uuid = cuda_uuid
        self._environment = dict(environment)
        self._open = open_nvml
        self._wall = wall
        self._monotonic = monotonic
        self._nvml: Nvml | None = None
        self._seen = False  # there was a driver
        self._own: Gpu | None = None  # as it was last seen
        self._all: tuple[Gpu, ...] = ()
        self._ways: tuple[Reach, ...] = ()
        self._ways_at = float("-inf")
        self._total = _Both()
        self._peers: dict[str, _Both] = {}
        self.failures = 0  # looks in a row that showed nothing

    def look(self) -> GpuSample | None:
        """What is to be seen now: of a GPU that is lost, that it is lost. None where it is not known which one is ours.
        Raises NoNvml where there has never been a driver; no other exception."""
        try:
            if self._nvml is None:
                self._nvml = self._open()
                self._seen = True
                self._ways_at = float("-inf")
            sample = self._sample(self._nvml)
            self.failures = 0
            return sample
        except NoNvml as error:
            if not self._seen:
                raise
            return self._lost(str(error))
        except GpuLost as error:
            return self._lost(str(error))
        except Exception as error:
            logger.debug("swift-tiers: NVML failed in a way that we do not know", exc_info=True)
            return self._lost(str(error))

    def close(self) -> None:
        """Idempotent."""
        nvml, self._nvml = self._nvml, None
        if nvml is not None:
            nvml.close()

    def _sample(self, nvml: Nvml) -> GpuSample | None:
        """One look. None where it is not known which GPU is ours. Raises GpuLost."""
        now = self._monotonic()
        if self._own is None or now - self._ways_at >= WAYS_SECONDS:
            self._look_around(nvml, now)
        if self._own is None:
            return None
        own = self._own = nvml.gpu(self._own.uuid)
        links = nvml.links(own.uuid)
        counted = self._monotonic()
        whole = list(links or ())
        if whole and all(link.sent_bytes is None and link.received_bytes is None for link in whole):
            whole = [nvml.links_together(own.uuid)]
        total, rate = self._total.add(whole, counted)
        sent, received = nvml.pcie_rates(own.uuid)
        return GpuSample(
            time=self._wall(),
            gpu=own,
            nvlinks=None if links is None else sum(link.active for link in links),
            nvlink_sent_bytes=total.sent,
            nvlink_received_bytes=total.received,
            nvlink_sent_bytes_per_second=rate.sent,
            nvlink_received_bytes_per_second=rate.received,
            pcie_sent_bytes_per_second=sent,
            pcie_received_bytes_per_second=received,
            reaches=tuple(self._peer(reach, own, links or (), counted) for reach in self._ways),
        )

    def _look_around(self, nvml: Nvml, now: float) -> None:
        """Which GPU is ours, and whom it reaches."""
        self._all = nvml.gpus()
        if self._own is None:
            uuid = gpu_of(self._ordinal, self._cuda_uuid, self._all, self._environment)
            if uuid is None:
                troubles = [gpu.trouble for gpu in self._all if gpu.trouble]
                if troubles:
                    raise GpuLost(troubles[0])  # it may be ours
                return
            self._own = nvml.gpu(uuid)
        self._ways = nvml.reaches(self._all, self._own.uuid)
        self._ways_at = now

    def _peer(self, reach: Reach, own: Gpu, links: tuple[NvLink, ...], now: float) -> ReachSample:
        """What one other GPU is to ours. Links to a switch are everybody's."""
        other = next(gpu for gpu in self._all if gpu.uuid == reach.to(own.uuid))
        theirs = [link for link in links if other.pci and link.remote == other.pci]
        total, rate = self._peers.setdefault(other.uuid, _Both()).add(theirs, now)
        return ReachSample(
            reach=reach,
            name=other.name,
            nvlink_sent_bytes=total.sent,
            nvlink_received_bytes=total.received,
            nvlink_sent_bytes_per_second=rate.sent,
            nvlink_received_bytes_per_second=rate.received,
        )

    def _lost(self, why: str) -> GpuSample | None:
        """What was known of the GPU itself stays. Its handle stays lost, so that NVML has to be opened anew."""
        if not self.failures:
            logger.warning("swift-tiers: no figures of the GPU until it answers again: %s", why)
        self.failures += 1
        self.close()
        for one in (self._total, *self._peers.values()):
            one.pause()
        if self._own is None:
            return None
        lost = Gpu(
            index=self._own.index,
            uuid=self._own.uuid,
            name=self._own.name,
            pci=self._own.pci,
            trouble=why,
            mig=self._own.mig,
        )
        return GpuSample(time=self._wall(), gpu=lost)
