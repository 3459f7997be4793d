"""What identifies a page: stable for KV, and another for boundary activations."""

from __future__ import annotations

import msgspec
import pytest

from swift_tiers.radix_tiering.base.page import Namespace, PageGeometry

from support.engine import namespace

#: As they were when the software that computes became a part of them: device files of that time must be found again by
#: the software of that time. Pages of before are not: nobody can say what computed them.
PLAIN = "6ca8c48f25af696fc24ca6fa3afea930"
QUANTIZED = "0be819d7fdb06d0ae6961c01ff1f2b67"


def test_namespaces_of_kv_are_what_they_were() -> None:
    assert namespace().digest().hex() == PLAIN
    assert namespace(quantization="fp8", loading="x").digest().hex() == QUANTIZED


def test_boundary_pages_are_one_row_of_activations_for_each_token() -> None:
    boundary = namespace(first_layer=2).of_boundary(hidden_size=128, dtype="bfloat16", dtype_bytes=2)
    assert boundary.geometry == PageGeometry(layers=1, planes=1, tokens=namespace().geometry.tokens, row_bytes=256)


def test_a_boundary_page_is_never_taken_for_kv_nor_for_that_of_another_stage_or_dtype() -> None:
    kv = namespace(first_layer=2, geometry=PageGeometry(layers=1, planes=1, tokens=4, row_bytes=256))
    first = kv.of_boundary(64, "float32", 4)
    assert first.geometry == kv.geometry, "nothing but the kind differs"
    others = [
        kv,
        first,
        kv.of_boundary(64, "int32", 4),
        msgspec.structs.replace(kv, first_layer=4).of_boundary(64, "float32", 4),
        msgspec.structs.replace(kv, rank="tp0/1 pp1/2").of_boundary(64, "float32", 4),
        msgspec.structs.replace(kv, weights="new").of_boundary(64, "float32", 4),
    ]
    assert len({one.digest() for one in others}) == len(others)


def test_the_description_on_a_device_says_what_it_is_of() -> None:
    boundary = namespace(first_layer=2).of_boundary(128, "float32", 4)
    assert msgspec.json.decode(msgspec.json.encode(boundary, order="sorted"), type=Namespace) == boundary


def test_what_has_no_boundary_pages_is_refused() -> None:
    with pytest.raises(ValueError, match="first stage"):
        namespace().of_boundary(128, "float32", 4)
    with pytest.raises(ValueError, match="of their own"):
        namespace(first_layer=2).of_boundary(128, "float32", 4).of_boundary(128, "float32", 4)
