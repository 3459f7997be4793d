"""Defects of one line on SGLang's side, that worlds of whole servers are to find (`ops/torture/test_ranks.py`)."""

from __future__ import annotations

from swift_tiers.radix_tiering.way.draining import Draining
from swift_tiers.sglang_ext.pools.states import _Passage
from swift_tiers.sglang_ext.way.admission import Admission
from swift_tiers.sglang_ext.way.cache import SwiftLinkerWrapper
from swift_tiers.sglang_ext.way.loads import WatchedLoadCounter
from swift_tiers.sglang_ext.way.request import TieredRequest
from swift_tiers.sglang_ext.way.tree_states import StatefulLinkerWrapper

from .defects import Defect

ON_RANKS = [
    Defect("two requests of one id are one", SwiftLinkerWrapper, "of", " and request.req is req", "", seed=40),
    Defect("who has lost its restore does not ask the others", Admission, "look", "and not one.agreed]",
           "and not one.agreed and one.restore is not None]"),
    Defect("who failed at a step does not ask the others", SwiftLinkerWrapper, "agree",
           "((jump, end),) = least([request.next_step(front)], self.cache._all_reduce_attn_groups)",
           "jump, end = request.next_step(front)"),
    Defect("each rank restores what it has itself", SwiftLinkerWrapper, "_sync_restorable_prefix",
           "((pages,),) = least([[restorable[-1] if restorable else 0]], self.cache._all_reduce_attn_groups)",
           "pages = restorable[-1] if restorable else 0"),
    Defect("what has come up once is promised for ever", TieredRequest, "promised",
           "self.stack.restorer.present(self.restore, offset)", "len(self.restore.claimed)"),
    Defect("a tail that begins alike is the same", TieredRequest, "_covers",
           "return offset if self.tail[last] == hashes[last - offset] else None", "return 0"),
    Defect("pages that are copied may leave", TieredRequest, "copies", "self._copies += 1", "pass"),
    Defect("pages that were copied stay pinned", TieredRequest, "copied", "self._copies -= 1", "pass"),
    Defect("one that is over is kept", TieredRequest, "end", "del self._among[self.rid]", "pass"),
    Defect("who is copied first does not ask the others", SwiftLinkerWrapper, "copied_first",
           "((wanted,),) = least([[request.wants_copying_first(pages)]], self.cache._all_reduce_attn_groups)",
           "wanted = request.wants_copying_first(pages)", seed=50),
    Defect("a batch runs while its pages are copied", SwiftLinkerWrapper, "came_ahead",
           "return bool(over)", "return True", seed=50),
    Defect("the batch's copies are not waited for", WatchedLoadCounter, "finish",
           "self._watch(index, self._over[index])", "return True"),
]  # fmt: skip
#: The same where layers have a window.
WITH_WINDOWS = [
    Defect("the first parts of a window come back", _Passage, "_between",
           "np.arange(len(self._parts) - len(slots), len(self._parts), dtype=np.int64)",
           "np.arange(len(slots), dtype=np.int64)"),
    Defect("a window is that of the node alone", StatefulLinkerWrapper, "_window", "if len(rows) < most:", "if False:"),
    Defect("a window ends a page before its prefix", StatefulLinkerWrapper, "_window", "rows[-most:]",
           "rows[-most - states.slot_tokens : -states.slot_tokens or None]"),
    Defect("a prefix is of use without its window", TieredRequest, "promised",
           "return len(self.tail) - offset if whole else 0", "return max(0, min(present, len(self.tail)) - offset)"),
]  # fmt: skip
#: Not found within 250 worlds, and why. The first two cost time alone since a request whose pages are taken as they
#: land begins with a page that will not come, too, and who waits in vain falls behind.
NOT_FOUND: dict[Defect, str] = {
    Defect("ranks that do not load alike go on", Admission, "_agree",
           "may = wants or readiness is Readiness.READY", "may, wants = wants, False"):
        "sglang_ext/test_ranks.py finds it",
    Defect("landing memory that is full keeps a request from its first page", Draining, "room",
           "max(room, int(begins is Unit.ABSENT))", "max(room, 0)"):
        "radix_tiering/test_stack_draining.py finds it",
    Defect("slots that are copied to are taken back", SwiftLinkerWrapper, "settle",
           "self.cache_linker.finish_ahead(request, wait=True)", "pass"):
        "others would have to take them within one copy: sglang_ext/test_draining.py and test_copied_first.py find it",
}  # fmt: skip
