"""What the demo found: the typed report behind `--json`, its verdicts, and its tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from swift_tiers.radix_tiering.base.units import format_size
from swift_tiers.radix_tiering.bus.contract.views import RankState, RequestView

from .replay import TurnAnswer
from .workload import DemoSizes, DemoTurn

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


class TurnReport(msgspec.Struct, frozen=True, kw_only=True):
    """One turn. device + host + ssd + recomputed == prompt_tokens: of the server with tiers, as its bus says."""

    number: int  # from 1, in the order in which they were asked
    session: int  # from 1
    turn: int  # from 1, within its session
    after_restart: bool
    asked_first: str  # "tiers" or "plain": which server
    prompt_tokens: int
    device: int
    host: int
    ssd: int
    recomputed: int
    answered: tuple[int, int, int]  # device, host, ssd as the answer itself says
    plain_device: int  # prompt tokens that the server without tiers found on its device
    ttft_tiers_seconds: float
    ttft_plain_seconds: float
    token_ids_tiers: tuple[int, ...]
    token_ids_plain: tuple[int, ...]

    @property
    def equal(self) -> bool:
        return self.token_ids_tiers == self.token_ids_plain

    @property
    def agrees(self) -> bool:
        """Whether the bus says of the turn what its answer says."""
        return self.answered == (self.device, self.host, self.ssd) and self.prompt_tokens == (
            self.device + self.host + self.ssd + self.recomputed
        )

    @property
    def reused(self) -> int:
        """Tokens that came from below the device."""
        return self.host + self.ssd


class TierReport(msgspec.Struct, frozen=True, kw_only=True):
    """One tier below the device, over both lives of the server with tiers."""

    name: str
    capacity_bytes: int
    bytes_written: int  # entered the tier
    bytes_read: int  # left it upwards
    pages_served: int
    evictions: int  # pages
    checksum_failures: int  # pages


class DemoDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One device of the stripe set, over both lives of the server with tiers."""

    path: str
    bytes_written: int
    bytes_read: int
    errors: int


class DemoVerdict(msgspec.Struct, frozen=True):
    """One thing that the demo claims."""

    claim: str
    holds: bool
    problem: str  # what to say where it does not hold


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Over the turns of which the tiers gave tokens."""

    turns: int
    median_ttft_tiers_seconds: float
    median_ttft_plain_seconds: float
    median_speedup: float  # of each turn's own speed-up
    reused_tokens: int
    prompt_tokens: int


class DemoReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that `--json` writes. Sizes in bytes, times in seconds."""

    ok: bool
    verdicts: tuple[DemoVerdict, ...]
    model: str
    versions: dict[str, str]  # of packages
    sizes: DemoSizes
    io_engine: str
    page_bytes: int
    tokens_per_page: int
    turns: tuple[TurnReport, ...]
    with_reuse: Summary | None  # None: no turn had any
    tiers: tuple[TierReport, ...]
    devices: tuple[DemoDevice, ...]
    start_seconds: float  # until both servers answered
    restart_seconds: float  # from SIGTERM until it answered again
    stop_seconds: float  # of these, until it had ended
    seconds: float  # the whole demo


def make_turn(
    number: int,
    turn: DemoTurn,
    *,
    after_restart: bool,
    asked_first: str,
    tiers: TurnAnswer,
    seen: RequestView,
    plain: TurnAnswer,
) -> TurnReport:
    """`seen`: the request of the server with tiers, as the bus shows it."""
    return TurnReport(
        number=number,
        session=turn.session + 1,
        turn=turn.turn,
        after_restart=after_restart,
        asked_first=asked_first,
        prompt_tokens=tiers.prompt_tokens,
        device=seen.device_tokens or 0,
        host=seen.host_tokens or 0,
        ssd=seen.ssd_tokens or 0,
        recomputed=seen.recomputed_tokens or 0,
        answered=(tiers.device, tiers.host, tiers.ssd),
        plain_device=plain.device,
        ttft_tiers_seconds=tiers.ttft_seconds,
        ttft_plain_seconds=plain.ttft_seconds,
        token_ids_tiers=tiers.token_ids,
        token_ids_plain=plain.token_ids,
    )


def judge(turns: Sequence[TurnReport]) -> tuple[DemoVerdict, ...]:
    """Whether the demo shows what it is to show."""
    different = [turn for turn in turns if not turn.equal]
    where = ", ".join(f"{turn.number} (session {turn.session}, turn {turn.turn})" for turn in different[:3])
    after = sum(turn.ssd for turn in turns if turn.after_restart)
    host, ssd = sum(turn.host for turn in turns), sum(turn.ssd for turn in turns)
    disputed = [turn.number for turn in turns if not turn.agrees]
    return (
        DemoVerdict(
            "every answer has the token ids of the server without tiers",
            bool(turns) and not different,
            f"{len(different)} of {len(turns)} answers differ from those without tiers: number {where}",
        ),
        DemoVerdict("tokens were served from host memory", host > 0, "no token was served from host memory"),
        DemoVerdict("tokens were served from ssd", ssd > 0, "no token was served from ssd"),
        DemoVerdict(
            "tokens were served from ssd after the restart", after > 0, "no token was served from ssd after the restart"
        ),
        DemoVerdict(
            "the bus says of every turn what its answer says",
            not disputed,
            f"the bus says something else than the answer of turns {disputed[:5]}",
        ),
    )


