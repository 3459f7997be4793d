"""One world from its beginning to its end, and what is said of one that failed."""

from __future__ import annotations

import re
import shlex
import signal
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from swift_tiers.radix_tiering.base.virtual import VirtualRunner
from swift_tiers.radix_tiering.tiers.testing.network import NETWORKS_FAIL

from .devices import DEVICES_FAIL, FATES
from .many import MANY, ManyPages
from .neighbours import RANK_FAILURES
from .plan import CLIENT as CLIENT_ACTIONS
from .plan import NEIGHBOURS, RANK_TROUBLE, RANKED_TORMENTS, SERVER, SERVERS, STUMBLES, TROUBLE, WORLDS, Plan, as_words
from .ranks.process import servers_of_this_process
from .scenarios import SCENARIOS, SEED_ALONE
from .shared_store import STORES_FAIL
from .trouble import DEVICE_FAULTS
from .world import ENDS, World

#: Every kind of world, by what it is called on the command line.
KINDS = (*WORLDS, *SERVERS, *SEED_ALONE)
#: Seconds of the processor after which a step of a world is looked at: one takes microseconds, and to compile kernels
#: at the first, less than this.
STEP_SECONDS = 60.0
#: How processes end.
CRASHES = (
    *(f"crash: {name}" for name in ENDS),
    *(f"crash: a write leaves {fate}" for fate in FATES),
    "recovered",
    "recovered behind",
)
#: What can happen in worlds: what is counted, and what is told where it was never reached.
HAPPENINGS = (
    *CLIENT_ACTIONS,
    "pages",
    "rounds",
    "pages read to the device",
    "pages coded",
    "damage found beside a copy",
    *TROUBLE,
    *(f"device {name}" for name in (*DEVICE_FAULTS, "readmitted", "comes back")),
    *(f"fault: {name}" for name in DEVICES_FAIL),
    *(f"lease {name}" for name in NEIGHBOURS),
    *(f"neighbour: {name}" for name in RANKED_TORMENTS),
    *(f"donor: {name} fails" for name in RANK_FAILURES),
    *(f"network: {name}" for name in NETWORKS_FAIL),
    *("donor: a request of its own", "pages lent", "pages from lent memory"),
    *(f"store: {name}" for name in STORES_FAIL),
    "pages from the store",
    *CRASHES,
)
#: The same in worlds of servers.
RANK_HAPPENINGS = (
    *SERVER,
    *RANK_TROUBLE,
    *(f"stumble: {name}" for name in STUMBLES),
    *("answers", "answers refused", "retracted", "tokens computed", "tokens compared"),
    *("pages loaded", "pages from ssd", "pages from lent memory", "pages landed", "loaded ahead", "copied first"),
    "restores split",
)


class Outcome(NamedTuple):
    """What became of one world."""

    plan: Plan
    steps: int
    happened: Counter[str]
    error: Exception | None = None
    history: Sequence[str] = ()

    @property
    def complaint(self) -> str:
        """What kind of failure it is, without the numbers that differ from one order of things to the next."""
        if self.error is None:
            return ""
        cause = self.error.__cause__ or self.error
        first = (str(cause).splitlines() or [""])[0]
        return f"{type(cause).__name__}: {re.sub('0x[0-9a-f]+|[0-9a-f]{16,}|[0-9.]+', '#', first)}"[:200]

    @property
    def replay(self) -> str:
        """The command that does it again."""
        plan = self.plan
        words = ["./swift", "torture", "--kind", plan.kind, "--seed", str(plan.seed), "--seeds", "1"]
        if plan.kind not in SEED_ALONE:
            words += ["--steps", str(plan.steps)]
            if plan.schedule != plan.seed:
                words += ["--schedule", str(plan.schedule)]
            if plan.shrunk:
                words += ["--keep", as_words(plan.kept())]
        return shlex.join([*words, *(["--fine"] if plan.fine else [])])


def live(plan: Plan) -> Outcome:
    """Let a world happen. Whatever it raises is its outcome; what that keeps of the world is let go."""
    outcome = _live(plan)
    error: BaseException | None = outcome.error
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
    return outcome


def _live(plan: Plan) -> Outcome:
    if plan.kind in SCENARIOS:
        history: list[str] = []
        try:
            runner: VirtualRunner = SCENARIOS[plan.kind](plan.seed, plan.fine, history)
        except Exception as error:  # noqa: BLE001 - whatever the engine raises is what was looked for
            return Outcome(plan, 0, Counter({plan.kind: 1}), error, history)
        return Outcome(plan, runner.steps, Counter({plan.kind: 1}), None, history)
    if plan.kind in MANY:
        many = ManyPages(plan.kind, plan.seed)
        try:
            many.run()
        except Exception as error:  # noqa: BLE001 - as above
            return Outcome(plan, many.runner.steps, many.happened, error, many.history)
        return Outcome(plan, many.runner.steps, many.happened, None, many.history)
    if plan.kind in SERVERS:
        return _live_on_ranks(plan)
    world = World(plan)
    failure: Exception | None = None
    try:
        with _in_steps(lambda: world.steps):
            world.run()
    except Exception as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # it came to one of the world's threads
            raise KeyboardInterrupt from error
        failure = error
    return Outcome(plan, world.steps, world.state.happened, failure, world.state.history)


@contextmanager
def _in_steps(steps: Callable[[], int]) -> Iterator[None]:
    """Raises TimeoutError in a thread of the world that goes on and on by itself, as in a chain that has become a ring:
    no other one has a turn then, and no step is counted. Elsewhere than on the main thread it goes on for ever."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen = -1

    def look(*_: object) -> None:
        nonlocal seen
        before, seen = seen, steps()
        if seen == before:
            raise TimeoutError(f"a step takes {STEP_SECONDS:g} s of the processor and more: it does not end")

    former = signal.signal(signal.SIGVTALRM, look)
    signal.setitimer(signal.ITIMER_VIRTUAL, STEP_SECONDS, STEP_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, former)


def _live_on_ranks(plan: Plan) -> Outcome:
    history: list[str] = []
    try:
        steps, happened = servers_of_this_process(plan.kind).live(plan, history)
    except Exception as error:  # noqa: BLE001 - whatever a rank raises is what was looked for
        return Outcome(plan, 0, Counter(), error, history)
    return Outcome(plan, steps, happened, None, history)
