"""NVIDIA's GPUs as the driver's own library sees them: their memory, and which of them reach each other how."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import combinations
from typing import NamedTuple

import msgspec

from swift_tiers.radix_tiering.base.config import PeerConfig
from swift_tiers.radix_tiering.base.units import format_size
from swift_tiers.radix_tiering.gpus.nvml import GpuLost, NoNvml, Nvml
from swift_tiers.radix_tiering.gpus.snapshots import Gpu, Reach, way

from .accelerators import gpu_nodes
from .finding import Check, Finding, note, ok, warning

#: Seconds: opening the driver of a machine with many GPUs takes long where no process keeps it open.
DRIVER_SECONDS = 60.0
#: Pairs that are named one by one in a line.
_NAMED = 8
_REFUSED = "refused by CUDA"


class GpusFound(NamedTuple):
    """What there is. `error`: why there is nothing; of GPUs without NVML, what CUDA says is in `reaches`."""

    gpus: tuple[Gpu, ...] = ()
    reaches: tuple[Reach, ...] = ()
    error: str = ""


def checks(peer: PeerConfig, nodes: bool | None = None) -> Iterator[Check]:
    """`nodes`: whether the system has GPUs; where not, there is only one thing to say."""
    yield Check("NVIDIA GPUs", lambda: gpus(look()), DRIVER_SECONDS)
    if gpu_nodes() if nodes is None else nodes:
        yield Check("GPU to GPU", partial(_ways, peer), DRIVER_SECONDS)


def gpus(seen: GpusFound) -> Finding:
    """Their memory, whoever uses it, and lost ones. Numbers are those of nvidia-smi."""
    if seen.error:
        return note(seen.error)
    if not seen.gpus:
        return note("the driver is here, and shows no GPU to this process")
    text = ", ".join(f"{gpu.index}: {_described(gpu)}" for gpu in seen.gpus)
    lost = [str(gpu.index) for gpu in seen.gpus if gpu.trouble]
    if lost:
        remedy = f"`nvidia-smi --gpu-reset -i {lost[0]}`, or restart the machine; `dmesg` says why (Xid)"
        return warning(text, remedy)
    return ok(text)


def _described(gpu: Gpu) -> str:
    if gpu.trouble:
        return gpu.trouble
    parts = [gpu.name or gpu.uuid]
    if gpu.memory_used_bytes is not None and gpu.memory_total_bytes is not None:
        parts.append(f"{format_size(gpu.memory_used_bytes)} of {format_size(gpu.memory_total_bytes)} used")
    if gpu.mig:
        parts.append("divided with MIG")
    if gpu.busy_share is not None:
        parts.append(f"{gpu.busy_share:.0%} busy")
    return " ".join(parts[:1]) + (f" ({', '.join(parts[1:])})" if parts[1:] else "")


def ways(seen: GpusFound, peer: PeerConfig) -> Finding:
    """Which GPUs reach each other how, and whether those reach each other that are to lend each other memory."""
    if not seen.reaches:
        return note(seen.error or ("no second GPU" if seen.gpus else "none in use"))
    numbers = {gpu.uuid: str(gpu.index) for gpu in seen.gpus}
    text = _by_way(seen.reaches, numbers)
    closed = [reach for reach in seen.reaches if reach.direct is False]
    if closed:
        why = ", ".join(sorted({word for reach in closed for word in (reach.read, reach.write)} - {"ok", ""}))
        text += f"; no peer access between {_named(closed, numbers)} ({why})"
        if peer.borrow or peer.donate:
            return warning(
                f"{text}: what is lent between them is copied through host memory",
                "put borrowers and donors on GPUs that reach each other; on bare metal, switch off ACS and IOMMU "
                "translation for them (`nvidia-smi topo -p2p r` says what the driver thinks)",
            )
        return note(f"{text}: copies between them go through host memory")
    unknown = [reach for reach in seen.reaches if reach.direct is None]
    if unknown:
        return note(f"{text}; whether there is peer access between {_named(unknown, numbers)}, the driver does not say")
    text += "; peer access everywhere"
    return ok(text) if all(reach.nvlinks for reach in seen.reaches) else note(text)


def _by_way(reaches: Sequence[Reach], numbers: Mapping[str, str]) -> str:
    """`NVLink x18 over NVSwitch between all 8`, or the pairs of each way."""
    found: dict[str, list[Reach]] = {}
    for reach in reaches:
        words = way(reach.nvlinks, reach.pcie) + (" over NVSwitch" if reach.nvlinks and reach.switched else "")
        found.setdefault("connected in a way that the driver does not say" if words == "?" else words, []).append(reach)
    if len(found) == 1:
        (words,) = found
        both = {uuid for reach in reaches for uuid in (reach.one, reach.other)}
        return f"{words} between {'all ' if len(both) > 2 else 'the '}{len(both)}"
    return "; ".join(f"{_named(some, numbers)}: {words}" for words, some in found.items())


def _named(reaches: Sequence[Reach], numbers: Mapping[str, str]) -> str:
    pairs = [f"{numbers[reach.one]}-{numbers[reach.other]}" for reach in reaches]
    return ", ".join(pairs[:_NAMED]) + (f" and {len(pairs) - _NAMED} more" if len(pairs) > _NAMED else "")


def _ways(peer: PeerConfig) -> Finding:
    seen = look()
    cuda = _cuda_access()
    return ways(told_by_cuda(cuda) if seen.error and cuda else corrected(seen, cuda), peer)


def corrected(seen: GpusFound, cuda: Mapping[tuple[str, str], bool]) -> GpusFound:
    """With what CUDA refuses, whatever the driver's library says of it. `cuda`: by uuids, whether it allows access."""
    refused = {frozenset(pair) for pair, allowed in cuda.items() if not allowed}
    reaches = tuple(
        msgspec.structs.replace(reach, read=_REFUSED, write=_REFUSED)
        if reach.direct and frozenset((reach.one, reach.other)) in refused
        else reach
        for reach in seen.reaches
    )
    return seen._replace(reaches=reaches)


