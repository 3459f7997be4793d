"""What identifies a page stays what it is."""

from __future__ import annotations

import msgspec

from swift_tiers.radix_tiering.base.page import Namespace

from support.engine import namespace

#: As they were when the software that computes became a part of them: device files of that time must be found again by
#: the software of that time. Pages of before are not: nobody can say what computed them.
PLAIN = "6ca8c48f25af696fc24ca6fa3afea930"
QUANTIZED = "0be819d7fdb06d0ae6961c01ff1f2b67"


def test_namespaces_of_kv_are_what_they_were() -> None:
    assert namespace().digest().hex() == PLAIN
    assert namespace(quantization="fp8", loading="x").digest().hex() == QUANTIZED


def test_the_description_on_a_device_says_what_it_is_of() -> None:
    described = msgspec.json.encode(namespace(quantization="fp8"), order="sorted")
    assert msgspec.json.decode(described, type=Namespace) == namespace(quantization="fp8")
