"""Which servers there are, and what goes wrong with them when."""

from __future__ import annotations

from collections import Counter
from itertools import count
from random import Random

from swift_tiers.radix_tiering.base.virtual import VirtualProcess, VirtualRunner
from swift_tiers.radix_tiering.tiers.testing.network import Network

from ...base.simulated.stripes import BlankArray
from ...base.simulated.work import Habit
from .gpus import DemoCard
from .redis_model import RedisModel
from .server import GIB, DemoPlan, DemoServer

#: After so many seconds everything happens again.
ROUND = 300.0
#: The most devices of a stripe set: beyond, none is added any more, and none is pulled.
MOST_DEVICES = 6

PLANS = (
    DemoPlan(
        name="alpha", host="node-1", model="Llama-3.1-8B", gpu="L40S", device_bytes=12 * GIB, host_bytes=12 * GIB,
        lends=True,
        habit=Habit(
            per_second=0.5, shared_pages=12, first_pages=(4, 30), turn_pages=(1, 5), answer_tokens=(40, 200),
            conversations=60, new=0.3,
        ),
    ),
    DemoPlan(
        name="beta", host="node-1", model="Llama-3.1-8B", gpu="L4", device_bytes=6 * GIB, host_bytes=16 * GIB,
        devices=4, device_slots=4500, device_speed=0.25e9, borrows=True,
        habit=Habit(
            per_second=0.2, shared_pages=40, first_pages=(60, 300), turn_pages=(2, 24), answer_tokens=(60, 400),
            conversations=40, new=0.12,
        ),
    ),
    DemoPlan(
        name="gamma", host="node-2", model="Qwen3-8B", gpu="L4", device_bytes=6 * GIB, host_bytes=8 * GIB,
        devices=4, device_slots=6000, device_speed=0.2e9,
        habit=Habit(
            per_second=0.16, shared_pages=16, first_pages=(80, 300), turn_pages=(2, 20), answer_tokens=(60, 300),
            conversations=36, new=0.1,
        ),
    ),
)  # fmt: skip


CARDS = {
    plan.name: DemoCard(number, sum(one.host == plan.host for one in PLANS[:number]), plan.gpu, plan.device_bytes)
    for number, plan in enumerate(PLANS)
}


class Script:
    """Starts the servers, and sees to it that something happens. To be made by a task of the runner."""

    def __init__(self, runner: VirtualRunner, redis: RedisModel) -> None:
        self._runner = runner
        self._redis = redis
        self._network = Network(runner, Random(1), Counter())
        self._lives = 0
        self.servers: dict[str, DemoServer] = {}
        for plan in PLANS:
            self._start(plan)
        runner.thread(self._run, "script").start()

    def _run(self) -> None:
        began = self._runner.monotonic()
        for number in count():
            for at, action in (
                (35.0, self._busy_donor), (75.0, self._slow), (110.0, self._as_usual), (140.0, self._pull),
                (185.0, self._kill), (215.0, self._restart), (230.0, self._add), (245.0, self._strangers),
                (275.0, self._known_again),
            ):  # fmt: skip
                self._runner.sleep(began + number * ROUND + at - self._runner.monotonic())
                action()

    def _start(self, plan: DemoPlan) -> None:
        self._lives += 1
        neighbours = [CARDS[one.name] for one in PLANS if one.host == plan.host and one is not plan]
        self.servers[plan.name] = DemoServer(
            plan, VirtualProcess(self._runner), self._network, self._redis, CARDS[plan.name], neighbours,
            seed=self._lives * 7919,
        )  # fmt: skip

    def _array(self, server: str) -> BlankArray:
        array = self.servers[server].array
        assert array is not None
        return array

    def _in_service(self, server: str) -> list[int]:
        """Numbers of its devices."""
        devices = self.servers[server].stack.snapshot().devices
        return [number for number, device in enumerate(devices) if device.in_service]

    def _busy_donor(self) -> None:
        """Its own requests come twenty times as often for a while: it takes lent memory back."""
        self.servers["alpha"].work.rush(self._runner.monotonic() + 12.0, 20.0)

    def _slow(self) -> None:
        self._array("gamma").slow(1, 12.0)

    def _as_usual(self) -> None:
        self._array("gamma").slow(1, 1.0)

    def _pull(self) -> None:
        there = self._in_service("beta")
        if len(there) > 2 and len(self._array("beta").sizes) < MOST_DEVICES:
            self._array("beta").lost.add(there[2])

    def _add(self) -> None:
        if len(self._array("beta").sizes) < MOST_DEVICES:
            self.servers["beta"].add_device()

    def _kill(self) -> None:
        self.servers["alpha"].die()

    def _restart(self) -> None:
        self._start(self.servers["alpha"].plan)

    def _strangers(self) -> None:
        """Nobody comes back: nothing of what they ask for is held."""
        self.servers["gamma"].work.strangers = True

    def _known_again(self) -> None:
        self.servers["gamma"].work.strangers = False
