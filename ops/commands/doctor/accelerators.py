"""GPUs: what torch sees of them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

from swift_tiers.radix_tiering.base.units import format_size

from .finding import Check, Finding, note, ok, warning, wrong

#: Seconds for the first look: it imports torch and starts the driver.
DRIVER_SECONDS = 90.0
#: Share of a GPU's memory that SGLang takes for itself by default, roughly; with less free it does not come up.
SGLANG_SHARE = 0.85
#: What the drivers of NVIDIA, of WSL and of AMD make.
_NODES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
_PIN_BYTES = 4 << 20
_NVIDIA_SMI_SECONDS = 20.0


class CudaDevice(NamedTuple):
    """One CUDA device as torch numbers it."""

    name: str
    free: int  # bytes
    total: int  # bytes

    @property
    def slice(self) -> bool:
        """A part of a GPU that has been divided with MIG."""
        return " MIG " in f" {self.name} "


class Accelerators(NamedTuple):
    """What torch says."""

    gpus: tuple[CudaDevice, ...]
    kind: str  # "CUDA 13.0", "ROCm 6.4"; of the build of torch, empty for one without
    error: str = ""  # why a GPU cannot be used
    others: tuple[str, ...] = ()  # accelerators that are not reached through torch.cuda


def checks(nodes: bool | None = None) -> Iterator[Check]:
    """`nodes`: whether the system has GPUs by its device nodes; where not, there is only one thing to say."""
    yield Check("accelerators", lambda: accelerators(look(), nvidia_smi("--list-gpus")), DRIVER_SECONDS)
    if gpu_nodes() if nodes is None else nodes:
        yield Check("GPU driver", lambda: driver(look(), nvidia_smi(*_DRIVER_QUERY)), DRIVER_SECONDS)
        yield Check("GPU memory", lambda: memory(look().gpus), DRIVER_SECONDS)
        yield Check("pinned memory", lambda: pinned(look().gpus, _pin), DRIVER_SECONDS)


def gpu_nodes() -> bool:
    """Whether the system has GPUs, by its device nodes."""
    return any(os.path.exists(node) for node in _NODES)


_DRIVER_QUERY = ("--query-gpu=driver_version", "--format=csv,noheader")


def accelerators(found: Accelerators, listed: str | None) -> Finding:
    """`listed`: what nvidia-smi knows, None where there is none."""
    if found.gpus:
        counts: dict[str, int] = {}
        for gpu in found.gpus:
            counts[gpu.name] = counts.get(gpu.name, 0) + 1
        names = ", ".join(f"{count} x {name}" for name, count in counts.items())
        if any(gpu.slice for gpu in found.gpus):
            return note(f"{names} ({found.kind}): MIG slices share one link to host memory, and reach no other GPU")
        if found.kind.startswith("ROCm"):
            return wrong(f"{names} ({found.kind}): the tiers are for NVIDIA GPUs", "serve without --enable-swift-tiers")
        return ok(f"{names} ({found.kind})")
    there = len(re.findall(r"^GPU \d+:", listed or "", re.MULTILINE))
    if there:
        return wrong(
            f"nvidia-smi lists {there}, torch sees none: {found.error or 'no reason given'}",
            "match driver and torch (its CUDA is "
            f"{found.kind or 'none: a CPU build'}), look at CUDA_VISIBLE_DEVICES, and at the container's --gpus",
        )
    if found.others:
        return wrong(f"{', '.join(found.others)}: the tiers are for NVIDIA GPUs", "serve without --enable-swift-tiers")
    return note("none: SGLang runs on the portable CPU platform, to try things out")


def driver(found: Accelerators, version: str | None) -> Finding:
    if not found.gpus:
        return note("none in use")
    if version is None or not version.strip():
        return note(f"{found.kind} works; no nvidia-smi to ask for the driver's version")
    return ok(f"{version.split()[0]}, for {found.kind}")


def memory(gpus: Sequence[CudaDevice]) -> Finding:
    if not gpus:
        return note("none in use")
    text = ", ".join(f"{index}: {format_size(gpu.free)} of {format_size(gpu.total)}" for index, gpu in enumerate(gpus))
    taken = [str(index) for index, gpu in enumerate(gpus) if gpu.free < SGLANG_SHARE * gpu.total]
    if taken:
        remedy = "end what uses it (`nvidia-smi` shows it), or lower SGLang's --mem-fraction-static"
        return warning(f"free on GPU {text}; GPU {', '.join(taken)} is in use", remedy)
    return ok(f"free on GPU {text}")


def pinned(gpus: Sequence[CudaDevice], pin: Callable[[int], int]) -> Finding:
    """`pin(bytes)` registers that much memory as the host tier does: 0, or the runtime's error."""
    if not gpus:
        return note("none in use")
    error = pin(_PIN_BYTES)
    if error:
        return warning(
            f"host memory cannot be pinned (CUDA error {error}): copies to the GPU are slower",
            "raise `ulimit -l` (docker: --ulimit memlock=-1), and leave more memory free",
        )
    return ok("host memory can be pinned")


@cache
def look() -> Accelerators:
    """Ask torch. Starts the driver: only in a process that does nothing else with it."""
    import torch

    kind = (
        f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}" if torch.version.hip else ""
    )
    others = tuple(
        name
        for name in ("xpu", "mps", "npu", "musa", "hpu")
        if hasattr(torch, name) and _available(getattr(torch, name))
    )
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return Accelerators((), kind, " ".join(str(error).split()), others)
    gpus = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        gpus.append(CudaDevice(torch.cuda.get_device_name(index), free, total))
    return Accelerators(tuple(gpus), kind, "", others)


def _available(module: object) -> bool:
    test = getattr(module, "is_available", None)
    return bool(test is not None and test())


def _pin(size: int) -> int:
    import torch

    from swift_tiers.radix_tiering.base.memory import huge_array

    buffer = huge_array(size)
    runtime = torch.cuda.cudart()
    error = int(runtime.cudaHostRegister(buffer.ctypes.data, buffer.nbytes, 0))
    if not error:
        runtime.cudaHostUnregister(buffer.ctypes.data)
    return error


def nvidia_smi(*arguments: str) -> str | None:
    """Its output; None where it is not there or fails. Raises subprocess.TimeoutExpired."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=_NVIDIA_SMI_SECONDS)
    return done.stdout if done.returncode == 0 else None
