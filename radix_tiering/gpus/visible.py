"""Which GPU of the machine a process computes on: CUDA counts those it was given, NVML counts all, by PCI bus."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from .snapshots import Gpu

_UUID = re.compile(r"(GPU-|MIG-)?([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})", re.I | re.ASCII)


def gpu_of(ordinal: int, cuda_uuid: str | None, gpus: Sequence[Gpu], environment: Mapping[str, str]) -> str | None:
    """NVML's uuid of CUDA device `ordinal`; None where that cannot be told.

    `cuda_uuid`: what CUDA says of it, if it does, with or without "GPU-" before it. It decides, but for MIG instances:
    there, some drivers name the whole GPU. `gpus`: what NVML sees. `environment`: of the process, when CUDA started.
    """
    listed = _listed(environment, gpus)
    named = listed[ordinal] if listed is not None and 0 <= ordinal < len(listed) else None
    if named is not None and named.startswith("MIG-"):
        return named
    if cuda_uuid is not None and (match := _UUID.fullmatch(cuda_uuid.strip())):
        digits = match[2].lower()
        whole = next((gpu for gpu in gpus if gpu.uuid.lower() == f"gpu-{digits}"), None)
        if whole is None:
            # An instance; or a GPU that NVML does not list. Asking for it tells.
            return f"MIG-{digits}"
        return None if whole.mig else whole.uuid
    if listed is not None:
        return named
    return _by_number(ordinal, gpus, environment)


def _listed(environment: Mapping[str, str], gpus: Sequence[Gpu]) -> list[str | None] | None:
    """The GPUs of CUDA_VISIBLE_DEVICES in CUDA's order, None for one that cannot be told; None if it is not set. CUDA
    stops at the first that it does not find."""
    text = environment.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return None
    found: list[str | None] = []
    for word in (part.strip() for part in text.split(",")):
        if re.fullmatch(r"\d+", word, re.ASCII):
            if int(word) >= len(gpus):
                break
            found.append(_by_number(int(word), gpus, environment))
            continue
        # A name may be cut short, as long as it is the only one that begins so.
        matching = [gpu.uuid for gpu in gpus if word.startswith("GPU-") and gpu.uuid.lower().startswith(word.lower())]
        if word.startswith("MIG-"):
            found.append(word)
        elif len(matching) == 1:
            found.append(matching[0])
        else:
            break
    return found


def _by_number(number: int, gpus: Sequence[Gpu], environment: Mapping[str, str]) -> str | None:
    """CUDA counts as NVML does where it is told to, and where all GPUs are alike; else the fastest one is its first."""
    if not 0 <= number < len(gpus):
        return None
    if environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID" and len({gpu.name for gpu in gpus}) > 1:
        return None
    gpu = gpus[number]
    return None if gpu.mig else gpu.uuid or None  # of a divided one, CUDA uses one instance
