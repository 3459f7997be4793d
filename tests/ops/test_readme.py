"""What README tells a stranger to type is typed here, with the names of this machine in place of the reader's."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import shlex
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from swift_tiers.ops.base.model import tiny_model
from swift_tiers.radix_tiering.bus.redis.redis_server import default_directory

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
#: A guard against hanging, seconds.
PATIENCE = 240.0
#: Adds SGLang's arguments up as its servers do, which says no to what they would refuse.
READ_ARGUMENTS = """
import sys
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.server_args import prepare_server_args
if __name__ == "__main__":
    arguments = prepare_server_args(["--device", "cpu", *sys.argv[1:]])
    assert arguments.enable_swift_tiers
"""


def commands() -> list[str]:
    """Every line of README that is to be typed, continued ones joined, without what is said of it."""
    blocks = re.findall(r"(?:^    .*\n)+", README, re.MULTILINE)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [" ".join(line.partition(" # ")[0].split()) for line in lines]


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 120


def test_every_command_is_typed_here() -> None:
    assert {one.split(" ZRANGE")[0] for one in commands()} == {one.split(" ZRANGE")[0] for one in TYPED}


def test_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", README):
        assert link.startswith("https://") or (ROOT / link).exists(), link


def test_the_table_of_the_configuration_is_what_the_command_prints() -> None:
    table = run([sys.executable, "-m", "swift_tiers.ops", "config", "--markdown"]).stdout
    assert (ROOT / "docs" / "configuration.md").read_text().endswith(table), "./swift config --markdown has the new one"


# ---- the commands ----


def the_console_over_a_demo(command: str, tmp_path: Path) -> None:
    process, ours = in_a_terminal(command)
    try:
        screen = read_until(ours, b"Overview")
        assert b"DEMO" in screen + read_until(ours, b"DEMO")
        os.write(ours, b"q")
        drain(ours, process)
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        os.close(ours)


def only_its_help(command: str, tmp_path: Path) -> None:
    """What it does takes minutes; `tests/e2e/test_demo.py` runs it."""
    done = run(["bash", "-c", f"{command} --help"])
    assert "usage" in done.stdout.lower()


def the_tests(command: str, tmp_path: Path) -> None:
    """These very tests: what is typed is what runs them in .ci/run."""
    assert command in (ROOT / ".ci" / "run").read_text()


def an_installation(command: str, tmp_path: Path) -> None:
    words = shlex.split(command)[1:]
    run(
        [sys.executable, "-m", "pip", *words, "--quiet", "--no-deps", "--no-build-isolation", "--target", str(tmp_path)]
    )
    assert (tmp_path / "swift_tiers" / "sglang_ext" / "plugin.py").exists()


def a_server(command: str, tmp_path: Path) -> None:
    words = shlex.split(command)
    assert words[:2] == ["sglang", "serve"]
    config = json.loads(words[words.index("--swift-tiers-config") + 1])
    assert {*config} == {"host", "ssd"}
    config["host"]["size"], config["ssd"]["size_per_device"] = "16MiB", "16MiB"
    config["ssd"]["directories"] = [str(tmp_path / f"ssd{number}") for number in range(2)]
    for directory in config["ssd"]["directories"]:
        os.mkdir(directory)
    words[words.index("--swift-tiers-config") + 1] = json.dumps(config)
    words[words.index("--model-path") + 1] = str(tiny_model(tmp_path / "model"))
    run([sys.executable, "-c", READ_ARGUMENTS, *words[2:]])


def doctor(command: str, tmp_path: Path) -> None:
    words = shlex.split(command)
    assert words[:2] == ["swift-tiers", "doctor"]
    config = json.loads(words[-1])
    config["ssd"] = {"directories": [str(tmp_path)], "size_per_device": "16MiB"}
    done = run([sys.executable, "-m", "swift_tiers.ops", "doctor", "--config", json.dumps(config)], codes=(0, 3))
    assert "warnings" in done.stdout.splitlines()[-1]


def the_console(command: str, tmp_path: Path) -> None:
    """Without a terminal it says so."""
    assert shlex.split(command) == ["swift-tiers", "console"]
    done = run([sys.executable, "-m", "swift_tiers.ops", "console"], codes=(2,))
    assert "terminal" in done.stderr


def a_variable(command: str, tmp_path: Path) -> None:
    assert command.startswith("D=")


def redis_cli(command: str, tmp_path: Path) -> None:
    """It looks where servers put their socket, with a directory of the session and without."""
    told = tmp_path / "redis-cli"
    told.write_text('#!/bin/sh\necho "$2"\n')
    told.chmod(0o700)
    (line,) = [one for one in commands() if one.startswith("D=")]
    for runtime in (str(tmp_path), None):
        environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        environment.pop("XDG_RUNTIME_DIR", None)
        if runtime is not None:
            environment["XDG_RUNTIME_DIR"] = runtime
        there = subprocess.run(["bash", "-c", f"{line}\n{command}"], env=environment, capture_output=True, text=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("XDG_RUNTIME_DIR", raising=False)
            if runtime is not None:
                patch.setenv("XDG_RUNTIME_DIR", runtime)
            assert there.stdout.strip() == str(default_directory() / "redis.sock")


TYPED: dict[str, Callable[[str, Path], None]] = {
    "./swift console --demo": the_console_over_a_demo,
    "./swift demo": only_its_help,
    "./swift test": the_tests,
    "pip install .": an_installation,
    "sglang serve --model-path Qwen/Qwen3-8B --enable-swift-tiers --swift-tiers-config "
    '\'{"host": {"size": "64GiB"}, "ssd": {"directories": ["/ssd0/kv", "/ssd1/kv"]}}\'': a_server,
    'swift-tiers doctor --config \'{"ssd": {"directories": ["/ssd0/kv", "/ssd1/kv"]}}\'': doctor,
    "swift-tiers console": the_console,
    'D="${XDG_RUNTIME_DIR:+$XDG_RUNTIME_DIR/swift-tiers}"': a_variable,
    'redis-cli -s "${D:-/tmp/swift-tiers-$(id -u)}/redis.sock" ZRANGE swift:servers 0 -1': redis_cli,
}


@pytest.mark.parametrize("command", commands())
def test_what_it_says_can_be_typed(command: str, tmp_path: Path) -> None:
    TYPED[command](command, tmp_path)


def run(words: list[str], codes: tuple[int, ...] = (0,)) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL)
    assert done.returncode in codes, done.stdout[-2000:] + done.stderr[-2000:]
    return done


def in_a_terminal(command: str) -> tuple[subprocess.Popen[bytes], int]:
    """The command in a terminal of 120 x 36, and the end of it that a person has."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 36, 120, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    process = subprocess.Popen(
        shlex.split(command),
        cwd=ROOT,
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        close_fds=True,
        start_new_session=True,
    )
    os.close(theirs)
    return process, ours


def read_until(end: int, word: bytes) -> bytes:
    """What is written to the terminal, as far as `word`."""
    seen, limit = b"", time.monotonic() + PATIENCE
    while word not in seen:
        assert time.monotonic() < limit, seen[-2000:]
        if select.select([end], [], [], 1.0)[0]:
            seen += os.read(end, 65536)
    return seen


def drain(end: int, process: subprocess.Popen[bytes]) -> None:
    """Take what it still writes, until it has ended: nobody writes to a terminal that nobody reads."""
    limit = time.monotonic() + PATIENCE
    while process.poll() is None:
        assert time.monotonic() < limit, "it does not end"
        if select.select([end], [], [], 0.1)[0]:
            try:
                os.read(end, 65536)
            except OSError:  # its last end was closed
                return