def summarise(turns: Iterable[TurnReport]) -> Summary | None:
    """Over the turns with reuse; None where there are none."""
    reused = [turn for turn in turns if turn.reused]
    if not reused:
        return None
    return Summary(
        turns=len(reused),
        median_ttft_tiers_seconds=statistics.median(turn.ttft_tiers_seconds for turn in reused),
        median_ttft_plain_seconds=statistics.median(turn.ttft_plain_seconds for turn in reused),
        median_speedup=statistics.median(turn.ttft_plain_seconds / turn.ttft_tiers_seconds for turn in reused),
        reused_tokens=sum(turn.reused for turn in reused),
        prompt_tokens=sum(turn.prompt_tokens for turn in reused),
    )


def add_tiers(lives: Sequence[RankState]) -> tuple[TierReport, ...]:
    """The counters of the tiers below the device, summed over the lives of a server that was restarted."""
    by_name = [{tier.tier: tier for tier in life.tiers} for life in lives]
    return tuple(
        TierReport(
            name=name,
            capacity_bytes=tier.capacity_bytes or 0,
            bytes_written=sum(life[name].bytes_written or 0 for life in by_name),
            bytes_read=sum(life[name].bytes_read or 0 for life in by_name),
            pages_served=sum(life[name].hits or 0 for life in by_name),
            evictions=sum(life[name].evictions or 0 for life in by_name),
            checksum_failures=sum(life[name].checksum_failures or 0 for life in by_name),
        )
        for name, tier in by_name[-1].items()
        if name != "device"
    )


def add_devices(lives: Sequence[RankState]) -> tuple[DemoDevice, ...]:
    """The devices' counters, summed likewise."""
    return tuple(
        DemoDevice(
            path=device.path,
            bytes_written=sum(life.devices[index].bytes_written or 0 for life in lives),
            bytes_read=sum(life.devices[index].bytes_read or 0 for life in lives),
            errors=sum(
                (life.devices[index].read_errors or 0) + (life.devices[index].write_errors or 0) for life in lives
            ),
        )
        for index, device in enumerate(lives[-1].devices)
    )


def show(report: DemoReport, console: Console) -> None:
    """Print the tables; made for 80 columns and more."""
    _show_turns(report, console)
    console.print()
    _show_tiers(report, console)
    console.print()
    if report.with_reuse is not None:
        some = report.with_reuse
        console.print(
            f"{some.turns} turns with reuse below the device ({some.reused_tokens} of {some.prompt_tokens} tokens): "
            f"median TTFT {some.median_ttft_tiers_seconds:.2f} s with tiers, {some.median_ttft_plain_seconds:.2f} s "
            f"without: [bold]{some.median_speedup:.1f} times faster[/]"
        )
    console.print(
        f"start of both servers {report.start_seconds:.0f} s, restart {report.restart_seconds:.0f} s "
        f"({report.stop_seconds:.1f} s to end), whole demo {report.seconds:.0f} s"
    )
    for verdict in report.verdicts:
        console.print(f"[green]yes[/] {verdict.claim}" if verdict.holds else f"[red]NO[/]  {verdict.problem}")


def _show_turns(report: DemoReport, console: Console) -> None:
    table = _table("Where prompt tokens came from; seconds to the first token with tiers, without")
    for name in ("#", "s.turn", "prompt", "device", "host", "ssd", "recomp.", "tiers", "without", "faster"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("same", no_wrap=True)
    restarted = False
    for turn in report.turns:
        if turn.after_restart and not restarted:
            restarted = True
            table.add_section()
            table.add_row("", "restart")
            table.add_section()
        faster = f"{turn.ttft_plain_seconds / turn.ttft_tiers_seconds:.1f}x"
        cells = (turn.prompt_tokens, turn.device, turn.host, turn.ssd, turn.recomputed)
        table.add_row(
            str(turn.number),
            f"{turn.session}.{turn.turn}",
            *(str(count) if count else "-" for count in cells),
            f"{turn.ttft_tiers_seconds:.2f}",
            f"{turn.ttft_plain_seconds:.2f}",
            f"[bold]{faster}[/]" if turn.reused else faster,
            "[green]yes[/]" if turn.equal else "[bold red]NO[/]",
        )
    console.print(table)


def _show_tiers(report: DemoReport, console: Console) -> None:
    title = f"Moved before and after the restart together, {format_size(report.page_bytes)} a page; MiB"
    table = _table(title)
    table.add_column("tier", no_wrap=True)
    for name in ("size", "written", "", "read", "", "pages served", "evicted"):
        table.add_column(name, justify="right", no_wrap=True)
    for tier in report.tiers:
        table.add_row(
            tier.name,
            _mib(tier.capacity_bytes),
            _mib(tier.bytes_written),
            "",
            _mib(tier.bytes_read),
            "",
            str(tier.pages_served),
            str(tier.evictions),
        )
    written = max(1, sum(device.bytes_written for device in report.devices))
    read = max(1, sum(device.bytes_read for device in report.devices))
    for number, device in enumerate(report.devices, 1):
        table.add_row(
            f"  device {number}",
            "",
            _mib(device.bytes_written),
            f"{device.bytes_written / written:.0%}",
            _mib(device.bytes_read),
            f"{device.bytes_read / read:.0%}",
        )
    console.print(table)


def _table(title: str) -> Table:
    from rich import box
    from rich.table import Table

    # 80 columns hold the widest table only so: two blanks between columns, none beside them.
    return Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
        title=title,
        title_justify="left",
    )


def _mib(count: int) -> str:
    return f"{count / 2**20:.1f}"
