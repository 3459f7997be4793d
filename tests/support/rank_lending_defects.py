"""Defects of one line in how ranks lend together, that worlds with donors of several ranks are to find."""

from __future__ import annotations

from swift_tiers.radix_tiering.lending.donation.lender import Lender
from swift_tiers.radix_tiering.lending.donation.rank_lender import RankLender, _LeadLending
from swift_tiers.radix_tiering.lending.donation.rank_runs import RankRuns

from .defects import Defect

#: Found within `tests/ops/torture/test_ranked_donors.py`'s number of seeds.
IN_RANK_LENDING = [
    Defect("what is back on one rank is the pool's again", RankLender, "_agree_on_returns",
           "zip(asked, everywhere, strict=True)", "zip(asked, [-one for one in somewhere], strict=True)"),
    Defect("who has nothing back does not ask", RankLender, "_agree",
           "if said.first_back < NOTHING:", "if self._runs.back:"),
    Defect("each rank goes by its own clock", RankLender, "_take_in",
           "now = said.now / 1e6 if said.now < NOTHING else self.now", "now = self._clock()"),
    Defect("what fails keeps a rank from its agreement", RankLender, "_guarded", "return None", "raise"),
    Defect("what is put back stays out elsewhere", RankRuns, "put_back", "for name in names])",
           "for name in list(names)[1:]])"),
    Defect("what could not be stocked is out for ever", Lender, "_lend",
           "if spans:\n            self._pool.put_back(spans)", "pass"),
    Defect("a copy under way is not waited for on any rank", RankRuns, "__init__", "ReturningRuns(copying)",
           "ReturningRuns(frozenset)"),
]  # fmt: skip
#: Not found within so many, and why, as far as reading tells.
NOT_FOUND_IN_RANK_LENDING: dict[Defect, str] = {
    Defect("what one rank has back stays lent on the others", RankLender, "_agree_on_returns",
           "set(begun) - set(ended) - self._runs.coming", "set()"):
        "it is taken back when a request needs it, and otherwise borrowers go on using it",
    Defect("each rank asks for as many runs as it has", RankLender, "_agree_on_returns",
           "asked = range(first, min(last + 1, first + MOST_RUNS))", "asked = list(self._runs.runs)"):
        "what is out is the same on all ranks, whatever fails: the rule is for what nobody has thought of",
    Defect("who waits for memory agrees more often", RankLender, "_take_in",
           "self._every = steps if said.patient else 1", "self._every = 1 if self._runs.coming else steps"):
        "likewise, of what is to come back",
    Defect("others take back what they like", _LeadLending, "_withdraw", "self._say(Word.WITHDRAW, runs)", "pass"):
        "what the first rank has back is withdrawn on the others for that",
}  # fmt: skip
