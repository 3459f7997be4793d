"""How do the SSDs do, and where do a prefix's stripe units lie?"""

from __future__ import annotations

from rich.text import Text

from swift_tiers.radix_tiering.bus.contract.views import DeviceView, StripeSetView
from swift_tiers.radix_tiering.bus.hear.command_words import make_command
from swift_tiers.radix_tiering.bus.hear.figures import NONE, UNKNOWN, count, size, text
from swift_tiers.radix_tiering.bus.hear.trouble import Mark, Trouble
from swift_tiers.radix_tiering.bus.hear.troubles import device_troubles, stripe_set_troubles

from ...feeds.feed import ViewQuestion
from ...model.charts import ChartSeries, Drawn, beside, chart, fitting
from ...model.charts import lane as draw_lane
from ...model.palette import MARKS
from ...model.place import Place
from ...model.table import Cell, Column, Row, Table
from ..parts.drawn import drawn
from ..parts.lanes import EVEN_SECONDS, Lane, Lanes, find_device, sets_of
from ..parts.measures import PERCENTILES, RATES, seconds_cell
from ..parts.rank_table import SAID, RankColumn, count_cell, counted, rank_table, said_cell, size_cell, sized
from ..parts.view import ConsoleView, OfferedAction, Scene
from . import stripe_device, stripe_prefix

#: Cells of a queue's history, and of a bar that says how full a device is.
SPARK, BAR = 16, 5
#: A set whose busiest or fullest device has more than so many times the mean is uneven.
UNEVEN = 1.5
#: Cells of a chart that stands beside others, at least.
CHART = 36
#: Cells of a lane in one line, at least.
LANE = 24
_UNEVEN = f"the busiest device, or the fullest, by the mean of its set, in {EVEN_SECONDS:g} s"

LANES = (
    Column("state", rank=9, words=True),
    Column("server", widest=20, rank=9),
    Column("rank", rank=2),
    Column("#", right=True, rank=9),
    Column("queue", right=True, rank=9, unit="requests"),
    Column("queue over time", widest=16, rank=3, unit="requests"),
    Column("read/s", right=True, rank=8, unit="B/s, last 2 s"),
    Column("read over time", widest=16, rank=1, unit="B/s, last 2 s"),
    Column("written/s", right=True, rank=7, unit="B/s, last 2 s"),
    Column("IOPS", right=True, rank=6, unit="1/s, last 2 s"),
    Column("reads/s", right=True, rank=1, unit="last 2 s"),
    Column("writes/s", right=True, rank=1, unit="last 2 s"),
    Column("p50", right=True, rank=3, unit="s of a request, last 60 s"),
    Column("p99", right=True, rank=8, unit="s of a request, last 60 s"),
    Column("full", rank=8, unit="share, 0 to 1"),
    Column("errors", right=True, rank=4, unit="requests since the start"),
    Column("corrupt", right=True, rank=4, unit="stripe units since the start"),
    Column("used", right=True, rank=2, unit="B"),
    Column("of", right=True, rank=1, unit="B"),
    Column("read", right=True, rank=1, unit="B since the start"),
    Column("written", right=True, rank=1, unit="B since the start"),
    SAID,
    Column("reason", widest=40, rank=0),
    Column("path", widest=48, rank=0),
)


