"""One simulated server: the product's tier stack, publisher and leases, over models of devices and of a scheduler."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from hashlib import sha256
from random import Random

import msgspec

from swift_tiers.radix_tiering.base.config import BusConfig, TiersConfig
from swift_tiers.radix_tiering.base.page import Namespace, PageGeometry, page_digest
from swift_tiers.radix_tiering.base.read_config import shown_config
from swift_tiers.radix_tiering.base.virtual import VirtualProcess
from swift_tiers.radix_tiering.bus.contract.commands import (
    AddDevice,
    AnyCommand,
    CommandRefusedError,
    Order,
    SetPolicy,
    read_order,
)
from swift_tiers.radix_tiering.bus.contract.neighbours import lease_name
from swift_tiers.radix_tiering.bus.contract.policy_values import section_of
from swift_tiers.radix_tiering.bus.contract.records import ServerInfo
from swift_tiers.radix_tiering.bus.speak import BusPublisher, carry_out
from swift_tiers.radix_tiering.lending.donation.sizing import ElasticSizer
from swift_tiers.radix_tiering.restore.cost import CostModel, SourceCost
from swift_tiers.radix_tiering.restore.live import LiveCosts
from swift_tiers.radix_tiering.restore.planner import HERE
from swift_tiers.radix_tiering.stack import TierStack
from swift_tiers.radix_tiering.tiers.testing.network import Network

from ...base.devices.curve import Curve
from ...base.devices.hardware import GPUS
from ...base.devices.models import MODELS, Model
from ...base.simulated.device import Device
from ...base.simulated.lending import BorrowedMemory, DonorSide, hand_of
from ...base.simulated.scheduler import Scheduler, Serving
from ...base.simulated.stripes import LATENCY_SECONDS, BlankArray, BlankMemory, BlankSsd, open_ssd
from ...base.simulated.work import Habit, RequestSource
from .gpus import DemoCard, DemoGpu
from .redis_model import RedisModel
from .telling import Teller

PAGE_TOKENS, CHUNK_TOKENS = 64, 1024
#: Tokens of the longest prompt that a profile knows of.
LONGEST = 131_072
GIB = 1 << 30
RANK = "dp0-tp0"
#: How the Redis is called that is a model, and where lease addresses on it can be reached from.
BUS, SCOPE = "redis://simulated", "simulated"
#: How fast pages are copied between two servers.
BYTES_PER_SECOND = 20e9
#: Over which a donor's own demand counts, seconds: shorter than in a server, so that there is something to see; and
#: the part of its pool that it lends at most.
WINDOW_SECONDS, MOST_LENT = 30.0, 0.75
#: The part of the device that a prompt takes at most.
LONGEST_PROMPT = 0.6
#: What of the room below the device is taken from the beginning on.
FILLED = 0.7


class DemoPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a server is made of. Sizes in bytes, speeds in bytes per second."""

    name: str
    host: str
    model: str
    gpu: str
    device_bytes: int
    host_bytes: int
    devices: int = 0
    device_slots: int = 0  # stripe units of each
    device_speed: float = 0.0
    lends: bool = False
    borrows: bool = False
    habit: Habit


