"""Who gets the portable CPU platform, and what it fills in."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

# First, as everywhere: `cpu_platform` cannot be what imports sglang, because sglang, while it is imported, asks for it.
import sglang.srt.utils.common  # noqa: F401
import torch

from swift_tiers.sglang_ext import plugin
from swift_tiers.sglang_ext.platform import registering as platform

from support import forked


@pytest.fixture
def no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "has_accelerator", lambda: False)
    monkeypatch.delenv("SGLANG_PLATFORM", raising=False)
    monkeypatch.delenv("SGLANG_USE_CPU_ENGINE", raising=False)
    monkeypatch.setattr(sys, "argv", ["server"])


@pytest.mark.usefixtures("no_accelerator")
def test_a_machine_without_accelerator_gets_it() -> None:
    assert platform.activate() == platform.PLATFORM_CLASS


@pytest.mark.usefixtures("no_accelerator")
@pytest.mark.parametrize(
    ("name", "value", "ours"),
    [
        ("SGLANG_USE_CPU_ENGINE", "1", False),
        ("SGLANG_USE_CPU_ENGINE", "0", True),
        ("SGLANG_PLATFORM", "somebody-else", False),
        ("SGLANG_PLATFORM", platform.ENTRY_POINT, True),
    ],
)
def test_the_user_may_choose_otherwise(monkeypatch: pytest.MonkeyPatch, name: str, value: str, ours: bool) -> None:
    monkeypatch.setenv(name, value)
    assert (platform.activate() is not None) is ours


VENDOR = """
def activate():
    return {answer!r}
"""


@pytest.fixture
def vendor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    """Installs a platform of somebody else's, which answers SGLang so, for a device that torch knows nothing of."""

    def install(answer: str | None) -> None:
        (tmp_path / "vendor_of_devices.py").write_text(VENDOR.format(answer=answer))
        package = tmp_path / "vendor_of_devices-1.0.dist-info"
        package.mkdir()
        (package / "METADATA").write_text("Metadata-Version: 2.1\nName: vendor-of-devices\nVersion: 1.0\n")
        (package / "entry_points.txt").write_text(f"[{platform.GROUP}]\nvendor = vendor_of_devices:activate\n")
        monkeypatch.syspath_prepend(str(tmp_path))

    return install


