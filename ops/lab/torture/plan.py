"""What everybody in a world is going to do, drawn before it begins.

A plan is data: a seed gives the same one in every process, and one with fewer actions is a plan as well, which is how a
failure is shrunk. The order in which threads go on has a seed of its own, `schedule`.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from typing import NamedTuple

#: What a world is about. `trouble`: anything goes wrong. `calm`: nothing does. `lent`: there is lent memory and no ssd.
#: `crash`: the process ends at any moment, or in order, and another one begins on the same devices. `borrowed`: real
#: donors lend, over a network that fails. `ranked`: donors of several ranks do, which have to stay together. `shared`:
#: a store beneath all is late, hangs, dies, and its objects are gone, short, damaged or others'.
WORLDS = ("trouble", "calm", "lent", "crash", "borrowed", "ranked", "shared")
#: Of these, those with real donors.
BORROWED = ("borrowed", "ranked")
#: Of these, those of which some have pages that are coded on ssd.
CODED = ("trouble", "calm", "crash")
#: Worlds of other kinds: SGLang's scheduler on one rank or several, which have to stay together; and the same with a
#: model whose layers with a sliding window have a pool of their own.
RANKS, WINDOWED = "ranks", "windowed"
SERVERS = (RANKS, WINDOWED)

#: What a client does, and how often of so many.
CLIENT = {"put": 4, "restore": 4, "leave": 1, "wait_in_line": 4}
#: What goes wrong.
TROUBLE = {
    "flush": 2, "device": 2, "damage_memory": 1, "damage_disk": 1, "drop": 1, "pin": 1, "cap": 1, "empty_attic": 1,
    "clock": 1, "starve": 1,
}  # fmt: skip
#: What becomes of leases.
NEIGHBOURS = {"lend": 3, "recall": 1, "late": 1, "end": 1, "hold": 1}
#: What becomes of donors, of others that borrow, and of the network between them.
TORMENTS = {"request": 6, "stop": 1, "hang": 1, "kill": 1, "cut": 1, "letters": 2, "unnamed": 1}
RANKED_TORMENTS = {**TORMENTS, "stumble": 2}
#: What a server is asked for, alike on every rank.
SERVER = {
    "ask": 4, "ask_again": 8, "ask_as": 2, "abort": 1, "evict": 8, "retract": 1, "flush_cache": 1, "rounds_pass": 4,
}  # fmt: skip
#: What goes wrong on one rank alone.
RANK_TROUBLE = {
    "device": 2, "damage_memory": 1, "damage_disk": 1, "drop": 2, "cap": 1, "clock": 1, "starve": 2, "stumble": 3,
}  # fmt: skip
#: What fails once where a rank stumbles, by where it is found from the linker.
STUMBLES = (
    "stack.restorer.poll", "stack.restorer.at_once", "stack.restorer.present", "stack.restorer.places",
    "stack.restorer.step", "stack.restorer.take", "stack.restorer.split", "stack.restore", "pool.copy_in",
    "pool.copy_out", "stack.intake.begin",
)  # fmt: skip
#: What does besides where there are windows.
WINDOW_STUMBLES = ("pool.states.copy_in", "pool.states.copy_out")
#: Of these, what SGLang answers with an error: what was promised is not copied to the device.
REFUSING = ("stack.restorer.places", "pool.copy_in", "pool.states.copy_in")
#: Clients that are there at a time.
CLIENTS = 3


class WorldAction(NamedTuple):
    """One thing that somebody does."""

    name: str
    pause: float  # how long nothing is done before it, virtual seconds
    seed: int  # of what is drawn while it is done


class Job(NamedTuple):
    """What one thread does, in this order. The numbers are those of the actions in the plan that was not shrunk."""

    name: str
    life: int  # in which process, counted from 0
    actions: Mapping[int, WorldAction]


class Plan(NamedTuple):
    """One world."""

    kind: str
    seed: int
    steps: int
    schedule: int
    jobs: tuple[Job, ...]
    fine: bool = False  # whether threads switch between statements, too
    shrunk: bool = False  # whether it is without some of its actions
    #: How long each process but the last lives, virtual seconds; None: it ends in order, as the last one does.
    crashes: tuple[float | None, ...] = ()

    @property
    def size(self) -> int:
        """How many actions it has."""
        return sum(len(job.actions) for job in self.jobs)

    def keeping(self, kept: Mapping[str, Collection[int]]) -> Plan:
        """Only these actions, by the names of jobs."""
        jobs = [
            job._replace(actions={number: one for number, one in job.actions.items() if number in kept[job.name]})
            for job in self.jobs
            if kept.get(job.name)
        ]
        return self._replace(jobs=tuple(jobs), shrunk=True)

    def kept(self) -> dict[str, list[int]]:
        """The actions it has, by the names of jobs."""
        return {job.name: list(job.actions) for job in self.jobs}

    def draw(self, what: str) -> random.Random:
        """For what is not an action; the same whatever was shrunk."""
        return random.Random(f"{self.kind} {self.seed} {what}")

    @property
    def verify(self) -> bool | str:
        """`host.verify`, of all processes and ranks alike."""
        return self.draw("verifying").choice((True, "beside"))

    @property
    def coded(self) -> bool:
        """Whether pages have several stripe units, and lie on ssd in fewer."""
        return self.kind in CODED and self.draw("coding").random() < 0.3

    @property
    def by_device(self) -> bool:
        """Whether what is copied is compared by what the device says of it, where it is verified beside its copy."""
        return self.draw("by the device").random() < 0.7


def make_plan(kind: str, seed: int, *, steps: int = 12, schedule: int | None = None, fine: bool = False) -> Plan:
    """The world of a seed. `steps`: what each client does; whoever makes trouble does half as much."""
    plan = Plan(kind, seed, steps, seed if schedule is None else schedule, (), fine)
    draw = plan.draw("plan")
    if kind in SERVERS:
        return plan._replace(jobs=tuple(_server(plan, draw)))
    lives = draw.randint(2, 3) if kind == "crash" else 1
    jobs = [job for life in range(lives) for job in _jobs(kind, life, steps, draw)]
    crashes = tuple(draw.random() ** 2 * 0.02 * steps if draw.random() < 0.8 else None for _ in range(lives - 1))
    return plan._replace(jobs=tuple(jobs), crashes=crashes)


def ranks_of(plan: Plan) -> int:
    """How many ranks a server has."""
    return plan.draw("ranks").choice((1, 2, 2, 4))


def ranks_borrow(plan: Plan) -> bool:
    """Whether a server's ranks have lent memory, each leases of its own."""
    return plan.draw("lent to ranks").random() < 0.4


