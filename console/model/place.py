"""Where the operator is: a view, and what was entered in it."""

from __future__ import annotations

from typing import NamedTuple


class PlaceStep(NamedTuple):
    """One thing that was entered: `PlaceStep("server", "alpha")`."""

    kind: str  # server, rank, tier, device, request, page, donor, ...
    name: str


class Place(NamedTuple):
    """A view and the steps taken in it, outermost first. Without steps: everything that the view shows."""

    view: str
    steps: tuple[PlaceStep, ...] = ()

    def enter(self, *steps: PlaceStep) -> Place:
        return self._replace(steps=(*self.steps, *steps))

    @property
    def outer(self) -> Place | None:
        """One step back; None at the top of a view."""
        return self._replace(steps=self.steps[:-1]) if self.steps else None

    def name(self, kind: str) -> str | None:
        """Of the innermost step of this kind."""
        return next((step.name for step in reversed(self.steps) if step.kind == kind), None)

    @property
    def last(self) -> PlaceStep | None:
        return self.steps[-1] if self.steps else None
