"""NVML, the driver's own library, as snapshots. What it does not support, or does not let us see, is None.

Without the driver's library, which is the usual case on a machine without a GPU, there is nothing to open: `NoNvml`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from .snapshots import ALLOWED, Gpu, NvLink, Reach

#: What both GPUs of a pair are below, by NVML's level.
_PCIE = {
    0: "same board", 10: "single switch", 20: "multiple switches", 30: "host bridge", 40: "node", 50: "system",
}  # fmt: skip
#: NVML's word on peer access, by status; one that is not known is empty.
_P2P = {
    0: ALLOWED, 1: "chipset not supported", 2: "GPU not supported", 3: "PCIe topology not supported",
    4: "switched off in the driver", 5: "not supported",
}  # fmt: skip
#: Not by name: the binding has a comma too many behind the first of its constants, which makes it a tuple.
_READ, _WRITE, _NVLINK = 0, 1, 2
#: In place of the number of one NVLink.
_ALL_LINKS = 0xFFFFFFFF
#: NVLink's counters are in KiB. Of PCIe's throughput NVML says KB, which it does not say of KiB elsewhere.
_KIB, _KB = 1024, 1000

Answer = TypeVar("Answer")


class NoNvml(Exception):
    """There is no driver to ask; says why."""


class GpuLost(Exception):
    """The GPU, or the driver, does not answer any more; says why. NVML has to be opened anew."""


class _Device(NamedTuple):
    handle: Any
    whole: Any  # the GPU: of a MIG instance, the one that it is part of
    is_instance: bool


class Nvml:
    """The library, opened. One thread at a time; a call may take as long as the driver likes."""

    def __init__(self, library: Any = None) -> None:
        """`library`: the module `pynvml`, or what has its functions. Raises NoNvml."""
        self._nvml = _binding() if library is None else library
        self._error: type[Exception] = self._nvml.NVMLError
        self._gone = {
            getattr(self._nvml, f"NVML_ERROR_{name}")
            for name in ("GPU_IS_LOST", "RESET_REQUIRED", "UNINITIALIZED", "DRIVER_NOT_LOADED")
        }
        self._devices: dict[str, _Device] = {}  # by uuid
        try:
            self._nvml.nvmlInit()
        except self._error as error:
            absent = self._nvml.NVML_ERROR_LIBRARY_NOT_FOUND, self._nvml.NVML_ERROR_DRIVER_NOT_LOADED
            raise NoNvml("no NVIDIA driver here" if _code(error) in absent else f"NVML: {error}") from None

    def close(self) -> None:
        try:
            self._nvml.nvmlShutdown()
        except self._error:
            pass  # a driver that is gone has nothing to be shut down

    def __enter__(self) -> Nvml:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # ---- GPUs ----

    def gpus(self) -> tuple[Gpu, ...]:
        """All that this process may see, by index; of a lost one, only that it is lost. In a container, those that it
        was given. CUDA_VISIBLE_DEVICES means nothing to NVML. Raises GpuLost if the driver is gone as a whole."""
        count = self._ask(self._nvml.nvmlDeviceGetCount) or 0
        return tuple(self._numbered(index) for index in range(count))

    def gpu(self, uuid: str) -> Gpu:
        """One GPU or MIG instance. Raises GpuLost, also where there is none of this name."""
        device = self._find(uuid)
        memory = self._ask(self._nvml.nvmlDeviceGetMemoryInfo, device.handle)
        load = self._ask(self._nvml.nvmlDeviceGetUtilizationRates, device.handle)
        mode = self._ask(self._nvml.nvmlDeviceGetMigMode, device.whole)
        return Gpu(
            index=self._ask(self._nvml.nvmlDeviceGetIndex, device.whole),
            uuid=uuid,
            name=self._ask(self._nvml.nvmlDeviceGetName, device.handle) or "",
            pci=_address(self._ask(self._nvml.nvmlDeviceGetPciInfo, device.whole)),
            mig=device.is_instance or (None if mode is None else mode[0] == self._nvml.NVML_DEVICE_MIG_ENABLE),
            memory_total_bytes=None if memory is None else int(memory.total),
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_free_bytes=None if memory is None else int(memory.free),
            busy_share=None if load is None else load.gpu / 100,
        )

    def _numbered(self, index: int) -> Gpu:
        uuid = ""
        try:
            handle = self._ask(self._nvml.nvmlDeviceGetHandleByIndex, index)
            uuid = (handle and self._ask(self._nvml.nvmlDeviceGetUUID, handle)) or ""
            if not uuid:
                return Gpu(index=index, uuid="", trouble="NVML does not say what it is")
            self._devices[uuid] = _Device(handle, handle, False)
            return self.gpu(uuid)
        except GpuLost as error:
            return Gpu(index=index, uuid=uuid, trouble=str(error))

    def _find(self, uuid: str) -> _Device:
        device = self._devices.get(uuid)
        if device is None:
            handle = self._ask(self._nvml.nvmlDeviceGetHandleByUUID, uuid)
            if handle is None:
                raise GpuLost("NVML does not know it")
            whole = None
            if uuid.startswith("MIG-"):
                whole = self._ask(self._nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle)
            device = self._devices[uuid] = _Device(handle, whole or handle, whole is not None)
        return device

    # ---- ways ----

    def reaches(self, gpus: tuple[Gpu, ...], of: str | None = None) -> tuple[Reach, ...]:
        """How these GPUs reach each other, each pair once; or one of them all others. Lost ones and MIG instances,
        which reach nobody, are left out. Raises GpuLost."""
        links = {gpu.uuid: self._ends(gpu.uuid) for gpu in gpus if not gpu.trouble and not gpu.mig}
        pairs = combinations([gpu for gpu in gpus if gpu.uuid in links], 2)
        return tuple(
            self._reach(one, other, links[one.uuid], links[other.uuid])
            for one, other in pairs
            if of in (None, one.uuid, other.uuid)
        )

    def _reach(self, one: Gpu, other: Gpu, links: list[NvLink] | None, back: list[NvLink] | None) -> Reach:
        here, there = self._find(one.uuid).handle, self._find(other.uuid).handle
        level = self._ask(self._nvml.nvmlDeviceGetTopologyCommonAncestor, here, there)
        read, write, nvlink = (self._access(here, there, what) for what in (_READ, _WRITE, _NVLINK))
        count, switched = _between(one, other, links, back, nvlink)
        return Reach(
            one=one.uuid,
            other=other.uuid,
            nvlinks=count,
            switched=switched,
            pcie="" if level is None else _PCIE.get(level, ""),
            read=read,
            write=write,
            nvlink=nvlink,
        )

    def _access(self, here: Any, there: Any, what: int) -> str:
        """Of both directions, the worse."""
        asked = [
            self._ask(self._nvml.nvmlDeviceGetP2PStatus, *pair, what) for pair in ((here, there), (there, here))
        ]  # fmt: skip
        said = ["" if status is None else _P2P.get(status, "") for status in asked]
        return next((word for word in said if word not in ("", ALLOWED)), min(said))

    def _ends(self, uuid: str) -> list[NvLink] | None:
        """The NVLinks of a GPU, without their counters; None where it has none, or does not say."""
        handle, links = self._find(uuid).handle, []
        for number in range(self._nvml.NVML_NVLINK_MAX_LINKS):
            state = self._ask(self._nvml.nvmlDeviceGetNvLinkState, handle, number)
            if state is None:
                continue
            kind = self._ask(self._nvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, number) if state else None
            links.append(
                NvLink(
                    number=number,
                    active=bool(state),
                    switch=kind == self._nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH,
                    remote=_address(self._ask(self._nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, number)),
                )
            )
        return links or None

    # ---- counters ----

    def links(self, uuid: str) -> tuple[NvLink, ...] | None:
        """The NVLinks of a GPU with their counters; None where it has none, or does not say. Raises GpuLost."""
        links = self._ends(uuid)
        if links is None:
            return None
        counters = self._counters(uuid, [link.number for link in links])
        return tuple(
            NvLink(
                number=link.number,
                active=link.active,
                remote=link.remote,
                switch=link.switch,
                sent_bytes=sent,
                received_bytes=received,
            )
            for link, (sent, received) in zip(links, counters, strict=True)
        )

    def links_together(self, uuid: str) -> NvLink:
        """The sum over all NVLinks of a GPU, as one: for a driver that does not count each. Raises GpuLost."""
        ((sent, received),) = self._counters(uuid, [_ALL_LINKS])
        return NvLink(number=_ALL_LINKS, active=True, sent_bytes=sent, received_bytes=received)

    def _counters(self, uuid: str, numbers: Sequence[int]) -> list[tuple[int | None, int | None]]:
        """Bytes that have been sent and received over each of these links."""
        sent, received = (
            self._nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, self._nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX,
        )  # fmt: skip
        fields = [(field, number) for number in numbers for field in (sent, received)]
        values = self._ask(self._nvml.nvmlDeviceGetFieldValues, self._find(uuid).handle, fields)
        said = [None] * len(fields) if values is None else [self._counter(value) for value in values]
        return list(zip(said[::2], said[1::2], strict=True))

    def pcie_rates(self, uuid: str) -> tuple[int | None, int | None]:
        """Bytes per second that the GPU sends and receives over PCIe. Each takes NVML 20 ms, in which it counts."""
        handle = self._find(uuid).handle
        kinds = self._nvml.NVML_PCIE_UTIL_TX_BYTES, self._nvml.NVML_PCIE_UTIL_RX_BYTES
        sent, received = (self._ask(self._nvml.nvmlDeviceGetPcieThroughput, handle, kind) for kind in kinds)
        return None if sent is None else sent * _KB, None if received is None else received * _KB

    def _counter(self, value: Any) -> int | None:
        """Bytes, of a counter in KiB. Each value has a fate of its own."""
        if value.nvmlReturn != self._nvml.NVML_SUCCESS:
            return None
        kinds = {
            self._nvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
            self._nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
            self._nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
            self._nvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
        }
        field = kinds.get(value.valueType)
        return None if field is None else int(getattr(value.value, field)) * _KIB

    def _ask(self, call: Callable[..., Answer], *arguments: Any) -> Answer | None:
        """What NVML answers; None where it says that it cannot. Raises GpuLost where it never will again."""
        try:
            return call(*arguments)
        except self._error as error:
            if _code(error) in self._gone:
                self._devices.clear()
                raise GpuLost(str(error)) from None
            return None


def _between(
    one: Gpu, other: Gpu, links: list[NvLink] | None, back: list[NvLink] | None, access: str
) -> tuple[int | None, bool]:
    """Active NVLinks between two GPUs, and whether they go over NVSwitches. One that only one side calls active does
    not count."""
    if links is None or back is None:
        return (0 if access not in ("", ALLOWED) else None), False
    up, down = [link for link in links if link.active], [link for link in back if link.active]
    if one.pci and other.pci:
        direct = min(sum(link.remote == other.pci for link in up), sum(link.remote == one.pci for link in down))
        if direct:
            return direct, False
    switched = min(sum(link.switch for link in up), sum(link.switch for link in down))
    if not switched:
        return 0, False
    # Whether the switches let both reach each other, nobody but the driver knows.
    return {ALLOWED: switched, "": None}.get(access, 0), access == ALLOWED


def _address(info: Any) -> str:
    """As the kernel writes it. From the numbers: the text differs in length from call to call."""
    return "" if info is None else f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0"


def _code(error: Exception) -> int:
    code: int = getattr(error, "value", -1)
    return code


def _binding() -> Any:
    try:
        import pynvml
    except ImportError:
        raise NoNvml("the package nvidia-ml-py is not installed") from None
    return pynvml
