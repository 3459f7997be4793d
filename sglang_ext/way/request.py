"""Everything that is known of one request on SGLang's side, from its first match until nothing is kept for it.

    WAITING --(admitted with a part of its pages)--> ON_COURSE --(it has them all)--> TAKEN
       |                                                 |                              |
       '---------------------(end)-----------------------'------------(end)-------------'--> ENDED

WAITING: its pages come up, and SGLang asks whether it may be admitted. ON_COURSE: SGLang computes it from the front
while they go on coming up from the back (CacheFlow, section 3.1). TAKEN: every page has been computed, or is being
copied to the device. ENDED: it was admitted with all that it waits for, or is gone. Its pages stay pinned until nothing
of them is copied any more, whatever its stage.
"""

from __future__ import annotations

import logging
from binascii import unhexlify
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any, TypeVar

from swift_tiers.radix_tiering.restore.flight import Step
from swift_tiers.radix_tiering.stack import TierStack
from swift_tiers.radix_tiering.table.held_page import Places
from swift_tiers.radix_tiering.way.request_restore import Readiness, Restore

from ..pools.device_pool import DevicePool
from ..pools.states import StatePool, state_key
from ..tell.guard import never_raises
from ..tell.request_facts import RequestFacts, Runs, runs_of, shown_rid

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

#: Ends of a prefix that are looked at together, the last first, for one that has a state: each costs a hash.
ENDS_TOGETHER = 256


class TieringStage(Enum):
    """How far a request has come."""

    WAITING = auto()
    ON_COURSE = auto()
    TAKEN = auto()
    ENDED = auto()


