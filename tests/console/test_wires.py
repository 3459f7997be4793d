"""What the view of links shows of NVML: its rates beside the engine's, over the same time and of the same GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from swift_tiers.console.model.alarms import Alarms
from swift_tiers.console.model.glyphs import ASCII
from swift_tiers.console.model.history import History
from swift_tiers.console.model.place import Place, PlaceStep
from swift_tiers.console.views.links.gpu_tables import way_words
from swift_tiers.console.views.links.view import Links
from swift_tiers.console.views.links.wires import NVLINK, PCIE, Both, WireTraffic, wires
from swift_tiers.console.views.parts.view import Scene
from swift_tiers.radix_tiering.bus.contract.gpu_views import GpuView, ReachView
from swift_tiers.radix_tiering.bus.contract.views import LinkView, RankState

from support.console_world import GPUS, MIB, START, World, moment_of, scene_of

TOP = Place("links")
VIEW = Links()


class OnGpus(World):
    """Two servers on two GPUs of one machine, of which every count is known: so many MiB in a second. `change` is made
    of every rank."""

    def __init__(self, change: Callable[[int, RankState], RankState] = lambda number, rank: rank, **rates: int) -> None:
        super().__init__(("alpha", "beta"), gone=())
        self.on_gpus = True
        self.change = change
        self.rates = {"device-host": 10, "host-device": 20, "nvlink_sent": 500, "nvlink_received": 300, **rates}

    def _link(self, home: dict, number: int, at: int, link: str) -> LinkView:
        rate = self.rates.get(link, 1) * MIB // 2
        return msgspec.structs.replace(super()._link(home, number, at, link), bytes=10**9 + rate * self.ticks)

    def _gpu(self, number: int) -> GpuView:
        look = self.ticks // 4
        counted = {
            f"nvlink_{way}_bytes": 10**9 + 2 * look * self.rates[f"nvlink_{way}"] * MIB for way in ("sent", "received")
        }
        return msgspec.structs.replace(
            super()._gpu(number),
            pcie_sent_bytes_per_second=12.0 * MIB,
            pcie_received_bytes_per_second=19.0 * MIB,
            **counted,
        )

    def _rank(self, number: int) -> RankState:
        return self.change(number, super()._rank(number))


def found(world: World, server: str | None = None) -> dict[str, WireTraffic]:
    return {wire.name: wire for wire in wires(moment_of(world, ticks=40), server)}


def plain(scene: Scene) -> str:
    return "\n".join(line.plain for line in VIEW.lines(scene))


def with_direct_links(number: int, rank: RankState) -> RankState:
    """The borrower copies straight from its donor's GPU."""
    if number == 0:
        return rank
    home = {"server": "beta", "rank": "dp0-tp0", "time": rank.links[0].time, "age_seconds": 0.2}
    grown = int((rank.links[0].time or 0.0) * 480 * MIB) - int((START - 1) * 480 * MIB)
    links = [LinkView(**home, link=name, bytes=grown) for name in ("alpha.dp0-tp0-device", "peer-device")]
    return msgspec.structs.replace(rank, links=(*rank.links, *links))


# ---- figures ----


def test_pcie_has_the_engines_copies_to_and_from_host_memory_beside_it() -> None:
    pcie = found(OnGpus())[PCIE]
    assert pcie.sampled
    assert pcie.sent.hardware == 2 * 12 * MIB
    assert pcie.sent.engine == pytest.approx(2 * 10 * MIB)
    assert pcie.sent.difference == pytest.approx(2 * 2 * MIB)
    assert (pcie.received.hardware, pcie.received.engine) == (2 * 19 * MIB, pytest.approx(2 * 20 * MIB))
    assert pcie.received.difference == pytest.approx(-2 * MIB)


def test_a_burst_that_nvml_has_not_seen_yet_is_on_neither_side() -> None:
    """It is asked every two seconds, and servers speak twice in one."""

    class Burst(OnGpus):
        def _link(self, home: dict, number: int, at: int, link: str) -> LinkView:
            view = super()._link(home, number, at, link)
            burst = 10**10 if self.ticks >= 38 else 0  # the last look of NVML was at 36
            return msgspec.structs.replace(view, bytes=(view.bytes or 0) + burst)

    pcie = found(Burst())[PCIE]
    assert pcie.sent.engine == pytest.approx(2 * 10 * MIB)
    assert pcie.sent.difference == pytest.approx(2 * 2 * MIB)


