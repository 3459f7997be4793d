"""Requests that SGLang computes from the front while their pages come up from the back (CacheFlow, section 3.1).

Such a request is on a course: SGLang's one chunked request, whose chunks end where `Restorer.step` says. Between two
chunks it jumps over the pages that have arrived: they get device slots, their rows are written, and they are copied in
layer by layer while the next chunk is computed. What has not arrived is computed, or, where it is about to, waited for.

One whose pages are more than landing memory holds, and that is loaded, takes them as they land: it computes its first
page, as no chunk is without anything to compute, and jumps on while it waits, without a chunk. So does one whose
pages are all in host memory while others decode, where copying them takes long: in a forward that waits for them, layer
by layer, these would wait, too.

All of this is on the scheduler's thread; every rank takes the same steps (`agree`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang.srt.managers.schedule_policy import CLIP_MAX_NEW_TOKENS, AddReqResult, PrefillAdder

from swift_tiers.radix_tiering.restore.flight import Step

from .request import TieredRequest, TieringStage

if TYPE_CHECKING:
    from .cache import SwiftLinkerWrapper


class PatientAdder(PrefillAdder):
    """SGLang's choice of what runs next, where nobody makes room for a request that waits for its pages."""

    def preempt_to_schedule(self, req: Any) -> bool:
        """Nobody is taken off the device for a request that would not run then: SGLang asks for the place before it
        asks whether its pages are there."""
        ready = self.tree_cache.check_prefetch_progress(req.cache_request_handle)
        return ready and super().preempt_to_schedule(req)