class TieredRequest:
    """One request, as far as the tiers serve it. Scheduler's thread; nothing here raises but `places`, `state_places`
    and `copies`.

    What every rank has to know alike is agreed on and set from outside: `agreed`, `heard`, `computes`, `by_layers`,
    `drains`, `pages`, `put_off`, `ahead`. The restore is this rank's own; without one, for an error on this rank alone,
    the others decide.
    """

    __slots__ = (
        "_among",
        "_copies",
        "_runs",
        "agreed",
        "ahead",
        "by_layers",
        "comes",
        "computes",
        "copied_first",
        "device_node",
        "device_pages",
        "drains",
        "evictions",
        "facts",
        "given_up",
        "hashes",
        "heard",
        "images",
        "key",
        "loads_ahead",
        "lost_ahead",
        "number",
        "pages",
        "put_off",
        "req",
        "restarts",
        "restore",
        "rid",
        "stack",
        "stage",
        "state_pages",
        "tail",
    )

    def __init__(
        self,
        rid: str,
        stack: TierStack,
        among: dict[str, TieredRequest],
        facts: RequestFacts,
        *,
        req: Any = None,
        key: Any = None,
        device_pages: int = 0,
        device_node: Any = None,
        evictions: int = 0,
        restarts: int = 0,
        number: int = 0,
    ) -> None:
        """Takes the place of this id in `among`, and leaves it at its end; who had it before is ended."""
        self.rid = rid
        self.stack = stack
        self.facts = facts
        self.req = req  # SGLang's: two that live at once may have one id, see `SwiftLinkerWrapper.of`
        self.key = key
        self.device_pages = device_pages  # of its prefix, on the device when it arrived: the restore's page 0 follows
        self.device_node = device_node  # where they end in the tree
        self.evictions = evictions  # device evictions until then
        self.restarts = restarts  # how often it began anew
        self.number = number  # of those that have arrived: the same on every rank
        self.images: Sequence[tuple[int, int]] = ()  # tokens `[begin, end)` that are of no use without each other
        self.tail: Sequence[str] = ()  # page hashes behind its prefix on the device, when it arrived
        self.state_pages = 0  # of its restore, behind those of the tail: of the state that the model keeps behind them
        self.hashes: tuple[int, Sequence[str]] = (0, ())  # page hashes of its prompt, from this page (from 0) on
        self.stage = TieringStage.WAITING
        self.agreed = False  # every rank has settled its restore
        self.heard = False  # what the ranks said last of it is more than that it waits
        self.computes = False  # it may be admitted with a part of its pages, and compute what is missing
        self.comes = False  # on every rank, if it does not compute, and soon enough
        self.by_layers = False  # every rank would compute it layer by layer
        self.drains = False  # every rank loads it piece by piece, through landing memory that holds less than all of it
        self.copied_first = False  # admitted with nothing, all it has in host memory is copied ahead of its next batch
        self.loads_ahead: list[int] = []  # by index: of its pages, ahead of the batch that computes what follows them
        self.ahead = False  # there have been such since its last batch, on every rank
        self.lost_ahead = False  # one of them went wrong on this rank: its next batch is to fail
        self.put_off = False  # it was not admitted once, since all of its pages had come after SGLang's look for them
        self.pages = 0  # of its prefix below the device, of which every rank knows: some may know of more
        self.restore: Restore | None = None
        self.given_up = False  # nothing of it is to be used any more; it is kept as long as something is copied from it
        self._copies = 0  # loads that are queued or under way
        self._runs: Runs = ()  # what the last load takes from where
        self._among = among
        if (before := among.pop(rid, None)) is not None:
            before.end()
        among[rid] = self

    # ---- waiting ----

    @never_raises(lambda: None)
    def begin(
        self,
        hashes: Sequence[str],
        prefix_hashes: Sequence[str] = (),
        states: StatePool | None = None,
        wanted: int | None = None,
    ) -> None:
        """Begin to bring up the pages `hashes`, which follow `prefix_hashes` that the device has; where the model keeps
        `states`, with the one that is behind them on every rank. `wanted`: so many pages were looked for; None: these.
        """
        keys = list(map(unhexlify, hashes))
        if states is not None:
            behind = states.keys(keys[-1]) if keys else []
            self.state_pages = len(behind)
            keys += behind
        self.tail = hashes
        prefix = list(map(unhexlify, prefix_hashes))
        facts = self.facts
        restore = self.stack.restore(
            keys,
            prefix,
            can_compute=not facts.whole,
            no_layers=facts.no_layers,
            beside=self.state_pages,
            wanted=wanted,
        )
        self.restore = restore
        if states is not None and prefix:
            self.stack.restorer.used(states.keys(prefix[-1]))  # what the device has now it may lack next time
        restore.story.whole = facts.whole
        facts.follow(restore)

    @never_raises(lambda: 0)
    def held_with_state(self, hashes: Sequence[str], states: StatePool) -> int:
        """How many of these pages, from the first on, are the longest part that this rank holds with a state behind it,
        and that ends inside no image: behind a shorter part its state is another's."""
        keys = list(map(unhexlify, hashes))
        # A state's first page follows the page that it is behind, so behind most pages there is none to be hashed for.
        branches = self.stack.branches(keys[: self.stack.probe(keys)])
        lengths = [pages for pages in branches if self._between_images(pages) == pages]
        for end in range(len(lengths), 0, -ENDS_TOGETHER):
            ends = lengths[max(0, end - ENDS_TOGETHER) : end]
            # Of a state that has its last page, all are there: no page outlives its prefix.
            held = self.stack.last_held([state_key(keys[pages - 1], states.pages - 1) for pages in ends])
            if held is not None:
                return ends[held]
        return 0

    @never_raises(lambda: Readiness.READY)
    def readiness(self) -> Readiness:
        """Whether it may be admitted: its pages are up, or its deadline has passed, or it is to compute a part."""
        return Readiness.READY if self.restore is None else self.stack.restorer.poll(self.restore)

    @never_raises(lambda: Readiness.WAIT)
    def at_once(self) -> Readiness:
        """What it may do without waiting, and without beginning to: its pages are all up, or none is held; or it is to
        compute a part of them."""
        return Readiness.READY if self.restore is None else self.stack.restorer.at_once(self.restore)

    @never_raises(lambda: False)
    def may_wait(self) -> bool:
        """Whether its pages come meanwhile if it does not compute yet what it is to compute."""
        return self.restore is not None and self.stack.restorer.may_wait(self.restore)

    @property
    def tokens_to_compute(self) -> int:
        """How many tokens of its prompt it computes if it is admitted with the pages that were agreed on."""
        known = len(self.req.origin_input_ids) + len(self.req.output_ids)
        page_tokens: int = self.stack.namespace.geometry.tokens
        held = max(0, self.pages - self.state_pages)
        return max(1, known - (self.device_pages + held) * page_tokens)

    @property
    def known_pages(self) -> int:
        """How many pages of its tail are held below the device, as far as that is known now."""
        return 0 if self.restore is None else len(self.restore.flight)

    @never_raises(lambda: False)
    def wants_layers(self) -> bool:
        """Whether it is to be computed layer by layer while its pages come up."""
        return self.restore is not None and self.stack.restorer.wants_layers(self.restore)

    @never_raises(lambda: False)
    def wants_copying_first(self, pages: int) -> bool:
        """Whether so many pages, all that it lacks on the device, take so long to be copied that others who decode are
        not to wait for that."""
        return self.stack.planner.copied_first(self.device_pages, pages)

    @property
    def wants_draining(self) -> bool:
        """Whether its pages are to be taken as they land, since landing memory does not hold them all."""
        return self.restore is not None and self.restore.drains

    def refuse_draining(self) -> None:
        """They are loaded in another way: another rank does not take them so."""
        self._try(lambda restore: self.stack.restorer.refuse_draining(restore))

    # ---- its pages ----

    def promised(self, hashes: Sequence[str]) -> int:
        """Pages from the start of `hashes`, a tail of its prompt, that are there and pinned now (`way.request_restore`:
        READY). SGLang asks anew in every round, and the device may have lost pages since the last one."""
        if self.restore is None or self.given_up or (offset := self._covers(hashes)) is None:
            return 0
        present = self.stack.restorer.present(self.restore, offset)
        if self.state_pages:
            # Of use with its state alone, which is that behind the last page.
            whole = offset + len(hashes) >= len(self.tail) and present == len(self.tail) + self.state_pages
            return len(self.tail) - offset if whole else 0
        return max(0, self._between_images(min(offset + len(hashes), present)) - offset)

    def _between_images(self, pages: int) -> int:
        """So many pages of its restore, or fewer, that end inside no image."""
        page_tokens: int = self.stack.namespace.geometry.tokens
        for begin, end in reversed(self.images):  # what ends before one may end inside the one before that
            if begin < (self.device_pages + pages) * page_tokens < end:
                pages = begin // page_tokens - self.device_pages
        return pages

    def places(self, hashes: Sequence[str]) -> tuple[int, Places]:
        """Where these pages lie, and the number of the first of them in the restore. Raises RuntimeError where they are
        not those that were promised, NotHeldError where they are not held."""
        offset = self._covers(hashes)
        if self.restore is None or offset is None:
            raise RuntimeError("the pages asked for are not the ones promised")
        return offset, self.stack.restorer.places(self.restore, offset, offset + len(hashes))

    def state_places(self, end: int) -> tuple[int, Places]:
        """Likewise of the pages of the state behind its first `end` pages, which must be all that it has."""
        if self.restore is None or not self.state_pages:
            raise RuntimeError("no state is kept for it")
        first = len(self.tail)
        if end != first:
            raise RuntimeError(f"{end} pages are asked for; the state that is kept is that behind {first}")
        return first, self.stack.restorer.places(self.restore, first, first + self.state_pages)

    def _covers(self, hashes: Sequence[str]) -> int | None:
        """Where `hashes` begin in the tail, or None if they are not a piece of it: the device may have gained pages
        since the request arrived. Each hash is over all before it, so the first and the last one decide."""
        try:
            offset = self.tail.index(hashes[0])
        except ValueError:
            return None
        last = min(offset + len(hashes), len(self.tail)) - 1
        return offset if self.tail[last] == hashes[last - offset] else None

    # ---- copies to the device ----

    def copies(self, first: int, pages: int) -> None:
        """A load of pages `[first, first + pages)` of the restore is queued: they stay pinned until it has ended."""
        assert self.restore is not None, "they have places"
        runs = runs_of(self.restore.found(first, first + pages))
        self.restore.story.loaded(first, runs)
        self._try(lambda restore: self.stack.restorer.copies(restore, first, pages))
        # Last: whoever is told of an error above counts no copy, and none would ever end.
        self._copies += 1
        self._runs = runs

    @never_raises(lambda: None)
    def copied(self) -> None:
        """A load of it has ended, or was withdrawn."""
        self._copies -= 1
        if self.given_up or self.stage is not TieringStage.ON_COURSE:
            self._give_back()

    def take_runs(self) -> Runs:
        """What the last load takes from where, once."""
        runs, self._runs = self._runs, ()
        return runs

    # ---- on a course: each is told to every rank alike ----

    def next_step(self, front: int) -> Step:
        """What this rank could do next, the device having the first `front` pages."""
        everything = Step(front, self.pages)  # what is computed is right, whatever came up
        if self.given_up:
            return everything
        return self._try(lambda restore: self.stack.restorer.step(restore, front)) or everything

    def not_taken(self) -> None:
        """It was not admitted with the step that was agreed on."""
        self._try(lambda restore: self.stack.restorer.not_taken(restore))

    def admit(self) -> None:
        """It was admitted with a part of its pages."""
        self.stage = TieringStage.ON_COURSE

    def admit_first(self, front: int) -> None:
        """It was admitted with none of its pages but the `front` that the device has: all that it has in host memory is
        copied before its next batch."""
        self.admit()
        self.copied_first = True
        self._try(lambda restore: self.stack.restorer.copied_first(restore, front))

    def take_ahead(self, jump: int) -> None:
        """The device takes the pages before `jump`, and computes nothing. It stays on its course though these are all:
        they are waited for."""
        self._try(lambda restore: self.stack.restorer.take(restore, Step(jump, jump)))

    def wait_for_nothing(self, front: int) -> None:
        """Whatever has not come of its pages behind the first `front` is computed."""
        self._try(lambda restore: self.stack.restorer.wait_for_nothing(restore, front))

    def take(self, step: Step) -> None:
        """The device takes `step`, which may be the last."""
        if not self.given_up:
            self._try(lambda restore: self.stack.restorer.take(restore, step))
        if step.end == self.pages:
            self.stage = TieringStage.TAKEN
            self._take_all()

    @never_raises(lambda: None)
    def _take_all(self) -> None:
        if self.restore is not None:
            self.stack.restorer.split(self.restore)
        self._give_back()

    def refuse_layers(self, why: str) -> None:
        """It is restored in another way, since it cannot be computed layer by layer now."""
        self._try(lambda restore: self.stack.restorer.refuse_layers(restore, why))

    def take_layers(self, front: int) -> None:
        """The device computes layers of all of its pages behind the first `front`."""
        self._try(lambda restore: self.stack.restorer.take_layers(restore, front, self.pages))

    def _try(self, what: Callable[[Restore], Result]) -> Result | None:
        """`what` of the restore; None without one, and where that raises: what the device has stays right, as it has
        computed it, or copied what was verified."""
        try:
            return what(self.restore) if self.restore is not None else None
        except Exception as error:
            logger.exception(
                "swift-tiers: the restore of request %s went wrong; the rest is recomputed", shown_rid(self.rid)
            )
            self.stack.events.emit("linker.error", where="course", error=repr(error))
            return None

    # ---- ends ----

    def end(self) -> None:
        """It has been admitted with all that it waits for, or is gone. Ending twice is ending once."""
        if self.stage is TieringStage.ENDED:
            return
        self.stage = TieringStage.ENDED
        if self._among.get(self.rid) is self:
            del self._among[self.rid]
        self.give_up()
        self.facts.let_go()

    @never_raises(lambda: None)
    def give_up(self) -> None:
        """Nothing below the device is to be used for it any more, but what is being copied already: it computes the
        rest, on its course, too."""
        self.given_up = True
        self._give_back()

    def _give_back(self) -> None:
        """Unpin its pages, unless some are being copied."""
        if not self._copies and self.restore is not None:
            restore, self.restore = self.restore, None
            self.stack.restorer.release(restore)


