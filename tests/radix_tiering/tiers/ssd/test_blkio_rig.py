"""Four real block devices of a limited speed: loop devices throttled by the kernel. Needs root.

This is what `ThrottledArray` imitates; here the same linearity is shown with the kernel holding requests back.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from swift_tiers.radix_tiering.tiers.ssd.files import open_array

BLKIO = Path("/sys/fs/cgroup/blkio")
RATE = 100 << 20  # bytes per second and device
DEVICE_BYTES = 64 << 20
SECONDS = 0.6


def why_not() -> str | None:
    if os.geteuid() != 0:
        return "needs root"
    if shutil.which("losetup") is None:
        return "needs losetup"
    if not Path("/dev/loop-control").exists():
        return "needs loop devices"
    if not (BLKIO / "blkio.throttle.read_bps_device").exists() and not (BLKIO / "cgroup.procs").exists():
        return "needs cgroup v1 blkio"
    return None


@pytest.fixture
def devices(tmp_path: Path) -> Iterator[list[str]]:
    """Four loop devices in a throttled cgroup; always taken down again."""
    reason = why_not()
    if reason is not None:
        pytest.skip(f"loop and blkio rig: {reason}")
    group = BLKIO / f"swift-tiers-test-{os.getpid()}"
    loops: list[str] = []
    try:
        try:
            group.mkdir()
            if not (group / "blkio.throttle.read_bps_device").exists():
                pytest.skip("loop and blkio rig: the kernel has no blkio.throttle")
            for number in range(4):
                image = tmp_path / f"{number}.img"
                image.touch()
                os.truncate(image, DEVICE_BYTES)
                command = ["losetup", "--find", "--show", "--direct-io=on", str(image)]
                made = subprocess.run(command, capture_output=True, text=True, timeout=20)
                if made.returncode != 0:
                    pytest.skip(f"loop and blkio rig: {made.stderr.strip()}")
                loops.append(made.stdout.strip())
                device = os.stat(loops[-1]).st_rdev
                rule = f"{os.major(device)}:{os.minor(device)} {RATE}"
                (group / "blkio.throttle.read_bps_device").write_text(rule)
        except OSError as error:
            pytest.skip(f"loop and blkio rig: {error}")
        yield loops
    finally:
        for loop in loops:
            subprocess.run(["losetup", "--detach", loop], check=False, timeout=20)
        if group.is_dir():
            group.rmdir()


#: Reads from the devices named for a while, from inside the throttled group, and prints bytes per second.
READER = """
import sys, time
from pathlib import Path
Path(sys.argv[1], "cgroup.procs").write_text("0")
from swift_tiers.radix_tiering.base.memory import huge_array
from swift_tiers.radix_tiering.tiers.ssd.arrays.devices import Operation, Request
from swift_tiers.radix_tiering.tiers.ssd.files import open_array
seconds, paths, size, depth = float(sys.argv[2]), sys.argv[3:], 256 << 10, 8
array = open_array(paths)
pool = huge_array(len(paths) * depth * size)
at = [0] * len(paths)
def request(tag):
    device = tag % len(paths)
    at[device] = (at[device] + size) % array.sizes[device]
    return Request(tag, Operation.READ, device, at[device], [pool[tag * size : (tag + 1) * size]])
array.submit([request(tag) for tag in range(len(paths) * depth)])
for phase in ("burst", "measured"):
    started, done = time.monotonic(), 0
    while time.monotonic() - started < seconds:
        got = array.reap(1, seconds)
        assert not any(completion.error for completion in got), got
        done += len(got)
        array.submit([request(completion.tag) for completion in got])
print(done * size / (time.monotonic() - started))
array.close()
"""


@pytest.mark.root
def test_four_throttled_block_devices_are_four_times_as_fast(devices: list[str]) -> None:
    array = open_array(devices)
    assert tuple(array.sizes) == (DEVICE_BYTES,) * 4
    assert all(array.present(device) for device in range(4))
    assert [array.sync(device) for device in range(4)] == [0] * 4
    array.close()
    group = next(BLKIO.glob(f"swift-tiers-test-{os.getpid()}"))
    speed = {}
    for count in (1, 4):
        command = [sys.executable, "-c", READER, str(group), str(SECONDS), *devices[:count]]
        run = subprocess.run(command, capture_output=True, text=True, timeout=30)
        assert run.returncode == 0, run.stderr
        speed[count] = float(run.stdout)
    assert speed[1] < 1.6 * RATE, "the kernel did not hold the device back: this rig shows nothing"
    assert speed[4] > 0.8 * 4 * speed[1], speed
