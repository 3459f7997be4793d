"""Looks at a rank's own GPU on a thread of its own: no call to the driver is on anybody else's way."""

from __future__ import annotations

import logging

from ..base.runner import THREADS, Runner
from .nvml import NoNvml
from .snapshots import GpuSample
from .watch import GpuWatch

logger = logging.getLogger(__name__)

#: Between two looks, seconds.
INTERVAL = 2.0
#: The longest pause, where looks show nothing: opening a driver that is gone takes long, and no reset comes by itself.
LONGEST = 30.0


class GpuSampler:
    """The thread "swift-gpu". `start` it once and `close` it; any thread may. Where there is no driver, it ends at once
    and `newest` stays None."""

    def __init__(self, watch: GpuWatch, interval: float = INTERVAL, runner: Runner = THREADS) -> None:
        """Does nothing yet. `watch` is its own from here on."""
        self._watch = watch
        self._interval = interval
        self._newest: GpuSample | None = None
        self._stop = runner.flag()
        # A daemon: a driver that hangs must not keep the process from ending.
        self._thread = runner.thread(self._run, "swift-gpu")
        self._started = False

    def newest(self) -> GpuSample | None:
        """The last sample; None before the first. Any thread; waits for nothing."""
        return self._newest

    def start(self) -> None:
        self._started = True
        self._thread.start()

    def close(self, timeout: float = 1.0) -> None:
        """End. Waits at most `timeout` seconds, however the driver does. Idempotent."""
        self._stop.set()
        if self._started:
            self._thread.join(timeout)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._newest = self._watch.look()
                pause = self._interval * 2 ** min(self._watch.failures, 10)
                self._stop.wait(min(pause, max(LONGEST, self._interval)))
        except NoNvml as error:
            logger.debug("swift-tiers: no figures of the GPU: %s", error)
        finally:
            self._watch.close()
