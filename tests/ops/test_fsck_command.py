"""`swift-tiers fsck` on real files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from swift_tiers.ops import cli
from swift_tiers.ops.commands.fsck import check_set, describe, find_devices, group_by_set
from swift_tiers.radix_tiering.base.page import BLOCK_BYTES, ROOT_KEY, PageRecord, round_up
from swift_tiers.radix_tiering.base.runner import ThreadRunner
from swift_tiers.radix_tiering.tiers.ssd import DeviceArray, StripeSet, files
from swift_tiers.radix_tiering.tiers.ssd.arrays.devices import Completion
from swift_tiers.radix_tiering.tiers.ssd.blockio import Patience, aligned_buffer
from swift_tiers.radix_tiering.tiers.ssd.files import create_device_file, open_array

from support.faulty_array import Delay, Fault, FaultPlan, FaultyArray

UNIT = 8192
DEVICE_BYTES = 2**20
NAMESPACE = b"namespace-one..."
PAGES = 6
CODE_SOUND, CODE_USAGE, CODE_FOUND = 0, 2, 3


def make_set(folder: Path, devices: int = 2, name: str = "swift-tiers-dp0-tp0.stripe") -> list[Path]:
    """A closed stripe set with `PAGES` pages of two units, one device in each sub-folder."""
    paths = []
    for number in range(devices):
        (folder / f"ssd{number}").mkdir(parents=True)
        paths.append(folder / f"ssd{number}" / name)
        create_device_file(paths[-1], DEVICE_BYTES)
    array = open_array(paths)
    try:
        stripes = StripeSet.open(array, create=UNIT)
        stripes.register_namespace(NAMESPACE, "test")
        stored = []
        for number in range(PAGES):
            record = PageRecord(bytes([number + 1]) * 32, ROOT_KEY, NAMESPACE, 1, 2 * UNIT)
            data = aligned_buffer(round_up(record.length, BLOCK_BYTES))
            data[:] = number
            ended = threading.Event()
            placement = stripes.reserve(record.length)
            assert placement is not None

            def done(page: object, reason: str, ended: threading.Event = ended) -> None:
                assert page is not None, reason
                stored.append(page)
                ended.set()

            stripes.write(record, placement, data, done)
            assert ended.wait(60)
        stripes.close(stored)
    finally:
        array.close()
    return paths


def damage_payload(path: Path) -> None:
    """Change one byte of a page."""
    content = np.fromfile(path, dtype=np.uint8)
    offset = int(np.flatnonzero(content == PAGES - 1)[-1])
    content[offset] ^= 0xFF
    content.tofile(path)


def test_a_sound_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_set(tmp_path)
    assert cli.main(["fsck", str(tmp_path), "--json", str(tmp_path / "out.json")]) == CODE_SOUND
    assert "sound" in capsys.readouterr().out
    content = json.loads((tmp_path / "out.json").read_text())
    (stripes,) = content["stripe_sets"]
    assert content["sound"] is stripes["sound"] is True
    assert stripes["pages"] == {"complete": PAGES, "incomplete": 0, "corrupt": 0, "unreachable": 0}
    assert sum(device["slots"]["used"] for device in stripes["devices"]) == 2 * PAGES
    assert all(device["clean"] for device in stripes["devices"])


def test_damage_is_found_then_repaired(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = make_set(tmp_path)
    damage_payload(paths[0])
    files = [str(path) for path in paths]
    assert cli.main(["fsck", "--headers-only", *files]) == CODE_SOUND
    assert cli.main(["fsck", *files]) == CODE_FOUND
    assert "damaged" in capsys.readouterr().out
    assert cli.main(["fsck", "--repair", "--json", str(tmp_path / "out.json"), *files]) == CODE_SOUND
    assert "repaired: device 0" in capsys.readouterr().out
    (stripes,) = json.loads((tmp_path / "out.json").read_text())["stripe_sets"]
    assert stripes["problems_before_repair"]
    assert stripes["pages"]["complete"] == PAGES - 1
    assert cli.main(["fsck", *files]) == CODE_SOUND


def test_a_missing_device_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = make_set(tmp_path)
    assert cli.main(["fsck", str(paths[0])]) == CODE_FOUND
    assert "1 of 2 members" in capsys.readouterr().out


def test_a_device_that_is_gone_for_good_is_found_missing_no_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = make_set(tmp_path)
    assert cli.main(["fsck", "--forget-missing", str(paths[0])]) == CODE_USAGE
    assert "give --repair too" in capsys.readouterr().err
    out = tmp_path / "out.json"
    assert cli.main(["fsck", "--repair", "--forget-missing", "--json", str(out), str(paths[0])]) == CODE_SOUND
    assert "0 missing, 1 forgotten" in " ".join(capsys.readouterr().out.split())
    (stripes,) = json.loads(out.read_text())["stripe_sets"]
    assert (stripes["missing_devices"], stripes["forgotten_devices"]) == (0, 1)
    assert cli.main(["fsck", str(paths[0])]) == CODE_SOUND


def test_sets_are_told_apart(tmp_path: Path) -> None:
    one, other = make_set(tmp_path / "one"), make_set(tmp_path / "other", name="swift-tiers-dp0-tp1.stripe")
    found = find_devices([tmp_path, one[0]])
    assert sorted(found) == sorted(path.resolve() for path in [*one, *other])
    assert sorted(map(sorted, group_by_set(found))) == [sorted(one), sorted(other)]


def test_a_device_without_superblocks_goes_to_its_namesakes(tmp_path: Path) -> None:
    paths = make_set(tmp_path)
    with open(paths[0], "r+b") as file:
        file.write(b"x" * 2 * BLOCK_BYTES)
    assert group_by_set(paths) == [[paths[1], paths[0]]]
    assert group_by_set(paths[:1]) == [[paths[0]]]


def test_what_is_no_stripe_set_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fsck", str(tmp_path / "none")]) == 2
    assert cli.main(["fsck", str(tmp_path)]) == 1
    (tmp_path / "foreign").write_bytes(b"x" * 2**20)
    assert cli.main(["fsck", str(tmp_path / "foreign")]) == 1
    for line in capsys.readouterr().err.splitlines():
        assert line.startswith(("swift-tiers: error: ", "checking "))


def test_a_file_that_never_joined_a_set_keeps_nobody_from_looking_at_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a server leaves it that is killed when it has made its files."""
    make_set(tmp_path / "one")
    (tmp_path / "alone").mkdir()
    create_device_file(tmp_path / "alone" / "swift-tiers-dp0-tp7.stripe", DEVICE_BYTES)
    out = tmp_path / "out.json"
    assert cli.main(["fsck", str(tmp_path / "one"), str(tmp_path / "alone"), "--json", str(out)]) == CODE_FOUND
    said = capsys.readouterr().out
    assert "dp0-tp7.stripe" in said
    content = json.loads(out.read_text())
    assert [one["sound"] for one in content["stripe_sets"]] == [True]
    assert len(content["no_set"]) == 1


