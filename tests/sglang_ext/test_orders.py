"""Operators' orders on their way through SGLang's real scheduler; what ranks do together is in tests/e2e.

Functions whose first parameter is a `StepScheduler` run in the scheduler's process; the tests below call them there.
"""

from __future__ import annotations

import json
import pickle
import threading
import time
from types import SimpleNamespace

import pytest

from swift_tiers.radix_tiering.base.errors import CommandTooLateError
from swift_tiers.radix_tiering.table.rules import check_rules

from support.prompts import prompt
from support.scheduler_process import SchedulerProcess
from support.slow_link import costs_are_unknown

DEVICE_TOKENS = 2048
#: By Redis' clock.
NOW = 1_700_000_000.0


def empty_device(s) -> None:
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams

    assert s.linker.wait_offloads()
    s.step()  # takes the results, so that nothing is locked for them
    s.cache.evict(EvictParams(num_tokens=DEVICE_TOKENS))


class Told:
    """What was told of orders, and a way to wait for it."""

    def __init__(self, s) -> None:
        self.s = s
        self.outcomes: dict[str, list[str]] = {}
        self.of_group: set[str] = set()
        self._changed = threading.Condition()
        s.linker.reporting.orders.told = self
        s.linker.reporting.orders.redis_time = lambda: NOW

    def __call__(self, order, outcome, *, for_group: bool = False) -> None:
        with self._changed:
            text = f"refused: {outcome}" if isinstance(outcome, Exception) else f"done: {outcome}"
            text = "expired" if isinstance(outcome, CommandTooLateError) else text
            self.outcomes.setdefault(order.id, []).append(text)
            if for_group:
                self.of_group.add(order.id)
            self._changed.notify_all()

    def of(self, identifier: str) -> str:
        """Turns the scheduler's loop until the order's fate is told."""
        limit = time.monotonic() + 60
        while identifier not in self.outcomes:
            assert time.monotonic() < limit, "nothing was told"
            self.s.scheduler.ingest_requests()
            with self._changed:
                self._changed.wait(0.01)
        (outcome,) = self.outcomes[identifier]
        return outcome


def order(identifier: str, *, seconds: float = 60, **command) -> dict[str, str]:
    return {
        "id": identifier, "author": "a test", "deadline": str(NOW + seconds), "command": json.dumps(command)
    }  # fmt: skip


# ---- in the scheduler's process ----


def nobody_else_listens(s):
    s.linker.reporting.publisher.close()


def an_order_is_carried_out_and_told(s):
    told, orders = Told(s), s.linker.reporting.orders
    assert orders.leads
    orders.submit(order("one", type="set_policy", field="flush_cache", value="all"))
    assert told.outcomes == {}, "it is carried out in a turn of the scheduler, not at once"
    assert s.linker.stack.config.policy.flush_cache == "host"
    assert told.of("one").startswith("done: ")
    question = prompt(1)
    s.generate(question)
    s.settle()
    assert s.scheduler.flush_cache()
    assert s.linker.stack.errands.wait_idle(60)
    assert s.linker.stack.snapshot().tiers["ssd"].pages == 0, "flush_cache empties every tier from now on"
    orders.submit(order("two", type="set_policy", field="flush_cache", value="host"))
    orders.submit(order("three", type="drop", page="00" * 32))
    assert told.of("two").startswith("done: ")
    assert told.of("three").startswith("refused: page: ")
    assert not told.of_group, "every rank tells for itself"


def an_order_that_comes_too_late_is_not_carried_out(s):
    told, orders = Told(s), s.linker.reporting.orders
    s.generate(prompt(2))
    s.settle()
    pages = s.linker.stack.snapshot().tiers["host"].pages
    assert pages > 0
    orders.submit(order("late", seconds=-0.001, type="flush", tiers="all"))
    orders.submit(order("in-time", type="set_policy", field="admission_uses", value=3))
    assert told.of("late") == "expired"
    assert told.of_group == {"late"}, "the other ranks hear nothing of it"
    assert told.of("in-time").startswith("done")
    assert s.linker.stack.snapshot().tiers["host"].pages == pages


def what_was_promised_to_a_waiting_request_survives_a_flush(s):
    told, orders = Told(s), s.linker.reporting.orders
    question = prompt(3, 400)
    answer = s.generate(question)
    s.settle()
    empty_device(s)
    req = s.add(question)
    restore = s.linker.requests[req.rid].restore
    s.await_restores()
    assert restore.pages == 24, "its pages are up and pinned, and it is not admitted yet"
    orders.submit(order("flush", type="flush", tiers="all"))
    assert told.of("flush").startswith("done")
    s.run()
    assert list(req.output_ids) == answer
    empty_device(s)
    s.linker.stack.flush("all")
    again = s.add(question)
    s.run()
    assert (list(again.output_ids), s.details(again)) == (answer, {})
    s.settle()
    with s.linker.stack.table.lock:
        check_rules(s.linker.stack.table)
        assert s.linker.stack.table.pinned_pages == 0


def a_flush_while_pages_come_up(s):
    told, orders = Told(s), s.linker.reporting.orders
    question = prompt(4)
    answer = s.generate(question)
    s.settle()
    for number in range(20):
        empty_device(s)
        req = s.add(question)
        orders.submit(order(f"flush-{number}", type="flush", tiers="host"))
        s.scheduler.ingest_requests()
        s.run()
        assert list(req.output_ids) == answer
        assert told.of(f"flush-{number}").startswith("done")
    s.settle()
    with s.linker.stack.table.lock:
        check_rules(s.linker.stack.table)
        assert s.linker.stack.table.pinned_pages == 0


