"""Defects of one line, over the rooms of the engine, that worlds are to find. Each is one edit of one method."""

from __future__ import annotations

from typing import NamedTuple

from swift_tiers.radix_tiering.base.errand_thread import ErrandThread
from swift_tiers.radix_tiering.table import kernels
from swift_tiers.radix_tiering.table.page_table import PageTable
from swift_tiers.radix_tiering.tiers.host.host_tier import HostTier
from swift_tiers.radix_tiering.tiers.ssd.coders import Coders
from swift_tiers.radix_tiering.tiers.ssd.direct_reads import DirectReads
from swift_tiers.radix_tiering.tiers.ssd.io_thread import IoThread
from swift_tiers.radix_tiering.tiers.ssd.places import StripePlaces
from swift_tiers.radix_tiering.tiers.ssd.ssd_tier import SsdTier
from swift_tiers.radix_tiering.tiers.ssd.stripe_set import StripeSet
from swift_tiers.radix_tiering.way import sweeps
from swift_tiers.radix_tiering.way.down import Intake, Mover
from swift_tiers.radix_tiering.way.parts import AnswerBatch, Parts
from swift_tiers.radix_tiering.way.up import Restorer
from swift_tiers.radix_tiering.way.verifying import Verifier


class Defect(NamedTuple):
    """`old` becomes `new` in a method, or in a function of a module."""

    name: str
    owner: object
    method: str
    old: str
    new: str
    #: Whether it shows only where threads switch between statements.
    fine: bool = False
    #: The first seed that is tried, where it shows in few worlds.
    seed: int = 0


