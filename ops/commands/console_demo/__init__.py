"""`swift-tiers console --demo`: simulated servers to look at, without any server or Redis.

Each server is the product's own in virtual time: a `TierStack` with its restorer and its SSD tier, lease services and a
lender, a publisher, and whoever carries out commands. The console reads them as it reads any servers, from a bus.

What is not there is modelled: devices (`stripes`), lent memory (`lending`), SGLang's pool and tree (`device`) and its
scheduler (`scheduler`), the GPU, of which a forward is the time that it takes, what NVML says (`gpus`), a Redis
(`redis_model`), who asks for what (`work`), and what goes wrong when (`script`). Pages are as large as those of the
models that are named, and have no bytes: all of them are blank, so that every checksum is written and verified, and
none is ever wrong. Nothing is measured here, and no figure of it is one of a real machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift_tiers.radix_tiering.base.door import lazily

if TYPE_CHECKING:
    from .feed import DemoFeed
else:
    __getattr__ = lazily(__name__)

__all__ = ["DemoFeed"]
