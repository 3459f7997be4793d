"""The raw SSD bench, small: that it measures what it says and fails when a bound is missed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from swift_tiers.ops.commands.bench import ssd_raw
from swift_tiers.ops.commands.bench.ssd_raw import Comparison, RawReads, Scaling, Speed

FIO_OUTPUT = """fio: a warning
{"jobs": [{"error": 0, "read": {"bw_bytes": 2000000000}, "usr_cpu": 3.0, "sys_cpu": 7.0}]}
"""
SMALL = ["--size", "16", "--seconds", "0.3", "--rounds", "1", "--rate", "20"]


def test_what_fio_says_is_understood() -> None:
    assert ssd_raw.parse_fio(FIO_OUTPUT) == Speed(2e9, 0.1)
    with pytest.raises(RuntimeError, match="error 5"):
        ssd_raw.parse_fio(FIO_OUTPUT.replace('"error": 0', '"error": 5'))


def test_figures_are_medians_of_neighbours() -> None:
    comparison = Comparison(1, "", fio=[Speed(2.0, 0), Speed(4.0, 0)], array=[Speed(1.0, 0), Speed(4.0, 0)])
    assert comparison.over_fio == 0.75
    assert Scaling(1.0, {1: [1.0, 2.0, 4.0], 2: [2.0, 2.0, 4.4]}).linearity(2) == pytest.approx(0.55)


def test_files_are_written_whole_and_read_through_an_array(tmp_path: Path) -> None:
    size = (9 << 20) + 4096
    paths = ssd_raw.lay_out(tmp_path, 2, size)
    assert [path.stat().st_size for path in paths] == [size, size]
    assert all(any(path.read_bytes()[-4096:]) for path in paths)
    for pattern in ("random", "sequential"):
        with_pattern = RawReads(payload_bytes=64 << 10, depth=8, seconds=0.1, pattern=pattern)  # type: ignore[arg-type]
        array = ssd_raw.open_array(paths)
        assert ssd_raw.run_array(array, with_pattern).bytes_per_second > 1e6
        array.close()


def test_the_bench_scales_throttled_devices_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    folder = tmp_path / "files"
    folder.mkdir()
    status = ssd_raw.main([*SMALL, "--folder", str(folder), "--without-fio", "--json", str(report)])
    last = capsys.readouterr().out.splitlines()[-1]
    (figure,) = json.loads(report.read_text())["figures"]
    assert last.startswith(f"ssd_raw: linearity_4={figure['value']:.4g} (>= 0.95")
    assert figure["holds"] == (figure["value"] >= 0.95)
    assert status == (0 if figure["holds"] else 3)
    assert os.listdir(folder) == []


def test_a_figure_that_could_not_be_measured_is_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert ssd_raw.main([*SMALL, "--folder", str(tmp_path), "--files", "1"]) == 3
    assert "array_over_fio_1=unmeasured (>= 0.85 MISSED)" in capsys.readouterr().out.splitlines()[-1]
    assert ssd_raw.main([*SMALL, "--paths", str(tmp_path / "nowhere")]) == 3
    assert "nowhere" in capsys.readouterr().err