def a_sleeping_scheduler_wakes_for_an_order(s):
    told, orders = Told(s), s.linker.reporting.orders
    sleeper = s.scheduler.idle_sleeper
    s.scheduler.ingest_requests()
    assert sleeper.poller.poll(0) == []
    timer = threading.Timer(0.1, orders.submit, (order("wake", type="set_policy", field="admission_uses", value=2),))
    timer.start()
    assert [fd for fd, _ in sleeper.poller.poll(60_000)] == [orders.fileno()]
    timer.join()
    told.of("wake")
    assert sleeper.poller.poll(0) == [], "it goes back to sleep"


def nothing_raises_on_the_schedulers_thread(s):
    from swift_tiers.sglang_ext.tell.orders import OrderMessage

    orders = s.linker.reporting.orders

    def fail(order, outcome, *, for_group=False):
        raise RuntimeError("injected")

    orders.told = fail
    orders.submit(order("a", type="set_policy", field="admission_uses", value=4))
    orders.submit(order("b", seconds=-1, type="set_policy", field="admission_uses", value=5))
    s.scheduler.ingest_requests()
    assert s.linker.stack.config.policy.admission_uses == 4
    orders.submit({"id": "not an order"})
    s.scheduler.ingest_requests()
    # Another release of ours on another rank cannot be, but it must not end the server.
    assert s.scheduler._request_dispatcher(OrderMessage({"id": "?"})) is None


def orders_that_wait_at_the_end_are_refused(s):
    told, orders = Told(s), s.linker.reporting.orders
    orders.submit(order("waiting", type="flush"))
    orders.close()
    orders.submit(order("after", type="flush"))
    orders.close()
    assert told.outcomes == {name: ["refused: the server is ending"] for name in ("waiting", "after")}
    assert told.of_group == {"waiting", "after"}
    s.scheduler.ingest_requests()
    assert told.outcomes.keys() == {"waiting", "after"}


def what_ranks_send_each_other_is_text(s):
    """SGLang pickles it between its own ranks."""
    from swift_tiers.sglang_ext.tell.orders import OrderMessage

    sent = order("x", type="cap_tier", tier="host", limit="1GiB")
    (arrived,) = pickle.loads(pickle.dumps([OrderMessage(sent)]))
    assert arrived.entry == sent
    assert {type(value) for value in arrived.entry.values()} == {str}


def a_rank_that_cannot_begin_to_obey_serves_all_the_same(s):
    """Others are sent orders through it: SGLang ends a scheduler that is sent what it does not know."""
    from sglang.utils import TypeBasedDispatcher

    from swift_tiers.sglang_ext.build import reporting
    from swift_tiers.sglang_ext.tell import orders

    def fail(*_, **__):
        raise OSError(24, "Too many open files")

    scheduler, one = SimpleNamespace(_request_dispatcher=TypeBasedDispatcher([])), s.linker.reporting
    before = one._scheduler, reporting.Orders, orders._orders
    one._scheduler, reporting.Orders, orders._orders = scheduler, fail, None
    try:
        assert one._try(one._take_orders) is None
        assert scheduler._request_dispatcher(orders.OrderMessage(order("x", type="flush"))) is None
    finally:
        one._scheduler, reporting.Orders, orders._orders = before


def nobody_may_steer(s):
    assert s.linker.reporting.publisher._publisher._control is None, "it hears commands"
    s.scheduler.ingest_requests()


# ---- the tests ----


def arguments(tmp_path_factory, control: bool) -> list[str]:
    from swift_tiers.ops.base.model import tiny_model

    directories = [str(tmp_path_factory.mktemp(f"ssd{number}")) for number in range(2)]
    config = {
        "host": {"size": "1MiB"},
        "ssd": {"directories": directories, "size_per_device": "32MiB", "stripe_unit": "8KiB"},
        "policy": {"restore_deadline": "60s"},
        "restore": {"strategy": "load"},  # whether or not that pays on a busy machine
        "bus": {"control": control, "directory": str(tmp_path_factory.mktemp("bus"))},
    }
    return [
        "--model-path", str(tiny_model(tmp_path_factory.mktemp("model"))), "--dtype", "float32",
        "--max-total-tokens", str(DEVICE_TOKENS), "--max-running-requests", "8", "--chunked-prefill-size", "512",
        "--enable-swift-tiers", "--swift-tiers-config", json.dumps(config), "--sleep-on-idle",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory):
    with SchedulerProcess(arguments(tmp_path_factory, control=True)) as process:
        process(nobody_else_listens)
        process(costs_are_unknown)
        yield process


@pytest.mark.parametrize(
    "scenario",
    [
        an_order_is_carried_out_and_told,
        an_order_that_comes_too_late_is_not_carried_out,
        what_was_promised_to_a_waiting_request_survives_a_flush,
        a_flush_while_pages_come_up,
        a_sleeping_scheduler_wakes_for_an_order,
        nothing_raises_on_the_schedulers_thread,
        what_ranks_send_each_other_is_text,
        a_rank_that_cannot_begin_to_obey_serves_all_the_same,
        orders_that_wait_at_the_end_are_refused,
    ],
    ids=lambda scenario: scenario.__name__,
)
def test_scenario(scheduler, scenario):
    scheduler(scenario)


def test_off_unless_it_is_switched_on(tmp_path_factory):
    with SchedulerProcess(arguments(tmp_path_factory, control=False)) as process:
        process(nobody_may_steer)
