"""How large the host tier of a rank is, by the configuration or by what memory there is.

`root`: see `usable_memory`.
"""

from __future__ import annotations

from pathlib import Path

from swift_tiers.radix_tiering.base.config import HostConfig
from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.base.units import format_size
from swift_tiers.radix_tiering.base.usable_memory import (
    available_memory,
    container_limit,
    container_room,
    total_memory,
)

#: Share of the free memory that the host tier takes when no size is configured.
AUTOMATIC_HOST_SHARE = 0.4
#: No page of any model is smaller, bytes.
SMALLEST_PAGE = 1024
_ROOT = Path("/")


def check_host_size(config: HostConfig, root: Path = _ROOT) -> None:
    """Raise ConfigError where the host tier of all ranks here is larger than what they may ever have."""
    if config.size is None:
        return
    if config.size < SMALLEST_PAGE:
        raise ConfigError(f"host.size: {format_size(config.size)} holds no page; write its unit, as in 64GiB")
    total, limit = total_memory(root), container_limit(root)
    if limit is not None and config.size > limit:
        raise ConfigError(
            f"host.size: {format_size(config.size)} is more than the {format_size(limit)} that this container may use; "
            "make it smaller, or raise the container's limit of memory"
        )
    if total is not None and config.size > total:
        raise ConfigError(
            f"host.size: {format_size(config.size)} is more than this machine's {format_size(total)}; make it smaller"
        )


def free_memory(others: int = 0, root: Path = _ROOT) -> int | None:
    """Bytes that are free now, without those that other servers are about to take; None where the kernel does not
    say."""
    available = available_memory(root)
    return None if available is None else max(0, available - others)


def automatic_host_size(others: int = 0, root: Path = _ROOT) -> int:
    """The host tier's size when none is configured, for the whole server: a share of what is free now, bytes."""
    return int((free_memory(others, root) or 0) * AUTOMATIC_HOST_SHARE)


def rank_host_size(config: HostConfig, ranks: int, page_bytes: int, others: int = 0, root: Path = _ROOT) -> int:
    """The host tier's size of each of so many ranks on this machine, bytes, where so many bytes of what is free are
    `others`'. Raises ConfigError where it holds no page, or is more than there is."""
    size = (config.size if config.size is not None else automatic_host_size(others, root)) // ranks
    if size < page_bytes:
        raise ConfigError(_no_page(config, size, page_bytes, others, root))
    free = free_memory(others, root)
    if free is not None and size > free:
        here = " in this container" if available_memory(root) == container_room(root) else ""
        raise ConfigError(
            f"host.size: {format_size(size)} for each rank is more than the {format_size(free)} that are free{here}; "
            "make it smaller, or end what uses the memory"
        )
    return size


def _no_page(config: HostConfig, size: int, page_bytes: int, others: int, root: Path) -> str:
    """What to say where a rank's part holds no page."""
    found = f"{format_size(size)} for each rank holds no page of {format_size(page_bytes)}"
    if config.size is not None:
        return f"host.size: {found}; make it larger"
    free, limit = free_memory(others, root) or 0, container_limit(root)
    share = f"host memory: {AUTOMATIC_HOST_SHARE:.0%} of the {format_size(free)} that are free"
    if limit is None or available_memory(root) != container_room(root):
        return f"{share} is too little: {found}; end what uses the memory"
    return (
        f"{share} of the {format_size(limit)} that this container may use is too little: {found}; "
        "raise the container's limit of memory, or set host.size"
    )
