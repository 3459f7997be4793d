"""NVIDIA's driver, asked so that every refusal is one line that names the call and what to do."""

from __future__ import annotations

import importlib
import logging
from typing import Any

from .arena import ArenaError

logger = logging.getLogger(__name__)

_PEERS = (
    "the two GPUs may not reach each other (`swift-tiers doctor` shows which do), or one of the two servers may not "
    "see both (CUDA_VISIBLE_DEVICES, or the devices of its container)"
)
_REMEDIES = {
    "cuInit": "install NVIDIA's driver, and give this container its devices",
    "cuDeviceGet": "name a GPU that this server sees",
    "cuMemCreate": "make the KV pool smaller (--mem-fraction-static), or remove peer.donate",
    "cuMemExportToShareableHandle": "remove peer.donate: this driver, or this kind of GPU, cannot share memory",
    "cuMemImportFromShareableHandle": _PEERS,
    "cuMemHostRegister": "raise the limit of locked memory (ulimit -l)",
    "cuMemMap": "the donor may have handed out less than it says; run the same release of swift-tiers on both",
    "cuMemSetAccess": _PEERS,
}
_OTHERWISE = "see `nvidia-smi` and the kernel's log for what has become of the GPU"


class CudaDriver:
    """The functions of `cuda.bindings.driver`. Any thread may call; the interpreter lock is not held meanwhile."""

    def __init__(self, module: Any = None) -> None:
        """`module`: None: the one that is installed. Raises ArenaError where there is none."""
        if module is None:
            try:
                module = importlib.import_module("cuda.bindings.driver")
            except ImportError:
                raise ArenaError(
                    "cuda-bindings is missing; install it beside torch: pip install cuda-bindings"
                ) from None
        #: For its types.
        self.types = module

    def call(self, name: str, *arguments: Any) -> Any:
        """What the function of this name returns beside its result. Raises ArenaError where that is no success."""
        try:
            result, *values = getattr(self.types, name)(*arguments)
        except RuntimeError as error:  # from the bindings: there is no driver, or it has no such function
            raise ArenaError(f"{name}: {str(error).splitlines()[0]}; {_REMEDIES['cuInit']}") from None
        if result != self.types.CUresult.CUDA_SUCCESS:
            raise ArenaError(f"{name}: {_word(result)}; {_REMEDIES.get(name, _OTHERWISE)}")
        return values[0] if values else None

    def undo(self, name: str, *arguments: Any) -> None:
        """Call what gives something back. A refusal is logged: whoever gives back has nothing else to do about it."""
        try:
            self.call(name, *arguments)
        except ArenaError as error:
            logger.warning("swift-tiers: something of a GPU is not given back: %s", error)


def _word(result: Any) -> str:
    name: str = getattr(result, "name", str(result))
    return name.removeprefix("CUDA_ERROR_").replace("_", " ").lower()