def test_a_set_in_use_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = make_set(tmp_path)
    array = open_array(paths)
    try:
        assert cli.main(["fsck", "--repair", str(tmp_path)]) == 1
    finally:
        array.close()
    assert capsys.readouterr().err.count("\n") == 1
    assert cli.main(["fsck", str(tmp_path)]) == CODE_SOUND


def test_a_device_that_does_not_answer_is_looked_for_no_longer_than_the_others(tmp_path: Path) -> None:
    """Opening a pipe waits, as reading from a device does that has stopped to answer."""
    paths = make_set(tmp_path / "one")
    (tmp_path / "two").mkdir()
    pipes = [tmp_path / "two" / name for name in (paths[0].name, "swift-tiers-other.stripe")]
    for pipe in pipes:
        os.mkfifo(pipe)
    try:
        assert group_by_set([*paths, *pipes], seconds=2.0) == [[*paths, pipes[0]], [pipes[1]]]
    finally:
        for pipe in pipes:
            os.close(os.open(pipe, os.O_RDWR | os.O_NONBLOCK))


class Silent(FaultyArray):
    """Device 1 never answers; what it was asked is not waited for at the end. Time passes only for who waits for it."""

    passed = 0.0  # seconds

    def __init__(self, inner: DeviceArray) -> None:
        super().__init__(inner, FaultPlan((Fault(Delay(3600.0), device=1),)))

    def reap(self, at_least: int, timeout: float | None = None) -> list[Completion]:
        arrived = super().reap(at_least, timeout)
        if not arrived and not self._inside:
            Silent.passed += 0.05
        return arrived

    def close(self) -> None:
        self.inner.close()


