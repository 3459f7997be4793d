"""Another way to share sources than the product's `Batch`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from swift_tiers.radix_tiering.restore.batch import Forward, Pick
from swift_tiers.radix_tiering.restore.flight import Flight, Step

Request = TypeVar("Request")


class InOrder(Generic[Request]):
    """What Cake does, and loaders without a plan: loads go to requests by age, and chunks end where they end."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """It knows no time: `clock` is what `Batch` takes."""
        self._flights: dict[Request, Flight] = {}
        self._under_way: dict[str, int] = {}

    def add(
        self,
        request: Request,
        flight: Flight,
        compute_seconds: Callable[[int, int], float] | None = None,
        unit_seconds: Callable[[str], float | None] = lambda source: None,
        forward: Forward | None = None,
        latency_seconds: Callable[[str], float] = lambda source: 0.0,
    ) -> None:
        self._flights[request] = flight

    def remove(self, request: Request) -> None:
        self._flights.pop(request, None)

    def set_computing(self, request: Request, computing: bool) -> None:
        """Makes no difference here."""

    def under_way(self, source: str) -> int:
        return self._under_way.get(source, 0)

    def next_step(self, request: Request, most: int, free_in: float = 0.0) -> Step:
        return self._flights[request].step(most)

    def next_load(self, source: str, most: int = 1) -> Pick[Request] | None:
        for request, flight in self._flights.items():
            if units := flight.next_load(source, most):
                flight.take_load(units)
                self._under_way[source] = self.under_way(source) + len(units)
                return Pick(request, units)
        return None

    def answered(self, source: str) -> None:
        self._under_way[source] -= 1