#: Found within `tests/ops/torture/test_defects.py`'s number of seeds.
FOUND = [
    # base
    Defect("an errand that nobody is told of", ErrandThread, "start", "self._wake.notify_all()", "pass"),
    Defect("an errand that is done is still under way", ErrandThread, "_run", "self._under_way = None", "pass"),
    # table
    Defect("a pin that is not counted", kernels, "_pin", "meta[PINNED] += 1", "pass"),
    Defect("a pin that is not taken back", kernels, "_unpin", "meta[PINNED] -= 1", "pass"),
    Defect("a page whose last pin goes may not be evicted", kernels, "_unpin", "_offer(words, longs, heaps, meta, r)",
           "pass"),
    Defect("a dropped page keeps its host slot", kernels, "_unpin", "_free_host(words, longs, heaps, meta, notes, r)",
           "pass"),
    Defect("landing memory is not given back", kernels, "_unpin", "_note(meta, notes, LEFT_LANDING, r, 0)", "pass"),
    Defect("a copy that has come to nothing keeps its slot", kernels, "_end", "_note(meta, notes, HOST, place, r)",
           "pass"),
    Defect("a page without any copy stays", kernels, "_end", "_drop(words, longs, table, heaps, meta, notes, r)",
           "pass"),
    Defect("an end that leaves the pin of the beginning", kernels, "_end",
           "_unpin(words, longs, heaps, meta, notes, r)", "pass"),
    Defect("a copy is whole though nothing came", kernels, "_end", "kept = whole and not dropped",
           "kept = not dropped"),
    Defect("a dropped page gets a whole copy", kernels, "_end", "kept = whole and not dropped", "kept = whole"),
    Defect("host memory gives up what a request has pinned", kernels, "_lose",
           "if tier == HOST and (words[r, PINS] > 0 or not has & WHOLE):", "if False:"),
    Defect("a tier gives up the only copy and the page stays", kernels, "_lose",
           "_drop(words, longs, table, heaps, meta, notes, r)", "pass"),
    Defect("a page that has left is found by its key", kernels, "_drop_one",
           "_hash_out(words, longs, table, r)", "pass"),
    Defect("a row that is pinned becomes another page's", kernels, "_free_row", "words[r, PINS] == 0 and ", ""),
    Defect("what is behind a page that has left stays", PageTable, "_do_what_is_noted",
           "self._leaving.append(_Leaving(which))", "pass"),
    Defect("places of copies that pages give up are kept", PageTable, "_do_what_is_noted",
           "self.of[tier].keeper.release(places)", "pass"),
    Defect("a namespace that is forgotten leaves nothing", PageTable, "forget_namespace",
           "self._leaving.append(_Leaving(root))", "pass"),
    # way
    Defect("pages are refused and their slots kept", Intake, "abort", "whole=False", "whole=True"),
    Defect("the prefix of a chain is not pinned while it grows", Intake, "begin", "self._table.pin(anchor)",
           "page = None"),
    Defect("the prefix of a chain stays pinned", Intake, "begin", "self._table.unpin(anchor)", "pass"),
    Defect("a write that is counted twice", Mover, "pump", "self._in_flight += len(together)",
           "self._in_flight += 2 * len(together)"),
    Defect("a write that failed is in flight for good", Mover, "_settle", "self._in_flight -= len(ended)",
           "self._in_flight -= sum(one.written is not None for one in ended)"),
    Defect("nobody learns that all is written", Mover, "pump", "self._idle.notify_all()", "pass"),
    Defect("a place that came too late is kept", Mover, "_settle_written",
           "self.tier.release([written.place for (_, written), there in zip(some, kept, strict=True) if not there])",
           "pass"),
    Defect("a claim that pins nothing", Restorer, "_hold", "self._table.pin_all(claimed)", "pass"),
    Defect("bytes in memory that differ are served", Verifier, "damage",
           "elif digest != page.digest:", "elif False:"),
    Defect("damage beside a copy is no error of it", Verifier, "verified",
           'if said := ", ".join(sorted(damage - {""})):', "if False:"),
    Defect("what the device says is not looked at", Verifier, "verified", "if changed:", "if False:"),
    Defect("a page is taken for the one before it in its slot", HostTier, "allocate", "self.digests.forget(slot)",
           "pass"),
    Defect("requests that are over keep their pins", Restorer, "_unpin",
           "self._table.unpin_all(some)", "pass"),
    Defect("pages of a part that has gone are kept", Parts, "_forget",
           "if lies and self._table.settle(page) and not page.dropped:", "if False:"),
    Defect("what there is room for after a write is not begun", AnswerBatch, "__exit__",
           "rest.callback(begin)", "pass"),
    Defect("the lock of what comes in is missing", Intake, "begin", "with self._table.lock:", "if True:", fine=True),
    # tiers/ssd
    Defect("transfers that nobody is told of", IoThread, "enqueue", "self._wake.notify_all()", "pass"),
    Defect("commands that nobody is told of", IoThread, "post", "self._wake.notify_all()", "pass"),
    Defect("a write that is done counts as one under way", IoThread, "_end_all",
           "self._write_over(transfer)", "pass"),
    Defect("a write that failed is reported as done", IoThread, "_end", "if transfer.failed:", "if False:", seed=105),
    Defect("the slots of a failed write are not free", IoThread, "_end",
           "self._allocator.give_back_taken(transfer.placement)", "pass"),
    Defect("a read that failed is reported as done", IoThread, "_failed",
           "transfer.outcome = ReadOutcome.CANCELLED if error in PASSING else ReadOutcome.IO_ERROR", "pass"),
    Defect("a read to the device holds its places for good", DirectReads, "_end_some",
           "self._stripes.end_reading_beside(one.read.stored)", "pass"),
    Defect("a read to the device that fails keeps its slot", DirectReads, "_answer",
           "self._landing.give_back(read.slot)", "pass", seed=300),
    Defect("the place of a page that was not written is kept", SsdTier, "_written",
           "self.places.free(write.place)", "pass"),
    Defect("slots of ssd are not given back", StripeSet, "release", "self._allocator.give_back(placement)", "pass"),
    Defect("a coded page keeps the slots that it does not take", IoThread, "_coded",
           "self._allocator.give_back_taken(transfer.needless)", "pass"),
    Defect("slots that a coded page does not take stay in use", IoThread, "_coded",
           "self._allocator.unhold(transfer.needless)", "pass"),
    Defect("a coded page gives back slots that it has given back", StripePlaces, "hold", "if units < room:",
           "if False:"),
    Defect("a page that is decoded is told to nobody", IoThread, "_coded", "self._outbox.append(transfer)", "pass"),
    Defect("a page waits for coders that nobody wakes", Coders, "write", "self._wake.notify_all()", "pass"),
    Defect("what coders have changed already is begun once more", IoThread, "enqueue",
           "transfers = [one for one in transfers if not one.writing or len(one.placement) == 1]\n"
           "        self.coders.write(coded)",
           "self.coders.write(coded)\n"
           "        transfers = [one for one in transfers if not one.writing or len(one.placement) == 1]"),
    Defect("damaged memory is written to ssd", IoThread, "_prepare", "write.failure = DAMAGED", "pass", seed=255),
    Defect("the system is asked for devices by the thread that serves them", IoThread, "_look_after_devices",
           "self._lookout.ask(serving)",
           "[self.take_out(device, 'gone') for device in serving if not self.array.present(device)]", seed=40),
    Defect("a flush that is not written down", StripeSet, "flush_namespace",
           "self._io.post(self._table_writer.run)\n    return change.wait()", "return True"),
]  # fmt: skip
#: Not found within so many, and why, as far as reading tells.
NOT_FOUND: dict[Defect, str] = {
    Defect("a page behind one that has left is found", kernels, "_hidden", "if meta[ROOTS] == 0:", "if True:"):
        "what is behind a page that leaves is given up at once, up to 64 pages; test_bounded_steps finds it",
    Defect("a child is written before its prefix", Mover, "_reachable",
           "not self.copies.durable or page.parent is None or page.parent.begun_in(self.number)", "True"):
        "what fails is written again at once, and counts as on its way when what is behind it has been written",
    Defect("a child is written though its prefix is not", kernels, "writable", "found[at] = 2", "found[at] = 1"):
        "parents go before it in every batch; test_rows finds it",
    Defect("nobody learns that errands are done", ErrandThread, "_run",
           "self._under_way = None\n            self._wake.notify_all()", "self._under_way = None"):
        "only worlds' own last look waits for that, and it has time",
    Defect("a pinned page may be evicted", kernels, "_may_leave", "words[r, PINS] > 0 or ", ""):
        "what is pinned is refused once more where a copy is given up",
    Defect("a flush of memory that forgets nothing", PageTable, "forget_memory", "self.flushes += 1", "pass"):
        "a flush of memory is judged only where there is no device, and pages leave there anyway",
    Defect("what was flushed counts still", PageTable, "settle", "if not self._counts(page, tier):", "if False:"):
        "what does not count is hidden at once; what stays is only memory that is not given back",
    Defect("a page that a tier holds counts as one that may leave", kernels, "_may_leave",
           "words[r, HELD] == 0", "words[r, CHILD] < 0"):
        "the scenario recall-prefix finds it, see test_worlds_find",
    Defect("what is damaged is dropped nowhere", Mover, "_settle_otherwise",
           "drop_damaged(self._table, self._events, page, one.slot)", "pass"):
        "it is verified again before it is served",
    Defect("requests that wait for room are forgotten", Restorer, "_start_deferred", "while len(passed) < MOST_PASSED:",
           "while False:"):
        "polls and later requests start them",
    Defect("nobody learns that a part is saved", Parts, "_saved", "self._idle.notify_all()", "pass"):
        "only the last look of worlds waits for that, when all has been saved",
    Defect("a part is returned before all is saved", Parts, "_save", "self._saving[part] += saving", "pass"):
        "a page that is not saved is a miss, which is allowed",
    Defect("a checksum of ssd that differs is served", IoThread, "_judge",
           "transfer.outcome = ReadOutcome.CHECKSUM", "pass"):
        "a bit of a device flips seldom where a page lies that is read later",
    Defect("a page that was read to the device is not verified", DirectReads, "_verify",
           "if digest == read.digest", "if True"):
        "a bit of a device flips seldom where a page lies that is read later",
    Defect("a sweep that leaves what is hidden", sweeps, "clean", "more = table.leaving", "more = False"):
        "one step is mostly enough, and the next sweep takes the rest",
}  # fmt: skip
