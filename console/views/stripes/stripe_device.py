"""One device of a stripe set: charts of what it does, and requests whose prefixes may lie there."""

from __future__ import annotations

from rich.text import Text

from swift_tiers.radix_tiering.bus.contract.views import DeviceView, RequestView
from swift_tiers.radix_tiering.bus.hear.figures import NONE, UNKNOWN, count, seconds, share, size, text
from swift_tiers.radix_tiering.bus.hear.troubles import device_troubles

from ...model.charts import ChartSeries, beside, chart, fitting
from ...model.palette import MARKS
from ...model.place import Place, PlaceStep
from ...model.table import Cell, Column, Row, Table
from ..parts.lanes import find_device, lane_of, serves
from ..parts.view import Scene

REQUESTS = (
    Column("request: enter shows where its units lie", widest=40, rank=9),
    Column("state", rank=7),
    Column("prompt", right=True, rank=6, unit="tokens"),
    Column("from ssd", right=True, rank=8, unit="tokens"),
    Column("pages", right=True, rank=5),
)
#: The share of the height that its charts take.
CHARTS = 0.6


def lines(scene: Scene, name: str) -> list[Text]:
    device, rank = find_device(scene.moment, scene.server, name)
    if device is None or rank is None:
        what = f"device {text(name)} is not on the bus: its server is gone, or has no such device any more"
        return [scene.line((what, "warning"))]
    lane = lane_of(device, rank.devices, scene.moment.history)
    full = share(device.used_bytes, device.capacity_bytes)
    service = text(device.service) or UNKNOWN
    head = fitting(
        scene.width,
        [(f"device {device.number} ", "title"), (service, "text" if serves(device) else "wrong")],
        ["  ", text(device.path) or UNKNOWN],
        [f"  {size(device.used_bytes)} of {size(device.capacity_bytes)} used ({full})"],
    )
    shown = [scene.line(*head)]
    for trouble in device_troubles(device, rank.devices):
        line = scene.line(
            (f"{trouble.mark!s:>7} ", MARKS[trouble.mark]),
            (trouble.what, "text"),
            f"  {scene.glyphs.right} {trouble.remedy}" if trouble.remedy else "",
        )
        line.truncate(scene.width)
        shown.append(line)
    totals = fitting(
        scene.width,
        ["since the start ", (f"{size(device.bytes_read)} read", "text"), f" in {count(device.reads)}, "],
        [(f"{size(device.bytes_written)} written", "text"), f" in {count(device.writes)}"],
        [f"; p50 {_when(device.recent_p50_seconds)}, p99 {_when(device.recent_p99_seconds)} in the last minute"],
        [f"; failed {count(lane.errors)}, corrupt {count(device.corrupt_units)}"],
    )
    shown.append(scene.line(*totals))
    return [*shown, *_charts(scene, lane.device, scene.room(CHARTS) - len(shown))]


def _charts(scene: Scene, device: DeviceView, room: int) -> list[Text]:
    history = scene.moment.history
    four = (
        ChartSeries(
            f"read, the last {seconds(history.span(device))}", "ssd", history.rates(device, "bytes_read"), _rate
        ),
        ChartSeries("written", "host", history.rates(device, "bytes_written"), _rate),
        ChartSeries(
            "requests in flight", "note", history.values(device, "in_flight"), lambda value: count(round(value, 1))
        ),
        ChartSeries("p99 of the last minute", "waiting", history.values(device, "recent_p99_seconds"), seconds),
    )
    across = 4 if scene.width >= 170 else 2
    height = max(1, min(12, room // (len(four) // across) - 1))
    width = (scene.width - 2 * (across - 1)) // across
    drawn = []
    for first in range(0, len(four), across):
        row = beside(*(chart(scene.glyphs, one, width, height) for one in four[first : first + across]))
        drawn += [scene.line(*parts) for parts in row]
    return drawn


def table(scene: Scene, name: str) -> Table:
    """Requests of its rank whose last page is known, the newest first."""
    device, rank = find_device(scene.moment, scene.server, name)
    if device is None or rank is None:
        return Table((), ())
    requests = [one for one in rank.requests if one.last_page]
    requests.sort(key=lambda one: -(one.arrived or 0.0))
    return Table(
        REQUESTS, [_row(scene, one) for one in requests], empty="no request whose pages are known is on the bus"
    )


def _row(scene: Scene, one: RequestView) -> Row:
    cells = (
        Cell(text(one.rid)),
        Cell(text(one.state)),
        Cell(count(one.prompt_tokens), one.prompt_tokens),
        Cell(count(one.ssd_tokens), one.ssd_tokens),
        Cell(count(one.pages), one.pages),
    )
    # What has ended does not get old: it is not said again.
    stale = bool(scene.moment.lost) or (one.live and scene.moment.is_old(one))
    return Row(one.rid, cells, prefix_place(one.server, one.last_page), one, stale)


def prefix_place(server: str, page: str) -> Place:
    """Where the units of the sequence that this page ends are shown, as the ranks of one server have them."""
    return Place("stripes", (PlaceStep("server", server), PlaceStep("page", page)))


def _rate(value: float) -> str:
    return f"{size(value)}/s"


def _when(value: float | None) -> str:
    return NONE if value is None else seconds(value)