def test_a_silent_device_is_reported_and_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = make_set(tmp_path)
    real = files.open_array
    monkeypatch.setattr(files, "open_array", lambda paths: Silent(real(paths)))
    result = check_set(
        paths, repair_it=True, payloads=True, patience=Patience(0.5, ThreadRunner(lambda: Silent.passed))
    )
    assert not result.sound
    findings = describe(result)
    assert [device["standing"] for device in findings["devices"]] == ["member", "not answering"]
    assert findings["missing_devices"] == 1
    assert findings["not_repaired"] == ["device 1 is not answering: no answer for 0.5 seconds"]
    monkeypatch.undo()
    again = check_set(paths, repair_it=False, payloads=True)
    assert again.report.complete == PAGES, "repairing without a device cost the pages that it has a part of"


# ---- what is not written over, not removed, and not left undone ----


def test_findings_are_written_over_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` takes no value elsewhere: what stands behind it is easily the first device."""
    paths = make_set(tmp_path)
    before = paths[0].read_bytes()
    assert cli.main(["fsck", "--json", *map(str, paths)]) == CODE_USAGE
    (tmp_path / "mine").write_text("mine")
    for name, said in (
        ("mine", "is there already; give another name"),
        (".", "is there already"),
        ("new.stripe", "is a name of device files"),
        ("no/folder", "name another file"),
    ):
        capsys.readouterr()
        assert cli.main(["fsck", "--repair", "--json", str(tmp_path / name), str(tmp_path)]) == CODE_USAGE
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert said in err
    assert paths[0].read_bytes() == before
    assert (tmp_path / "mine").read_text() == "mine"
    assert not (tmp_path / "new.stripe").exists()


def test_a_file_for_findings_is_there_only_with_findings(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    (tmp_path / "nothing").mkdir()
    assert cli.main(["fsck", "--json", str(out), str(tmp_path / "nothing")]) == 1
    assert not out.exists()


def test_an_empty_name_is_no_directory(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["fsck", "--repair", ""])
    assert ended.value.code == CODE_USAGE
    assert "an empty name is no path" in capsys.readouterr().err


def test_only_what_servers_call_a_device_is_removed(tmp_path: Path) -> None:
    mine, device = tmp_path / "flag", tmp_path / "swift-tiers-dp0-tp3.stripe"
    for path in (mine, device):
        path.touch()
    assert cli.main(["fsck", "--repair", str(mine)]) == 1
    assert mine.exists()
    assert cli.main(["fsck", "--repair", str(device)]) == CODE_SOUND
    assert not device.exists()


def test_a_reader_that_leaves_changes_neither_repair_nor_verdict(tmp_path: Path) -> None:
    for name in ("one", "two"):
        damage_payload(make_set(tmp_path / name)[0])
    out = tmp_path / "out.json"
    command = [sys.executable, "-m", "swift_tiers.ops", "fsck", str(tmp_path)]
    for more, code in (([], CODE_FOUND), (["--repair", "--json", str(out)], CODE_SOUND)):
        reading, writing = os.pipe()
        os.close(reading)
        try:
            assert subprocess.run([*command, *more], stdout=writing, check=False, timeout=120).returncode == code
        finally:
            os.close(writing)
    assert [one["sound"] for one in json.loads(out.read_text())["stripe_sets"]] == [True, True]


def test_what_was_found_is_shown_before_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_set(tmp_path / "one")
    array = open_array(make_set(tmp_path / "two"))
    try:
        assert cli.main(["fsck", str(tmp_path)]) == 1
    finally:
        array.close()
    assert capsys.readouterr().out.count("stripe set ") == 1


def test_errors_name_paths_and_do_not_advise_to_destroy_what_is_anybodys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = tmp_path / "photos.img"
    foreign.write_bytes(b"x" * DEVICE_BYTES)
    assert cli.main(["fsck", str(foreign)]) == 1
    err = capsys.readouterr().err
    assert f"{foreign} holds something that is not a stripe set" in err
    assert "zero" not in err
    paths = make_set(tmp_path / "set")
    copy = tmp_path / "copy.stripe"
    copy.write_bytes(paths[0].read_bytes())
    assert cli.main(["fsck", str(paths[0]), str(copy)]) == 1
    assert f"{paths[0]} and {copy} are copies of one member" in capsys.readouterr().err
