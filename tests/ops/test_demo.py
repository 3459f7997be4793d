"""The demo without servers: its workload, its sizes, its report and verdicts, its options."""

from __future__ import annotations

import io
import itertools
import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from swift_tiers.ops import cli
from swift_tiers.ops.base.errors import CommandError
from swift_tiers.ops.commands.demo import procedure, remote, workload
from swift_tiers.ops.commands.demo.remote import StreamedAnswer
from swift_tiers.ops.commands.demo.replay import TurnAnswer
from swift_tiers.ops.commands.demo.report import DemoReport, TurnReport, judge, make_turn, show, summarise
from swift_tiers.ops.commands.demo.workload import (
    DATA,
    MAX_TURNS,
    SESSIONS,
    DemoSizes,
    DemoTurn,
    ModelShape,
    choose_sizes,
    load_sessions,
    make_plan,
    read_shape,
)
from swift_tiers.radix_tiering.bus.contract.views import DeviceView, RankState, RankView, RequestView, TierView

# ---- workload ----


def test_every_turn_repeats_the_one_before() -> None:
    for session in load_sessions(len(SESSIONS), MAX_TURNS):
        assert len(session) == MAX_TURNS
        for earlier, later in itertools.pairwise(session):
            assert later.startswith(earlier)
            assert len(later) > len(earlier)


def test_the_recorded_lines_are_as_their_origin_has_them() -> None:
    assert {path.stem for path in DATA.glob("*.jsonl")} == set(SESSIONS)
    for name in SESSIONS:
        lines = [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text().splitlines()]
        assert all(set(line) == {"timestamp", "input", "output", "session_id"} for line in lines)
        assert [line["timestamp"] for line in lines] == sorted(line["timestamp"] for line in lines)
        assert {line["session_id"] for line in lines} == {name}
    assert "Apache License" in (DATA / "LICENSE").read_text()
    assert sum(path.stat().st_size for path in DATA.glob("*.jsonl")) < 400_000


@pytest.mark.parametrize(("sessions", "turns"), [(2, 3), (7, 3), (3, 2), (3, 6)])
def test_sizes_of_the_workload_are_bounded(sessions: int, turns: int) -> None:
    with pytest.raises(CommandError) as raised:
        load_sessions(sessions, turns)
    assert raised.value.code == 2


@pytest.mark.parametrize("sessions", range(3, 7))
@pytest.mark.parametrize("turns", range(3, 6))
def test_a_plan_asks_every_turn_once_and_in_order(sessions: int, turns: int) -> None:
    plan = make_plan(load_sessions(sessions, turns))
    assert Counter((turn.session, turn.turn) for turn in plan.turns) == Counter(
        (session, turn + 1) for session in range(sessions) for turn in range(turns)
    )
    for session in range(sessions):
        asked = [turn.turn for turn in plan.turns if turn.session == session]
        assert asked == sorted(asked)
        assert any(turn.session == session for turn in plan.before)
    assert plan.after
    # The server without tiers is not restarted: what it still has on its device must not be asked first.
    assert plan.before[-1].session != plan.after[0].session


def test_a_plan_goes_there_and_back() -> None:
    plan = make_plan([["a1", "a2", "a3"], ["b1", "b2", "b3"], ["c1", "c2", "c3"]])
    assert [turn.text for turn in plan.before] == ["a1", "b1", "b2", "a2", "c1", "c2"]
    assert [turn.text for turn in plan.after] == ["a3", "b3", "c3"]


def test_four_sessions_of_four_turns() -> None:
    plan = make_plan([[f"{name}{turn}" for turn in range(1, 5)] for name in "abcd"])
    assert " ".join(turn.text for turn in plan.before) == "a1 b1 b2 a2 c1 d1 d2 c2 a3 b3"
    assert " ".join(turn.text for turn in plan.after) == "c3 d3 a4 b4 c4 d4"


SHAPE = ModelShape(token_bytes=46080, context=8192)


