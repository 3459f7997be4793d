"""How the operator moves: where he is, where he came from, and how each place is sifted and sorted."""

from __future__ import annotations

from .place import Place, PlaceStep
from .sieve import Sieve
from .table import Sorting


class Navigation:
    """The views keep their places while another one is on the screen."""

    def __init__(self, views: tuple[str, ...]) -> None:
        self.views = views
        self.place = Place(views[0])
        self.only: str | None = None  # the one server that is shown; None: all
        self._trail: list[Place] = []
        self._left: dict[str, Place] = {}
        self._sieves: dict[Place, Sieve] = {}
        self._sortings: dict[Place, Sorting] = {}

    # ---- moving ----

    def turn(self, view: str) -> None:
        """To a view, where it was left; if it is there already, to its top."""
        if view == self.place.view:
            self.place = Place(view)
        else:
            self._left[self.place.view] = self.place
            self.place = self._left.get(view, Place(view))
        self._trail.clear()

    def next(self, by: int) -> None:
        at = self.views.index(self.place.view)
        self.turn(self.views[(at + by) % len(self.views)])

    def enter(self, place: Place) -> None:
        """Into something that is on the screen; `back` returns from it."""
        if place != self.place:
            self._trail.append(self.place)
            self.place = place

    def back(self) -> bool:
        """One step; False at a view's top."""
        if self._trail:
            self.place = self._trail.pop()
            return True
        outer = self.place.outer
        if outer is None:
            return False
        self.place = outer
        return True

    def limit(self, server: str | None) -> None:
        """To one server, or to all; places within others are left."""
        self.only = server
        self._trail.clear()
        self._left.clear()
        self.place = Place(self.place.view)

    @property
    def crumbs(self) -> list[tuple[str, Place]]:
        """What stands in the line of breadcrumbs, and where each leads."""
        place = self.place
        return [(step.name, place._replace(steps=place.steps[: number + 1])) for number, step in enumerate(place.steps)]

    @property
    def server(self) -> str | None:
        """The server that this place is about."""
        return self.place.name("server") or self.only

    # ---- sifting and sorting ----

    @property
    def sieve(self) -> Sieve:
        return self._sieves.get(self._level, Sieve())

    @sieve.setter
    def sieve(self, sieve: Sieve) -> None:
        self._sieves[self._level] = sieve

    @property
    def sorting(self) -> Sorting:
        return self._sortings.get(self._level, Sorting())

    @sorting.setter
    def sorting(self, sorting: Sorting) -> None:
        self._sortings[self._level] = sorting

    @property
    def _level(self) -> Place:
        """Places of the same kind are sifted alike: the requests of one server as those of another."""
        return Place(self.place.view, tuple(PlaceStep(step.kind, "") for step in self.place.steps))