@pytest.mark.usefixtures("no_accelerator")
def test_a_vendors_platform_comes_first(vendor: Callable[[str | None], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang starts without being told which of the two is meant, and may be told that it is ours."""
    from sglang.srt import platforms

    vendor("sglang.srt.platforms.cpu:CpuSRTPlatform")
    assert type(platforms._resolve_platform()).__name__ == "CpuSRTPlatform"
    monkeypatch.setenv("SGLANG_PLATFORM", platform.ENTRY_POINT)
    assert type(platforms._resolve_platform()).__name__ == "PortableCpuPlatform"


@pytest.mark.usefixtures("no_accelerator")
def test_a_vendors_platform_that_keeps_away_as_well_leaves_sglang_its_own(
    vendor: Callable[[str | None], None],
) -> None:
    """Whether it does is not asked: that might import a driver."""
    vendor(None)
    assert platform.activate() is None


KINDS = ("cuda", "xpu", "mps", "npu", "musa", "hpu", "accelerator")


@pytest.mark.parametrize("kind", KINDS)
def test_any_accelerator_is_left_to_sglang(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    for other in KINDS:
        device = SimpleNamespace(is_available=lambda present=other == kind: present)
        monkeypatch.setattr(torch, other, device, raising=False)
    assert platform.has_accelerator()
    monkeypatch.setattr(torch, kind, SimpleNamespace(is_available=lambda: False), raising=False)
    assert not platform.has_accelerator()


def arguments(**given: Any) -> SimpleNamespace:
    """What SGLang hands over: every field as resolved so far, None or its own default where the user said nothing."""
    from sglang.srt.model_executor.cuda_graph_config import CudaGraphConfig

    fields: dict[str, Any] = {
        "device": "cpu",
        "attention_backend": "intel_amx",
        "mem_fraction_static": None,
        "max_total_tokens": None,
        "dtype": "auto",
        "model_path": "/nowhere",
        "chunked_prefill_size": None,
        "max_running_requests": None,
        "lora_backend": "csgmv",
        "sleep_on_idle": False,
        "cuda_graph_config": CudaGraphConfig(),
    }
    return SimpleNamespace(**(fields | given))


def test_defaults_fill_what_is_open_and_keep_what_was_given(tmp_path: Path) -> None:
    from swift_tiers.sglang_ext.platform import cpu_platform

    cpu = cpu_platform.PortableCpuPlatform()
    (tmp_path / "config.json").write_text(json.dumps({"dtype": "float32"}))
    filled = arguments(model_path=str(tmp_path))
    cpu.apply_server_args_defaults(filled)
    assert filled.attention_backend == "swift_cpu"
    assert filled.max_total_tokens == cpu_platform.DEVICE_POOL_TOKENS
    assert filled.chunked_prefill_size == cpu_platform.PREFILL_CHUNK
    assert filled.dtype == "float32"
    assert {filled.cuda_graph_config.decode.backend, filled.cuda_graph_config.prefill.backend} == {"disabled"}

    given: dict[str, Any] = {
        "attention_backend": "torch_native",
        "mem_fraction_static": 0.7,
        "dtype": "bfloat16",
        "chunked_prefill_size": -1,
        "max_running_requests": 3,
    }
    kept = arguments(model_path=str(tmp_path), **given)
    cpu.apply_server_args_defaults(kept)
    assert {name: getattr(kept, name) for name in given} == given
    # Who sizes the pool by memory does not want it cut by tokens.
    assert kept.max_total_tokens is None


def test_what_sglang_asks_the_platform() -> None:
    from swift_tiers.sglang_ext.platform.cpu_platform import PortableCpuPlatform

    cpu = PortableCpuPlatform()
    assert cpu.get_device() == "cpu"
    assert isinstance(cpu.get_device(), str)  # SGLang calls .split on it
    assert cpu.is_out_of_tree()
    assert cpu.get_current_memory_usage() > 0
    assert cpu.get_device_total_memory() > 1 << 28
    assert cpu.get_compile_backend() == "eager", "it needs no compiler"


def test_registering_is_light() -> None:
    """The HTTP server and the detokenizer call it too."""
    code = (
        "import sys, swift_tiers.sglang_ext.platform.cpu_attention as a; a.register(); "
        "print([m for m in sys.modules if m.startswith('sglang.srt.layers.attention')])"
    )
    result = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip().splitlines()[-1] == "[]"


def test_serve_help_shows_the_plugins_flags() -> None:
    result = forked.run("from sglang.cli.main import main; main()", "serve", "--help")
    assert "swift_cpu" in result.stdout, result.stderr[-500:]


KEEPS = """
import resource
import sglang.srt.utils.common
import torch
from swift_tiers.sglang_ext.platform.cpu_platform import keep_freed_memory
keep_freed_memory()

def faults_of(rounds):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(rounds):
        # What one layer holds at a time, the last of it at the end of the heap.
        held = [torch.full((2**20,), 1.0) for _ in range(6)]
        del held
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults_of(4)
print(faults_of(50))
"""


def test_what_a_forward_frees_is_there_for_the_next_one() -> None:
    """50 times 24 MiB are 300,000 pages that the kernel would clear."""
    kept = subprocess.run([sys.executable, "-c", KEEPS], capture_output=True, text=True, check=True)
    assert int(kept.stdout.split()[-1]) < 6144, "not even what one of them needs"


def test_a_plugin_that_cannot_be_loaded_ends_a_start_that_asks_for_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """SGLang logs, goes on without it, and calls its flag unknown."""

    def fails() -> None:
        raise OSError("cut in half")

    monkeypatch.setattr(plugin, "_install", fails)
    monkeypatch.setattr(sys, "argv", ["launch_server", "--enable-swift-tiers"])
    with pytest.raises(SystemExit) as end:
        plugin.load()
    told = capsys.readouterr().err
    assert (end.value.code, "Traceback" in told, told.rstrip().endswith("error: cut in half")) == (2, True, True)
    monkeypatch.setattr(sys, "argv", ["launch_server"])
    with pytest.raises(OSError, match="cut in half"):
        plugin.load()
