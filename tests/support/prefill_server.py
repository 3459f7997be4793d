"""A server that only computes prompts (`--disaggregation-mode prefill`), in SGLang's real scheduler, and what it sends.

In place of a network and a server that decodes there is `Sent`: the bytes of each page, and of each state, as they lie
in the pools at the moment in which SGLang has them sent. A real transfer reads them then, or later.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

#: SGLang's arguments, for a loop that computes a batch while the one before it is looked after, and for one that does
#: not. The backend is another one's name: SGLang takes none of ours.
OVERLAPPED = ["--disaggregation-mode", "prefill", "--disaggregation-transfer-backend", "nixl"]
ARGUMENTS = [*OVERLAPPED, "--disable-overlap-schedule"]


class Sent:
    """What one request's sender was given, and what the server that decodes says, which the test decides."""

    #: By room, in the order in which they came.
    of: ClassVar[dict[int, Sent]] = {}
    #: Whether those that come now have found their server that decodes at once.
    met_at_once = True

    def __init__(self) -> None:
        self.met = Sent.met_at_once
        self.pages: list[list[bytes]] = []  # of each the planes: K of a layer, or V
        self.page_tokens = 0
        self.states: list[bytes] = []
        self.whole = False  # the last of it has been sent
        self.failed = False
        self.expected = 0  # pages

    def rows(self, tokens: int) -> np.ndarray:
        """The KV of so many tokens, plane after plane: float32. Behind the last token a page has what it had before."""
        planes = [np.frombuffer(b"".join(parts), np.float32) for parts in zip(*self.pages, strict=True)]
        return np.concatenate(
            [plane[: plane.size * tokens // (len(self.pages) * self.page_tokens)] for plane in planes]
        )

    @property
    def state(self) -> np.ndarray:
        return np.frombuffer(b"".join(self.states), np.float32)


def _bytes_at(pointers: list[int], lengths: list[int], index: int) -> list[bytes]:
    return [
        ctypes.string_at(pointer + index * length, length) for pointer, length in zip(pointers, lengths, strict=True)
    ]


class _Event:
    """Of a GPU: what it waits for has come, where there is none."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def record(self, *_: Any) -> None: ...


def install(run_instead: Callable[..., None] | None = None) -> None:
    """To be called before the scheduler is made, in its process. `run_instead`: of its `run`."""
    import torch
    from sglang.srt.disaggregation import prefill
    from sglang.srt.disaggregation.base.conn import KVPoll
    from sglang.srt.disaggregation.fake import FakeKVManager, FakeKVSender
    from sglang.srt.disaggregation.utils import KVClassType

    from swift_tiers.ops.lab.torture.ranks.scheduler import StepScheduler

    class Sender(FakeKVSender):
        """Reads what it is to send at once."""

        def __init__(self, mgr: Any, bootstrap_addr: str, bootstrap_room: int, **more: Any) -> None:
            super().__init__(mgr, bootstrap_addr, bootstrap_room, **more)
            self.sent = Sent.of[bootstrap_room] = Sent()

        def poll(self) -> Any:
            if self.sent.failed or self.conclude_state is KVPoll.Failed:
                return KVPoll.Failed
            if not self.sent.met:
                return KVPoll.Bootstrapping
            return KVPoll.Success if self.sent.whole else KVPoll.WaitingForInput

        def init(self, num_kv_indices: int, aux_index: int | None = None) -> None:
            self.sent.expected, self.sent.page_tokens = num_kv_indices, self.kv_mgr.kv_args.page_size

        def send(self, kv_indices: Any, state_indices: Any = None, num_kv_tokens: int | None = None) -> None:
            sent, infos = self.sent, self.kv_mgr.kv_args
            assert not sent.whole, "nothing follows the last"
            sent.pages += [_bytes_at(infos.kv_data_ptrs, infos.kv_item_lens, int(page)) for page in kv_indices]
            for at, indices in enumerate(state_indices or ()):
                pointers, lengths = infos.state_data_ptrs[at], infos.state_item_lens[at]
                sent.states += [b"".join(_bytes_at(pointers, lengths, int(index))) for index in indices]
            assert len(sent.pages) <= sent.expected, "a page is sent twice"
            sent.whole = len(sent.pages) == sent.expected

    def classes(backend: Any, kind: Any) -> Any:
        ours = {KVClassType.MANAGER: FakeKVManager, KVClassType.SENDER: Sender}
        return ours.get(kind) or real(backend, kind)

    real, prefill.get_kv_class = prefill.get_kv_class, classes
    torch.cuda.Event = _Event  # type: ignore[assignment,misc]

    def step(self: Any) -> Any:
        """One turn of SGLang's loop of servers that compute prompts; the batch that it ran, or None."""
        scheduler = self.scheduler
        with torch.no_grad():
            scheduler.waiting_queue.extend(scheduler.disagg_prefill_bootstrap_queue.pop_bootstrapped())
            plan = scheduler.get_next_disagg_prefill_batch_to_run(
                running_batch=scheduler.running_batch, last_batch=scheduler.last_batch
            )
            scheduler.running_batch = plan.running_batch
            batch = scheduler.cur_batch_for_debug = plan.batch_to_run
            result = scheduler.run_batch(batch) if batch else None
            if scheduler.enable_overlap:
                if batch:
                    scheduler.result_queue.append((batch.copy(), result))
                if scheduler.last_batch:
                    scheduler.process_batch_result(*scheduler.result_queue.popleft())
                elif not batch:
                    scheduler.on_idle()
            elif batch:
                scheduler.process_batch_result(batch, result)
            else:
                scheduler.on_idle()
            scheduler.process_disagg_prefill_inflight_queue()
            if scheduler.enable_overlap:
                scheduler.launch_batch_sample_if_needed(result, batch)
            scheduler.last_batch = batch
            if not scheduler.disagg_prefill_inflight_queue:  # whose last pages SGLang's check takes for leaks
                scheduler.invariant_checker.self_check_during_busy()
        return batch

    def run(self: Any, until: Callable[[], bool] | None = None) -> None:
        from swift_tiers.ops.lab.torture.ranks.scheduler import RUN_SECONDS

        limit = time.monotonic() + RUN_SECONDS
        while time.monotonic() < limit:
            batch = self.step()
            if until() if until is not None else not batch and not under_way(self):
                return
        raise AssertionError(f"not done after {RUN_SECONDS:g} s")

    add = StepScheduler.add

    def add_with_room(self: Any, token_ids: list[int], max_new_tokens: int = 1, **fields: Any) -> Any:
        room = len(Sent.of) + 1
        add(
            self, token_ids, max_new_tokens, bootstrap_host="127.0.0.1", bootstrap_port=1, bootstrap_room=room, **fields
        )
        return next(req for req in under_way(self) if req.bootstrap_room == room)

    StepScheduler.step, StepScheduler.run = step, run_instead or run  # type: ignore[method-assign]
    StepScheduler.add = add_with_room  # type: ignore[method-assign]


def install_for_groups() -> None:
    """As `install`, of ranks in groups that have requests of their own: a step of one is one of all."""
    from .attention_groups_on_cpu import run_together

    install(run_together(lambda self: not under_way(self)))


def under_way(s: Any) -> list[Any]:
    """Requests that have not ended."""
    scheduler = s.scheduler
    found = [
        *scheduler.disagg_prefill_bootstrap_queue.queue,
        *scheduler.waiting_queue,
        *([] if scheduler.chunked_req is None else [scheduler.chunked_req]),
        *(req for batch, _ in scheduler.result_queue for req in batch.reqs),
        *scheduler.disagg_prefill_inflight_queue,
    ]
    return list(dict.fromkeys(found))


def sent_of(req: Any) -> Sent:
    return Sent.of[req.bootstrap_room]


def sent_of_last() -> Sent:
    """Of the request that came last."""
    return Sent.of[len(Sent.of)]