def test_sizes_let_prefixes_sink() -> None:
    counts = [[2300, 2400], [1500, 1600], [1700, 2400], [1500, 1900]]
    sizes = choose_sizes(counts, SHAPE, devices=4, answer_tokens=8)
    assert sizes.device_tokens >= sizes.prompt_tokens_max > 2408
    for first in (0, 2):
        assert counts[first][0] + counts[first + 1][0] > sizes.device_tokens
    pair = (2400 + 1900) * SHAPE.token_bytes
    everything = sum(session[-1] for session in counts) * SHAPE.token_bytes
    assert pair < sizes.host_bytes < everything * 3 // 4
    assert everything < sizes.ssd_bytes_per_device * sizes.ssd_devices


@pytest.mark.parametrize("token_bytes", [128, 1024, 46080, 500_000])
def test_pages_of_any_model_fit_on_the_ssds(token_bytes: int) -> None:
    sizes = choose_sizes([[5000], [5000]], ModelShape(token_bytes, 8192), devices=2, answer_tokens=8)
    page = 16 * token_bytes
    assert sizes.stripe_unit_bytes % 4096 == 0
    units = -(-page // sizes.stripe_unit_bytes)
    assert 10_000 // 16 * units * (sizes.stripe_unit_bytes + 4096) < sizes.ssd_bytes_per_device * 2 * 0.8
    assert 10_000 // 16 * page < sizes.host_bytes


def test_a_prompt_that_the_model_cannot_take_is_refused() -> None:
    with pytest.raises(CommandError, match="fewer --turns"):
        choose_sizes([[2300, 8190]], SHAPE, devices=1, answer_tokens=8)


def test_the_shape_of_a_model(tmp_path: Path) -> None:
    config = {
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "hidden_size": 576,
        "max_position_embeddings": 8192,
    }
    for content in (config, {"text_config": config}):
        (tmp_path / "config.json").write_text(json.dumps(content))
        assert read_shape(tmp_path) == SHAPE
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CommandError, match="num_attention_heads"):
        read_shape(tmp_path)
    with pytest.raises(CommandError, match=r"config\.json"):
        read_shape(tmp_path / "none")
    with pytest.raises(CommandError, match=r"tokenizer\.json"):
        workload.token_counter(tmp_path)


# ---- report ----


def answer(
    ttft: float = 0.2, *, device: int = 0, host: int = 0, ssd: int = 0, ids: Sequence[int] = (1, 2)
) -> TurnAnswer:
    return TurnAnswer(
        ttft_seconds=ttft, total_seconds=1, prompt_tokens=1000, device=device, host=host, ssd=ssd, token_ids=tuple(ids)
    )


def seen(tiers: TurnAnswer) -> RequestView:
    """What the bus says of a turn with this answer."""
    return RequestView(
        server="demo",
        rank="dp0-tp0",
        rid="turn",
        prompt_tokens=tiers.prompt_tokens,
        device_tokens=tiers.device,
        host_tokens=tiers.host,
        ssd_tokens=tiers.ssd,
        recomputed_tokens=tiers.recomputed,
    )