class RestoringAdder(PatientAdder):
    """SGLang's choice of what runs next, with the chunks of requests on a course cut where they have to be."""

    rem_chunk_tokens: int | None
    chunked_req_limit: int | None
    #: SGLang follows a chunked request whose chunk may have been cut short: what is left of the budget must not begin
    #: another one, as it can follow one only.
    cut_short = False
    #: The chunked request waits for a page. Nobody else is admitted meanwhile: SGLang would count a chunk for it.
    holds = False
    #: Its one request is computed layer by layer, as far as its pages leave that to it: nobody else joins this batch.
    alone = False

    def add_one_req(self, req: Any, has_chunked_req: bool, truncation_align_size: int | None) -> Any:
        request = self.tree_cache.linker.of(req)  # its end may come with its admission
        result = self._add_one_req(req, has_chunked_req, truncation_align_size)
        if request is not None and self.new_chunked_req is req:
            self.tree_cache.linker.overtakes(request)
        self._tell_of_others()
        return result

    def _add_one_req(self, req: Any, has_chunked_req: bool, truncation_align_size: int | None) -> Any:
        if self.holds or self.alone:
            return AddReqResult.OTHER
        wrapper: SwiftLinkerWrapper = self.tree_cache.linker
        request, page = wrapper.may_take_course(req), self.page_size
        jump = (req.prefix_len + req.host_hit_length) // page - request.device_pages if request is not None else 0
        taken, first = has_chunked_req or self.new_chunked_req is not None, False
        if request is not None and request.by_layers:
            computes = request.computes
            if taken and computes:
                return AddReqResult.OTHER
            why_not = self._why_not_by_layers(req, request, taken, truncation_align_size)
            if not why_not:
                return self._add_by_layers(req, request, truncation_align_size)
            request.refuse_layers(why_not)
            if not computes:
                request = None  # every page is in host memory, and copied from there while its new tokens are computed
        if request is None and not taken and truncation_align_size is None:
            request = self._copied_first(req)
            if request is not None:
                first, jump = True, self._front(req, request)
        # Below zero: the device has lost pages since it was asked for, and nothing of the restore follows what is left.
        if request is None or self.rem_chunk_tokens is None or not 0 <= jump < request.pages:
            return super().add_one_req(req, has_chunked_req, truncation_align_size)
        if taken:
            return AddReqResult.OTHER
        # No batch is without anything to compute: one that is copied first begins with its first page.
        agreed = Step(jump, jump + 1) if first else wrapper.agree(request, jump)
        step = Step(jump, agreed.end)
        budget = self.rem_chunk_tokens
        limit = self._limit(req, request, step, req.prefix_len + req.host_hit_length)
        if step.end <= jump or limit <= 0:
            request.not_taken()
            return AddReqResult.OTHER
        if agreed.end <= agreed.jump and not request.put_off:
            # What is left has come since SGLang looked for it, and is promised in the next round. Once: SGLang may not
            # want all that has come.
            request.put_off = True
            request.not_taken()
            return AddReqResult.OTHER
        # SGLang compares with a length in whole pages, and would have the rest of the last page computed by itself.
        most = min(budget, self.ceil_paged_tokens(limit))
        self.rem_chunk_tokens = most
        result = super().add_one_req(req, has_chunked_req, truncation_align_size)
        self.rem_chunk_tokens = budget - (most - self.rem_chunk_tokens)
        if not self.can_run_list or self.can_run_list[-1] is not req:
            request.not_taken()
            return result
        self.cut_short = self.new_chunked_req is req
        self._keep_room(req)
        if self._front(req, request) == jump:
            if first:
                request.admit_first(jump)
            else:
                request.admit()
            request.take(Step(jump, self._reached(req, request)))
        # Else there was no room for the pages that it was to begin with: it computes everything.
        return self.budget_state()

    def _copied_first(self, req: Any) -> TieredRequest | None:
        """The request, if all that it waits for is in host memory, and is to be copied to the device while others
        decode, before any forward needs it: it is admitted with none of it."""
        wrapper: SwiftLinkerWrapper = self.tree_cache.linker
        request, pages = wrapper.of(req), req.host_hit_length // self.page_size
        if request is None or request.stage is not TieringStage.WAITING or not pages or self.rem_chunk_tokens is None:
            return None
        if not 0 <= self._front(req, request) < request.pages:
            return None
        if self.can_run_list or not self._others_decode or not self._has_room_for(req):
            return None
        if not wrapper.copied_first(request, pages):
            return None
        wrapper.unpromise(req)
        return request

    def _why_not_by_layers(
        self, req: Any, request: TieredRequest, taken: bool, truncation_align_size: int | None
    ) -> str:
        """Why the pages that it lacks cannot be computed in one forward, and by themselves, now; empty if they can.
        `taken`: SGLang follows another request's chunks."""
        front = self._front(req, request)
        end = req.prefix_len + (request.pages - front) * self.page_size
        if not 0 <= front < request.pages or end >= len(req.full_untruncated_fill_ids):
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

    def _add_by_layers(self, req: Any, request: TieredRequest, truncation_align_size: int | None) -> Any:
        wrapper: SwiftLinkerWrapper = self.tree_cache.linker
        wrapper.unpromise(req)
        front = self._front(req, request)
        budget, tokens = self.rem_chunk_tokens or 0, (request.pages - front) * self.page_size
        self.rem_chunk_tokens = tokens
        result = super().add_one_req(req, False, truncation_align_size)
        self.rem_chunk_tokens = budget - (tokens - self.rem_chunk_tokens)
        if not self.can_run_list or self.can_run_list[-1] is not req:
            return result
        self.cut_short = self.alone = True
        wrapper.admit_by_layers(request, front)
        return AddReqResult.OTHER

    def _tell_of_others(self) -> None:
        self.tree_cache.linker.admission.others_admitted = bool(self.can_run_list)

    def add_chunked_req(self, req: Any) -> Any:
        rest = self._add_chunked_req(req)
        self._tell_of_others()
        return rest

    def _add_chunked_req(self, req: Any) -> Any:
        wrapper: SwiftLinkerWrapper = self.tree_cache.linker
        request = wrapper.on_course(req)
        if request is None:
            left = len(req.full_untruncated_fill_ids) - req.prefix_len
            budget = self.rem_chunk_tokens or left
            limit = self._with_room(min(left, budget), 0)
            if limit <= 0:
                return self._hold(req)
            room = wrapper.room_for_overtaken(budget - self.page_size)
            if limit > budget - room:
                limit = (budget - room) // self.page_size * self.page_size
            self._end_chunk_at(limit)
            rest = super().add_chunked_req(req)
            self.cut_short = rest is not None
            if room:
                self._keep_room(req)
            return rest
        page = self.page_size
        front = self._front(req, request)
        step = wrapper.agree(request, front)
        if self._room_ends(req):
            request.wait_for_nothing(step.jump)
            step = Step(step.jump, request.pages)
        limit = self._limit(req, request, step, (step.jump + request.device_pages) * page)
        limit = self._of_whole_pages(self._with_room(limit, (step.jump - front) * page), (step.jump - front) * page)
        apart = request.copied_first and step.jump > front and self._others_decode and not self._room_ends(req)
        if apart or (request.drains and limit <= 0) or not wrapper.came_ahead(request):
            if self._with_room(page, (step.jump - front) * page) > 0:
                wrapper.jump_ahead(request, front, step.jump)
            return self._hold(req)
        if limit <= 0 or not wrapper.jump(request, front, step.jump):
            return self._hold(req)
        self._end_chunk_at(limit)
        rest = super().add_chunked_req(req)
        self.cut_short = rest is not None
        self._keep_room(req)
        ran = bool(self.can_run_list) and self.can_run_list[-1] is req
        if ran:
            wrapper.join(request)
        request.take(Step(step.jump, self._reached(req, request) if ran else step.jump))
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
        if not self._others_run:
            return limit  # nobody is left who could give any back
        room = self._room - jump
        return limit if self.ceil_paged_tokens(limit) <= room else max(0, room // self.page_size * self.page_size)

    def _room_ends(self, req: Any) -> bool:
        """Whether running requests have left hardly more room than the rest of a chunked one takes: it waits for no
        page any more. They decode while it waits, as they do not between two chunks of SGLang's own, which takes back
        nothing of a chunked request; it ends the last of them where there is no room. The same on every rank."""
        if not self._others_run:
            return False
        next_pages = (1 + self.running_batch.batch_size()) * self.page_size
        return self._room <= self._rest(req) + next_pages

    def _has_room_for(self, req: Any) -> bool:
        """Whether the device has room now for all that a request has not got there."""
        return self._room >= self._rest(req)

    def _rest(self, req: Any) -> int:
        """Tokens of the device that what it has not got there takes."""
        return int(self.ceil_paged_tokens(len(req.full_untruncated_fill_ids) - req.prefix_len))

    def _front(self, req: Any, request: TieredRequest) -> int:
        """Pages of its restore that the device has; below zero where it has lost some since the request was asked
        for."""
        return int(req.prefix_len) // self.page_size - request.device_pages

    @property
    def _others_run(self) -> bool:
        return bool(self.running_batch) and not self.running_batch.is_empty()

    @property
    def _others_decode(self) -> bool:
        """Those of whom nothing is wanted but their prompt are in a batch with others until their result is looked
        at."""
        return self._others_run and not self.running_batch.is_prefill_only

    @property
    def _room(self) -> int:
        """Tokens for which the device has room now."""
        return int(self.memory_budget.remaining_current) - self.per_req_token_overhead

    def _of_whole_pages(self, limit: int, jump: int) -> int:
        """`limit` tokens, or as many whole pages of them as SGLang leaves beside `jump` tokens. It computes no more of
        a chunk than what running requests will not need, and ends it at any token; only a whole page can be followed
        by pages that have come up. Where they will need everything it computes all of the chunk."""
        left = int(self.memory_budget.remaining_total) - jump
        return left // self.page_size * self.page_size if 0 < left < limit else limit

    def _keep_room(self, req: Any) -> None:
        """For what is left of a chunked request: SGLang lets nobody in before it is through, as its chunks use the
        whole budget; behind one that was cut short others may be admitted, who must not count on its room."""
        left = len(req.full_untruncated_fill_ids) - req.extend_end
        if left > 0:
            new = min(req.sampling_params.max_new_tokens, CLIP_MAX_NEW_TOKENS)
            self.memory_budget.total_offset += self.ceil_paged_tokens(left) + self.page_size + new

    def budget_state(self) -> Any:
        cache = self.tree_cache
        if self.holds or self.alone or cache.linker.admission.is_over(cache.chunk_taken):
            return AddReqResult.OTHER
        return super().budget_state()

    def _select_prefill_admission(self, req: Any, **shape: Any) -> Any:
        admission = super()._select_prefill_admission(req, **shape)
        if self.cut_short and not isinstance(admission, AddReqResult) and admission.is_chunked:
            return AddReqResult.OTHER
        return admission

    def _limit(self, req: Any, request: TieredRequest, step: Step, prefix: int) -> int:
        """Tokens that may be computed behind `prefix` of them: what is left of the request if nothing of it is to come
        up and the budget allows for it, else whole pages."""
        budget, left = self.rem_chunk_tokens or 0, len(req.full_untruncated_fill_ids) - prefix
        if step.end == request.pages and left <= budget:
            return left
        whole_pages = budget // self.page_size * self.page_size
        return whole_pages if step.end == request.pages else min((step.end - step.jump) * self.page_size, whole_pages)

    def _reached(self, req: Any, request: TieredRequest) -> int:
        return min(req.extend_end // self.page_size - request.device_pages, request.pages)
