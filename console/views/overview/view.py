"""Which server is unwell, and why?"""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from swift_tiers.radix_tiering.bus.contract.views import ServerState, ServerView
from swift_tiers.radix_tiering.bus.hear.command_words import make_command
from swift_tiers.radix_tiering.bus.hear.figures import NONE, UNKNOWN, count, seconds, size, text
from swift_tiers.radix_tiering.bus.hear.trouble import Mark

from ...model.alarms import Alarm
from ...model.charts import ChartSeries, beside, chart
from ...model.palette import MARKS
from ...model.place import Place, PlaceStep
from ...model.table import Cell, Column, Row, Table
from ...model.wrapping import wrapped
from ..parts.blocks_offers import CAPPED, FLUSHED, cap_command
from ..parts.drawn import drawn
from ..parts.measures import (
    PERCENTILES,
    RATES,
    first_tokens,
    gauges,
    hit_share,
    model_name,
    role,
    schedulers,
    seconds_cell,
    share_cell,
    sum_of,
    tier_names,
    total,
    total_fill,
    total_now,
)
from ..parts.policy_words import policy_prompt
from ..parts.view import ConsoleView, OfferedAction, Scene
from .alarm_lines import alarm_lines
from .rank_tables import directory_table, engine_table, remote_table, tier_table

#: Cells of the bar that says how full a tier is.
BAR = 5
#: Lines for alarms that there are always, before the height of the screen decides.
LEAST_ALARMS = 3
#: Charts want so many lines in all, are no higher than so many each, and no narrower than so many cells.
CHARTS_FROM, HIGHEST, CHART = 12, 10, 44
#: Ranks of a server that are told of above its tiers, and from which height on what they have below the device.
MOST_RANKS, TALL = 8, 30

#: Of a server, before the tiers that there are.
BEFORE_TIERS = (
    Column("state", rank=9, words=True),
    Column("server", widest=24, rank=9),
    Column("model", widest=26, rank=2),
    Column("role", rank=1),
    Column("up", right=True, rank=0, unit="s"),
    Column("run", right=True, rank=6, unit="requests"),
    Column("wait", right=True, rank=6, unit="requests"),
    Column("hit", right=True, rank=7, unit="share, 0 to 1"),
    Column("TTFT p50", right=True, rank=7, unit="s, last 256 requests, 5 min at most"),
    Column("p99", right=True, rank=5, unit="s to the first token, last 256 requests, 5 min at most"),
)
#: Of a server, behind the tiers that there are.
BEHIND_TIERS = (
    Column("lent", right=True, rank=2, unit="B"),
    Column("borrowed", right=True, rank=2, unit="B"),
    Column("restores", right=True, rank=1, unit="since the start"),
    Column("late", right=True, rank=1, unit="restores since the start"),
    Column("host name", rank=0),
    Column("heard of", right=True, rank=0, unit="s ago"),
    Column("ranks", right=True, rank=0),
    Column("clock", right=True, rank=0, unit="s ahead of Redis"),
    Column("obeys", rank=0),
    Column("address", rank=0),
    Column("version", rank=0),
    Column("interval", right=True, rank=0, unit="s"),
    Column("model path", widest=60, rank=0),
)


