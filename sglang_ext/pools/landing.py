"""Where pages arrive on this rank's GPU without passing through host memory, and what reads them there from SSDs."""

from __future__ import annotations

import logging
from typing import Any

import torch

from swift_tiers.radix_tiering.base.config import TiersConfig
from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.tiers.host.landing import Landing
from swift_tiers.radix_tiering.tiers.ssd.direct import KvikioFiles, find_kvikio
from swift_tiers.radix_tiering.tiers.ssd.direct_reads import DirectReads
from swift_tiers.radix_tiering.tiers.ssd.ssd_tier import SsdTier

from .device_pool import DevicePool

logger = logging.getLogger(__name__)


def wanted_kvikio(config: TiersConfig, pool: DevicePool) -> Any:
    """What reads SSDs straight into the memory of the pool's GPU; None where nothing does. Raises ConfigError where it
    is asked for and cannot be."""
    ssd = config.ssd
    if not ssd.directories and not ssd.devices:
        return None
    if pool.accelerator is None or ssd.throttle is not None:
        if ssd.gpu_direct == "on":
            raise ConfigError(
                "ssd.gpu_direct: there is no GPU to read to; remove it"
                if pool.accelerator is None
                else "ssd.gpu_direct: goes past ssd.throttle; remove one of the two"
            )
        return None
    try:
        return find_kvikio(ssd.gpu_direct)
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001 - another release of kvikio may raise anything
        if ssd.gpu_direct == "on":
            raise ConfigError(
                f"ssd.gpu_direct: this kvikio cannot be used ({error!r}); install another release, or remove the "
                "setting"
            ) from None
        logger.warning("swift-tiers: ssd.gpu_direct: pages come through host memory: %r", error)
        return None


def open_landing(config: TiersConfig, pool: DevicePool) -> Landing | None:
    """Landing memory on the pool's GPU, which loads from it; None where there is none, or no room: then all pages come
    through host memory, and the log says why."""
    size = int(config.device.landing)
    if pool.accelerator is None or not size:
        return None
    try:
        landing = Landing(pool.accelerator, pool.geometry.page_bytes, size)
    except (ValueError, torch.OutOfMemoryError) as error:
        logger.warning(
            "swift-tiers: device.landing: %s: pages of other GPUs and of SSDs come slower, through host memory; %s",
            error,
            "make it larger" if isinstance(error, ValueError) else "lower --mem-fraction-static",
        )
        return None
    pool.landing = landing.memory
    logger.info("swift-tiers: %d pages of landing memory on the device", landing.slots)
    return landing


def open_direct(kvikio: Any, ssd: SsdTier | None, landing: Landing | None) -> DirectReads | None:
    """Reads from the devices of `ssd` to `landing`, by `kvikio`; None where one of them is missing."""
    if kvikio is None or ssd is None or landing is None:
        return None
    try:
        files = KvikioFiles(kvikio, landing.memory)
    except Exception as error:  # noqa: BLE001 - another release of kvikio may raise anything
        logger.warning("swift-tiers: ssd.gpu_direct: pages come through host memory: %r", error)
        return None
    logger.info("swift-tiers: pages on SSD are read straight to the GPU where host memory is full")
    return DirectReads(ssd.stripes, files, landing, ssd.fingerprint)
