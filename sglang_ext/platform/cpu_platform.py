"""The portable CPU platform: SGLang on any x86-64 or arm64 machine without an accelerator.

SGLang's own CPU engine wants the AMX build of its kernels and an environment variable. This platform needs neither: all
operators run as plain torch ("native" dispatch), so that the whole server, tiers included, can be developed, tested and
shown on a laptop. It is slower than SGLang's CPU engine and makes no claim to be otherwise.

SGLang imports this module, while it is being imported itself. Other code must have imported sglang before.
"""

import ctypes
import json
import logging
from pathlib import Path
from typing import Any

import psutil
from sglang.srt.platforms.cpu import CpuSRTPlatform
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import PlatformCapabilities

from . import cpu_attention

logger = logging.getLogger(__name__)

# Share of the free memory that weights and device pool may take together. The rest is for the host tier, which lives in
# the same memory, for a second server beside this one, and for everything else on the machine.
MEMORY_FRACTION = 0.5
# Tokens. SGLang writes the whole pool at start (zeros), so its size is paid in memory and in seconds at once, used or
# not. This is 1.5 GB for SmolLM2-135M in float32, and 4 GB for an 8-billion-parameter model in bfloat16.
DEVICE_POOL_TOKENS = 32_768
# Tokens. A chunk is the time during which no other request, and no health check, gets a turn: about a second here.
# cpu_attention makes chunks cost no more than the whole.
PREFILL_CHUNK = 1024
RUNNING_REQUESTS = 32
# glibc's mallopt: from how many bytes on memory is mapped for itself, and how many free ones at the end of the heap are
# given back to the kernel.
MMAP_THRESHOLD, TRIM_THRESHOLD = (-3, 32 * 2**20), (-1, 512 * 2**20)
LORA_BACKENDS_IN_TRITON = ("csgmv", "triton", "triton_v2")


class PortableCpuPlatform(CpuSRTPlatform):
    """Out-of-tree, so that SGLang takes plain torch paths instead of its AMX kernels; CPU in everything else."""

    _enum = PlatformEnum.OOT
    # Nothing: no Triton, no graph capture, no sgl_kernel copies.
    capabilities = PlatformCapabilities()

    def get_device(self, device_id: int = 0) -> str:  # type: ignore[override]
        """The device's name, not a `torch.device`: ServerArgs splits it as text when `--device` is not given."""
        return "cpu"

    def get_device_total_memory(self, device_id: int = 0) -> int:
        """Bytes this process may use: the machine's memory, or its container's limit where that is lower."""
        return min(psutil.virtual_memory().total, _container_bytes("memory.max") or psutil.virtual_memory().total)

    def get_default_attention_backend(self) -> str:
        return cpu_attention.NAME

    def apply_server_args_defaults(self, server_args: Any) -> None:
        """Fills in what the user left open; called while SGLang resolves its arguments.

        `server_args` is SGLang's recording view: reading gives the value resolved so far, assigning declares a default.
        """
        cpu_attention.register()
        if server_args.device != "cpu":
            return
        logger.warning(
            "swift-tiers: no accelerator is found here, so this server computes on the CPU, by the portable platform "
            "that comes with swift-tiers. Where there should be one, see its driver, and what the container was given"
        )
        # SGLang has put "intel_amx" where nothing was asked for (and would fall back to "torch_native").
        if server_args.attention_backend in (None, "intel_amx"):
            server_args.attention_backend = self.get_default_attention_backend()
        if server_args.mem_fraction_static is None:
            server_args.mem_fraction_static = MEMORY_FRACTION
            if server_args.max_total_tokens is None:
                server_args.max_total_tokens = DEVICE_POOL_TOKENS
        if server_args.dtype == "auto" and _checkpoint_dtype(server_args.model_path) == "float32":
            # "auto" makes float16 of it, which few CPUs compute with.
            server_args.dtype = "float32"
        if server_args.chunked_prefill_size is None:
            server_args.chunked_prefill_size = PREFILL_CHUNK
        if server_args.max_running_requests is None:
            server_args.max_running_requests = RUNNING_REQUESTS
        if server_args.lora_backend in LORA_BACKENDS_IN_TRITON:
            server_args.lora_backend = "torch_native"
        # An idle scheduler spins on its core. Here that core is the one that computes, serves HTTP and moves pages.
        server_args.sleep_on_idle = True
        _disable_graphs(server_args)

    def get_compile_backend(self, mode: str | None = None) -> str:
        """None that compiles: a machine may have no C++ compiler, and where it has one, each start would wait for what
        SGLang compiles of its small functions."""
        return "eager"

    def get_kv_pool_cls(self, *, kind: str) -> type | None:
        """Where memory is lent, a pool that others can map; else SGLang's."""
        peer = donor_config()
        if kind != "mha" or peer is None:
            return None
        from ..pools.shared_pool import BlockMajorKVPool, SharedKVPool

        return BlockMajorKVPool if peer.pool_layout == "block-major" else SharedKVPool

    def get_paged_allocator_cls(self) -> type | None:
        """Where memory is lent, an allocator that can; else SGLang's."""
        if donor_config() is None:
            return None
        from ..pools.lending_allocator import PagedLendingAllocator

        return PagedLendingAllocator

    def init_backend(self) -> None:
        """Called when the model runner's module is imported, the first moment at which the backend is needed.

        So the platform also works where `SGLANG_PLUGINS` leaves the general plugin out.
        """
        cpu_attention.register(import_registry=True)
        keep_freed_memory()


def keep_freed_memory() -> None:
    """Have malloc keep what one forward frees for the next one. As it comes, glibc may give the end of the heap back
    after each, by chance of what lies there, and the kernel then clears every page of it anew: a twentieth of the time.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        for option in (MMAP_THRESHOLD, TRIM_THRESHOLD):
            libc.mallopt(*option)


def peer_config() -> Any:
    """The section `peer` of this server's configuration, as its ranks get it; None without tiers."""
    from sglang.srt.runtime_context import get_memory

    from swift_tiers.radix_tiering.base.read_config import parse_config

    memory = get_memory()
    if not memory.enable_swift_tiers:
        return None
    return parse_config(memory.unified_cache_external_linker_config["linker_extra_config"]).peer


def donor_config() -> Any:
    """The same where this server lends memory of its pool; None where it does not."""
    peer = peer_config()
    return peer if peer is not None and peer.donate else None


def _disable_graphs(server_args: Any) -> None:
    from sglang.srt.model_executor.cuda_graph_config import Backend, Phase, with_phase

    config = server_args.cuda_graph_config
    for phase in (Phase.DECODE, Phase.PREFILL):
        config = with_phase(config, phase, backend=Backend.DISABLED)
    server_args.cuda_graph_config = config


def _checkpoint_dtype(model_path: str) -> str | None:
    """What a model directory on this machine says about itself; None for anything else, which SGLang then handles."""
    try:
        config = json.loads((Path(model_path) / "config.json").read_text())
    except (OSError, ValueError):
        return None
    dtype = config.get("dtype") or config.get("torch_dtype")
    return dtype.removeprefix("torch.") if isinstance(dtype, str) else None


def _container_bytes(name: str) -> int | None:
    from sglang.srt.utils.common import get_instance_memory_status

    return get_instance_memory_status(f"/sys/fs/cgroup/{name}")