def told_by_cuda(cuda: Mapping[tuple[str, str], bool]) -> GpusFound:
    """Where NVML says nothing, as with GPUs of another maker: access alone, by CUDA's numbers."""
    names = sorted({name for pair in cuda for name in pair})
    reaches = tuple(
        Reach(
            one=one,
            other=other,
            nvlinks=None,
            switched=False,
            pcie="",
            nvlink="",
            read="ok" if cuda.get((one, other)) else _REFUSED,
            write="ok" if cuda.get((other, one)) else _REFUSED,
        )
        for one, other in combinations(names, 2)
    )
    return GpusFound(tuple(Gpu(index=number, uuid=name) for number, name in enumerate(names)), reaches)


def _cuda_access() -> dict[tuple[str, str], bool]:
    """Of the GPUs that torch sees, by uuid: whether the first may read and write the memory of the second."""
    import torch

    if not torch.cuda.is_available():
        return {}
    count = torch.cuda.device_count()
    uuids = [getattr(torch.cuda.get_device_properties(index), "uuid", None) for index in range(count)]
    names = [f"cuda-{index}" if uuid is None else f"GPU-{uuid}" for index, uuid in enumerate(uuids)]
    return {
        (names[one], names[other]): torch.cuda.can_device_access_peer(one, other)
        for one in range(count)
        for other in range(count)
        if one != other
    }


@cache
def look() -> GpusFound:
    """Ask NVML."""
    try:
        with Nvml() as nvml:
            return see(nvml)
    except (NoNvml, GpuLost) as error:
        return GpusFound(error=str(error))


def see(nvml: Nvml) -> GpusFound:
    """Raises GpuLost."""
    found = nvml.gpus()
    return GpusFound(found, nvml.reaches(found))
