"""How large the host tier of a rank is, by the configuration or by what memory there is.

`root`: see `usable_memory`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from swift_tiers.radix_tiering.base.config import HostConfig
from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.base.units import format_size
from swift_tiers.radix_tiering.base.usable_memory import (
    MemoryClaim,
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


class Coming(NamedTuple):
    """Who has yet to take host memory, as a rank is told whose turn it is."""

    ranks: int  # of its server on this machine, itself among them: they take alike
    found: int | None = None  # what the first of its server has found for each of them, bytes; None: it is the first
    others: tuple[MemoryClaim, ...] = ()  # other servers' ranks


def check_host_size(config: HostConfig, root: Path = _ROOT) -> None:
    """Raise ConfigError where the host tier of all ranks here is larger than what they may ever have."""
    if config.size is None:
        return
    if config.size < SMALLEST_PAGE:
        raise ConfigError(f"host.size: {format_size(config.size)} holds no page; write its unit, as in 64GiB")
    total, limit = total_memory(root), container_limit(root)
    # As much as there is, is too much: it leaves nothing for the server itself.
    if limit is not None and config.size >= limit:
        raise ConfigError(
            f"host.size: {format_size(config.size)} is {_than(config.size, limit)} the {format_size(limit)} that this "
            "container may use; make it smaller, or raise the container's limit of memory"
        )
    if total is not None and config.size >= total:
        raise ConfigError(
            f"host.size: {format_size(config.size)} is {_than(config.size, total)} this machine's "
            f"{format_size(total)}; make it smaller"
        )


def _than(size: int, there: int) -> str:
    return "more than" if size > there else "all of"


def automatic_host_size(others: Sequence[MemoryClaim] = (), root: Path = _ROOT) -> int:
    """The host tier's size when none is configured, for the whole server: a share of what is free now, without what
    `others` are about to take, bytes."""
    return int((available_memory(root, others) or 0) * AUTOMATIC_HOST_SHARE)


def rank_host_size(config: HostConfig, ranks: int, page_bytes: int, coming: Coming, root: Path = _ROOT) -> int:
    """The host tier's size of each of so many ranks on this machine, bytes. Raises ConfigError where it holds no page,
    or those that are `coming` would take more than there is.

    Ranks that came before have their part, which is free no more. So the first one looks whether all of `host.size`
    fits, the last one whether its own part does, and what the first has found to fit is refused to none of them, unless
    somebody else has taken the memory meanwhile.
    """
    size = coming.found
    if size is None:
        size = (config.size if config.size is not None else automatic_host_size(coming.others, root)) // ranks
    if size < page_bytes:
        raise ConfigError(_no_page(config, size, page_bytes, coming.others, root))
    free = available_memory(root, coming.others)
    if free is not None and size * coming.ranks > free:
        here = " in this container" if free == container_room(root, coming.others) else ""
        claimed = bool(coming.others) and (available_memory(root) or 0) > free
        raise ConfigError(
            f"{_field(config)}: {format_size(size * coming.ranks)} for {coming.ranks} of {ranks} rank(s) is more than "
            f"the {format_size(free)} that are free{here}"
            f"{' beside what other servers that start are about to take' if claimed else ''}; {_remedy(config)}"
        )
    return size


def not_to_be_had(config: HostConfig, size: int, error: MemoryError) -> ConfigError:
    """Of a rank that found so many bytes free, and did not get them. `error` says what to do."""
    unset = ", or set host.size" if config.size is None else ""
    return ConfigError(f"{_field(config)}: {format_size(size)} for each rank cannot be had: {error}{unset}")


def _field(config: HostConfig) -> str:
    return "host memory" if config.size is None else "host.size"


def _remedy(config: HostConfig) -> str:
    return f"{'set host.size' if config.size is None else 'make it smaller'}, or end what uses the memory"


def _no_page(config: HostConfig, size: int, page_bytes: int, others: Sequence[MemoryClaim], root: Path) -> str:
    """What to say where a rank's part holds no page."""
    found = f"{format_size(size)} for each rank holds no page of {format_size(page_bytes)}"
    if config.size is not None:
        return f"host.size: {found}; make it larger"
    free, limit = available_memory(root, others) or 0, container_limit(root)
    share = f"host memory: {AUTOMATIC_HOST_SHARE:.0%} of the {format_size(free)} that are free"
    if limit is None or free != container_room(root, others):
        return f"{share} is too little: {found}; end what uses the memory"
    return (
        f"{share} of the {format_size(limit)} that this container may use is too little: {found}; "
        "raise the container's limit of memory, or set host.size"
    )
