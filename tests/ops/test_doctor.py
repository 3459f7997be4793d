"""`swift-tiers doctor`: the command, its isolation, and the checks of software, machine and accelerators."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from swift_tiers.ops import cli
from swift_tiers.ops.commands.doctor import accelerators, command, machine, software
from swift_tiers.ops.commands.doctor.accelerators import Accelerators, CudaDevice
from swift_tiers.ops.commands.doctor.command import FindingLine, describe, examine, show, sound, verdict
from swift_tiers.ops.commands.doctor.finding import Check, Finding, combined, note, ok, warning, wrong
from swift_tiers.ops.commands.doctor.isolation import run_checks
from swift_tiers.ops.commands.doctor.machine import Memory
from swift_tiers.ops.commands.doctor.software import EntryPoint
from swift_tiers.radix_tiering.base import numa_nodes
from swift_tiers.radix_tiering.base.config import HostConfig, SsdConfig
from swift_tiers.radix_tiering.base.units import Size

from support.cgroups import pod, two_nodes
from support.doctor import assert_finding

GIB = 2**30
#: A guard against hanging, seconds; not a measure.
PATIENCE = 60


# ---- isolation ----


def hang() -> Finding:
    signal.pause()
    raise AssertionError("unreachable")


def test_findings_come_in_order_and_from_another_process() -> None:
    def pid() -> Finding:
        return ok(str(os.getpid()))

    first, second = run_checks([Check("a", pid), Check("b", pid)])
    assert first == second  # one child for all
    assert first.found != str(os.getpid())


def test_a_check_that_raises_is_a_finding() -> None:
    def fail() -> Finding:
        raise ValueError("two\nlines")

    def leave() -> Finding:
        raise SystemExit(0)

    failed, left, after = run_checks([Check("a", fail), Check("b", leave), Check("c", lambda: ok("here"))])
    assert_finding(failed, "wrong", "check failed: ValueError: two lines", "test_doctor.py:")
    assert_finding(left, "wrong", "check failed: SystemExit")
    assert after == ok("here")


def test_a_hanging_check_is_cut_off(tmp_path: Path) -> None:
    def leave_child() -> Finding:
        child = subprocess.Popen(["sleep", "1000"])
        (tmp_path / "pids").write_text(f"{os.getpid()} {child.pid}")
        return ok("left")

    started = time.monotonic()
    left, slow, after = run_checks(
        [Check("a", leave_child, PATIENCE), Check("b", hang, 1.0), Check("c", lambda: ok("here"), PATIENCE)]
    )
    assert time.monotonic() - started < PATIENCE
    assert left == ok("left")
    assert_finding(slow, "wrong", "no answer within 1 s")
    assert after == ok("here")
    for pid in (tmp_path / "pids").read_text().split():
        await_end(int(pid))


def test_a_check_that_holds_the_interpreter_is_cut_off() -> None:
    """As a driver does that hangs within one call: no other thread of that process gets a turn."""

    def hold() -> Finding:
        import ctypes

        ctypes.PyDLL(None).pause()
        raise AssertionError("unreachable")

    slow, after = run_checks([Check("a", hold, 0.5), Check("b", lambda: ok("here"))])
    assert_finding(slow, "wrong", "no answer")
    assert after == ok("here")


def test_a_crash_costs_its_own_line_only() -> None:
    def crash() -> Finding:
        os.kill(os.getpid(), signal.SIGKILL)
        return hang()

    before, crashed, after = run_checks(
        [Check("a", lambda: ok("before")), Check("b", crash, PATIENCE), Check("c", lambda: ok("after"))]
    )
    assert (before, after) == (ok("before"), ok("after"))
    assert_finding(crashed, "wrong", "check failed", "SIGKILL")


def test_a_slow_check_is_named_while_it_runs(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)

    def wait_for_word() -> Finding:
        return ok(fifo.read_text())

    heard: dict[int, list[float]] = {0: [], 1: []}  # on a busy machine the first check may be named, too

    def waiting(index: int, seconds: float) -> None:
        heard[index].append(seconds)
        if index == 1 and len(heard[1]) == 2:
            fifo.write_text("enough")

    checks = [Check("a", lambda: ok(""), PATIENCE), Check("b", wait_for_word, PATIENCE)]
    findings = list(run_checks(checks, waiting))
    assert findings[1] == ok("enough")
    assert len(heard[1]) >= 2
    assert heard[1][0] < heard[1][1]


def test_nothing_stays_when_the_caller_leaves(tmp_path: Path) -> None:
    findings = run_checks([Check("a", lambda: ok(str(os.getpid()))), Check("b", hang, PATIENCE)])
    pid = int(next(findings).found)
    findings.close()  # type: ignore[attr-defined]  # as an interrupt does
    await_end(pid)


def test_what_a_check_prints_does_not_show(capfd: pytest.CaptureFixture[str]) -> None:
    def talk() -> Finding:
        print("hear me")
        os.write(2, b"hear me\n")
        return ok("quiet")

    assert list(run_checks([Check("a", talk)])) == [ok("quiet")]
    assert "hear me" not in "".join(capfd.readouterr())


def await_end(pid: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return
        if state == "Z":
            return
        time.sleep(0.01)
    raise AssertionError(f"process {pid} still runs")


# ---- the command ----


@pytest.fixture
def lines() -> list[FindingLine]:
    return [
        FindingLine("software", "Python", ok("3.11.7")),
        FindingLine("software", "compiler", note("none")),
        FindingLine("machine", "memory", warning("little", "add some [bold]")),
    ]


def test_the_verdict_counts(lines: list[FindingLine]) -> None:
    assert sound(lines)
    assert verdict(lines) == "nothing is wrong; 1 warning"
    lines.append(FindingLine("bus", "Redis", wrong("away", "start it")))
    assert not sound(lines)
    assert verdict(lines) == "1 of 4 checks found something WRONG; 1 warning"


def test_the_table_can_be_read_without_colour(lines: list[FindingLine]) -> None:
    lines.append(FindingLine("bus", "Redis", wrong("away", "start it")))
    console = Console(width=80, record=True, file=open(os.devnull, "w"), markup=False)  # noqa: SIM115
    show(lines, console)
    text = console.export_text()
    rows = [line.split() for line in text.splitlines() if line.strip()]
    assert [row[0] for row in rows if row[0] in ("ok", "note", "warning", "WRONG")] == [
        "ok",
        "note",
        "warning",
        "WRONG",
    ]
    assert "-> add some [bold]" in text
    assert "-> start it" in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_the_shape_of_json(lines: list[FindingLine]) -> None:
    content = describe(lines)
    assert content["ok"] is True
    checks = content["checks"]
    assert isinstance(checks, list)
    assert checks[2] == {"name": "memory", "status": "warning", "found": "little", "remedy": "add some [bold]"}
    assert describe([*lines, FindingLine("bus", "Redis", wrong("away", "start it"))])["ok"] is False


def test_combined_findings() -> None:
    assert combined([ok("a"), warning("b", "do c"), note("d", "do c")]) == warning("a; b; d", "do c")

    def steps() -> Iterator[Finding]:
        yield ok("a")
        yield wrong("b", "do c")
        raise AssertionError("what follows on something wrong is not looked at")

    assert combined(steps()) == wrong("b", "do c")


@pytest.fixture
def few_checks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replaces the checks by others: what the command does with them is what is tested."""

    def replace(*findings: Finding) -> None:
        members = [Check(f"check {at}", lambda finding=finding: finding) for at, finding in enumerate(findings)]
        monkeypatch.setattr(command, "families", lambda config, ranks: {"some": members})

    return replace


