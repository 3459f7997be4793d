"""NVML without a GPU: the functions of `pynvml` that we use, with its structures, errors and units, of made-up GPUs.

Constants, structures and error classes are `pynvml`'s own. What a test changes on a `FakeGpu`, the next call sees.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pynvml

GIB = 1 << 30


class FakeLink:
    """One NVLink of a GPU. `to`: the GPU at its other end; None: an NVSwitch."""

    def __init__(self, to: FakeGpu | None) -> None:
        self.to = to
        self.up = True
        self.mute = False  # whether its counters are not supported
        self.sent_kib = 0
        self.received_kib = 0


class FakeGpu:
    """One GPU; also one MIG instance, of the GPU `part_of`."""

    def __init__(self, number: int, name: str = "NVIDIA H200", *, part_of: FakeGpu | None = None) -> None:
        kind = "GPU" if part_of is None else "MIG"
        self.uuid = f"{kind}-{number:08x}-1111-2222-3333-444455556666"
        self.name = name
        self.bus = 0x1B + number
        self.part_of = part_of
        self.total, self.used = 140 * GIB, 10 * GIB
        self.busy = 37
        self.mig = False
        self.links: list[FakeLink] = []
        self.pcie_kb = {pynvml.NVML_PCIE_UTIL_TX_BYTES: 1000, pynvml.NVML_PCIE_UTIL_RX_BYTES: 2000}
        #: What every call about it fails with; None: nothing.
        self.failing: int | None = None
        #: Functions, by name, that fail on it, and with what.
        self.unsupported: dict[str, int] = {}
        #: Whether the counters of NVLink are supported: of each link, and of all together.
        self.counts = self.counts_together = True


def join(one: FakeGpu, other: FakeGpu, links: int) -> None:
    """Connect both directly."""
    one.links += [FakeLink(other) for _ in range(links)]
    other.links += [FakeLink(one) for _ in range(links)]


def switch(gpus: Sequence[FakeGpu], links: int) -> None:
    """Connect all over NVSwitches."""
    for gpu in gpus:
        gpu.links += [FakeLink(None) for _ in range(links)]


class FakeNvml:
    """In place of the module. Every call is noted by name in `calls`, with the thread it came from in `threads`."""

    def __init__(self, *gpus: FakeGpu, instances: Sequence[FakeGpu] = ()) -> None:
        self.gpus = list(gpus)
        self.instances = list(instances)
        self.absent: int | None = None  # what opening fails with
        self.level = pynvml.NVML_TOPOLOGY_SYSTEM  # of every pair that `levels` has not
        self.levels: dict[frozenset[FakeGpu], int] = {}
        self.access: dict[tuple[FakeGpu, FakeGpu, int], int] = {}  # what is not as usual
        self.opened = 0
        self.calls: list[str] = []
        self.threads: set[int] = set()
        #: Called at the beginning of every call with its name: to hang, or to change something.
        self.on_call: Callable[[str], None] = lambda name: None

    def __getattr__(self, name: str) -> Any:
        """Constants and errors. A function that is not here is one that the fake does not know."""
        if name.startswith(("NVML_", "NVMLError")):
            return getattr(pynvml, name)
        raise AttributeError(f"the fake has no {name}: add it as pynvml has it")

    # ---- the library ----

    def nvmlInit(self) -> None:
        self._note("nvmlInit")
        if self.absent is not None:
            raise pynvml.NVMLError(self.absent)
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self._note("nvmlShutdown")
        self._check_open()
        self.opened -= 1

    def nvmlDeviceGetCount(self) -> int:
        self._note("nvmlDeviceGetCount")
        self._check_open()
        return len(self.gpus)

    # ---- handles ----

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        self._note("nvmlDeviceGetHandleByIndex")
        self._check_open()
        if not 0 <= index < len(self.gpus):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return self._look("nvmlDeviceGetHandleByIndex", self.gpus[index])

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu:
        self._note("nvmlDeviceGetHandleByUUID")
        self._check_open()
        for gpu in (*self.gpus, *self.instances):
            if gpu.uuid == uuid:
                return self._look("nvmlDeviceGetHandleByUUID", gpu)
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, migDevice: FakeGpu) -> FakeGpu:
        self._use("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", migDevice)
        if migDevice.part_of is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return migDevice.part_of

    # ---- what a GPU is ----

    def nvmlDeviceGetIndex(self, handle: FakeGpu) -> int:
        self._use("nvmlDeviceGetIndex", handle)
        return self.gpus.index(handle)

    def nvmlDeviceGetUUID(self, handle: FakeGpu) -> str:
        self._use("nvmlDeviceGetUUID", handle)
        return handle.uuid

    def nvmlDeviceGetName(self, handle: FakeGpu) -> str:
        self._use("nvmlDeviceGetName", handle)
        return handle.name

    def nvmlDeviceGetPciInfo(self, handle: FakeGpu) -> Any:
        self._use("nvmlDeviceGetPciInfo", handle)
        return _pci(handle.bus)

    def nvmlDeviceGetMigMode(self, device: FakeGpu) -> list[int]:
        self._use("nvmlDeviceGetMigMode", device)
        return [int(device.mig), int(device.mig)]

    def nvmlDeviceGetMemoryInfo(self, handle: FakeGpu, version: int | None = None) -> Any:
        self._use("nvmlDeviceGetMemoryInfo", handle)
        memory = pynvml.c_nvmlMemory_t()
        memory.total, memory.used, memory.free = handle.total, handle.used, handle.total - handle.used
        return memory

    def nvmlDeviceGetUtilizationRates(self, handle: FakeGpu) -> Any:
        self._use("nvmlDeviceGetUtilizationRates", handle, of_whole=True)
        load = pynvml.c_nvmlUtilization_t()
        load.gpu, load.memory = handle.busy, 0
        return load

    def nvmlDeviceGetPcieThroughput(self, device: FakeGpu, counter: int) -> int:
        self._use("nvmlDeviceGetPcieThroughput", device, of_whole=True)
        return device.pcie_kb[counter]

    # ---- pairs ----

    def nvmlDeviceGetTopologyCommonAncestor(self, device1: FakeGpu, device2: FakeGpu) -> int:
        self._use("nvmlDeviceGetTopologyCommonAncestor", device1)
        self._use("nvmlDeviceGetTopologyCommonAncestor", device2)
        return self.levels.get(frozenset((device1, device2)), self.level)

    def nvmlDeviceGetP2PStatus(self, device1: FakeGpu, device2: FakeGpu, p2pIndex: int) -> int:
        self._use("nvmlDeviceGetP2PStatus", device1)
        self._use("nvmlDeviceGetP2PStatus", device2)
        if not isinstance(p2pIndex, int):
            raise TypeError(f"ctypes takes no {p2pIndex!r} for a c_uint")  # what becomes of NVML_P2P_CAPS_INDEX_READ
        usual = pynvml.NVML_P2P_STATUS_OK
        if p2pIndex == pynvml.NVML_P2P_CAPS_INDEX_NVLINK and not (device1.links and device2.links):
            usual = pynvml.NVML_P2P_STATUS_NOT_SUPPORTED
        return self.access.get((device1, device2, p2pIndex), usual)

    # ---- NVLink ----

    def nvmlDeviceGetNvLinkState(self, device: FakeGpu, link: int) -> int:
        return int(self._link("nvmlDeviceGetNvLinkState", device, link).up)

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: FakeGpu, link: int) -> int:
        to = self._link("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link).to
        return pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH if to is None else pynvml.NVML_NVLINK_DEVICE_TYPE_GPU

    def nvmlDeviceGetNvLinkRemotePciInfo(self, device: FakeGpu, link: int) -> Any:
        to = self._link("nvmlDeviceGetNvLinkRemotePciInfo", device, link).to
        return _pci(0xC0 + link % 4 if to is None else to.bus)

    def nvmlDeviceGetFieldValues(self, handle: FakeGpu, fieldIds: Sequence[Any]) -> Any:
        self._use("nvmlDeviceGetFieldValues", handle)
        values = (pynvml.c_nvmlFieldValue_t * len(fieldIds))()
        for value, wanted in zip(values, fieldIds, strict=True):
            value.fieldId, value.scopeId = wanted
            value.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
            sent = value.fieldId == pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX
            assert sent or value.fieldId == pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX
            links = handle.links if value.scopeId == 0xFFFFFFFF else handle.links[value.scopeId :][:1]
            counts = handle.counts_together if value.scopeId == 0xFFFFFFFF else handle.counts
            if not counts or not links or any(link.mute for link in links):
                value.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED
                continue
            value.value.ullVal = sum(link.sent_kib if sent else link.received_kib for link in links)
        return values

    # ---- how ----

    def _link(self, name: str, gpu: FakeGpu, number: int) -> FakeLink:
        self._use(name, gpu)
        if not 0 <= number < pynvml.NVML_NVLINK_MAX_LINKS:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        if not gpu.links:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        if number >= len(gpu.links):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return gpu.links[number]

    def _use(self, name: str, gpu: FakeGpu, of_whole: bool = False) -> None:
        self._note(name)
        self._check_open()
        self._look(name, gpu)
        if of_whole and (gpu.part_of is not None or gpu.mig):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def _look(self, name: str, gpu: FakeGpu) -> FakeGpu:
        if gpu.failing is not None:
            raise pynvml.NVMLError(gpu.failing)
        if name in gpu.unsupported:
            raise pynvml.NVMLError(gpu.unsupported[name])
        return gpu

    def _check_open(self) -> None:
        if not self.opened:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)

    def _note(self, name: str) -> None:
        self.calls.append(name)
        self.threads.add(threading.get_ident())
        self.on_call(name)


def _pci(bus: int) -> Any:
    info = pynvml.nvmlPciInfo_t()
    info.domain, info.bus, info.device = 0, bus, 0
    info.busId = b"00000000:%02X:00.0" % bus
    return info
