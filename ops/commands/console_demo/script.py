"""Which servers there are, and what goes wrong with them when."""

from __future__ import annotations

from collections.abc import Callable

from .lending import Post
from .server import GIB, DemoPlan, DemoServer
from .stripes import IN_SERVICE
from .work import Habit

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


class Script:
    """Starts the servers, and sees to it that something happens."""

    def __init__(self, post: Post, wall: Callable[[], float]) -> None:
        self._post = post
        self._clock = post.clock
        self._wall = wall
        self._lives = 0
        self.servers: dict[str, DemoServer] = {}
        self.gone: dict[str, float] = {}  # since when, by the wall clock
        for plan in PLANS:
            self._start(plan)
        for at, action in (
            (35.0, self._busy_donor), (75.0, self._slow), (110.0, self._as_usual), (140.0, self._pull),
            (185.0, self._kill), (215.0, self._restart), (230.0, self._add), (245.0, self._strangers),
            (275.0, self._known_again),
        ):  # fmt: skip
            self._every_round(at, action)

    def _every_round(self, at: float, action: Callable[[], None]) -> None:
        def happens() -> None:
            action()
            self._clock.after(ROUND, happens)

        self._clock.after(at, happens)

    def _start(self, plan: DemoPlan) -> None:
        self._lives += 1
        self.servers[plan.name] = DemoServer(plan, self._post, self._wall, seed=self._lives * 7919)
        self.gone.pop(plan.name, None)

    def _busy_donor(self) -> None:
        """Its own requests come twenty times as often for a while: it takes lent memory back."""
        server = self.servers["alpha"]
        if server.alive:
            server.rush(12.0, 20.0)

    def _slow(self) -> None:
        stripes = self.servers["gamma"].stripes
        assert stripes is not None
        if stripes.devices[1].service == IN_SERVICE:
            stripes.slow(1, 12.0)

    def _as_usual(self) -> None:
        stripes = self.servers["gamma"].stripes
        assert stripes is not None
        stripes.slow(1, 1.0)

    def _pull(self) -> None:
        server = self.servers["beta"]
        assert server.stripes is not None
        there = [device.number for device in server.stripes.devices if device.service == IN_SERVICE]
        if len(there) > 2 and len(server.stripes.devices) < MOST_DEVICES:
            server.pull_device(there[2])

    def _add(self) -> None:
        server = self.servers["beta"]
        assert server.stripes is not None
        if len(server.stripes.devices) < MOST_DEVICES:
            device = server.stripes.add()
            server.events.emit("device.added", device=device.path, number=device.number)

    def _kill(self) -> None:
        self.servers["alpha"].die()
        self.gone["alpha"] = self._wall()

    def _restart(self) -> None:
        self._start(self.servers["alpha"].plan)

    def _strangers(self) -> None:
        """Nobody comes back: nothing of what they ask for is held."""
        self.servers["gamma"].work.strangers = True

    def _known_again(self) -> None:
        self.servers["gamma"].work.strangers = False
