"""What a request does while its pages come up: it waits for them, computes what is missing, or holds for one of them.

Decided by what both costs, anew while it waits, and never for long: a load that falls behind its estimate is given up.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ..base.events import EventLog
from ..restore.flight import Step, Unit
from ..restore.planner import HERE, Decision, Owed, Planner
from ..table.tier_copies import HOST
from .draining import Draining
from .request_restore import Held, Readiness, Restore, RestoreState
from .source_turns import SourceTurns

#: A waiting request is planned for anew after so long, seconds.
REPLAN_SECONDS = 0.01
#: ... or after so many times what planning took, where that is longer: very long prefixes of very small pages.
PLANNING_SHARE = 50
#: Within so long of its estimate nothing counts as late, seconds: threads wake up when they do.
SLACK_SECONDS = 0.05
#: Of so many prefixes in host memory that would sooner be computed one is copied: only that tells what copying takes.
COPIED_AGAIN = 16


class Pacing:
    """Used under the page table's lock."""

    def __init__(
        self,
        planner: Planner,
        turns: SourceTurns,
        draining: Draining,
        events: EventLog,
        clock: Callable[[], float],
        *,
        behind: float,
        deadline_seconds: Callable[[], float],
        lands_what_is_here: bool = False,
    ) -> None:
        """`behind`: `restore.behind` of the configuration; `deadline_seconds()`: how long a page is waited for whose
        source is not known; `lands_what_is_here`: pages may land that host memory has, too: what is taken from there
        after all is verified where it is copied."""
        self._lands_what_is_here = lands_what_is_here
        self.behind = behind  # may be changed at any time
        self.late = 0  # restores that fell behind
        self._planner = planner
        self._turns = turns
        self._draining = draining
        self._events = events
        self._clock = clock
        self._deadline_seconds = deadline_seconds
        self._not_copied = 0  # prefixes in host memory that were sooner computed, as it seemed

    @staticmethod
    def readiness_of_settled(restore: Restore) -> Readiness:
        holes = restore.can_compute and len(restore.claimed) > restore.pages and restore.outcome != "expired"
        return Readiness.COMPUTE if holes else Readiness.READY

    def plan(self, restore: Restore) -> bool:
        """Decide, by where its pages are now; whether all of it is to be computed though it is in host memory, which is
        decided at first alone."""
        flight, now, instead = restore.flight, self._clock(), None
        if not restore.can_compute:
            flight.steer(len(flight))  # front to back: what has come up when the deadline passes can be used
            instead = self._sooner_computed(restore)
            if instead is not None:
                restore.story.decided(instead, flight.front)
            return instead is not None
        if restore.decision is None:
            for tier, run in self.to_land(restore):  # taken from host memory after all where anything goes wrong
                restore.come_from(tier, run, Unit.ABSENT)
                restore.also_here.update(run)
        owed = self._turns.owed_seconds(restore)
        decision = self._decide(restore, owed)
        if restore.also_here and not decision.drains:
            restore.take_what_is_here()
            decision = self._decide(restore, owed)
        if restore.decision is None and not decision.layer_wise:
            instead = self._sooner_computed(restore)
            decision = instead or decision
        front = flight.step(1).jump
        self._expect(restore, decision, max(owed.values(), default=0.0), now)
        restore.decision, restore.drains = decision, decision.drains
        restore.story.decided(decision, front)
        restore.replan = now + max(REPLAN_SECONDS, PLANNING_SHARE * (self._clock() - now))
        flight.steer(min(front + decision.lead, len(flight)) if decision.lead else 0, self._planner.island(decision))
        # From now on: the request will be admitted as soon as there is room.
        self._turns.batch.set_computing(restore, decision.compute)
        return instead is not None

    def _expect(self, restore: Restore, decision: Decision, owed: float, now: float) -> None:
        """How long it is to take, by its first decision; or by a later one, where others have come since whom a source
        serves as well: to wait for them is no reason to give up."""
        if decision.plan is None:
            return
        if restore.decision is None:
            restore.estimate = decision.plan.seconds
            restore.patience = self._most_patience(restore)
        elif (
            restore.estimate is not None and restore.asked is not None and owed > restore.owed and not decision.compute
        ):
            restore.estimate = max(restore.estimate, now - restore.asked + decision.plan.seconds)
        restore.owed = max(restore.owed, owed)

    def _most_patience(self, restore: Restore) -> float:
        """How long it may wait for what has not come: no longer than it would be computed."""
        front = restore.flight.step(1).jump
        sources = restore.flight.whereabouts(front, HERE)
        return self._planner.most_patience(len(restore.prefix_keys) + front, sources, restore.beside)

    def recomputes(self, restore: Restore) -> bool:
        """Whether one that needs its pages whole is to be computed instead, by what is known when it is first asked for
        and its chain is complete."""
        if restore.priced:
            return False
        restore.priced = True
        front = restore.flight.step(1).jump
        sources = restore.flight.whereabouts(front, HERE)
        owed = self._turns.owed_seconds(restore)
        start = len(restore.prefix_keys) + front
        decision = self._planner.recomputes(start, sources, restore.tokens_behind, owed, restore.beside)
        if decision is not None:
            restore.story.decided(decision, front)
        elif restore.asked is not None:
            restore.deadline = min(restore.deadline, restore.asked + self._most_patience(restore) + SLACK_SECONDS)
        return decision is not None

    def _sooner_computed(self, restore: Restore) -> Decision | None:
        """To compute one whose pages are all in host memory, where that is sooner than copying them."""
        pages, front = len(restore.flight), restore.flight.front
        if front == pages or restore.sources.count(HOST) < pages:
            return None
        start = len(restore.prefix_keys) + front
        decision = self._planner.recomputes_what_is_here(start, pages - front, restore.tokens_behind, restore.beside)
        if decision is None:
            return None
        self._not_copied += 1
        return decision if self._not_copied % COPIED_AGAIN else None

    def _decide(self, restore: Restore, owed: Owed) -> Decision:
        flight, prefix = restore.flight, len(restore.prefix_keys)
        front, behind = flight.step(1).jump, restore.tokens_behind
        beyond = self._draining.beyond(restore) if restore.may_drain else 0
        decision = self._planner.decide(
            prefix + front, flight.whereabouts(front, HERE), behind, beyond=beyond, owed=owed
        )
        here = flight.whereabouts(flight.front, HERE)
        decision = self._planner.by_layers(decision, prefix + flight.front, here, behind, restore.no_layers, owed)
        return decision._replace(drains=decision.drains and not decision.layer_wise)

    def to_land(self, restore: Restore) -> list[tuple[int, range]]:
        """Runs of its pages that are to come from lent memory, each with its tier, though host memory has them: where
        they land sooner than they would be copied from there."""
        if not self._lands_what_is_here or not restore.can_compute:
            return []
        found, start = list[tuple[int, range]](), len(restore.prefix_keys)
        for tier, runs in self._draining.also_here(restore).items():
            pages = sum(map(len, runs))
            if self._planner.lands_sooner(pages, restore.tiers[tier], start, restore.tokens_behind):
                found += [(tier, run) for run in runs]
        return found

    def compute_or_wait(self, restore: Restore, now: float) -> Readiness:
        """What it may do. It is told to wait for one deadline at a time at most, whatever was decided, and for nothing
        once nothing is left to come."""
        if restore.state is not RestoreState.RUNNING:
            return self.readiness_of_settled(restore)
        if restore.waits_since is None:
            restore.waits_since = now
        if self._waits(restore, now):
            # What it waits for may have been left to the device until now, and the sources may be at rest.
            self._turns.pump()
            return Readiness.WAIT
        restore.waits_since = None
        return Readiness.COMPUTE

    def _waits(self, restore: Restore, now: float) -> bool:
        if restore.flight.done:
            # All of it is there, or on the device: nothing is to be computed, and nothing to be waited for.
            return False
        restore.flight.reserve(0)  # whoever asks again has not taken the last step
        if not restore.late and now >= restore.replan:
            self.plan(restore)
        decision = restore.decision
        assert decision is not None, "planned for when its chain was complete"
        if restore.drains and self._begins_draining(restore):
            return False  # it may begin at once: if it waits longer, that is for its turn, and not for its pages
        if not restore.late and not decision.compute:
            assert restore.asked is not None
            waited = now - restore.asked
            if restore.estimate is not None and waited > self._patience(restore.estimate, restore.patience):
                than = "estimated" if waited > restore.estimate else "computing would have taken"
                self._fell_behind(restore, restore.flight.absent, f"loading takes longer than {than}")
            elif now >= restore.deadline:
                restore.flight.abandon_loading()  # what is under way is waited for no longer, either
                self._fell_behind(restore, restore.flight.absent, "its deadline passed")
            else:
                return True
            restore.flight.steer(0, self._planner.island(decision))
            self._turns.batch.set_computing(restore, True)
        if self.by_layers(restore):
            return False
        step = self.next_step(restore)
        return step.end == step.jump

    @staticmethod
    def by_layers(restore: Restore) -> bool:
        """Whether its layers are to be computed from the bottom, as things are."""
        decision, flight = restore.decision, restore.flight
        if decision is None or not decision.layer_wise or restore.late or restore.outcome == "expired":
            return False
        return flight.front < len(flight) and not flight.to_compute(flight.front, len(flight))

    @staticmethod
    def not_by_layers(restore: Restore, why: str) -> None:
        if restore.decision is not None:
            restore.decision = restore.decision._replace(layer_wise=False, plan=None, why=why)
            restore.no_layers = why
            restore.story.decided(restore.decision, restore.flight.front)

    def not_draining(self, restore: Restore) -> None:
        """It is decided on anew, as if landing memory held all of it."""
        if not restore.drains or restore.state is not RestoreState.RUNNING:
            return
        restore.may_drain = restore.drains = False
        self.plan(restore)
        decision = restore.decision
        if restore.estimate is not None and restore.asked is not None and decision is not None and decision.plan:
            # What it has waited until now was not for want of speed.
            waited = self._clock() - restore.asked
            restore.estimate, restore.patience = waited + decision.plan.seconds, waited + self._most_patience(restore)

    def next_step(self, restore: Restore) -> Step:
        free_in = max(0.0, restore.busy_until - self._clock())
        flight, batch, most = restore.flight, self._turns.batch, self._planner.most(restore.decision)
        if restore.drains and not restore.computing:
            return Step(flight.front, flight.front + self._begins_draining(restore))
        step = batch.next_step(restore, most, free_in) if restore in batch else flight.step(most)
        if step.end > step.jump or step.jump == len(flight):
            self.goes_on(restore)
        elif self._held_too_long(restore):
            pages = flight.abandon_loading()
            for source in list(flight.sources()):
                pages += flight.abandon_source(source)
            self._fell_behind(restore, pages, "a page that the device waited for did not come in time")
            step = flight.step(most)
        return step

    def _held_too_long(self, restore: Restore) -> bool:
        """Whether nothing has come for longer than what is under way should take, or all of it takes too long: longer
        than should be, or than the deadline."""
        now, held = self._clock(), restore.held
        arrived = restore.flight.front + restore.flight.present  # what is taken as it comes has come
        if held is None:
            restore.story.holds(now)
            waits_since = now if restore.waits_since is None else restore.waits_since
            patience = self._patience(self._turns.left_seconds(restore), self._most_patience(restore))
            most = min(self._deadline_seconds(), restore.patience + SLACK_SECONDS)
            held = Held(now, arrived, min(now + patience, waits_since + most))
        elif held.arrived != arrived:
            held = held._replace(since=now, arrived=arrived)
        restore.held = held
        return now > held.until or now - held.since > self._patience(self._turns.expected_seconds(restore))

    def _patience(self, expected: float | None, most: float = math.inf) -> float:
        """Seconds for which to wait for what is expected to take so long, and is not worth more than `most`."""
        return self._deadline_seconds() if expected is None else min(self.behind * expected, most) + SLACK_SECONDS

    @staticmethod
    def _begins_draining(restore: Restore) -> bool:
        """Whether the device may begin to take its pages. No batch is without anything to compute, so it computes the
        first page that it has not got, though that has come; or since it will not."""
        flight = restore.flight
        return flight.next_state is Unit.PRESENT or flight.to_compute(flight.front, flight.front + 1)

    def launched(self, restore: Restore, step: Step) -> None:
        """The device computes a step of it when it is done with the one before."""
        forward = self._planner.forward(len(restore.prefix_keys))
        if forward is not None and not self._planner.launch_blocks:
            began = max(self._clock(), restore.busy_until)
            restore.busy_until = began + forward.seconds(step.jump, step.end)

    def goes_on(self, restore: Restore) -> None:
        if restore.held is not None:
            restore.held = None
            restore.story.goes_on(self._clock())

    def _fell_behind(self, restore: Restore, pages: int, reason: str) -> None:
        restore.take_what_is_here()
        restore.late, restore.drains = reason, False
        restore.story.fell_behind(reason, pages)
        self.late += 1
        waited = self._clock() - restore.started
        self._events.emit("restore.behind", pages=pages, seconds=round(waited, 3), reason=reason)
