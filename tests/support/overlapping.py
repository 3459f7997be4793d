"""SGLang's scheduler with the loop that it has on GPUs, driven by hand: the next batch is launched before the result of
the one ahead of it is looked at. These functions run in the scheduler's process; `s` is its `StepScheduler`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def overlapping(s) -> Iterator[None]:
    """Each `s.step()` is one turn of that loop; it returns None where nothing was launched or looked at."""
    s.scheduler._war_barrier_enabled = False  # of streams, which a CPU has not
    s.step = lambda: _turn(s.scheduler)
    try:
        yield
        s.run()
        assert not s.scheduler.result_queue, "a result was never looked at"
    finally:
        del s.step


def _turn(scheduler: Any) -> Any:
    import torch

    with torch.no_grad():
        last = scheduler.last_batch
        plan = scheduler.get_next_batch_to_run(running_batch=scheduler.running_batch, last_batch=last)
        scheduler.running_batch = plan.running_batch
        batch = scheduler.cur_batch_for_debug = plan.batch_to_run
        one_by_one = scheduler.is_disable_overlap_for_batch(batch, last_batch=last)
        if one_by_one:
            scheduler.process_batch_result(*scheduler.result_queue.popleft())
        result = None
        if batch:
            result = scheduler.run_batch(batch)
            scheduler.result_queue.append((batch.copy(), result))
        else:
            scheduler._sched_idled = True
        if last and not one_by_one:
            scheduler.process_batch_result(*scheduler.result_queue.popleft())
        elif not last and batch is None:
            scheduler.on_idle()
        scheduler.launch_batch_sample_if_needed(result, batch)
        scheduler.last_batch = batch
        scheduler.invariant_checker.self_check_during_busy()
    return batch or last or None