class Overview(ConsoleView):
    """Top: alarms and servers. In a server: what it is, its alarms, its tiers; Enter on a tier shows its blocks."""

    NAME = "overview"
    TITLE = "Overview"
    QUESTION = "which server is unwell, and why?"

    def windows(self, place: Place) -> str:
        return f"{RATES}, {PERCENTILES}" if place.steps else f"{RATES}, hit 20 s, TTFT last 256"

    def lines(self, scene: Scene) -> list[Text]:
        if scene.moment.snapshot is None:
            return _nothing_yet(scene)
        name = scene.server
        alarms = [alarm for alarm in scene.moment.alarms if name is None or alarm.target.name("server") == name]
        if scene.place.steps:
            state = scene.moment.server(name)
            gone = [scene.line(("this server is not on the bus any more", "warning"))]
            about = wrapped(_about(scene, state) if state is not None else gone, scene.width)
            tiers = sum(len(rank.tiers) for rank in state.ranks) if state is not None else 0
            return [*about, *alarm_lines(scene, alarms, max(4, scene.height - len(about) - tiers - 3))]
        if not scene.moment.servers:
            missed = alarm_lines(scene, alarms, scene.height - 4) if alarms else []
            return [*missed, *_no_servers(scene)]
        # The table of the servers comes first; alarms may take the rest of the screen, and charts what they leave.
        rows = 1 if scene.only is not None else len(scene.moment.servers)
        room = max(LEAST_ALARMS, scene.height - min(rows, scene.height // 2) - 2)
        lines = alarm_lines(scene, alarms, room)
        return [*lines, *_charts(scene, room - len(lines))]

    def table(self, scene: Scene) -> Table:
        if scene.place.steps:
            return tier_table(scene)
        shown = [state for state in scene.moment.servers if scene.only in (None, state.server.server)]
        worst = _worst(scene.moment.alarms)
        tiers = tier_names(rank for state in shown for rank in state.ranks)
        rows = [_server_row(scene, state, worst.get(state.server.server, Mark.OK), tiers) for state in shown]
        rows.sort(key=lambda row: -row.cells[0].value)
        if not rows and scene.only is None:
            return self.EMPTY
        fills = [Column(name, rank=3 if name == "peer" else 4, unit="share, 0 to 1") for name in tiers]
        return Table((*BEFORE_TIERS, *fills, *BEHIND_TIERS), rows, empty=f"{text(scene.only or '')} is not on this bus")

    def offers(self, scene: Scene) -> tuple[OfferedAction, ...]:
        server = scene.place.name("server")
        if server is None and scene.selected is not None:
            server = scene.selected.key
        state = scene.moment.server(server)
        if server is None or state is None or not state.server.control:
            return ()
        return (
            OfferedAction(
                "F", "flush", server, f"flush the pages of {server}",
                FLUSHED,
                lambda typed: make_command("flush", [typed or "host"]), "host or all",
            ),
            OfferedAction(
                "P", "policy", server, f"change a policy value of {server}",
                "It holds until the server ends; no answer changes.",
                lambda typed: make_command("set-policy", typed.split(None, 1)),
                policy_prompt(state.server, scene.height),
            ),
            OfferedAction(
                "C", "cap tier", server, f"limit a tier of {server}",
                CAPPED,
                lambda typed: cap_command(*_two_words(typed)),
                "host or ssd, and a limit of each rank as 8GiB, or none",
            ),
        )  # fmt: skip


def _two_words(typed: str) -> tuple[str, str]:
    first, _, rest = typed.partition(" ")
    return first, rest.strip()


def _nothing_yet(scene: Scene) -> list[Text]:
    if not scene.moment.lost:
        return [scene.line("reading the bus …" if not scene.glyphs.ascii else "reading the bus ...")]
    return [
        scene.line((scene.moment.lost, "wrong")),
        scene.line("it is tried again and again; `swift-tiers doctor` says what is wrong with a bus"),
    ]


def _worst(alarms: tuple[Alarm, ...]) -> dict[str, Mark]:
    worst: dict[str, Mark] = {}
    for alarm in alarms:
        name = alarm.target.name("server") or ""
        worst[name] = max(alarm.mark, worst.get(name, Mark.OK))
    return worst


def _no_servers(scene: Scene) -> list[Text]:
    return [
        scene.line(("no server is on this bus", "warning")),
        scene.line(
            "servers with --enable-swift-tiers and this bus in their configuration appear here by themselves; "
            "`swift-tiers doctor` looks for what is wrong with one"
        ),
    ]


def _charts(scene: Scene, room: int) -> list[Text]:
    """All servers together, over the last minutes: charts where there is much room, else a line each."""
    if room >= CHARTS_FROM and scene.width >= 2 * CHART:
        return _large_charts(scene, room)
    width = min(60, scene.width - 50)
    if width < 10 or room < 3:
        return []
    lines = [Text()]
    for label, style, of, fields in (
        ("read from tiers", "good", "tiers", ("bytes_read",)),
        ("written to tiers", "ssd", "tiers", ("bytes_written",)),
    ):
        values = total(scene.moment, of=of, fields=fields, server=scene.server)[-width:]
        now = total_now(scene.moment, *fields, server=scene.server)
        highest = max((value for value in values if value is not None), default=0.0)
        figures = f"{size(now)}/s, at most {size(highest)}/s" if values else NONE
        lines.append(scene.line(f"{label:>17} ", (scene.glyphs.spark(values, width), style), f"  {figures}"))
    return lines


def _large_charts(scene: Scene, room: int) -> list[Text]:
    moment, server = scene.moment, scene.server
    series = [
        ChartSeries("requests running", "compute", gauges(moment, "running_requests", server), _whole),
        ChartSeries("requests waiting", "waiting", gauges(moment, "waiting_requests", server), _whole),
        *(
            ChartSeries(
                title, style, total(moment, of="tiers", fields=(field,), server=server), _per_s,
                total_now(moment, field, server=server),
            )
            for title, style, field in (
                ("read from tiers", "good", "bytes_read"), ("written to tiers", "ssd", "bytes_written"),
            )
        ),
    ]  # fmt: skip
    across = 4 if scene.width >= 4 * CHART else 2
    down = len(series) // across
    width, height = (scene.width - 2 * (across - 1)) // across, min(HIGHEST, (room - 1) // down - 2)
    lines: list[Text] = []
    for first in range(0, len(series), across):
        drawn = [chart(scene.glyphs, one, width, height) for one in series[first : first + across]]
        lines += [Text(), *(scene.line(*parts) for parts in beside(*drawn))]
    return lines


def _whole(value: float) -> str:
    return count(round(value))


def _per_s(value: float) -> str:
    return f"{size(value)}/s"


def _server_row(scene: Scene, state: ServerState, mark: Mark, tiers: Sequence[str]) -> Row:
    server = state.server
    own = schedulers(state)
    firsts = first_tokens(request for rank in own for request in rank.requests)
    engines = [rank.rank for rank in own if rank.rank is not None]
    ranks = [rank.rank for rank in state.ranks if rank.rank is not None]
    hit = hit_share(own, scene.moment.history)
    stopped = mark < Mark.WARNING  # of one that is gone: it said so
    word = str(mark) if server.alive else "stopped" if stopped else "GONE"
    cells = (
        Cell(word, int(mark), MARKS[mark] if server.alive else "muted" if stopped else "wrong"),
        Cell(text(server.server), style="title"),
        Cell(text(model_name(server.model)) or UNKNOWN),
        Cell(role(state)),
        seconds_cell(server.up_seconds),
        _count(sum_of(one.running_requests for one in engines)),
        _count(sum_of(one.waiting_requests for one in engines)),
        share_cell(hit),
        seconds_cell(firsts.median),
        seconds_cell(firsts.p99),
        *(_fill_cell(scene, total_fill(state.ranks, tier), tier) for tier in tiers),
        _size(sum_of(rank.lent_bytes for rank in ranks)),
        _size(sum_of(rank.borrowed_bytes for rank in ranks)),
        _count(sum_of(one.restores_started for one in engines)),
        _count(sum_of(one.restores_late for one in engines)),
        Cell(text(server.host)),
        *_circumstances(scene, server),
    )
    place = Place("overview", (PlaceStep("server", server.server),))
    return Row(server.server, cells, place, state, stale=not server.alive or scene.moment.is_old(server))


def _circumstances(scene: Scene, server: ServerView) -> tuple[Cell, ...]:
    """Who it is and how it speaks; nothing but when it was heard of, of one that is gone."""
    age, offset = scene.moment.age_of(server), server.clock_offset_seconds
    heard = Cell(seconds(age), age)
    if not server.alive:
        return (heard, *(Cell(NONE) for _ in range(7)))
    ahead = UNKNOWN if offset is None else f"{'-' if offset < 0 else '+'}{seconds(abs(offset))}"
    obeys = UNKNOWN if server.control is None else "yes" if server.control else "no"
    return (
        heard,
        Cell(count(len(server.ranks)), len(server.ranks)),
        Cell(ahead, offset),
        Cell(obeys),
        Cell(text(server.address)),
        Cell(f"{text(server.version)} (sglang {text(server.sglang_version)})"),
        seconds_cell(server.interval_seconds),
        Cell(text(server.model)),
    )


def _about(scene: Scene, state: ServerState) -> list[Text]:
    server = state.server
    age = scene.moment.age_of(server)
    offset = server.clock_offset_seconds
    lines = [
        scene.line(
            (text(server.server), "title"), f"  {text(server.address) or 'gone'} on {text(server.host) or UNKNOWN}, "
            f"process {server.pid or UNKNOWN}, up {seconds(server.up_seconds)}, heard of {seconds(age)} ago, "
            f"speaks every {seconds(server.interval_seconds)}",
        ),
        scene.line(
            f"model {text(server.model) or UNKNOWN}  swift-tiers {text(server.version) or UNKNOWN}  "
            f"sglang {text(server.sglang_version) or UNKNOWN}  "
            f"{'obeys commands' if server.control else 'obeys no commands (bus.control)'}  "
            f"clock {'not known' if offset is None else f'{offset:+.3f} s of Redis'}",
        ),
    ]  # fmt: skip
    apart = [Text()] if scene.height >= TALL else []
    for table in (engine_table(scene), remote_table(scene), *([directory_table(scene)] if apart else [])):
        if table.rows:
            lines += [*apart, *drawn(scene, table, MOST_RANKS, whole=False)]
    return [*lines, *apart]


def _fill_cell(scene: Scene, share: float | None, tier: str) -> Cell:
    if share is None:
        return Cell(NONE, style="muted")
    return Cell(f"{scene.glyphs.bar(share, BAR)} {share:4.0%}", share, tier)


def _count(value: float | None) -> Cell:
    return Cell(NONE if value is None else count(value), value)


def _size(value: float | None) -> Cell:
    return Cell(NONE if value is None else size(value), value)