def test_nvlink_without_copies_of_the_engine_has_no_difference() -> None:
    nvlink = found(OnGpus())[NVLINK]
    assert not nvlink.sampled
    assert nvlink.sent == Both(pytest.approx(2 * 500 * MIB), None)
    assert nvlink.sent.difference is None


def test_nvlink_beside_the_engines_copies_from_a_donors_gpu() -> None:
    """What all donors have together is not counted beside each of them."""
    nvlink = found(OnGpus(with_direct_links), "beta")[NVLINK]
    assert nvlink.received.hardware == pytest.approx(300 * MIB)
    assert nvlink.received.engine == pytest.approx(480 * MIB, rel=0.01)
    assert nvlink.sent.engine is None


def test_copies_between_two_servers_on_one_gpu_go_over_no_wire() -> None:
    def together(number: int, rank: RankState) -> RankState:
        assert rank.gpu is not None
        gpu = msgspec.structs.replace(rank.gpu, uuid=GPUS[0])
        return msgspec.structs.replace(with_direct_links(number, rank), gpu=gpu)

    both = found(OnGpus(together), "beta")
    assert both[NVLINK].received.engine is None
    assert both[PCIE].received.engine == pytest.approx(20 * MIB)


def test_copies_from_a_gpu_that_no_nvlink_reaches_go_over_pcie() -> None:
    def apart(number: int, rank: RankState) -> RankState:
        reaches = tuple(msgspec.structs.replace(reach, nvlinks=0) for reach in rank.reaches)
        return msgspec.structs.replace(with_direct_links(number, rank), reaches=reaches)

    both = found(OnGpus(apart), "beta")
    assert both[NVLINK].received.engine is None
    assert both[PCIE].received.engine == pytest.approx(500 * MIB, rel=0.01)


def of_gpu(server: int, **changes: Any) -> Callable[[int, RankState], RankState]:
    """The GPU of one server says something else."""

    def change(number: int, rank: RankState) -> RankState:
        if number != server or rank.gpu is None:
            return rank
        return msgspec.structs.replace(rank, gpu=msgspec.structs.replace(rank.gpu, **changes))

    return change


SILENT = {"trouble": "GPU is lost"}, {"age_seconds": 60.0}


@pytest.mark.parametrize("changes", SILENT, ids=["lost", "driver hangs"])
def test_a_gpu_that_says_nothing_is_left_out_on_both_sides(changes: dict[str, Any]) -> None:
    """Else the engine's share would look larger than it is."""
    pcie = found(OnGpus(of_gpu(1, **changes)))[PCIE]
    assert pcie.sent.hardware == 12 * MIB
    assert pcie.sent.engine == pytest.approx(10 * MIB)


def test_what_nvml_does_not_count_is_not_there() -> None:
    def no_nvlink(number: int, rank: RankState) -> RankState:
        names = [field for field in GpuView.__struct_fields__ if field.startswith("nvlink_")]
        return of_gpu(number, **dict.fromkeys(names))(number, rank)

    assert set(found(OnGpus(no_nvlink))) == {PCIE}


def test_without_gpus_nothing_is_said_of_nvml() -> None:
    world = World()
    assert wires(moment_of(world), None) == []
    assert "NVML" not in plain(scene_of(TOP, width=158, height=42))


def test_a_server_that_was_started_anew_has_its_own_figure_until_there_are_two_looks() -> None:
    moment = moment_of(OnGpus(), ticks=1)
    (nvlink, _) = wires(moment, "alpha")
    assert nvlink.sent.hardware == 800.0 * MIB


# ---- drawn ----


def scene(world: World, place: Place = TOP, **changes: Any) -> Scene:
    return Scene(moment_of(world, ticks=40), place, **{"width": 158, "height": 42, **changes})


def test_the_table_of_wires() -> None:
    lines = plain(scene(OnGpus(with_direct_links))).splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("NVML, 8 s"))
    assert lines[at].split() == ["NVML,", "8", "s", *["sent/s", "engine's", "difference"], *["received/s", "engine's"],
                                 "difference"]  # fmt: skip
    nvlink, pcie = lines[at + 1].split(), lines[at + 2].split()
    assert (nvlink[0], nvlink[1:4]) == ("NVLink", ["1000MiB", "-", "-"])
    assert nvlink[4] == "600MiB"
    assert nvlink[6].startswith("+")
    assert (pcie[0], pcie[1], pcie[3]) == ("PCIe", "~24MiB", "~+4MiB")
    assert pcie[6] == "~-2MiB"


