"""The unit in which memory changes hands between two models: whole pages of both (SwiftCache, section 3.4, Eq. 6-9).

A donor gives whole pages of its own, and a borrower cuts what it gets into whole pages of its own; the least common
multiple of both sizes is the smallest amount that leaves nothing over on either side. The paper counts elements, which
needs both caches to have one element type; here it is bytes, so that a float16 model may lend to an fp8 one. With
equal types both say the same. Tests hold these functions to the paper's Table 2; a server takes the same multiple of
bytes where it lends (`Donor`, `Lender`), for as many borrowers as there are.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ...base.page import PageGeometry


class ElasticUnit(NamedTuple):
    """The smallest amount of memory that two models exchange."""

    bytes: int  # the shared alignment unit (LCM, Eq. 8), in bytes
    donor_pages: int  # the donor's minimum elastic unit (MEU_i, Eq. 9)
    borrower_pages: int  # the borrower's minimum elastic unit (MEU_m, Eq. 9)


def block_elements(layers: int, block_tokens: int, kv_heads: int, head_dim: int) -> int:
    """Elements of one block as the paper counts them (Eq. 6 and 7): of K or of V, all layers."""
    return layers * block_tokens * kv_heads * head_dim


def elastic_unit(donor: PageGeometry, borrower: PageGeometry) -> ElasticUnit:
    """The elastic unit of two models whose pages have these shapes (Eq. 8 and 9, in bytes)."""
    unit = math.lcm(donor.page_bytes, borrower.page_bytes)
    return ElasticUnit(unit, unit // donor.page_bytes, unit // borrower.page_bytes)


def common_unit(donor: PageGeometry, borrowers: list[PageGeometry]) -> int:
    """Pages of the donor that are a whole number of elastic units for every one of `borrowers`; 1 without any.

    A donor that lends to several models at once resizes in this step, so that any of them can take what another gave
    back.
    """
    return math.lcm(1, *(elastic_unit(donor, borrower).donor_pages for borrower in borrowers))
