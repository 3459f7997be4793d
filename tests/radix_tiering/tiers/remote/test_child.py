"""The engine in a process of its own: what it does there reaches no server."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from swift_tiers.radix_tiering.base.events import EventLog
from swift_tiers.radix_tiering.base.runner import THREADS
from swift_tiers.radix_tiering.base.units import Duration
from swift_tiers.radix_tiering.stack import TierStack
from swift_tiers.radix_tiering.tiers.remote import ChildEngine, RemoteTier, worker

from support.engine import GEOMETRY, chain, check, get, make_stack, put, settle, wait_until
from support.remote import RUN, SHAPE, remote_config, run_of, snapshot, wait_sent

#: How long a question may take here, where threads wait their turn.
QUESTION = Duration(0.5)
#: What a deadline may be missed by here: this machine is shared, and its threads wait their turn.
SLACK = 0.5


class Server:
    """A stack whose engine is a child with `support.directory_driver`."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.children: list[ChildEngine] = []
        settings = {"directory": str(directory), **options}

        def open_engine(tell: Callable[[Any], None]) -> ChildEngine:
            make = partial(ChildEngine, "support.directory_driver:open_directory", "directory", settings)
            self.children.append(make(8, SHAPE.stride, tell))
            return self.children[-1]

        events = EventLog(THREADS.time)
        self.tier = RemoteTier(
            SHAPE,
            remote_config(lookup_deadline=QUESTION),
            open_engine,
            page_tokens=GEOMETRY.tokens,
            read_seconds=1.0,
            events=events,
        )
        self.stack: TierStack = make_stack(64, clock=time.monotonic, others=[self.tier], events=events)

    def wait_ready(self) -> Server:
        wait_until(lambda: self.tier.snapshot().ready, "the child is never ready")
        return self

    def reasons(self) -> list[object]:
        return [event.fields["reason"] for event in self.stack.events.since() if event.kind == "remote.engine_gone"]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Server]:
    tests = str(Path(__file__).parents[3])
    monkeypatch.setenv("PYTHONPATH", tests + os.pathsep + os.environ.get("PYTHONPATH", ""))
    return partial(Server, tmp_path)


def test_what_one_child_wrote_another_reads_and_none_is_left(server: Callable[..., Server], tmp_path: Path) -> None:
    first = server().wait_ready()
    keys = run_of("a", 3)
    put(first.stack, keys)
    wait_sent(first.stack)
    first.stack.close()
    with pytest.raises(ProcessLookupError):
        os.kill(first.children[0].pid, 0)
    second = server().wait_ready()
    assert get(second.stack, keys) == 3 * RUN
    check(second.stack)


@pytest.mark.parametrize("how", [signal.SIGSEGV, signal.SIGSTOP, "get hangs", "get raises"])
def test_no_answer_late_and_no_byte_wrong_whatever_becomes_of_it(
    server: Callable[..., Server], tmp_path: Path, how: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "JOB_SECONDS", 2.0)
    first, second = server().wait_ready(), server().wait_ready()
    keys, others = run_of("a", 2), run_of("b", 2)
    for chains in (keys, others):
        put(first.stack, chains)
    wait_sent(first.stack)
    if isinstance(how, str):
        (tmp_path / "trouble").write_text(how)
    else:
        os.kill(second.children[0].pid, how)
    began = time.monotonic()
    restore = settle(second.stack, second.stack.restore(keys))
    assert time.monotonic() - began < 1.0 + SLACK
    assert restore.pages == 0
    second.stack.restorer.release(restore)
    (tmp_path / "trouble").unlink(missing_ok=True)
    if how in (signal.SIGSEGV, signal.SIGSTOP):
        # A stopped one is noticed by what it does not answer, and replaced after a while.
        wait_until(
            lambda: get(second.stack, chain("c", *range(RUN))) == 0 and len(second.children) == 2, "no new child"
        )
        second.wait_ready()
        assert snapshot(second.stack).lives == 2
        wait_until(lambda: get(second.stack, others) == 2 * RUN, "the new one is not asked")
    check(second.stack)


def test_an_engine_that_cannot_be_opened_says_why(server: Callable[..., Server]) -> None:
    alone = server(refuses=True)
    wait_until(alone.reasons, "nobody is told")
    assert "no store answers at this address" in str(alone.reasons()[0])
    assert get(alone.stack, run_of("a")) == 0
    check(alone.stack)