def ranks_land(plan: Plan) -> bool:
    """Whether some of a server's ranks have landing memory, and host memory has little room. Windows never land."""
    return plan.kind == RANKS and ranks_borrow(plan) and plan.draw("landing on ranks").random() < 0.5


def landing_slots(plan: Plan, rank: int) -> int:
    """How many pages a rank's landing memory holds; 0: it has none."""
    return plan.draw(f"landing of rank {rank}").choice((0, 1, 2, 3)) if ranks_land(plan) else 0


def stumble_of(plan: Plan, action: WorldAction) -> str:
    """What fails where a rank stumbles; on whichever rank, all know it."""
    names = STUMBLES if plan.kind == RANKS else STUMBLES + WINDOW_STUMBLES
    return random.Random(action.seed).choice(names)


def _server(plan: Plan, draw: random.Random) -> list[Job]:
    jobs = [Job("server", 0, _actions(SERVER, 2 * plan.steps, draw, 0.5, 3, 0.05))]
    if draw.random() < 0.7:
        for number in range(ranks_of(plan)):
            trouble = _actions(RANK_TROUBLE, draw.randint(0, plan.steps), draw, 1.0, 2, 0.05)
            jobs.append(Job(f"rank-{number}", 0, trouble))
        for number in range(ranks_of(plan)) if ranks_borrow(plan) else ():
            leases = _actions(NEIGHBOURS, 2 * plan.steps, plan.draw(f"leases of rank {number}"), 1.0, 2, 0.05)
            jobs.append(Job(f"leases-{number}", 0, leases))
    return jobs


def _jobs(kind: str, life: int, steps: int, draw: random.Random) -> list[Job]:
    first, pause = life * CLIENTS, 1.0 if kind in BORROWED else 0.02
    jobs = [
        Job(f"client-{first + number}", life, _actions(CLIENT, steps, draw, 0.3, 3, pause)) for number in range(CLIENTS)
    ]
    if kind != "calm":
        jobs.append(Job(f"trouble-{life}", life, _actions(TROUBLE, steps // 2, draw, 1.0, 2, 0.05)))
    if kind in BORROWED:
        worst = RANKED_TORMENTS if kind == "ranked" else TORMENTS
        among = worst if draw.random() < 0.8 else {"request": 1}
        jobs.append(Job(f"torments-{life}", life, _actions(among, steps, draw, 1.0, 2, 1.0)))
    else:
        jobs.append(Job(f"neighbours-{life}", life, _actions(NEIGHBOURS, steps, draw, 1.0, 2, 0.03)))
    return jobs


def _actions(
    among: Mapping[str, int], count: int, draw: random.Random, often: float, power: int, longest: float
) -> dict[int, WorldAction]:
    """`often`: the share of actions before which there is a pause, of up to `longest` seconds."""
    names = draw.choices(list(among), list(among.values()), k=count)
    return {
        number: WorldAction(
            name, draw.random() ** power * longest if draw.random() < often else 0.0, draw.randrange(1 << 32)
        )
        for number, name in enumerate(names)
    }


def as_words(kept: Mapping[str, Collection[int]]) -> str:
    """Actions by the names of jobs, as `--keep` takes them: client-0:1,4/trouble-0:2."""
    return "/".join(f"{name}:{','.join(map(str, numbers))}" for name, numbers in kept.items() if numbers)


def from_words(words: str) -> dict[str, set[int]]:
    """What `as_words` wrote. Raises ValueError for anything else."""
    kept: dict[str, set[int]] = {}
    for word in filter(None, words.split("/")):
        name, colon, numbers = word.partition(":")
        if not colon:
            raise ValueError(f"{word!r} is not NAME:NUMBER,NUMBER")
        kept[name] = {int(number) for number in numbers.split(",")}
    return kept
