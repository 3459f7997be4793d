"""Several slow devices on one fast disk."""

from __future__ import annotations

from collections.abc import Sequence

from ....base.token_bucket import TokenBucket
from .devices import DeviceArray, NewDevice, Request
from .wrapping import AdmittedRequest, Clock, DelayingArray


class ThrottledArray(DelayingArray):
    """Gives each device a rate and a service time, as if it were an SSD of its own.

    One token bucket per device, read and write together. The tokens are taken when a request is submitted; it
    completes not before both the inner array has carried it out and its bytes have passed at `bytes_per_second`, plus
    `latency` seconds. Nothing sleeps in `submit`. `sync` is not slowed.
    """

    def __init__(
        self,
        inner: DeviceArray,
        bytes_per_second: float | Sequence[float],
        *,
        latency: float = 0.0,
        clock: Clock | None = None,
    ) -> None:
        """`bytes_per_second`: one rate for every device, or one for each. Raises ValueError unless all are positive."""
        super().__init__(inner, clock)
        devices = len(inner.sizes)
        rates = [bytes_per_second] * devices if isinstance(bytes_per_second, int | float) else list(bytes_per_second)
        if len(rates) != devices or any(rate <= 0 for rate in rates):
            raise ValueError(f"need a positive rate for each of {devices} devices, not {bytes_per_second}")
        if latency < 0:
            raise ValueError(f"latency must not be negative, not {latency}")
        self._buckets = [TokenBucket(rate) for rate in rates]
        self._latency = latency
        self.description = self._describe()

    def append(self, device: NewDevice) -> None:
        """The new device is as fast as the last one."""
        super().append(device)
        self._buckets.append(TokenBucket(self._buckets[-1].bytes_per_second))
        self.description = self._describe()

    def slow_to(self, bytes_per_second: float) -> None:
        """Another rate, for every device, for what is submitted from now on. Any thread."""
        for bucket in self._buckets:
            bucket.bytes_per_second = bytes_per_second
        self.description = self._describe()

    def _describe(self) -> str:
        shown = ", ".join(f"{bucket.bytes_per_second / 1e6:g}" for bucket in self._buckets)
        return f"{self.inner.description}, throttled to {shown} MB/s"

    def admit(self, number: int, request: Request, now: float) -> AdmittedRequest:
        return AdmittedRequest(self._buckets[request.device].take(request.length, now) + self._latency)
