"""Worlds about one thing, in which only times and sizes are random: what worlds at large hardly ever reach."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial

from swift_tiers.radix_tiering.base.runner import Thread
from swift_tiers.radix_tiering.base.virtual import VirtualRunner
from swift_tiers.radix_tiering.bus.contract.commands import CapTier
from swift_tiers.radix_tiering.stack import TierStack
from swift_tiers.radix_tiering.table.tier_copies import HOST

from . import statements
from .many import MANY
from .model_peer import ModelPeer
from .stacks import chain, check, copy_of, get, new_stack, obey, put
from .state import history_line
from .taking import KnownCosts, Taking


def pages_at_peers_alone(
    stack: TierStack, peer: ModelPeer, keys: Sequence[bytes], here_too: Sequence[bytes] = (), *, by_device: bool = False
) -> None:
    """Put pages, and leave of them only what memory that is lent has; of those that are `here_too`, both copies.
    `by_device`: see `put`."""
    put(stack, keys, by_device=by_device)
    with stack.table.lock:
        assert stack.movers["peer"].wait_idle(30.0)
        for page in reversed(stack.table.listed()):
            assert copy_of(stack, page, "peer"), "it was not lent to"
            if page.key not in here_too:
                stack.table.lose(page, HOST)


def recalled_while_it_is_restored(seed: int, fine: bool, history: list[str]) -> VirtualRunner:
    """A lease is recalled at about the time at which a request wants what lies under it. Only times are random."""
    draw = random.Random(seed)
    runner = VirtualRunner(
        seed, switch=draw.choice((0.1, 0.3, 0.7)), stall=draw.choice((0.0, 0.01, 0.05)) * (not fine),
        stall_seconds=1e-3, changes=draw.randint(1, 4) if seed % 2 else 0, expected_steps=600, most_seconds=300.0,
    )  # fmt: skip

    def tell(what: str) -> None:
        history.append(history_line(runner, what))

    def main() -> None:
        peer = ModelPeer(4096, runner=runner)
        stack = new_stack(32, lent=peer, runner=runner)
        keys, lease = chain(*range(8)), peer.lend(16)
        peer.settle()
        pages_at_peers_alone(stack, peer, keys)
        tell(f"{len(keys)} pages are in lent memory alone")

        def recall() -> None:
            runner.sleep(draw.random() * 1e-4)
            tell("the lease is recalled")
            peer.recall(lease)
            tell("it has been recalled")

        thread = runner.thread(recall, "recall")
        thread.start()
        runner.sleep(draw.random() * 1e-4)
        tell("a request asks for the pages")
        tell(f"it was promised {get(stack, keys)}")
        thread.join()
        _check_in_the_end(stack)
        for event in stack.events.since():
            assert "no room" not in str(event.fields.get("reason")), "there is room for four times as many pages"
        stack.close()

    return _run(runner, main, fine)


def recalled_before_what_follows(seed: int, fine: bool, history: list[str]) -> VirtualRunner:
    """The lent copies of a prefix are recalled, while what follows it lies in lent memory alone: host memory, full of
    the prefix, still takes new pages. Only sizes and times are random."""
    draw = random.Random(seed)
    room, length = draw.randint(2, 6), draw.randint(1, 4)
    runner = VirtualRunner(seed, switch=draw.choice((0.1, 0.3, 0.7)), most_seconds=300.0)

    def tell(what: str) -> None:
        history.append(history_line(runner, what))

    def main() -> None:
        peer = ModelPeer(4096, runner=runner)
        stack = new_stack(room + length, lent=peer, runner=runner)
        keys = chain(*range(room + length))
        prefix, rest = keys[:room], keys[room:]
        lease = peer.lend(room)
        peer.settle()
        tell(f"put: a prefix of {room} pages, where as many are lent")
        put(stack, prefix)
        runner.sleep(draw.random())
        more = length + draw.randint(0, 2)
        peer.lend(more)
        peer.settle()
        tell(f"put: the {length} pages that follow it, where {more} more are lent")
        put(stack, rest, prefix[-1], room + 1)
        runner.sleep(draw.random())
        tell(f"host memory is capped to {room} pages")
        obey(stack, CapTier(tier="host", limit=room * 4096))
        tell("the first lease is recalled")
        peer.recall(lease)
        runner.sleep(draw.random() * 1e-3)
        taken = put(stack, chain("new"))
        tell(f"put: a new page, which was {'taken' if taken else 'refused'}")
        runner.sleep(1.0)
        assert taken or put(stack, chain("new")), "host memory takes nothing more"
        check(stack)
        stack.close()

    return _run(runner, main, fine)


def drained_by_several(seed: int, fine: bool, history: list[str]) -> VirtualRunner:
    """Requests whose prefixes are longer than landing memory take their pages as these land, one after the other, with
    others behind them; some are aborted, copies fail or are withdrawn, memory is flushed, and leases are recalled or
    over. Only times and sizes are random."""
    draw = random.Random(seed)
    runner = _stalling(seed, draw, fine)
    trouble = draw.random() < 0.7

    def tell(what: str) -> None:
        history.append(history_line(runner, what))

    def main() -> None:
        slots = draw.choice((1, 2, 3, 5))
        peer = ModelPeer(4096, landing_slots=slots, runner=runner)
        length = slots * 4 + draw.randint(0, 4)
        verify = random.Random(f"verifying {seed}").choice((True, "beside"))
        room = draw.choice((3, 2 * length)) + 2 * length
        stack = new_stack(room, lent=peer, runner=runner, host={"verify": verify})
        leases = [peer.lend(length), peer.lend(length)]
        peer.settle()
        chains = [chain(*range(length)), chain(*range(length // 2), *"abcdefghijklmnopqrst"[: length // 2])]
        # Of one of them host memory has some as well: those come from either.
        here_too = random.Random(f"here, too {seed}")
        kept = chains[0][: here_too.choice((0, length, here_too.randint(0, length)))]
        for keys in chains:
            pages_at_peers_alone(stack, peer, keys, kept)
        stack.planner.costs = KnownCosts()
        device = Taking(stack, runner, draw)
        device.by_device = random.Random(f"by the device {seed}").random() < 0.5
        if trouble:
            device.fails, device.withdraws = draw.choice((0.0, 0.02)), draw.choice((0.0, 0.02))
        tell(f"chains of {length} pages are in lent memory alone, {slots} slots of landing memory")

        def serve(name: int) -> None:
            for _ in range(draw.randint(1, 2)):
                runner.sleep(draw.random() * 2e-3)
                keys = draw.choice(chains)[: draw.randint(1, length)]
                left = runner.monotonic() + (draw.random() * 5e-3 if trouble and draw.random() < 0.3 else 1e9)
                how = device.serve(keys, left)
                tell(f"request {name} for {len(keys)} pages: {how.value}")

        def cause() -> None:
            for _ in range(draw.randint(1, 2)):
                runner.sleep(draw.random() * 4e-3)
                what = draw.choice(("recall", "end", "flush"))
                tell(f"trouble: {what}")
                if what == "recall":
                    peer.recall(leases.pop())
                elif what == "end":
                    peer.end(leases.pop())
                else:
                    stack.flush("memory")

        threads = [runner.thread(partial(serve, name), f"request-{name}") for name in range(3)]
        threads += [runner.thread(cause, "trouble")] if trouble else []
        _all_of(threads)
        tell(f"{device.copied} pages were copied, {device.computed} computed, {peer.landings} have landed")
        _check_in_the_end(stack)
        if not trouble:
            assert not device.failed
            assert device.computed <= 6, "more than a page of each request was computed"
        stack.close()

    return _run(runner, main, fine)


def taken_from_here_while_it_lands(seed: int, fine: bool, history: list[str]) -> VirtualRunner:
    """Pages that host memory has, too, are to land, from a neighbour that hangs: they are copied from host memory after
    all, and land meanwhile. Other users' pages come into host memory, which is full. Only sizes and times are
    random."""
    draw = random.Random(seed)
    runner = _stalling(seed, draw, fine)

    def tell(what: str) -> None:
        history.append(history_line(runner, what))

    def main() -> None:
        slots = draw.choice((1, 2, 3, 5))
        length = slots * 3 + draw.randint(0, 4)
        peer = ModelPeer(4096, landing_slots=slots, runner=runner)
        verify = draw.choice(("beside", False))
        stack = new_stack(length + draw.randint(0, 3), lent=peer, runner=runner, host={"verify": verify})
        keys = chain(*range(length))
        peer.lend(4 * length)
        peer.settle()
        device = Taking(stack, runner, draw)
        device.by_device = verify == "beside" and draw.random() < 0.7
        device.refuses = draw.choice((0.0, 0.1, 0.3))
        here_too = keys[: draw.randint(1, length)]
        pages_at_peers_alone(stack, peer, keys, here_too, by_device=device.by_device)
        stack.planner.costs = KnownCosts()
        queued = runner.flag()

        def hang_or_go_on() -> None:
            hangs = draw.random() < 0.5
            tell(f"a copy is queued, and the neighbour {'hangs' if hangs else 'does not hang'}")
            peer.hold(hangs)
            queued.set()

        device.meanwhile = hang_or_go_on
        tell(f"{length} pages are in lent memory, {len(here_too)} in host memory; {slots} slots of landing memory")

        def serve() -> None:
            for _ in range(4):
                runner.sleep(draw.random() * 2e-3)
                peer.hold(draw.random() < 0.5)
                tell(f"a request for all pages: {device.serve(keys).value}")
            peer.hold(False)

        def come_in() -> None:
            for number in range(30):
                queued.wait(5e-2)
                for part in range(4):
                    runner.sleep(draw.random() * 2e-4)
                    some = chain("others", number, part, *range(draw.randint(1, length)))
                    put(stack, some, by_device=device.by_device)
                queued.clear()

        threads = [runner.thread(one, one.__name__) for one in (serve, come_in)]
        _all_of(threads)
        tell(f"{device.copied} pages were copied, {device.computed} computed, {peer.landings} have landed")
        _check_in_the_end(stack)
        stack.close()

    return _run(runner, main, fine)


def _stalling(seed: int, draw: random.Random, fine: bool) -> VirtualRunner:
    """One on which threads get no turn for a while, now and then."""
    return VirtualRunner(
        seed, switch=draw.choice((0.1, 0.3, 0.7)), stall=draw.choice((0.0, 0.01)) * (not fine), stall_seconds=1e-3,
        expected_steps=3000, most_seconds=600.0,
    )  # fmt: skip


def _all_of(threads: Sequence[Thread]) -> None:
    """Have them run, until all have ended."""
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _check_in_the_end(stack: TierStack) -> None:
    """Once all is quiet."""
    stack.runner.sleep(1.0)
    check(stack)
    for event in stack.events.since():
        assert event.kind != "restore.error", event


def _run(runner: VirtualRunner, main: Callable[[], None], fine: bool) -> VirtualRunner:
    with statements.switching() if fine else nullcontext():
        statements.use(runner if fine else None)
        runner.run(main)
    return runner


#: By what they are called on the command line. Each is told its seed, whether threads switch between statements, and
#: where it is to write what it does, line by line; it returns the runner that it ran on.
SCENARIOS: dict[str, Callable[[int, bool, list[str]], VirtualRunner]] = {
    "recall": recalled_while_it_is_restored,
    "recall-prefix": recalled_before_what_follows,
    "draining": drained_by_several,
    "landing-here": taken_from_here_while_it_lands,
}
#: Kinds of worlds that a seed says all of: they are not shrunk, and have no steps to choose.
SEED_ALONE = (*SCENARIOS, *MANY)
