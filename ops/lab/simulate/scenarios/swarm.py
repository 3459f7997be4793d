"""Swarm's scaling over SSDs (section 8.4), with whole pages in place of single entries."""

from __future__ import annotations

from collections.abc import Callable

from swift_tiers.radix_tiering.restore.cost import CostModel, SourceCost

from ....base.devices.curve import Curve
from ....base.devices.hardware import GPUS, SSDS, USAGE, Ssd
from ....base.devices.models import MODELS, Model
from ..devices.clock import Clock
from ..devices.lines import Line, Stripes, ssd_lines
from ..devices.restoring import LOAD, SWIFT_TIERS, Request, Server
from ..devices.setup import Setup
from ..runs import chunk_for
from ..tables import Cell, Table, table
from .scenario import Scenario

UNIT_BYTES = 256 << 10  # the default of `ssd.stripe_unit`
COUNTS = (1, 2, 4, 8)
PREFIX, NEW = 32_768, 256
SOURCE = "ssd"
MODEL, GPU = "Qwen3-32B", "H20"


def read_pages(ssd: Ssd, count: int, page_bytes: int, pages: int, place: Callable[[Stripes, int], None]) -> float:
    """Bytes per second at which so many pages come, all asked for at once."""
    clock = Clock()
    stripes = Stripes(ssd_lines(clock, ssd, count), UNIT_BYTES)
    for _ in range(pages):
        place(stripes, page_bytes)
    clock.run()
    return pages * page_bytes / clock.now


def _striped(stripes: Stripes, page_bytes: int) -> None:
    stripes.send(page_bytes, lambda: None)


def _from_the_first(stripes: Stripes, page_bytes: int) -> None:
    """Every page begins on the first device, as Swarm's "No Balance" does."""
    lengths = [length for _, length in stripes.units(page_bytes)]
    stripes.transfer([(at % len(stripes.devices), length) for at, length in enumerate(lengths)], lambda: None)


def first_token(model: Model, ssd: Ssd, count: int, *, computes: bool) -> float:
    """Seconds of one request whose prefix is striped over so many devices."""
    clock = Clock()
    curve = Curve(model=model, gpu=GPUS[GPU], gpus=1)
    stripes = Stripes(ssd_lines(clock, ssd, count), UNIT_BYTES)
    speed = SourceCost(latency_seconds=ssd.latency_seconds, bytes_per_second=stripes.bytes_per_second)
    chunk = chunk_for(curve)
    setup = Setup(
        costs=CostModel(compute=curve.fitted(chunk, PREFIX), sources={SOURCE: speed}), token_bytes=model.token_bytes,
        layers=model.layers, chunk_tokens=chunk,
    )  # fmt: skip
    copies = Line(clock, GPUS[GPU].pcie_bytes_per_second * USAGE.link)
    server = Server(clock, curve, {SOURCE: stripes}, setup, SWIFT_TIERS if computes else LOAD, copies=copies)
    one = server.submit(Request(arrival=0.0, prefix=PREFIX, new=NEW), [SOURCE] * (PREFIX // setup.page_tokens))
    clock.run()
    return one.seconds


def scaling() -> list[Table]:
    rows: list[list[Cell]] = []
    model = MODELS[MODEL]
    page_bytes = 16 * model.token_bytes
    for ssd in SSDS.values():
        for count in COUNTS:
            striped = read_pages(ssd, count, page_bytes, 512, _striped)
            uneven = read_pages(ssd, count, page_bytes * 5 // 16, 512, _from_the_first)
            even = read_pages(ssd, count, page_bytes * 5 // 16, 512, _striped)
            load, both = (first_token(model, ssd, count, computes=computes) for computes in (False, True))
            rows.append(
                [
                    ssd.name, count, round(striped / 1e9, 1), round(striped / count / ssd.bytes_per_second, 3),
                    round(even / 1e9, 1), round(uneven / 1e9, 1), round(1000 * load), round(1000 * both),
                ]
            )  # fmt: skip
    recomputed = Curve(model=model, gpu=GPUS[GPU]).seconds(0, PREFIX + NEW)
    return [
        table(
            "swarm-scaling",
            f"Swarm, Figure 18: reading pages of {MODEL} from 1 to 8 SSDs, and the first token of {PREFIX:,} + {NEW} "
            "tokens",
            [
                "device", "SSDs", "read (GB/s)", "of linear", "pages of 5 units (GB/s)", "the same, all begun on one",
                "load (ms)", "swift-tiers (ms)",
            ],
            rows,
            [
                f"Pages of 16 tokens, 4 MiB, in units of 256 KiB, placed by the allocator that serves. {GPU}; "
                f"recomputing takes {1000 * recomputed:.0f} ms. Swarm's numbers are not in the text that we have; it "
                "says that throughput scales steadily from 1 to 8 devices and that 8 come near the bandwidth between "
                "host memory and GPU.",
                "Swarm reads single entries that attention selects, and is bound by operations per second where there "
                "are few. Here whole pages are read, in units that are large enough to be bound by bandwidth with "
                "either device: that is why scaling is linear. Co-activation, its subject, is not simulated.",
                "Pages whose units are no multiple of the devices show what the allocator's rotating start is for "
                "(Eq. 7): begun on one device, the first devices get more than their share.",
                "Times to first token include the way from host memory over the GPU's own link (0.8 of 32 GB/s of "
                "PCIe 4.0), which begins when the last page is there; it is most of the time with 8 PM9A3.",
            ],
        )
    ]  # fmt: skip


SCENARIOS = {"swarm-scaling": Scenario("Swarm: reading from 1 to 8 SSDs", scaling)}
