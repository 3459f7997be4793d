"""The proof itself, tried on the CPU over small pages: that it finds what is wrong, and tells the truth about the rest.

Figures from here mean nothing; on a GPU, `test_on_a_gpu` runs the command.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
import xml.etree.ElementTree
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from swift_tiers.kernels import page_gather
from swift_tiers.ops.cli import main
from swift_tiers.ops.commands.gpu_proof import direct, hidden, right, serving, speed
from swift_tiers.ops.commands.gpu_proof.figures import Findings, ProofCheck, ProofFigure, line, picture
from swift_tiers.ops.commands.gpu_proof.layouts import Layout
from swift_tiers.ops.commands.gpu_proof.options import ProofError
from swift_tiers.ops.commands.gpu_proof.proof import Proof, check_folder, closing, facts
from swift_tiers.ops.commands.gpu_proof.sglang_kernels import beside_sglang
from swift_tiers.ops.commands.gpu_proof.stopwatch import Stopwatch

from support import fake_kvikio, fake_sgl_kernel
from support.deferred_accelerator import DeferredAccelerator
from support.quick_proof import make_quick

CPU = torch.device("cpu")
SMALL = Layout("Small-1M", 2, 2, 8, 16, 32)


def proof(
    findings: Findings,
    seconds: float = 1e9,
    clock: Any = lambda: 0.0,
    cases: int = 3,
    save: Any = lambda: None,
    **more: bool,
) -> Proof:
    accelerator = DeferredAccelerator(0, locked=True)
    around = {"serves": False, "pages": 8, "ceiling_bytes": 2**16, **more}
    return Proof(accelerator, findings, [SMALL], 1, cases, seconds, clock=clock, save=save, **around)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    make_quick(monkeypatch)
    monkeypatch.setattr(direct, "_PAGES", 40)
    if not torch.cuda.is_available():
        fake_sgl_kernel.install(monkeypatch)
        fake_kvikio.install(monkeypatch)


def test_servers_alone_have_all_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three servers, the first of which compiles, take more than half of the default."""
    until = []

    def serve(**named: Any) -> list[ProofFigure]:
        until.append(named["until"])
        return [ProofFigure("serving", "first token", 1.0, "ms")]

    monkeypatch.setattr(serving, "serving", serve)
    findings = Findings({"command": "gpu-proof", **facts(CPU)})
    proof(findings, 480.0, serves=True, only_serving=True).run()
    assert [figure.name for figure in findings.figures] == ["first token"]
    assert until == [480.0]
    assert not findings.checks
    assert not findings.left_out
    assert serving.START_SECONDS < 480.0


