"""What one rank of an SGLang server says about itself on the bus."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

from msgspec import structs
from sglang.srt.runtime_context import get_serving

from swift_tiers.radix_tiering.base.config import BusConfig
from swift_tiers.radix_tiering.base.read_config import shown_config
from swift_tiers.radix_tiering.bus.contract.commands import CommandRefusedError, Order, SetPolicy
from swift_tiers.radix_tiering.bus.contract.policy_values import section_of
from swift_tiers.radix_tiering.bus.contract.records import ServerInfo
from swift_tiers.radix_tiering.bus.speak.publisher import BusPublisher
from swift_tiers.radix_tiering.figures.telemetry import Answerer, Telemetry
from swift_tiers.radix_tiering.gpus.snapshots import GpuSample
from swift_tiers.radix_tiering.stack import TierStack

from ..tell.orders import Orders
from .assembly import Rank, current_rank


def ranks_here(rank: Rank, nodes: int, node: int, *, shared: bool) -> tuple[str, ...]:
    """Names of the server's ranks that say something on the same Redis as `rank`.

    With a Redis of their own (`shared` is False), those of this machine.
    """
    return rank.names() if shared else rank.names(nodes, node)


def server_info(server_args: Any, bus: BusConfig, configuration: Mapping[str, Any]) -> ServerInfo:
    """What this scheduler's server says of itself."""
    return ServerInfo(
        host=socket.gethostname(),
        address=f"{server_args.host}:{server_args.port}",
        started=time.time(),
        version=version("swift-tiers"),
        sglang_version=version("sglang"),
        model=get_serving().served_model_name,
        ranks=ranks_here(current_rank(), server_args.nnodes, server_args.node_rank, shared=bus.url is not None),
        configuration=configuration,
    )


def hears_orders(server_args: Any, bus: BusConfig) -> bool:
    """Whether one of the ranks on the same Redis as this one takes the orders of the server: those of the first machine
    do, which are carried out on all."""
    return bus.url is not None or server_args.node_rank == 0


class RankPublisher:
    """The publisher of one scheduler's rank, with the scheduler's `orders` (None: nobody may steer), and samples of its
    `gpu` (None: it is not on one that can be asked)."""

    def __init__(
        self,
        server_args: Any,
        stack: TierStack,
        telemetry: Telemetry,
        answerer: Answerer,
        orders: Orders | None,
        gpu: Callable[[], GpuSample | None] | None = None,
    ) -> None:
        """Does nothing yet. Raises ConfigError."""
        bus, rank = stack.config.bus, current_rank().name
        assert bus.server is not None, "named when the arguments were resolved"
        hears = hears_orders(server_args, bus)
        self._stack = stack
        self._configuration = shown_config(stack.config)
        info = server_info(server_args, bus, self._configuration)
        self._publisher = BusPublisher(
            bus if hears else structs.replace(bus, control=False),
            bus.server,
            rank,
            info,
            telemetry,
            stack.events,
            answerer=answerer,
            on_order=orders.submit if orders is not None and orders.leads else None,
            leases=stack.lease_hand.snapshot if stack.lease_hand is not None else None,
            gpu=gpu,
            on_neighbours=stack.on_neighbours,
            leader=rank == info.ranks[0],
        )
        if orders is not None:
            orders.redis_time = self._publisher.redis_time
            orders.told = self._told

    def start(self) -> None:
        self._publisher.start()

    def close(self) -> None:
        """Say the last. Idempotent."""
        self._publisher.close()

    def _told(self, order: Order, outcome: str | CommandRefusedError, *, for_group: bool = False) -> None:
        if isinstance(order.command, SetPolicy):
            section, _ = section_of(order.command.field)
            self._configuration[section] = shown_config(self._stack.config)[section]
        self._publisher.report(order.id, outcome, for_group=for_group)
