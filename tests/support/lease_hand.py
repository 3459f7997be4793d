"""Two services of which one lends to the other, and an operator's hand on each."""

from __future__ import annotations

from pathlib import Path
from random import Random

from swift_tiers.radix_tiering.lending.leases import Borrower, Donor, Extent, LeaseService, Timing, ipc_address
from swift_tiers.radix_tiering.lending.leases.hand import LeaseHand

from support.redis import wait_for

PAGE = 256
LENDER, BORROWER = "web-1.dp0-tp0", "web-2.dp0-tp0"


class OperatorsAlone:
    """A lender that lends whatever its operator leaves it."""

    peak_bytes, window_seconds = 0, 60.0

    def __init__(self, service: LeaseService) -> None:
        self.cap = service.set_limit

    def rest(self) -> None:
        pass


class Both:
    """A donor with four runs, and a borrower that holds three of them."""

    def __init__(self, directory: Path) -> None:
        self.address = ipc_address(directory, LENDER)
        timing = Timing(term=60.0)
        self.donor = LeaseService(donor=Donor(LENDER, PAGE, Random(1), timing=timing), listen=self.address)
        self.borrower = LeaseService(borrower=Borrower(BORROWER, PAGE, Random(2), timing=timing))
        for run in range(1, 5):
            self.donor.stock(run, [Extent(0, run * PAGE, PAGE)])
            self.donor.fenced(run)
        self.borrower.connect(LENDER, self.address)
        self.borrower.want(3 * PAGE)
        self.lending = LeaseHand(
            LENDER, service=self.donor, address=self.address, lender=lambda: OperatorsAlone(self.donor)
        )
        self.borrowing = LeaseHand(BORROWER, borrower=self.borrower)
        wait_for(lambda: len(self.borrowing.leases()) == 3, "the leases")

    def numbers(self) -> list[int]:
        return sorted(view.lease for view in self.lending.leases())

    def close(self) -> None:
        self.borrower.close()
        self.donor.close()