def turns(*, host: int = 900, ssd: int = 800, late_ssd: int = 960, ids: Sequence[int] = (1, 2)) -> list[TurnReport]:
    answers = [answer(2.0), answer(host=host), answer(ssd=ssd, device=16), answer(0.4, ssd=late_ssd)]
    return [
        make_turn(
            number,
            DemoTurn(number % 2, (number + 1) // 2, "text"),
            after_restart=number > 3,
            asked_first="tiers",
            tiers=tiers,
            seen=seen(tiers),
            plain=answer(2.0, device=16, ids=ids),
        )
        for number, tiers in enumerate(answers, 1)
    ]


WHO = {"server": "demo", "rank": "dp0-tp0"}


def tier(name: str, count: int) -> TierView:
    return TierView(
        **WHO,
        tier=name,
        capacity_bytes=2**20,
        hits=count,
        bytes_read=count * 1000,
        bytes_written=count * 500,
        evictions=1,
        checksum_failures=0,
    )


def life(count: int = 1) -> RankState:
    devices = tuple(
        DeviceView(
            **WHO,
            number=number,
            path=f"/ssd{number}/file",
            bytes_read=count * 1000,
            bytes_written=count * 500,
            read_errors=0,
            write_errors=0,
        )
        for number in (1, 2)
    )
    return RankState(
        name="dp0-tp0",
        rank=RankView(**WHO, page_bytes=737280, page_tokens=16, io_engine="io_uring", write_queue_pages=0),
        tiers=(tier("device", 7), tier("host", count), tier("ssd", 2 * count)),
        devices=devices,
    )


SIZES = DemoSizes(
    prompt_tokens_max=1, device_tokens=1, host_bytes=1, ssd_devices=2, ssd_bytes_per_device=1, stripe_unit_bytes=1
)


def report(some: list[TurnReport]) -> DemoReport:
    outcome = procedure.DemoReplay(some, [life(1), life(2)], stop_seconds=3, restart_seconds=30)
    return procedure.make_report(outcome, "model", SIZES, start_seconds=40, seconds=99)


def test_a_good_run(capsys: pytest.CaptureFixture[str]) -> None:
    good = report(turns())
    assert good.ok
    assert procedure.conclude(good) == 0
    assert capsys.readouterr().err == ""
    host, ssd = good.tiers
    assert (host.name, host.bytes_read, host.bytes_written, host.pages_served) == ("host", 3000, 1500, 3)
    assert (ssd.name, ssd.bytes_read, ssd.evictions) == ("ssd", 6000, 2)
    assert [device.bytes_written for device in good.devices] == [1500, 1500]
    assert good.with_reuse is not None
    assert good.with_reuse.turns == 3
    assert good.with_reuse.median_speedup == pytest.approx(10)
    assert good.with_reuse.reused_tokens == 900 + 800 + 960


@pytest.mark.parametrize(
    ("some", "problem"),
    [
        (turns(ids=(1, 3)), "4 of 4 answers differ"),
        (turns(host=0), "no token was served from host memory"),
        (turns(ssd=0, late_ssd=0), "no token was served from ssd; no token was served from ssd after the restart"),
        (turns(late_ssd=0), "no token was served from ssd after the restart"),
        ([], "0 of 0 answers differ"),
    ],
)
def test_a_run_that_shows_less_fails(some: list[TurnReport], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    bad = report(some)
    assert not bad.ok
    assert procedure.conclude(bad) == 1
    error = capsys.readouterr().err
    assert error.startswith("swift-tiers: error: demo: ")
    assert problem in error
    assert error.count("\n") == 1


def test_one_wrong_answer_is_enough() -> None:
    some = turns()
    some[2] = msgspec.structs.replace(some[2], token_ids_tiers=(1, 9))
    first = judge(some)[0]
    assert not first.holds
    assert "number 3 (session 2, turn 2)" in first.problem


def test_a_bus_that_says_something_else_than_the_answers_fails(capsys: pytest.CaptureFixture[str]) -> None:
    some = turns()
    some[1] = msgspec.structs.replace(some[1], host=some[1].host - 16, recomputed=some[1].recomputed + 16)
    assert procedure.conclude(report(some)) == 1
    assert "the bus says something else than the answer of turns [2]" in capsys.readouterr().err
    some = turns()
    some[3] = msgspec.structs.replace(some[3], recomputed=0)
    assert procedure.conclude(report(some)) == 1


def test_without_reuse_there_is_no_summary() -> None:
    assert summarise(turns(host=0, ssd=0, late_ssd=0)) is None


@pytest.mark.parametrize("width", [80, 120])
def test_the_tables_fit(width: int) -> None:
    some = turns()
    some[0] = msgspec.structs.replace(some[0], token_ids_tiers=(5,))
    output = io.StringIO()
    show(report(some), Console(file=output, width=width, highlight=False))
    text = output.getvalue()
    assert all(len(line) <= width for line in text.splitlines())
    for words in ("1000", "recomp.", "restart", "10.0x", "NO", "device 2", "50%", "1 of 4 answers differ"):
        assert words in text


def test_the_report_can_be_read_back() -> None:
    good = report(turns())
    assert msgspec.json.decode(msgspec.json.encode(good), type=DemoReport) == good


# ---- options ----


@pytest.mark.parametrize(
    "words", [["--sessions", "9"], ["--turns", "1"], ["--devices", "0"], ["--max-tokens", "0"], ["--model-path", "/no"]]
)
def test_options_that_cannot_work(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", *words]) == 2
    error = capsys.readouterr().err
    assert words[0] in error
    assert error.count("\n") == 1


def test_a_dtype_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["demo", "--dtype", "x"])
    assert ended.value.code == 2
    assert "invalid choice: 'x'" in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["nan", "inf", "0", "-1"])
def test_a_time_that_never_passes(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["demo", "--start-timeout", seconds])
    assert ended.value.code == 2
    assert "is not a number of seconds" in capsys.readouterr().err


def test_options_that_name_bad_places(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model").mkdir()
    assert cli.main(["demo", "--json", str(tmp_path / "no" / "file")]) == 2
    (tmp_path / "mine").write_text("mine")
    for more in ([], ["--remote"]):
        assert cli.main(["demo", *more, "--json", str(tmp_path / "mine")]) == 2
    assert (tmp_path / "mine").read_text() == "mine"
    assert cli.main(["demo", "--model-path", str(tmp_path / "model")]) == 1
    assert all(line.startswith("swift-tiers: error: ") for line in capsys.readouterr().err.splitlines())


def test_a_failure_keeps_the_logs_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        with procedure.work_directory(None) as work:
            seen.append(work)
            (work / "ssd1").mkdir()
            (work / "log").write_text("why")
            raise CommandError("it failed")

    seen: list[Path] = []
    with pytest.raises(CommandError):
        fail()
    (work,) = seen
    assert os.listdir(work) == ["log"]
    assert str(work) in capsys.readouterr().err
    (work / "log").unlink()
    work.rmdir()
    with procedure.work_directory(None) as work:
        (work / "log").write_text("nothing")
    assert not work.exists()
    with pytest.raises(KeyboardInterrupt), procedure.work_directory(None) as work:
        raise KeyboardInterrupt
    assert not work.exists()


def test_a_kept_directory_must_be_new(tmp_path: Path) -> None:
    with procedure.work_directory(tmp_path / "a" / "b") as work:
        pass
    assert work.is_dir()
    with pytest.raises(CommandError, match="not there yet"), procedure.work_directory(work):
        pass


# ---- with a store that servers share ----


def test_without_mooncake_the_demo_of_a_store_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Before it starts anything, or asks for a model."""
    for source, remedy in (
        ("raise ImportError('libibverbs.so.1: cannot open shared object file')", "apt install libibverbs1"),
        ("raise ImportError('no store')", "pip install '.[remote]' from a checkout"),
    ):
        (tmp_path / "mooncake.py").write_text(source)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        assert cli.main(["demo", "--remote"]) == 1
        error = capsys.readouterr().err
        assert len(error.splitlines()) == 1
        assert remedy in error


def test_a_server_cannot_stay_without_the_store(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", "--remote", "--stay"]) == 2
    assert "leave it out with --remote" in capsys.readouterr().err


def test_what_the_demo_of_a_store_says_is_wrong() -> None:
    one = StreamedAnswer(2.0, 1300, {}, (1, 2))
    good, other, short = (
        StreamedAnswer(0.5, 1300, {"remote": 960}, (1, 2)),
        StreamedAnswer(0.5, 1300, {"remote": 960}, (1, 3)),
        StreamedAnswer(0.5, 1300, {"remote": 480}, (1, 2)),
    )
    begun = StreamedAnswer(0.5, 1300, {"device": 48, "remote": 912}, (1, 2))  # its beginning was there already
    assert remote.make_report([one], [good], 480, 0, 1, 0.1, 1.0).ok
    assert remote.make_report([one], [begun], 480, 0, 1, 0.1, 1.0).ok
    assert remote.make_report([one], [other], 480, 0, 1, 0.1, 1.0).problems == ("session 1: not the same tokens",)
    assert "480 of 960 tokens" in remote.make_report([one], [short], 480, 0, 1, 0.1, 1.0).problems[0]
    assert "3 pages" in remote.make_report([one], [good], 480, 3, 1, 0.1, 1.0).problems[0]
    printed = io.StringIO()
    remote.show(remote.make_report([one], [good], 480, 0, 1, 0.1, 1.0), Console(file=printed, width=80))
    assert "4.0x" in printed.getvalue()
