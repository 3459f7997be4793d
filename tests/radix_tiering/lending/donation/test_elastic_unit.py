"""Eq. 6-9 of the paper, and what must hold for any two models."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_tiers.radix_tiering.base.page import PageGeometry
from swift_tiers.radix_tiering.lending.leases import elastic_unit

#: Table 2 of the paper: layers, KV heads, head dimension, megabytes of one token in float16.
TABLE_2 = {
    "LWM": (32, 32, 128, 0.50),
    "Qwen3-8B": (36, 8, 128, 0.141),
    "Qwen3-14B": (40, 8, 128, 0.156),
    "Qwen3-32B": (64, 8, 128, 0.25),
}


def pages_of(name: str, tokens: int = 16, item: int = 2) -> PageGeometry:
    layers, heads, head_dim, _ = TABLE_2[name]
    return PageGeometry(layers=layers, planes=2, tokens=tokens, row_bytes=heads * head_dim * item)


def units_of(donor: PageGeometry, borrower: PageGeometry) -> tuple[int, int]:
    """The elastic unit in pages of each (Eq. 9)."""
    unit = elastic_unit(donor.page_bytes, borrower.page_bytes)
    return unit // donor.page_bytes, unit // borrower.page_bytes


@pytest.mark.parametrize("name", TABLE_2)
def test_a_token_takes_what_table_2_says(name: str) -> None:
    megabytes = pages_of(name, tokens=1).page_bytes / 2**20
    assert megabytes == pytest.approx(TABLE_2[name][3], abs=0.0005)


@pytest.mark.parametrize(
    ("donor", "borrower", "donor_pages", "borrower_pages"),
    [
        # 36 * 8 against 32 * 32 rows of 128: lcm(288, 1024) = 9216.
        ("Qwen3-8B", "LWM", 32, 9),
        ("Qwen3-14B", "LWM", 16, 5),
        ("Qwen3-32B", "LWM", 2, 1),
        ("Qwen3-8B", "Qwen3-14B", 10, 9),
        ("LWM", "LWM", 1, 1),
    ],
)
def test_units_between_the_models_of_table_2(donor: str, borrower: str, donor_pages: int, borrower_pages: int) -> None:
    assert units_of(pages_of(donor), pages_of(borrower)) == (donor_pages, borrower_pages)


shapes = st.builds(
    PageGeometry,
    layers=st.integers(1, 80),
    planes=st.sampled_from([1, 2]),
    tokens=st.sampled_from([1, 16, 32, 64]),
    row_bytes=st.integers(1, 64).map(lambda n: n * 64),
)


@given(shapes, shapes)
def test_a_unit_is_whole_pages_of_both_and_the_smallest_such(donor: PageGeometry, borrower: PageGeometry) -> None:
    donor_pages, borrower_pages = units_of(donor, borrower)
    assert donor_pages * donor.page_bytes == borrower_pages * borrower.page_bytes
    assert math.gcd(donor_pages, borrower_pages) == 1


@given(*[st.tuples(st.integers(1, 80), st.sampled_from([16, 64]), st.integers(1, 32), st.sampled_from([64, 128]))] * 2)
def test_bytes_say_what_the_papers_elements_say(donor: tuple, borrower: tuple) -> None:
    ours = units_of(
        *(PageGeometry(layers=n, planes=2, tokens=b, row_bytes=h * d * 2) for n, b, h, d in (donor, borrower))
    )
    elements = [math.prod(one) for one in (donor, borrower)]  # of one block, of K or of V
    assert ours == tuple(math.lcm(*elements) // one for one in elements)


def test_a_donor_of_several_borrowers_resizes_in_a_step_that_suits_all() -> None:
    sizes = [pages_of(name).page_bytes for name in ("Qwen3-8B", "LWM", "Qwen3-14B")]
    assert elastic_unit(*sizes) // sizes[0] == math.lcm(32, 10)
    assert elastic_unit(sizes[0]) == sizes[0]