def why_all_whole(scheduler: Any, pool: DevicePool) -> str:
    """Why every request of this scheduler has to have its prefix whole before it is computed; empty if not all do."""
    if scheduler.chunked_prefill_size is None:
        return "SGLang computes prompts in one piece"
    if pool.states is not None:
        return "the model keeps a state, which is of all of a prefix"
    if pool.drafts:
        return "a model drafts for it, from all of its prefix"
    return ""


def images_of(req: Any) -> list[tuple[int, int]]:
    """Tokens `[begin, end)` of each image in a prompt, in their order."""
    if req.multimodal_inputs is None:
        return []
    images = (item for item in req.multimodal_inputs.mm_items if item.is_image())
    return sorted((begin, last + 1) for image in images for begin, last in image.offsets)


def why_whole(req: Any) -> str:
    """Why `req` has to have its prefix whole before it is computed; empty if it need not. Such requests wait for their
    pages as they do where nothing is known of costs."""
    # SGLang sets those that want log probabilities of their output alone to the prompt's end.
    if req.return_logprob and 0 <= req.logprob_start_len < len(req.origin_input_ids):
        return "it wants log probabilities of its prompt"
    if req.retracted_stain:
        return "it was retracted"
    if req.input_embeds is not None or req.positional_embed_overrides is not None or req.multimodal_inputs is not None:
        return "it brings its own embeddings"
    if req.return_hidden_states and req.return_hidden_states != "last":
        return "it wants hidden states of all that is computed of it"
    if req.session is not None:
        return "it belongs to a session"
    if req.beam_group is not None or req.token_indices_to_pool is not None:
        return "it is searched or pooled as a group"
    return ""