class DemoServer:
    """One life of a server. It ends with `die`."""

    def __init__(
        self, plan: DemoPlan, process: VirtualProcess, network: Network, redis: RedisModel, card: DemoCard,
        neighbours: list[DemoCard], seed: int,
    ) -> None:  # fmt: skip
        """To be made by a task of the runner: it waits for its devices. `card`: its GPU; `neighbours`: the other
        ones of its machine."""
        self.plan = plan
        self.alive = True
        self.array: BlankArray | None = None
        self._process = process
        self._network = network
        self._name = lease_name(plan.name, RANK)
        self._orders: deque[dict[str, str]] = deque()
        random, curve = Random(seed), Curve(model=MODELS[plan.model], gpu=GPUS[plan.gpu])
        space = _namespace(plan.model, curve.model)
        page, speed = space.geometry.page_bytes, GPUS[plan.gpu].pcie_bytes_per_second * 0.8
        ssd: BlankSsd | None = None
        if plan.devices:  # each page on two devices
            self.array, ssd = open_ssd(process, RANK, plan.devices, plan.device_slots, page // 2)
        self.memory = self._borrowed(space.geometry) if plan.borrows else None
        self.stack = TierStack(
            space,
            TiersConfig(bus=BusConfig(server=plan.name, control=True)),
            BlankMemory(space.geometry, plan.host_bytes),
            [tier for tier in (self.memory, ssd) if tier is not None],
            runner=process,
            costs=LiveCosts(_costs(plan, curve, speed), runner=process),
        )
        self.device = Device(space.geometry, plan.device_bytes // page, self.stack.digest, process)
        blank = (page_digest if ssd is None else ssd.fingerprint)(self.stack.host.page(0))
        self.work = work = RequestSource(plan.habit, random, seed << 40, int(self.device.pool.pages * LONGEST_PROMPT))
        serving = Serving(
            page_tokens=PAGE_TOKENS, forward_tokens=CHUNK_TOKENS, layers=curve.model.layers, bytes_per_second=speed
        )
        self.scheduler = Scheduler(self.stack, self.device, curve, serving, blank, work, random, process)
        self._fill()
        self.donor: DonorSide | None = None
        if plan.lends:
            pages = self.device.pool.pages
            sizer = ElasticSizer(pages, PAGE_TOKENS, most_lent=int(MOST_LENT * pages), window_seconds=WINDOW_SECONDS)
            self.donor = DonorSide(
                self._name, network, process, self.device.pool, sizer, self.stack.events, self.scheduler.demand
            )
            self.scheduler.came, self.scheduler.refused = self.donor.lender.arrived, self.donor.lender.refused
        self.stack.lease_hand = hand_of(self._name, self.donor, self.memory)
        self.scheduler.begins = self._begin_round
        self._configuration = {"demo": "simulated: nothing here runs anywhere", **shown_config(self.stack.config)}
        self._publisher = self._publish(redis, DemoGpu(card, neighbours, self.stack, self.scheduler, process))
        self.scheduler.start()
        self._publisher.start()

    def _publish(self, redis: RedisModel, gpu: DemoGpu) -> BusPublisher:
        plan, teller, hand = self.plan, Teller(self.stack, self.scheduler, self._process), self.stack.lease_hand
        info = ServerInfo(
            host=plan.host,
            address=f"{plan.host}:30000",
            started=self._process.time(),
            version="0.1.0",
            sglang_version="0.5.23",
            model=plan.model,
            ranks=(RANK,),
            configuration=self._configuration,
        )
        return BusPublisher(
            msgspec.structs.replace(self.stack.config.bus, url=BUS),
            plan.name,
            RANK,
            info,
            teller,
            self.stack.events,
            answerer=teller,
            on_order=self._orders.append,
            leases=hand.snapshot if hand is not None else None,
            gpu=gpu.sample,
            on_neighbours=self.memory.neighbours if self.memory is not None else None,
            scope=lambda address: SCOPE,
            leader=True,
            runner=self._process,
            client=lambda config, name: redis.client(),
        )

    def _borrowed(self, geometry: PageGeometry) -> BorrowedMemory:
        return BorrowedMemory(self._name, self._network, self._process, geometry, BYTES_PER_SECOND)

    def _fill(self) -> None:
        while self.stack.table.directory(self.stack.digest).pages < int(self.stack.host.slots * FILLED):
            self.scheduler.serve_at_once(self.work.draw())
        if self.array is not None:
            self.stack.wait_written(60.0)
            self.array.bytes_per_second = self.plan.device_speed

    # ---- rounds of its scheduler ----

    def _begin_round(self, now: float) -> None:
        if self.donor is not None:
            self.donor.lender.tick(now)
        while self._orders:
            order = read_order(self._orders.popleft())
            carry_out(self.stack, order.command, self._teller(order))

    def _teller(self, order: Order) -> Callable[[str | CommandRefusedError], None]:
        def told(outcome: str | CommandRefusedError) -> None:
            if isinstance(order.command, SetPolicy):
                section, _ = section_of(order.command.field)
                self._configuration[section] = shown_config(self.stack.config)[section]
            self._publisher.report(order.id, outcome)

        return told

    # ---- what happens to it ----

    def command(self, command: AnyCommand) -> None:
        """As from an operator who does not look what becomes of it."""
        carry_out(self.stack, command, lambda outcome: None)

    def add_device(self) -> None:
        assert self.array is not None
        self.command(AddDevice(directory=f"/ssd{len(self.array.sizes)}"))

    def die(self) -> None:
        """Like a process that is killed: it says nothing more. Not to be called by a thread of its own."""
        self.alive = False
        self._process.kill()
        self._network.ended(self._name)
        self._process.bury()


def _namespace(name: str, model: Model) -> Namespace:
    row = model.token_bytes // model.layers // 2
    return Namespace(
        model=sha256(name.encode()).hexdigest(),
        weights="simulated",
        dtype="bfloat16",
        geometry=PageGeometry(layers=model.layers, planes=2, tokens=PAGE_TOKENS, row_bytes=row),
        first_layer=0,
        kv_heads=row // 256,
        head_dim=128,
        rank="tp0/1",
    )


def _costs(plan: DemoPlan, curve: Curve, copies: float) -> CostModel:
    """As a profile of this server would say."""
    sources = {HERE: SourceCost(latency_seconds=0.0, bytes_per_second=copies)}
    if plan.devices:
        speed = plan.devices * plan.device_speed
        sources["ssd"] = SourceCost(latency_seconds=LATENCY_SECONDS, bytes_per_second=speed)
    if plan.borrows:
        sources["peer"] = SourceCost(latency_seconds=20e-6, bytes_per_second=BYTES_PER_SECOND)
    return CostModel(compute=curve.fitted(CHUNK_TOKENS, LONGEST), sources=sources)