def test_gpus_with_whom_they_reach_and_the_sick_ones_first() -> None:
    text = plain(scene(OnGpus(of_gpu(1, trouble="GPU is lost"))))
    lost, well = (line for line in text.splitlines() if "GPU 0" in line or "GPU 1" in line)
    assert lost == "beta dp0-tp0  GPU 1 H200  GPU is lost"
    assert well.startswith("alpha dp0-tp0  GPU 0 H200  reaches 1 by NVLink x18 over NVSwitch  122GiB of 140GiB")


def test_a_driver_that_hangs_is_told() -> None:
    assert "its driver has not answered for a while" in plain(scene(OnGpus(of_gpu(0, age_seconds=60.0))))


@pytest.mark.parametrize("size", [(78, 18), (118, 36), (198, 56), (60, 12), (30, 8)])
def test_no_line_is_too_many_or_too_wide(size: tuple[int, int]) -> None:
    width, height = size
    for world in (OnGpus(), OnGpus(of_gpu(1, trouble="GPU is lost"))):
        one = scene(world, width=width, height=height)
        assert len(VIEW.lines(one)) <= height
        if width >= 60:
            assert max(len(line.plain) for line in VIEW.lines(one)) <= width


def test_many_gpus_are_counted() -> None:
    class Many(World):
        def __init__(self) -> None:
            super().__init__(tuple(f"server-{number}" for number in range(9)), gone=())
            self.on_gpus = True

        def _gpu(self, number: int) -> GpuView:
            return msgspec.structs.replace(super()._gpu(number % 2), server=self.servers[number], index=number)

        def _reaches(self, number: int) -> tuple[ReachView, ...]:
            return ()

    text = plain(scene(Many()))
    assert "GPU 4" in text
    assert "GPU 5" not in text
    assert "and 4 more GPUs" in text


def test_in_a_way_its_wire_is_told() -> None:
    inner = Place("links", (PlaceStep("link", "device-host"),))
    assert "sent by GPUs over PCIe, by NVML ~24MiB/s  engine's 20MiB/s  difference ~+4MiB/s" in plain(
        scene(OnGpus(), inner)
    )
    alone = Place(
        "links", (PlaceStep("link", "host-device"), PlaceStep("server", "beta"), PlaceStep("rank", "dp0-tp0"))
    )
    assert "received by GPUs over PCIe, by NVML ~19MiB/s  engine's 20MiB/s  difference ~-1MiB/s" in plain(
        scene(OnGpus(), alone)
    )
    for name in ("host-ssd", "peer-host"):
        assert "NVML" not in plain(scene(OnGpus(), Place("links", (PlaceStep("link", name),))))


def test_without_unicode_nothing_else_is_drawn() -> None:
    assert plain(scene(OnGpus(), glyphs=ASCII)).isascii()


def test_words_of_a_way() -> None:
    reach = ReachView(server="a", rank="r", gpu="GPU-1", nvlinks=0, pcie="host bridge", read="ok", write="ok")
    assert way_words(reach) == "PCIe, host bridge"
    refused = msgspec.structs.replace(reach, write="chipset not supported")
    assert way_words(refused) == "PCIe, host bridge, no peer access"
    assert way_words(msgspec.structs.replace(reach, pcie="", nvlinks=None)) == "?"


def test_a_lost_gpu_is_an_alarm_that_leads_to_the_links() -> None:
    world = OnGpus(of_gpu(1, trouble="GPU is lost"))
    alarms = [one for one in Alarms().of(world.snapshot(), History()) if "GPU" in one.place]
    assert [(one.place, one.what) for one in alarms] == [
        ("beta dp0-tp0 GPU 1", "its driver has no figures of it: GPU is lost")
    ]
    assert alarms[0].target == Place("links", (PlaceStep("server", "beta"),))
    hanging = OnGpus(of_gpu(0, age_seconds=60.0)).snapshot()
    assert [one.what for one in Alarms().of(hanging, History()) if "GPU" in one.place] == [
        "its driver has not answered for 1 min"
    ]