class Stripes(ConsoleView):
    """Top: every device of every stripe set. In a device: its charts. At a page: where the units of its prefix lie."""

    NAME = "stripes"
    TITLE = "Stripes"
    QUESTION = "how do the SSDs do, and are they evenly loaded?"

    def windows(self, place: Place) -> str:
        return "" if place.last is not None and place.last.kind == "page" else f"{RATES}, {PERCENTILES}"

    def lines(self, scene: Scene) -> list[Text]:
        step = scene.place.last
        if step is not None and step.kind == "device":
            return stripe_device.lines(scene, step.name)
        if step is not None and step.kind == "page":
            return stripe_prefix.lines(scene, step.name)
        sets = sets_of(scene.moment, scene.server, EVEN_SECONDS)
        if not sets:
            return []
        shown = [
            *drawn(scene, set_table(scene), max(2, scene.height // 3), whole=False),
            *_troubles(scene, sets),
            Text(),
        ]
        # As the table has them: over the time that is called now.
        lanes = [lane for one in sets_of(scene.moment, scene.server) for lane in one.lanes]
        return [*shown, *_charts(scene, lanes, scene.room(self.LINES_SHARE, len(lanes)) - len(shown))]

    def table(self, scene: Scene) -> Table:
        step = scene.place.last
        if step is not None and step.kind == "device":
            return stripe_device.table(scene, step.name)
        if step is not None and step.kind == "page":
            return stripe_prefix.table(scene, step.name)
        return lane_table(scene)

    def questions(self, scene: Scene) -> tuple[ViewQuestion, ...]:
        step = scene.place.last
        return (stripe_prefix.question(scene, step.name),) if step is not None and step.kind == "page" else ()

    def offers(self, scene: Scene) -> tuple[OfferedAction, ...]:
        """About the device that this place is of, or the one under the cursor; to add one, about its server."""
        step, subject = scene.place.last, scene.selected.subject if scene.selected is not None else None
        if step is not None and step.kind == "device":
            subject, _ = find_device(scene.moment, scene.server, step.name)
        device = subject if isinstance(subject, DeviceView) else None
        name = device.server if device is not None else scene.server
        state = scene.moment.server(name)
        if name is None or state is None or not state.server.control:
            return ()
        one = () if device is None else _about(device, len(state.ranks))
        return (*one, _add(name)) if any(rank.stripe_set is not None for rank in state.ranks) else one


def _about(device: DeviceView, ranks: int) -> tuple[OfferedAction, ...]:
    """What can be done to one device: it takes pages, or does not."""
    number, server = device.number, device.server
    of = f" Each of its {ranks} ranks has a device {number}: all of them." if ranks > 1 else ""
    if device.service == "in service":
        drain = OfferedAction(
            "D",
            "drain",
            server,
            f"drain device {number} of {server}",
            "It gets no new pages any more, until it is readmitted; those that it has are served until they are "
            f"evicted.{of}",
            lambda typed: make_command("drain-device", [str(number)]),
        )
        return (drain,)
    if device.service not in ("draining", "out"):
        return ()
    back = OfferedAction(
        "D",
        "readmit",
        server,
        f"readmit device {number} of {server}",
        f"It gets new pages again; if it was out of service, with nothing on it, and only if it answers.{of}",
        lambda typed: make_command("readmit-device", [str(number)]),
    )
    return (back,)


def _add(server: str) -> OfferedAction:
    return OfferedAction(
        "A",
        "add device",
        server,
        f"add a device to the stripe set of {server}",
        "A file is made in this directory of the server's machine, if there is none, and new pages are striped over "
        "it, too. Each rank makes one of its own. Name it under ssd.directories before the server is started again.",
        lambda typed: make_command("add-device", [typed]),
        "directory on the server's machine",
    )


def _nothing(scene: Scene) -> str:
    if scene.moment.snapshot is None:
        return ""
    state = scene.moment.server(scene.server)
    if scene.server is not None and (state is None or not state.server.alive):
        return f"{text(scene.server)} is gone: nothing is known of its devices"
    return "no server here has an ssd tier" if scene.server is None else f"{text(scene.server)} has no ssd tier"


# ---- sets ----


def set_table(scene: Scene) -> Table:
    """A row for each set, the unwell and the uneven first."""
    sets = sets_of(scene.moment, scene.server, EVEN_SECONDS)
    by_rank = {(one.server, one.rank): one for one in sets}

    def lanes(stripe_set: StripeSetView) -> Lanes:
        return by_rank[stripe_set.server, stripe_set.rank]

    def troubles(stripe_set: StripeSetView) -> list[Trouble]:
        devices = [lane.device for lane in lanes(stripe_set).lanes]
        of_devices = [trouble for device in devices for trouble in device_troubles(device, devices)]
        return [*stripe_set_troubles(stripe_set), *of_devices]

    def in_service(word: str, style: str) -> RankColumn:
        def cell(stripe_set: StripeSetView) -> Cell:
            return _bad(sum(lane.device.service == word for lane in lanes(stripe_set).lanes), style)

        return RankColumn(Column(word, right=True, rank=7, unit="devices"), cell)

    fields = (
        counted("devices", "devices", 8),
        in_service("out", "wrong"),
        in_service("draining", "note"),
        in_service("opening", "note"),
        RankColumn(Column("missing", right=True, rank=7, unit="devices"), lambda view: _bad(view.missing)),
        RankColumn(
            Column("uneven reads", right=True, rank=6, unit=_UNEVEN), lambda view: _ratio(lanes(view).uneven_reads)
        ),
        RankColumn(
            Column("uneven fill", right=True, rank=6, unit=_UNEVEN), lambda view: _ratio(lanes(view).uneven_fill)
        ),
        counted("queued", "queued", 5, "requests"),
        counted("free units", "free_units", 5),
        counted("of", "capacity_units", 3, "units"),
        sized("unit", "unit_bytes", 3),
        sized("saved", "saved_bytes", 3),
        RankColumn(Column("reads", widest=60, rank=4, unit="pages since the start"), _reads),
        RankColumn(Column("set", rank=1), lambda view: Cell(scene.glyphs.cut(text(view.set), 13))),
    )
    found = sorted((one for one in sets if one.stripe_set is not None), key=_worse)
    return rank_table(scene, [one.stripe_set for one in found if one.stripe_set is not None], fields, troubles)


def _worse(one: Lanes) -> tuple[int, float]:
    return -max((int(lane.mark) for lane in one.lanes), default=0), -max(
        one.uneven_reads or 0.0, one.uneven_fill or 0.0
    )


def _reads(stripe_set: StripeSetView) -> Cell:
    """What became of them, what was not served first."""
    reads = sorted(stripe_set.reads.items(), key=lambda read: (read[0] == "ok", read[0]))
    words = ", ".join(f"{text(outcome)} {count(number)}" for outcome, number in reads if number)
    return Cell(words or NONE, style="warning" if words and not words.startswith("ok ") else "")


def _ratio(value: float | None) -> Cell:
    if value is None:
        return Cell(NONE)
    return Cell(f"{value:.2f}", value, "warning" if value > UNEVEN else "")


def _troubles(scene: Scene, sets: list[Lanes]) -> list[Text]:
    """What is wrong with which device, the worst first."""
    found = [
        (lane.device, trouble)
        for one in sets
        for lane in one.lanes
        for trouble in device_troubles(lane.device, [other.device for other in one.lanes])
    ]
    found.sort(key=lambda pair: -pair[1].mark)
    most = max(2, scene.height // 5)
    lines = []
    for device, trouble in found if len(found) <= most else found[: most - 1]:
        said: Drawn = [
            (f"{trouble.mark!s:>7} ", MARKS[trouble.mark]), (f"{text(device.server)} {device.number} ", "title"),
            (trouble.what, "text"),
        ]  # fmt: skip
        remedy: Drawn = [f"  {scene.glyphs.right} {trouble.remedy}"] if trouble.remedy else []
        line = scene.line(*fitting(scene.width, said, remedy))
        line.truncate(scene.width, overflow="crop" if scene.glyphs.ascii else "ellipsis")
        lines.append(line)
    if len(lines) < len(found):
        lines.append(scene.line(f"        and {len(found) - len(lines)} more; enter a device to see all of its own"))
    return lines


def _charts(scene: Scene, lanes: list[Lane], room: int) -> list[Text]:
    """What each device reads, all to one scale: uneven lanes are seen at once. A chart each, or a line where there is
    no room for charts."""
    rates = {lane.key: scene.moment.history.rates(lane.device, "bytes_read") for lane in lanes}
    top = max((value for values in rates.values() for value in values if value is not None), default=0.0)
    series = [
        ChartSeries(f"{text(lane.device.server)} {lane.device.number}", "ssd", rates[lane.key], _rate, lane.read)
        for lane in lanes
    ]
    down, across, width = _grid(scene.width, len(lanes), CHART)
    height = min(8, room // max(1, down) - 2)
    rows: list[Text] = []
    if lanes and height >= 2:
        for first in range(0, len(series), across):
            titled = [one._replace(title=f"{one.title} read") for one in series[first : first + across]]
            row = [chart(scene.glyphs, one, width, height, top) for one in titled]
            rows += [*(scene.line(*parts) for parts in beside(*row)), Text()]
        return rows
    down, across, width = _grid(scene.width, len(lanes), LANE)
    if lanes and down < room:
        for first in range(0, len(series), across):
            row = [[draw_lane(scene.glyphs, one, width, top)] for one in series[first : first + across]]
            rows += [scene.line(*parts) for parts in beside(*row)]
        rows.append(Text())
    return rows


def _grid(width: int, number: int, least: int) -> tuple[int, int, int]:
    """So many things beside and beneath each other: rows, how many are in one, and the cells of each."""
    down = -(-number // max(1, width // (least + 2)))
    across = max(1, -(-number // max(1, down)))
    return down, across, (width - 2 * (across - 1)) // across


def _rate(value: float) -> str:
    return f"{size(value)}/s"


# ---- lanes ----


def lane_table(scene: Scene) -> Table:
    """Every device of every set."""
    sets = sets_of(scene.moment, scene.server)
    return Table(LANES, [_row(scene, lane) for one in sets for lane in one.lanes], empty=_nothing(scene))


def _row(scene: Scene, lane: Lane) -> Row:
    device, history = lane.device, scene.moment.history
    word, style = state_of(lane)
    full = UNKNOWN if lane.fill is None else f"{scene.glyphs.bar(lane.fill, BAR)} {lane.fill:4.0%}"
    cells = (
        Cell(word, int(lane.mark), style),
        Cell(text(device.server), style="title"),
        Cell(text(device.rank)),
        Cell(str(device.number), device.number),
        count_cell(device.in_flight),
        Cell(scene.glyphs.spark(history.values(device, "in_flight", length=SPARK), SPARK), device.in_flight, "ssd"),
        size_cell(lane.read),
        Cell(scene.glyphs.spark(history.rates(device, "bytes_read", length=SPARK), SPARK), lane.read, "ssd"),
        size_cell(lane.written),
        _per_second(lane.requests),
        _per_second(lane.reads),
        _per_second(lane.writes),
        seconds_cell(device.recent_p50_seconds),
        seconds_cell(device.recent_p99_seconds, "warning" if lane.slow else ""),
        Cell(full, lane.fill, "ssd"),
        _bad(lane.errors),
        _bad(device.corrupt_units),
        size_cell(device.used_bytes),
        size_cell(device.capacity_bytes),
        size_cell(device.bytes_read),
        size_cell(device.bytes_written),
        said_cell(scene, device),
        Cell(text(device.reason) or NONE),
        Cell(text(device.path) or UNKNOWN),
    )
    return Row(lane.key, cells, lane.place, device, scene.moment.is_old(device))


def state_of(lane: Lane) -> tuple[str, str]:
    """A word, and its style: what it is in, and whether something is wrong although it serves."""
    service = lane.device.service
    if service == "out":
        return "OUT", "wrong"
    if service in ("draining", "opening"):
        return service, "note"
    if service not in ("in service", ""):
        return text(service), "wrong"
    return ("ok" if lane.mark == Mark.OK else str(lane.mark)), MARKS[lane.mark]


def _bad(value: int | None, style: str = "wrong") -> Cell:
    return Cell(count(value), value, style if value else "")


def _per_second(value: float | None) -> Cell:
    return Cell(UNKNOWN if value is None else count(round(value)), value)
