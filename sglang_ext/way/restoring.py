"""Requests that SGLang computes from the front while their pages come up from the back (CacheFlow, section 3.1).

Such a request is on a course: SGLang's one chunked request, whose chunks end where `Restorer.step` says. Between two
chunks it jumps over the pages that have arrived: they get device slots, their rows are written, and they are copied in
layer by layer while the next chunk is computed. What has not arrived is computed, or, where it is about to, waited for.

All of this is on the scheduler's thread; every rank takes the same steps (`agree`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang.srt.managers.schedule_policy import CLIP_MAX_NEW_TOKENS, AddReqResult, PrefillAdder

from swift_tiers.radix_tiering.restore.flight import Step

if TYPE_CHECKING:
    from swift_tiers.radix_tiering.way.request_restore import Restore

    from .cache import SwiftLinkerWrapper


class Course:
    """One request that is being computed while its pages come up."""

    __slots__ = ("by_layers", "computes", "first_page", "pages", "restore", "rid")

    def __init__(
        self, rid: str, restore: Restore | None, first_page: int, pages: int, *, computes: bool, by_layers: bool
    ) -> None:
        self.rid = rid
        self.restore = restore  # None: an error on this rank alone has left it without; the others decide
        self.first_page = first_page  # of its prompt: the restore's page 0
        self.pages = pages  # that every rank knows of: some may know of more
        self.computes = computes  # it does not have to wait for its pages
        self.by_layers = by_layers  # in one forward, if it can be the only one in it


def why_not(req: Any) -> str:
    """Why `req` has to have its prefix whole before it is computed; empty if it need not. Such requests wait for their
    pages as they do where nothing is known of costs."""
    if req.return_logprob and req.logprob_start_len >= 0:
        return "it wants log probabilities of its prompt"
    if req.retracted_stain:
        return "it was retracted"
    if req.input_embeds is not None or req.positional_embed_overrides is not None or req.multimodal_inputs is not None:
        return "it brings its own embeddings"
    if req.session is not None:
        return "it belongs to a session"
    if req.beam_group is not None or req.token_indices_to_pool is not None:
        return "it is searched or pooled as a group"
    return ""


class RestoringAdder(PrefillAdder):
    """SGLang's choice of what runs next, with the chunks of requests on a course cut where they have to be."""

    rem_chunk_tokens: int | None
    chunked_req_limit: int | None
    #: A chunk was cut short: what is left of the budget must not begin another chunked request, of which SGLang can
    #: follow one only.
    cut_short = False
    #: The chunked request waits for a page. Nobody else is admitted meanwhile: SGLang would count a chunk for it.
    holds = False
    #: Its one request is computed layer by layer, as far as its pages leave that to it: nobody else joins this batch.
    alone = False

    def add_one_req(self, req: Any, has_chunked_req: bool, truncation_align_size: int | None) -> Any:
        if self.holds or self.alone:
            return AddReqResult.OTHER
        wrapper: SwiftLinkerWrapper = self.tree_cache.linker
        course, page = wrapper.course_of(req), self.page_size
        jump = (req.prefix_len + req.host_hit_length) // page - course.first_page if course is not None else 0
        if course is not None and course.by_layers:
            taken, computes = has_chunked_req or self.new_chunked_req is not None, course.computes
            if taken and computes:
                return AddReqResult.OTHER
            why_not = self._why_not_by_layers(req, course, taken, truncation_align_size)
            if not why_not:
                return self._add_by_layers(req, course, truncation_align_size)
            wrapper.not_by_layers(course, why_not)
            if not computes:
                course = None  # every page is in host memory, and copied from there while its new tokens are computed
        # Below zero: the device has lost pages since it was asked for, and nothing of the restore follows what is left.
        if course is None or self.rem_chunk_tokens is None or not 0 <= jump < course.pages:
            return super().add_one_req(req, has_chunked_req, truncation_align_size)
        if has_chunked_req or self.new_chunked_req is not None:
            return AddReqResult.OTHER
        step = Step(jump, wrapper.agree(course, jump).end)
        budget = self.rem_chunk_tokens
        limit = self._limit(req, course, step, req.prefix_len + req.host_hit_length)
        if step.end <= jump or limit <= 0:
            return AddReqResult.OTHER
        self.rem_chunk_tokens = limit
        result = super().add_one_req(req, has_chunked_req, truncation_align_size)
        self.rem_chunk_tokens = budget - (limit - self.rem_chunk_tokens)
        if not self.can_run_list or self.can_run_list[-1] is not req:
            return result
        self.cut_short = True
        self._keep_room(req)
        if req.prefix_len // page - course.first_page == jump:
            wrapper.began(course, Step(jump, self._reached(req, course)))
        # Else there was no room for the pages that it was to begin with: it computes everything.
        return self.budget_state()

    def _why_not_by_layers(self, req: Any, course: Course, taken: bool, truncation_align_size: int | None) -> str:
        """Why the pages that it lacks cannot be computed in one forward, and by themselves, now; empty if they can.
        `taken`: SGLang follows another request's chunks."""
        front = req.prefix_len // self.page_size - course.first_page
        end = req.prefix_len + (course.pages - front) * self.page_size
        if not 0 <= front < course.pages or end >= len(req.full_untruncated_fill_ids):
            return "the device has other pages than when it was asked for"
        if taken:
            return "another request was being computed in chunks"
        if self.can_run_list:
            return "others were admitted with it"
        if truncation_align_size is not None or self.rem_chunk_tokens is None:
            return "SGLang cuts its chunks otherwise"
        if end - req.prefix_len > self.rem_chunk_tokens:
            return "it did not fit in one forward"
        return ""

    def _add_by_layers(self, req: Any, course: Course, truncation_align_size: int | None) -> Any:
        wrapper: SwiftLinkerWrapper = self.tree_cache.linker
        wrapper.unpromise(req)
        front = req.prefix_len // self.page_size - course.first_page
        budget, tokens = self.rem_chunk_tokens or 0, (course.pages - front) * self.page_size
        self.rem_chunk_tokens = tokens
        result = super().add_one_req(req, False, truncation_align_size)
        self.rem_chunk_tokens = budget - (tokens - self.rem_chunk_tokens)
        if not self.can_run_list or self.can_run_list[-1] is not req:
            return result
        self.cut_short = self.alone = True
        wrapper.began_by_layers(course, req, front)
        return AddReqResult.OTHER

    def add_chunked_req(self, req: Any) -> Any:
        wrapper: SwiftLinkerWrapper = self.tree_cache.linker
        course = wrapper.course_under_way(req)
        if course is None:
            left = len(req.full_untruncated_fill_ids) - req.prefix_len
            limit = self._with_room(min(left, self.rem_chunk_tokens or left), 0)
            if limit <= 0:
                return self._hold(req)
            self._end_chunk_at(limit)
            return super().add_chunked_req(req)
        page = self.page_size
        front = req.prefix_len // page - course.first_page
        step = wrapper.agree(course, front)
        limit = self._limit(req, course, step, (step.jump + course.first_page) * page)
        limit = self._with_room(limit, (step.jump - front) * page)
        if limit <= 0 or not wrapper.jump(course, req, front, step.jump):
            return self._hold(req)
        self._end_chunk_at(limit)
        self.cut_short = True
        rest = super().add_chunked_req(req)
        self._keep_room(req)
        ran = bool(self.can_run_list) and self.can_run_list[-1] is req
        wrapper.advanced(course, Step(step.jump, self._reached(req, course) if ran else step.jump))
        return rest

    def _end_chunk_at(self, limit: int) -> None:
        self.chunked_req_limit = limit if self.chunked_req_limit is None else min(limit, self.chunked_req_limit)

    def _hold(self, req: Any) -> Any:
        """Its next chunk does not run in this step."""
        req.extend_end = req.prefix_len  # SGLang's sign for that
        self.holds = True
        return req

    def _with_room(self, limit: int, jump: int) -> int:
        """`limit` tokens, or as many whole pages of them as the device has room for beside `jump` tokens. SGLang
        computes a chunk whether or not there is room: nobody has run since the one before it. Here others may have."""
        if not self.running_batch or self.running_batch.is_empty():
            return limit  # nobody is left who could give any back
        room = int(self.memory_budget.remaining_current) - self.per_req_token_overhead - jump
        return limit if self.ceil_paged_tokens(limit) <= room else max(0, room // self.page_size * self.page_size)

    def _keep_room(self, req: Any) -> None:
        """For what is left of a chunked request: SGLang lets nobody in before it is through, as its chunks use the
        whole budget; behind one that was cut short others may be admitted, who must not count on its room."""
        left = len(req.full_untruncated_fill_ids) - req.extend_end
        if left > 0:
            new = min(req.sampling_params.max_new_tokens, CLIP_MAX_NEW_TOKENS)
            self.memory_budget.total_offset += self.ceil_paged_tokens(left) + self.page_size + new

    def preempt_to_schedule(self, req: Any) -> bool:
        """Nobody is taken off the device for a request that waits for its pages, and would not run then: SGLang asks
        for the place before it asks whether they are there."""
        ready = self.tree_cache.check_prefetch_progress(req.cache_request_handle)
        return ready and super().preempt_to_schedule(req)

    def budget_state(self) -> Any:
        return AddReqResult.OTHER if self.holds or self.alone else super().budget_state()

    def _select_prefill_admission(self, req: Any, **shape: Any) -> Any:
        admission = super()._select_prefill_admission(req, **shape)
        if self.cut_short and not isinstance(admission, AddReqResult) and admission.is_chunked:
            return AddReqResult.OTHER
        return admission

    def _limit(self, req: Any, course: Course, step: Step, prefix: int) -> int:
        """Tokens that may be computed behind `prefix` of them: what is left of the request if nothing of it is to come
        up and the budget allows for it, else whole pages."""
        budget, left = self.rem_chunk_tokens or 0, len(req.full_untruncated_fill_ids) - prefix
        if step.end == course.pages and left <= budget:
            return left
        whole_pages = budget // self.page_size * self.page_size
        return whole_pages if step.end == course.pages else min((step.end - step.jump) * self.page_size, whole_pages)

    def _reached(self, req: Any, course: Course) -> int:
        return min(req.extend_end // self.page_size - course.first_page, course.pages)
