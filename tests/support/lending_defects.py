"""Defects of one line in leases, arenas and the peer tier, that worlds with real donors are to find."""

from __future__ import annotations

from swift_tiers.radix_tiering.lending.donation.arena_client import ArenaClient
from swift_tiers.radix_tiering.lending.donation.arena_server import ArenaServer
from swift_tiers.radix_tiering.lending.donation.lender import Lender
from swift_tiers.radix_tiering.lending.leases.donor import Donor
from swift_tiers.radix_tiering.lending.leases.lease import Lease
from swift_tiers.radix_tiering.lending.leases.link import Link
from swift_tiers.radix_tiering.lending.leases.service import LeaseService
from swift_tiers.radix_tiering.lending.leases.timing import Timing
from swift_tiers.radix_tiering.tiers.peer.copier import Copier
from swift_tiers.radix_tiering.tiers.peer.neighbour import Neighbour
from swift_tiers.radix_tiering.tiers.peer.outgoing import OutgoingMemory
from swift_tiers.radix_tiering.tiers.peer.places import PlaceBook
from swift_tiers.radix_tiering.tiers.peer.staging import Staging
from swift_tiers.radix_tiering.tiers.peer.worker import PeerWorker

from .defects import Defect

#: Found within `tests/ops/torture/test_neighbours.py`'s number of seeds.
IN_LENDING = [
    # leases
    Defect("a donor counts a term too short", Timing, "donor_deadline", "term * (1 + self.drift)", "0.4 * term"),
    Defect("a donor lends a run to two", Donor, "_lend", "self._runs.move(run, RunState.LENT)", "pass"),
    Defect("what comes back is not the donor's again", Donor, "_end", "outputs.append(Reclaimed(run.number, back))",
           "pass"),
    Defect("a term counts from its grant", Link, "_grant", "borrower_end(request.sent, grant.term)",
           "now + 2 * grant.term"),
    Defect("a lease that is over is used", Lease, "usable", "self.state in _USABLE and now < self.end", "True"),
    Defect("letters that nobody is told of", LeaseService, "_lend", "self._wire.wake()", "pass"),
    # donation
    Defect("a copy under way is not waited for", Lender, "__init__", "ReturningRuns(copying)",
           "ReturningRuns(frozenset)"),
    Defect("nobody asks whether a lease is held before a store", ArenaServer, "_store",
           "for lease in {store.lease for store in stores}}",
           "or getattr(guest, 'last', None) for lease in {store.lease for store in stores}}; "
           "guest.last = next(iter(held.values()))"),
    Defect("what is taken back counts as lent", Lender, "_take_in", "self._sizer.came_back(pages)", "pass"),
    Defect("answers are not sent", ArenaServer, "_serve", "    guest.flush()\n    self", "    self"),
    Defect("a broken connection is none", ArenaClient, "handle",
           'self.end("the donor has closed the connection")', "break"),
    # tiers/peer
    Defect("a job that nobody is told of", PeerWorker, "submit", "self._poll.wake()", "pass"),
    Defect("what waits for a lease that has ended is never answered", PeerWorker, "_drop_jobs",
           "self.copier.refuse(neighbour.take(key))", "neighbour.take(key)"),
    Defect("nobody hears of an end", PeerWorker, "_ended",
           "self._tell(lambda listener: listener.gone(key, LEASE_ENDED))", "pass"),
    Defect("a page is believed whatever became of its lease", Copier, "_copied",
           "if self._service.check_after(ticket)", "if self._service.check_after(ticket) or True"),
    Defect("staging memory is not given back", Copier, "_end_stores", "self._staging.give_back(storing.staged_at)",
           "pass"),
    Defect("staging memory is given to two", Staging, "put", "self._free.pop()", "self._free[-1]"),
    Defect("outgoing memory is not given back", Copier, "_end_stores", "self._outgoing.give_back([storing.row])",
           "pass"),
    Defect("outgoing memory is given to two", OutgoingMemory, "take", "self._free.pop()", "self._free[-1]"),
    Defect("outgoing memory is free while a donor copies it", OutgoingMemory, "hold", "return row",
           "self._free += [] if row is None else [row]; return row"),
    Defect("a page goes by another's checksum", OutgoingMemory, "enter", "zip(rows, digests,",
           "zip(rows, digests[::-1],"),
    Defect("a place that is left while it is used is free", PlaceBook, "_settle",
           "if lease.held[slot] or slot not in lease.left:", "if slot not in lease.left:"),
    Defect("a place is never free again", PlaceBook, "_settle", "lease.free.append(slot)", "pass"),
    Defect("new pages go to a recalled lease", PlaceBook, "_close",
           "del donor.with_room[bisect_left(donor.with_room, lease.key)]", "pass"),
]  # fmt: skip
#: Not found within so many, and why, as far as reading tells.
NOT_FOUND_IN_LENDING: dict[Defect, str] = {
    Defect("what waits for a lease that is recalled is never answered", PeerWorker, "_recalled",
           "neighbour.recall(recalled.key)", "neighbour.take(recalled.key)[:0]"):
        "seldom does anything wait just then; `test_recall_and_restore` has many reads that do",
    Defect("a request that comes twice is granted twice", Donor, "_request", "if request.nonce > session.request:",
           "if True:"):
        "what was granted beyond a request is returned at once",
    Defect("a donor forgets what it has recalled", Donor, "_send_recalls",
           "run.recall_again = now + self.timing.recall_retry", "run.recall_again = 1e18"):
        "the lease ends by time; recalls are bounded only where no letter is lost",
    Defect("who has ended holds its leases on", LeaseService, "_handle", "return self._donor.gone(party)",
           "return []"):
        "its leases end by time",
    Defect("a borrower uses what its donor's former life lent", Link, "_welcome", "outputs += self._lose()", "pass"):
        "the connection to its memory has ended by then, and its leases with it",
    Defect("a return that is lost is not said again", Link, "_advance", "lease.return_again = now + self._timing.retry",
           "lease.return_again = 1e18"):
        "the lease ends by time",
    Defect("whoever attaches again keeps its old connection", ArenaServer, "_attach", "self._drop(former)", "pass"):
        "the old connection has ended before a new one of the same life begins",
    Defect("effects that nobody is told of", PeerWorker, "_on_effect", "self._poll.wake()", "pass"):
        "whatever else comes has them looked at, mostly soon",
    Defect("what a lease that ends has under way is never answered", PeerWorker, "_ended",
           "self.copier.abandon(neighbour, LEASE_ENDED, key)", "pass"):
        "its donor answers, or the connection ends, a little later",
    Defect("nobody hears of a recall", PeerWorker, "_recalled",
           "self._tell(lambda listener: listener.leaving(recalled.key, recalled.until))", "None"):
        "what is not saved is a miss, which is allowed; the lease ends by time",
    Defect("a lease of a former life is begun", Neighbour, "lends", "party is not None and party.epoch == key.epoch",
           "party is not None"):
        "what is told of one life is over before the next one's memory is mapped",
    Defect("a store is believed whatever became of its lease", Copier, "_end_stores",
           "lasted = self._service.check_after(storing.ticket)",
           "lasted = self._service.check_after(storing.ticket) is not None"):
        "the page is asked for under a lease that is over, which is refused",
}  # fmt: skip
