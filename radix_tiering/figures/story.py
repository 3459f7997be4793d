"""What is told of one restore: what was decided first and why, and what really happened. See `storyteller.py`."""

from __future__ import annotations

import msgspec

#: How a page came where no tier brought it: the device computed it, or got it in another way meanwhile.
COMPUTED, ON_DEVICE = "compute", "device"


class RestoreStory(msgspec.Struct, frozen=True, kw_only=True):
    """How one prefix came back. None: it has not come to that, was not estimated, or does not apply.

    Pages count from the first one that the device lacked when the request arrived. On the bus this is one JSON object
    with these names: `docs/bus.md` has them as a table.
    """

    page_tokens: int = 0
    prefix_pages: int = 0  # before them, that the device had
    wanted_pages: int = 0  # whole pages of the prompt that it lacked
    found_pages: dict[str, int] = {}  # of these, by tier: those held below the device, without a gap from the first on
    whole: str = ""  # why they had to be there whole before anything was computed; empty if they had not
    strategy: str = ""  # decided first: "load", "recompute", "token-wise", "layer-wise"; empty: nothing was to decide
    why: str = ""  # why that
    later: str = ""  # strategy and reason of the last decision, if that was another one; else empty
    estimated_seconds: float | None = None  # by the first decision: until all were there
    estimated_compute_seconds: float | None = None  # of these, computing
    estimated_load_seconds: dict[str, float] = {}  # by source; the sources and computing work side by side
    planned_lead_pages: int | None = None  # to be loaded before anything is computed
    planned_meeting_pages: int | None = None  # behind these, all were to be loaded
    runs: tuple[tuple[str, int], ...] = ()  # how the found pages came, in order: a tier, "compute" or "device"
    computed_pages: int | None = None  # only while it runs: of those pages, computed or being computed now
    arrived_pages: int | None = None  # likewise: can be copied to the device now, from host or landing memory
    loading_pages: int | None = None  # likewise: on their way there
    meeting_pages: int | None = None  # behind these, all were loaded; known when every page has come
    layers: int = 0  # of the model, if the lower ones were computed and the upper ones copied; else 0
    planned_layer: int | None = None  # the layers below it were to be computed
    met_layer: int | None = None  # the layers below it were computed; the found pages then count as computed
    there_seconds: float | None = None  # from its arrival until all were there
    waited_seconds: float | None = None  # of these, since it was waited for
    held_seconds: float = 0.0  # of these, the request held: all that was left to compute was on its way
    compute_seconds: float = 0.0  # of forwards, by the share that found pages have in their tokens
    load_seconds: dict[str, float] = {}  # by source: from asking for the first page until the last was verified
    copy_seconds: float = 0.0  # of copies from host memory to the device, which run beside forwards
    lost_pages: dict[str, int] = {}  # found, but did not come: by source and reason, "ssd: io error"
    late: str = ""  # why it fell behind the estimate; empty if it did not
    late_pages: int = 0  # that were left to be computed then

    @property
    def found(self) -> int:
        """Pages that were found below the device."""
        return sum(self.found_pages.values())

    @property
    def covered(self) -> int:
        """Pages from the first on that have come, in whatever way."""
        return sum(pages for _, pages in self.runs)

    def pages(self, how: str) -> int:
        """Pages that came in this way."""
        return sum(pages for name, pages in self.runs if name == how)

    @property
    def loaded(self) -> int:
        """Pages that were loaded from any tier."""
        return self.covered - self.pages(COMPUTED) - self.pages(ON_DEVICE)
