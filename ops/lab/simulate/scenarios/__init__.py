"""What can be simulated: each scenario makes tables."""

from __future__ import annotations

from .scenario import Scenario


def scenarios() -> dict[str, Scenario]:
    """All of them by name, in the order in which docs/evaluation.md has them."""
    from . import (
        bounds,
        cacheflow,
        cacheflow_dimensions,
        conversations,
        mooncake,
        remote_link,
        swarm,
        swiftcache,
        swiftkv,
    )

    return {
        **bounds.SCENARIOS,
        **cacheflow.SCENARIOS,
        **cacheflow_dimensions.SCENARIOS,
        **swiftcache.SCENARIOS,
        **conversations.SCENARIOS,
        **swiftkv.SCENARIOS,
        **swarm.SCENARIOS,
        **mooncake.SCENARIOS,
        **remote_link.SCENARIOS,
    }