def test_every_part_finds_something(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    findings = Findings({"command": "gpu-proof", **facts(CPU)})
    proof(findings).run()
    assert not findings.left_out
    assert [check.name for check in findings.checks] == [
        "gather", "scatter", "pieces", "digest", "codec e4m3", "codec int8", "codec int4",
        "Small-1M: SGLang's kernels copy what ours do", "pages on SSD are read straight to the GPU",
    ]  # fmt: skip
    assert not findings.wrong, findings.wrong
    names = {figure.name for figure in findings.figures}
    for kind in ("layer-first", "block-major"):
        for what in ("gather, all layers", "gather, one layer", "scatter, all layers", "scatter, one layer"):
            assert f"Small-1M, {kind}: {what}" in names
    for what in ("encode e4m3", "decode e4m3", "encode int8", "decode int8", "encode int4", "decode int4", "digest"):
        assert f"Small-1M, layer-first: {what}" in names
    for what in ("load, neighbours", "load, scattered", "store, neighbours", "store, scattered"):
        assert f"Small-1M: {what}" in names
    for what in ("gather, all layers", "scatter, one layer", "scatter, one layer from page-locked memory"):
        assert {f"Small-1M: {what}: SGLang's, {blocks}" for blocks in ("2 blocks", "all blocks")} <= names
    assert "Small-1M: SSD to landing memory" in names
    for what in ("beside loads", "beside stores"):
        assert {f"Small-1M: launching 3 small products {what}", f"Small-1M: 2 products of 4 rows {what}"} <= names
    said = capsys.readouterr().out.splitlines()
    assert all(any(line(found) == one for one in said) for found in [*findings.checks, *findings.figures])
    findings.save(tmp_path / "new")
    saved = json.loads((tmp_path / "new" / "results.json").read_text())
    assert len(saved["figures"]) == len(findings.figures)
    assert str(tmp_path) not in (tmp_path / "new" / "results.json").read_text()
    xml.etree.ElementTree.parse(tmp_path / "new" / "results.svg")


def break_copies(monkeypatch: pytest.MonkeyPatch, spoil: Any) -> None:
    """Spoils what is copied for the pool under test, and not for the reference, by turns."""
    real, calls = page_gather.copy_pages_plain, []

    def copies(pool: Any, pages: Any, slab: Any, *others: Any) -> None:
        real(pool, pages, slab, *others)
        calls.append(slab)
        if len(calls) % 2 == 0:
            spoil(pool, slab)

    monkeypatch.setattr(page_gather, "copy_pages_plain", copies)


def flip_one_byte_of_the_slab(pool: Any, slab: torch.Tensor) -> None:
    slab[0, 3] ^= 1


def flip_one_byte_of_the_pool(pool: Any, slab: torch.Tensor) -> None:
    pool.flat[0][0].view(torch.uint8)[..., 0] ^= 1


@pytest.mark.parametrize(
    ("name", "spoil"), [("gather", flip_one_byte_of_the_slab), ("scatter", flip_one_byte_of_the_pool)]
)
def test_a_single_wrong_byte_is_found(monkeypatch: pytest.MonkeyPatch, name: str, spoil: Any) -> None:
    break_copies(monkeypatch, spoil)
    found = right.check(name, CPU, 0, 7)
    assert "differs from byte" in found.failure
    assert "(seed 0, torch.bfloat16)" in found.failure
    assert found.cases == 1
    assert closing(Findings({}, [found])) == 3


def test_a_piece_that_is_copied_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    copy_pieces = right.copy_pieces

    def beyond(source: torch.Tensor, target: torch.Tensor, pieces: Any) -> None:
        copy_pieces(source, target, pieces)
        target[-1] = 0

    monkeypatch.setattr(right, "copy_pieces", beyond)
    assert "the target differs from byte" in right.check("pieces", CPU, 0, 3).failure


def test_a_codec_that_loses_more_than_it_says_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    decode = right.decode_pages

    def worse(pool: Any, *others: Any) -> None:
        decode(pool, *others)
        for plane in pool.flat:
            plane *= 1.02

    monkeypatch.setattr(right, "decode_pages", worse)
    assert "more than its code allows" in right.check("codec int8", CPU, 0, 3).failure


def test_what_begins_too_late_is_left_out_and_said_to_be() -> None:
    now = 0.0
    findings = Findings(facts(CPU))

    def save() -> None:
        nonlocal now
        now = 100.0 if findings.figures else 1.0

    proof(findings, seconds=50.0, clock=lambda: now, cases=1, save=save).run()
    assert findings.checks
    assert [figure.part for figure in findings.figures] == ["ceilings"] * 4
    late = ("kernels", "transfers", "streaming", "SGLang's kernels")
    assert findings.left_out == dict.fromkeys(
        [*(f"{part}, Small-1M" for part in late), "SSD to landing memory"], "no time was left"
    )


def test_random_inputs_share_their_time_and_the_first_of_each_is_always_tried() -> None:
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 1.0
        return now

    found = list(right.checks(CPU, 1, 5, 2.0 * len(right.CHECKS), clock))
    assert [check.name for check in found] == list(right.CHECKS)
    assert {check.cases for check in found} == {2}
    assert all(check.cases == 1 for check in right.checks(CPU, 1, 5, 0.0, clock))


@pytest.mark.parametrize(
    "part",
    ["right", *(pytest.param(part, marks=pytest.mark.exhaustive) for part in ("ceilings", "streaming, Small-1M"))],
)
def test_what_goes_wrong_in_one_part_costs_no_other_one(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nand much more")

    module, name = {"right": (right, "checks"), "ceilings": (speed, "ceilings")}.get(part, (hidden, "hidden"))
    monkeypatch.setattr(module, name, fails)
    findings, saved = Findings(facts(CPU)), []
    proof(findings, cases=1, save=lambda: saved.append(findings.as_json())).run()
    (wrong,) = findings.wrong
    assert wrong.name == f"{part}: ran to its end"
    assert wrong.failure == "RuntimeError: CUDA error: an illegal memory access was encountered"
    assert closing(findings) == 3
    parts = {figure.part for figure in findings.figures}
    if part == "ceilings":
        assert set(findings.left_out) == {"kernels, Small-1M", "transfers, Small-1M"}
        assert {"streaming", "sglang", "transfers"} <= parts
    else:
        assert {"ceilings", "kernels", "transfers", "sglang"} <= parts
        assert not findings.left_out
    assert len(saved) == 7, "once after each part"


def test_pages_that_come_wrong_from_ssd_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_kvikio.install(monkeypatch, flips=(3 * 4096,))
    found = next(direct.ssd_to_landing(SMALL, DeferredAccelerator(0, locked=True), 5))
    assert isinstance(found, ProofCheck)
    assert found.failure == "1 pages differ"


def test_without_kvikio_the_way_from_ssd_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kvikio", None)
    findings = Findings({})
    proof(findings, cases=1).run()
    assert "kvikio cannot be used" in findings.left_out.pop("SSD to landing memory")
    assert not findings.left_out


def test_what_needs_more_than_torch_and_triton_is_left_out_where_that_is_absent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "swift_tiers.sglang_ext.pools.accelerator_pool", raising=False)
    monkeypatch.delitem(sys.modules, "swift_tiers.sglang_ext.pools.device_pool", raising=False)
    monkeypatch.delitem(sys.modules, "swift_tiers.radix_tiering.base.page", raising=False)
    monkeypatch.setitem(sys.modules, "xxhash", None)
    findings = Findings(facts(CPU))
    proof(findings, cases=1).run()
    for part in ("transfers", "streaming"):
        assert findings.left_out.pop(f"{part}, Small-1M") == "xxhash is not installed"
    assert set(findings.left_out) <= {"SSD to landing memory"}, "where nobody has imported that before"


def test_sglang_kernels_that_copy_something_else_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    module = fake_sgl_kernel.install(monkeypatch)
    for name, failure in (
        ("transfer_kv_all_layer_mla_lf_pf", "gathered pages differ"),
        ("transfer_kv_per_layer_mla_pf_lf", "scattered pages differ"),
    ):
        with monkeypatch.context() as broken:
            right_one = getattr(module, name)

            def wrong(dst: torch.Tensor, right_one: Any = right_one, **others: Any) -> None:
                right_one(dst=dst, **others)
                dst.view(torch.uint8).view(-1)[0] ^= 1

            broken.setattr(module, name, wrong)
            found = next(beside_sglang(SMALL, DeferredAccelerator(0, locked=True), Stopwatch(CPU), 8, 8))
        assert isinstance(found, ProofCheck)
        assert found.failure == failure


def test_sglang_kernels_that_cannot_be_loaded_are_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    import_module = importlib.import_module

    def cannot(name: str) -> Any:
        if name.startswith("sgl_kernel"):
            raise ImportError("no library for this GPU\nand much more")
        return import_module(name)

    monkeypatch.setattr("importlib.import_module", cannot)
    findings = Findings({})
    proof(findings, cases=1).run()
    assert findings.left_out == {"SGLang's kernels, Small-1M": "no library for this GPU"}


def test_lines_and_bounds() -> None:
    figure = ProofFigure("kernels", "a", 80.0, "GB/s", of=100.0, at_least=0.85)
    assert (figure.share, figure.holds) == (0.8, False)
    assert line(figure).startswith("MISSED a ")
    assert "0.800 of 100 " in line(figure)
    assert ProofFigure("kernels", "a", 90.0, "GB/s", of=100.0, at_least=0.85).holds
    assert ProofFigure("streaming", "a", 0.97, "", at_least=0.95).holds
    assert ProofFigure("ceilings", "a", 90.0, "GB/s").holds is None
    assert ProofFigure("lending", "a", 50.0, "ms", at_most=50.0).holds
    late = ProofFigure("lending", "a", 51.0, "ms", at_most=50.0)
    assert late.holds is False
    assert "(<= 50)" in line(late)
    assert line(ProofCheck("gather", 3, "it differs")).startswith("WRONG")
    assert closing(Findings({}, [], [figure])) == 3
    assert closing(Findings({}, [ProofCheck("gather", 3)], [])) == 0
    assert "a &lt;b&gt;" in picture([ProofFigure("kernels", "a <b>", 80.0, "GB/s", of=100.0)])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: test_on_a_gpu runs the command")
def test_without_a_gpu_it_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpu-proof"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "no CUDA device" in said.err
    assert "NVIDIA GPU" in said.err


def test_results_go_into_a_directory_that_can_have_them(tmp_path: Path) -> None:
    check_folder(tmp_path / "new" / "folder")
    (tmp_path / "new" / "folder" / "results.json").write_text("{}")
    check_folder(tmp_path / "new" / "folder")
    (tmp_path / "file").touch()
    (tmp_path / "results.svg").symlink_to(tmp_path / "file")
    for path in (tmp_path / "file", tmp_path):
        with pytest.raises(ProofError, match="name "):
            check_folder(path)


def test_a_model_that_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpu-proof", "--layouts", "Qwen3-8B,Qwen9"]) == 1
    assert "there is no 'Qwen9'; there are: Qwen3-8B" in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU here: the command is tried on the CPU only")
def test_on_a_gpu(tmp_path: Path) -> None:
    assert main(["gpu-proof", "--layouts", "Qwen3-8B", "--cases", "7", "--out", str(tmp_path)]) in (0, 3)
    saved = json.loads((tmp_path / "results.json").read_text())
    assert not [check for check in saved["checks"] if check["failure"]]
    assert set(saved["left_out"]) <= {"serving", "lending", "SGLang's kernels, Qwen3-8B", "SSD to landing memory"}


def test_what_goes_on_beside_ends_with_it_and_tells_what_went_wrong() -> None:
    done: list[int] = []

    def fails() -> None:
        raise OSError("injected")

    with ThreadPoolExecutor(1) as thread:
        with hidden.again_and_again(thread, lambda: done.append(1)):
            while not done:
                time.sleep(0)
        so_often = len(done)
        assert so_often == len(done) > 0, "it goes on"
        with pytest.raises(OSError, match="injected"), hidden.again_and_again(thread, fails):
            pass
