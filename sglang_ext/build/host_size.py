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
    MemoryLimit,
    bound_limit,
    common_memory,
    container_room,
    lowest_limit,
    total_memory,
)

#: Share of the free memory that the host tier takes when no size is configured.
AUTOMATIC_HOST_SHARE = 0.4
#: The same where a rank is bound to NUMA nodes: of what is free on them. All ranks of its server may be on them; where
#: they are on both of two nodes alike, as they mostly are, it takes nothing from the share of the whole.
AUTOMATIC_NODE_SHARE = 0.8
#: No page of any model is smaller, bytes.
SMALLEST_PAGE = 1024
_ROOT = Path("/")
_UNBOUND = "let SGLang bind ranks to no memory (SGLANG_NUMA_BIND_V2=0)"


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
    total, lowest = total_memory(root), lowest_limit(root)
    # As much as there is, is too much: it leaves nothing for the server itself.
    if lowest is not None and config.size >= lowest.limit:
        raise ConfigError(
            f"host.size: {format_size(config.size)} is {_than(config.size, lowest.limit)} the {_of_container(lowest)}; "
            f"make it smaller, or {_more_for_container(lowest)}"
        )
    if total is not None and config.size >= total:
        raise ConfigError(
            f"host.size: {format_size(config.size)} is {_than(config.size, total)} this machine's "
            f"{format_size(total)}; make it smaller"
        )


def _than(size: int, there: int) -> str:
    return "more than" if size > there else "all of"


def _of_container(limit: MemoryLimit) -> str:
    nodes = f", of NUMA node(s) {limit.nodes}" if limit.nodes else ""
    return f"{format_size(limit.limit)} that this container may use{nodes}"


def _free_on_nodes(bound: MemoryLimit) -> str:
    return (
        f"{format_size(bound.room)} that are free on NUMA node(s) {bound.nodes}, to which this rank's memory is bound"
    )


def _more_for_container(limit: MemoryLimit) -> str:
    return "allow it more NUMA nodes (cpuset.mems)" if limit.nodes else "raise the container's limit of memory"


def automatic_host_size(others: Sequence[MemoryClaim] = (), root: Path = _ROOT) -> int:
    """The host tier's size when none is configured, for the whole server: a share of what is free now, without what
    `others` are about to take, bytes. Ranks that are bound to NUMA nodes fit on these, all of them."""
    share, bound = (common_memory(root, others) or 0) * AUTOMATIC_HOST_SHARE, bound_limit(root)
    return int(share if bound is None else min(share, bound.room * AUTOMATIC_NODE_SHARE))


def rank_host_size(config: HostConfig, ranks: int, page_bytes: int, coming: Coming, root: Path = _ROOT) -> int:
    """The host tier's size of each of so many ranks on this machine, bytes. Raises ConfigError where it holds no page,
    or those that are `coming` would take more than there is.

    Ranks that came before have their part, which is free no more. So the first one looks whether all of `host.size`
    fits, the last one whether its own part does, and what the first has found to fit is refused to none of them, unless
    somebody else has taken the memory meanwhile.

    Which NUMA nodes others of its server are bound to, no rank knows. So of its own nodes each asks its own part alone,
    in its turn, when those that came before have theirs: the first one that does not fit beside them is refused.
    """
    size = coming.found
    if size is None:
        size = (config.size if config.size is not None else automatic_host_size(coming.others, root)) // ranks
    if size < page_bytes:
        raise ConfigError(_no_page(config, size, page_bytes, coming.others, root))
    free = common_memory(root, coming.others)
    if free is not None and size * coming.ranks > free:
        here = " in this container" if free == container_room(root, coming.others) else ""
        claimed = bool(coming.others) and (common_memory(root) or 0) > free
        raise ConfigError(
            f"{_field(config)}: {format_size(size * coming.ranks)} for {coming.ranks} of {ranks} rank(s) is more than "
            f"the {format_size(free)} that are free{here}"
            f"{' beside what other servers that start are about to take' if claimed else ''}; {_remedy(config)}"
        )
    bound = bound_limit(root)
    if bound is not None and size > bound.room:
        raise ConfigError(
            f"{_field(config)}: {format_size(size)} for each of {ranks} rank(s) is more than the "
            f"{_free_on_nodes(bound)}; {_remedy(config)}, or {_UNBOUND}"
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
    free, bound, lowest = common_memory(root, others) or 0, bound_limit(root), lowest_limit(root)
    if bound is not None and bound.room * AUTOMATIC_NODE_SHARE < free * AUTOMATIC_HOST_SHARE:
        share = f"host memory: {AUTOMATIC_NODE_SHARE:.0%} of the {_free_on_nodes(bound)}"
        return f"{share}, is too little: {found}; end what uses the memory, or {_UNBOUND}"
    share = f"host memory: {AUTOMATIC_HOST_SHARE:.0%} of the {format_size(free)} that are free"
    if lowest is None or free != container_room(root, others):
        return f"{share} is too little: {found}; end what uses the memory"
    return (
        f"{share} of the {_of_container(lowest)} is too little: {found}; "
        f"{_more_for_container(lowest)}, or set host.size"
    )