def test_exit_codes(few_checks: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    few_checks(ok("a"), warning("b", "c"))
    assert cli.main(["doctor"]) == 0
    assert "nothing is wrong; 1 warning" in capsys.readouterr().out
    few_checks(ok("a"), wrong("b", "c"))
    assert cli.main(["doctor"]) == 3
    assert "WRONG" in capsys.readouterr().out


def test_json_is_all_there_is_on_stdout(few_checks: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    few_checks(ok("a"), wrong("b", "c"))
    assert cli.main(["doctor", "--json"]) == 3
    content = json.loads(capsys.readouterr().out)
    assert content == {
        "ok": False,
        "checks": [
            {"name": "check 0", "status": "ok", "found": "a", "remedy": ""},
            {"name": "check 1", "status": "wrong", "found": "b", "remedy": "c"},
        ],
    }


@pytest.mark.parametrize(
    "words",
    [
        ["--config", '{"host": {"sice": 1}}'],
        ["--config", "{"],
        ["--config", "@/nowhere/at/all.toml"],
        ["--ranks", "0"],
        ["--ranks", "4097"],
    ],
)
def test_a_bad_configuration_is_one_line_and_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("swift-tiers: error: ")
    assert captured.err.count("\n") == 1


def test_progress_names_what_is_slow(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "SLOW_SECONDS", 0.0)
    lines = examine({"some": [Check("the slow one", hang, 1.2)]})
    assert [line.finding.status for line in lines] == ["wrong"]
    assert "checking the slow one" in capsys.readouterr().err


@pytest.mark.timeout(600)
@pytest.mark.exhaustive  # `test_readme.py` types it, and fails if it does
def test_the_whole_command_on_this_machine(tmp_path: Path) -> None:
    """Real checks of the real machine: with directories that are good, and one that is not there."""
    (tmp_path / "ssd").mkdir()
    config = {
        "host": {"size": "64MiB"},
        "ssd": {"directories": [str(tmp_path / "ssd"), str(tmp_path / "none")], "size_per_device": "16MiB"},
        "bus": {"directory": str(tmp_path / "bus")},
    }
    process = [sys.executable, "-m", "swift_tiers.ops", "doctor", "--json", "--config", json.dumps(config)]
    done = subprocess.run(process, capture_output=True, text=True, timeout=500)
    assert done.returncode == 3, done.stderr
    content = json.loads(done.stdout)
    found = {check["name"]: check for check in content["checks"]}
    assert len(found) == len(content["checks"]), "every check has a name of its own"
    bad = [name for name, check in found.items() if check["status"] == "wrong"]
    assert bad == [f"directory {tmp_path / 'none'}"], done.stdout
    assert found["SGLang"]["found"] == metadata.version("sglang")
    assert found["hook targets"]["status"] == "ok"
    assert found["--enable-swift-tiers"]["status"] == "ok"
    assert "host.size 64MiB" in found["host memory"]["found"]
    assert not list((tmp_path / "ssd").iterdir())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ssd"]


# ---- software ----


def test_the_limits_are_those_of_the_package() -> None:
    required = set(metadata.metadata("swift-tiers")["Requires-Python"].split(","))
    first, below = (".".join(map(str, version)) for version in (software.PYTHON_FROM, software.PYTHON_BELOW))
    assert required == {f">={first}", f"<{below}"}
    assert software.required_sglang() == metadata.version("sglang")


def test_python() -> None:
    assert software.python((3, 12, 1)) == ok("3.12.1")
    assert_finding(software.python((3, 10, 9)), "wrong", "3.10.9", "3.11 or 3.12")
    assert_finding(software.python((3, 13, 0)), "wrong", "3.13.0")


def test_sglang_version() -> None:
    assert software.sglang_version("0.5.23", "0.5.23") == ok("0.5.23")
    assert_finding(software.sglang_version("0.5.24", "0.5.23"), "wrong", "0.5.24", "sglang==0.5.23")
    assert_finding(software.sglang_version(None, "0.5.23"), "wrong", "not installed")
    assert_finding(software.sglang_version("0.5.23", None), "wrong", "swift-tiers is not installed")


OURS = EntryPoint("swift-tiers", "swift_tiers.sglang_ext.plugin:load", "swift-tiers")
OUR_PLATFORM = EntryPoint("swift-tiers-cpu", "swift_tiers.sglang_ext.platform.registering:activate", "swift-tiers")
OTHER = EntryPoint("other", "other:load", "other-plugin")


def test_plugin_entry_point() -> None:
    assert software.plugin([OURS], "").status == "ok"
    assert_finding(software.plugin([OURS, OTHER], "other, swift-tiers"), "ok", "beside other")
    assert_finding(software.plugin([OTHER], ""), "wrong", "finds no swift-tiers", "pip install")
    assert_finding(software.plugin([OURS, OTHER], "other"), "wrong", "SGLANG_PLUGINS=other leaves swift-tiers out")
    assert_finding(software.plugin([OURS, OURS._replace(distribution="old")], ""), "warning", "2 times")


def test_platform_plugins() -> None:
    assert software.platforms([OUR_PLATFORM], "").status == "ok"
    assert software.platforms([OUR_PLATFORM, OTHER], "other") == ok("SGLANG_PLATFORM=other")
    assert_finding(
        software.platforms([OUR_PLATFORM, OTHER], ""),
        "note",
        "other, which swift-tiers-cpu leaves",
        "set SGLANG_PLATFORM",
    )
    assert_finding(software.platforms([OUR_PLATFORM], "none-such"), "wrong", "SGLANG_PLATFORM=none-such")
    assert_finding(software.platforms([], ""), "wrong", "swift-tiers-cpu", "pip install")


def test_the_platform_that_sglang_chooses() -> None:
    def refuse() -> str:
        raise RuntimeError("Multiple platform\nplugins activated")

    assert software.chosen_platform(lambda: "SomePlatform") == ok("SomePlatform")
    assert_finding(software.chosen_platform(refuse), "wrong", "Multiple platform plugins activated", "SGLANG_PLATFORM")


def test_importing_the_scheduler() -> None:
    def fail() -> None:
        raise ImportError("no module named flash")

    assert_finding(software.scheduler_import(lambda: None, "0.5.23"), "ok", "imported in")
    assert_finding(software.scheduler_import(fail, "0.5.23"), "wrong", "no module named flash", "sglang==0.5.23")


def test_starts_compile_anew_only_what_has_no_compiled_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Environments are compiled when they are installed: PYTHONDONTWRITEBYTECODE alone makes no start slow."""
    there = tmp_path / "there.pyc"
    there.write_bytes(b"")
    compiled = SimpleNamespace(__cached__=str(there))
    source = SimpleNamespace(__cached__=str(tmp_path / "missing.pyc"))
    others = [SimpleNamespace(__cached__=None), SimpleNamespace()]

    def said(*modules: SimpleNamespace) -> str:
        return software.scheduler_import(lambda: None, "0.5.23", lambda: [*modules, *others]).found

    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert "anew" not in said(compiled, compiled)
    assert "every start compiles 2 modules anew: PYTHONDONTWRITEBYTECODE is set" in said(compiled, source, source)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert "anew" not in said(source)


def test_what_needs_sglang_is_not_known_without_it() -> None:
    def fail() -> None:
        raise ImportError("no module named flash")

    assert software.after_import(lambda: None, lambda: ok("there")) == ok("there")
    assert_finding(software.after_import(fail, lambda: ok("there")), "note", "cannot be imported")


def test_hook_targets() -> None:
    from swift_tiers.sglang_ext.hooks import Hook, HookType, check_hook

    def hook(target: str, *parameters: str) -> Hook:
        return Hook(target, HookType.AROUND, print, parameters, "a test")

    good = hook("textwrap.fill", "text", "width", "kwargs")
    assert_finding(software.hook_targets([good], check_hook), "ok", "all 1")
    bad = [good, hook("textwrap.fill", "text"), hook("textwrap.nothing"), hook("no.such.module")]
    finding = software.hook_targets(bad, check_hook)
    assert_finding(finding, "wrong", "3 of 4", "textwrap.fill takes (text, width, kwargs), expected (text)")
    assert_finding(finding, "wrong", "textwrap.nothing is missing", "no.such.module is missing", "pip install")


def test_the_flag() -> None:
    with_flag = type("Arguments", (), {"enable_swift_tiers": False})
    assert software.flag(lambda: None, lambda: with_flag).status == "ok"
    assert_finding(software.flag(lambda: None, lambda: object), "wrong", "does not know the flag")


def test_no_compiler_is_a_note() -> None:
    assert software.compiler(lambda name: name, lambda: True).status == "ok"
    nothing = software.compiler(lambda name: None, lambda: True)
    assert_finding(nothing, "note", "no g++ and no ninja", "libssl-dev")
    assert_finding(software.compiler(lambda name: name, lambda: False), "note", "cannot be compiled", "libssl-dev")


# ---- machine ----


def test_kernel() -> None:
    assert machine.kernel("Linux", "6.18.44-fc").status == "ok"
    assert_finding(machine.kernel("Linux", "5.13.0-39-generic"), "note", "page by page")
    assert_finding(machine.kernel("Linux", "5.4.0-1103-aws"), "warning", "no usable io_uring")
    assert_finding(machine.kernel("Darwin", "23.1.0"), "wrong", "use Linux")


FORBIDDEN = "io_uring is forbidden to this process: EPERM, probably a container's seccomp profile; allow io_uring_*"
SWITCHED_OFF = "io_uring is switched off by sysctl kernel.io_uring_disabled=2; set it to 0 to allow it"


def test_io_uring() -> None:
    on_ssd = SsdConfig(directories=("/ssd0",))
    assert machine.io_uring(on_ssd, None, False).status == "ok"
    assert_finding(machine.io_uring(on_ssd, FORBIDDEN, True), "warning", "threads", "--security-opt seccomp")
    assert_finding(machine.io_uring(on_ssd, SWITCHED_OFF, True), "warning", "sysctl -w kernel.io_uring_disabled=0")
    assert_finding(machine.io_uring(on_ssd, "ENOMEM; raise `ulimit -l`", False), "warning", "--ulimit memlock=-1")
    must = SsdConfig(directories=("/ssd0",), engine="io_uring")
    assert_finding(machine.io_uring(must, SWITCHED_OFF, False), "wrong", 'ssd.engine to "auto"')
    assert machine.io_uring(SsdConfig(directories=("/ssd0",), engine="threads"), FORBIDDEN, True).status == "note"
    assert machine.io_uring(SsdConfig(), FORBIDDEN, True).status == "note"


def test_host_memory() -> None:
    memory = Memory(total=64 * GIB, available=40 * GIB, container_room=float("inf"))
    automatic = machine.host_memory(HostConfig(), memory, 16 * GIB)
    assert_finding(automatic, "ok", "host.size 16GiB (automatic), 40GiB of 64GiB free")
    assert_finding(machine.host_memory(HostConfig(size=Size(50 * GIB)), memory, 0), "wrong", "below 40GiB")
    assert_finding(machine.host_memory(HostConfig(size=Size(39 * GIB)), memory, 0), "warning", "little is left")
    boxed = memory._replace(container_room=8 * GIB)
    assert_finding(
        machine.host_memory(HostConfig(size=Size(16 * GIB)), boxed, 0), "wrong", "8GiB of 64GiB free in this container"
    )
    assert_finding(machine.host_memory(HostConfig(), memory, GIB // 2), "warning", "512MiB (automatic)")


def test_memory_is_that_of_the_container(tmp_path: Path) -> None:
    found = machine._memory(pod(tmp_path, 64 * GIB, used=14 * GIB))
    assert found == Memory(total=64 * GIB, available=50 * GIB, container_room=50 * GIB)
    assert_finding(
        machine.host_memory(HostConfig(size=Size(100 * GIB)), found, 0),
        "wrong",
        "50GiB of 64GiB free in this container",
        "below 50GiB",
    )


def test_memory_is_that_of_the_nodes_that_may_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the container's cpuset, or of the policy that this process was started with."""
    tree = two_nodes(tmp_path, free=50 * GIB)
    monkeypatch.setattr(numa_nodes, "policy_nodes", lambda: {0})
    bound = machine._memory(tmp_path)
    assert bound == Memory(total=256 * GIB, available=50 * GIB, container_room=float("inf"), nodes="0")
    assert_finding(
        machine.host_memory(HostConfig(size=Size(100 * GIB)), bound, 0),
        "wrong",
        "50GiB of 256GiB free on NUMA node(s) 0, and none may be had of others",
        "below 50GiB",
    )
    tree.allowed("1")
    monkeypatch.setattr(numa_nodes, "policy_nodes", lambda: None)
    assert machine._memory(tmp_path) == Memory(256 * GIB, 200 * GIB, 200 * GIB, "1")


def test_huge_pages() -> None:
    assert_finding(machine.huge_pages("madvise", lambda: 1.0), "ok", "100%")
    assert_finding(machine.huge_pages("always", lambda: 0.25), "warning", "25%", "compact_memory")
    assert_finding(machine.huge_pages("never", lambda: 0.0), "warning", "transparent_hugepage/enabled")
    assert_finding(machine.huge_pages(None, lambda: 0.0), "warning", "has no transparent huge pages")


def test_huge_pages_that_are_larger_than_a_test_buffer_are_not_missed(tmp_path: Path) -> None:
    """With pages of 64 KiB they have 512 MiB."""
    file = tmp_path / "hpage_pmd_size"
    assert machine.number_in(file) is None
    file.write_text("536870912\n")
    size = machine.number_in(file)
    assert size == 512 << 20
    assert_finding(machine.huge_pages("always", lambda: 0.0, size), "note", "each has 512MiB", "not tried")
    assert_finding(machine.huge_pages("never", lambda: 0.0, size), "warning", "switched off")
    assert_finding(machine.huge_pages("madvise", lambda: 1.0, 2 << 20), "ok", "100%")


def test_the_share_of_huge_pages_is_measured() -> None:
    assert 0.0 <= machine.huge_share() <= 1.0


def test_locked_memory() -> None:
    assert machine.locked_memory(resource.RLIM_INFINITY, (5, 4)) == ok("unlimited")
    assert_finding(machine.locked_memory(64 * 1024, (6, 1)), "ok", "64KiB, does not count")
    assert machine.locked_memory(8 * 2**20, (5, 11)).status == "ok"
    assert_finding(machine.locked_memory(64 * 1024, (5, 11)), "warning", "LimitMEMLOCK")


def test_open_files() -> None:
    assert_finding(machine.open_files(1024, 1_048_576), "ok", "65535")
    assert machine.open_files(1024, resource.RLIM_INFINITY).status == "ok"
    assert machine.open_files(20_000, 20_000).status == "ok"
    assert_finding(machine.open_files(1024, 4096), "warning", "hard", "--ulimit nofile=65535")
    assert_finding(machine.open_files(256, 256), "wrong", "256")


def test_shared_memory(tmp_path: Path) -> None:
    def room(blocks: int, free: int) -> Callable[[Path], os.statvfs_result]:
        return lambda folder: os.statvfs_result((4096, 4096, blocks, free, free, 0, 0, 0, 0, 255))

    assert machine.shared_memory(tmp_path, room(2**20, 2**20)).status == "ok"
    assert_finding(machine.shared_memory(tmp_path, room(2**14, 2**14)), "warning", "64MiB", "--shm-size")
    assert_finding(machine.shared_memory(tmp_path, room(2**20, 100)), "warning", "nearly full")
    assert_finding(machine.shared_memory(tmp_path / "none"), "warning", "No such file", "tmpfs")


# ---- accelerators ----

H200 = CudaDevice("NVIDIA H200", 130 * GIB, 140 * GIB)
MIG = CudaDevice("NVIDIA H200 MIG 1g.18gb", 17 * GIB, 18 * GIB)
LISTED = "GPU 0: NVIDIA H200 (UUID: GPU-1)\nGPU 1: NVIDIA H200 (UUID: GPU-2)\n"


def test_accelerators() -> None:
    found = accelerators.accelerators(Accelerators((H200, H200), "CUDA 13.0"), LISTED)
    assert found == ok("2 x NVIDIA H200 (CUDA 13.0)")
    assert_finding(accelerators.accelerators(Accelerators((MIG,), "CUDA 13.0"), LISTED), "note", "MIG slices")
    assert_finding(accelerators.accelerators(Accelerators((), ""), None), "note", "portable CPU platform")
    blind = Accelerators((), "CUDA 13.0", "The NVIDIA driver on your system is too old")
    assert_finding(accelerators.accelerators(blind, LISTED), "wrong", "lists 2", "too old", "CUDA_VISIBLE_DEVICES")
    assert_finding(
        accelerators.accelerators(Accelerators((), "", "", ("xpu",)), None),
        "wrong",
        "xpu",
        "NVIDIA",
        "without --enable-swift-tiers",
    )
    amd = Accelerators((CudaDevice("AMD Instinct MI300X", 100 * GIB, 192 * GIB),), "ROCm 6.4")
    assert_finding(accelerators.accelerators(amd, None), "wrong", "MI300X", "ROCm 6.4", "without --enable-swift-tiers")


def test_only_one_line_where_there_is_no_gpu() -> None:
    assert [check.name for check in accelerators.checks(nodes=False)] == ["accelerators"]
    assert len(list(accelerators.checks(nodes=True))) > 1


def test_driver() -> None:
    found = Accelerators((H200,), "CUDA 13.0")
    assert accelerators.driver(found, "580.65.06\n580.65.06\n") == ok("580.65.06, for CUDA 13.0")
    assert accelerators.driver(found, None).status == "note"
    assert accelerators.driver(Accelerators((), ""), None).status == "note"


def test_gpu_memory() -> None:
    assert_finding(accelerators.memory([H200]), "ok", "0: 130GiB of 140GiB")
    used = accelerators.memory([H200, H200._replace(free=20 * GIB)])
    assert_finding(used, "warning", "1: 20GiB of 140GiB", "GPU 1 is in use", "--mem-fraction-static")
    assert accelerators.memory([]).status == "note"


def test_pinned_memory() -> None:
    assert accelerators.pinned([H200], lambda size: 0).status == "ok"
    assert_finding(accelerators.pinned([H200], lambda size: 2), "warning", "CUDA error 2", "memlock")
    assert accelerators.pinned([], lambda size: 2).status == "note"
