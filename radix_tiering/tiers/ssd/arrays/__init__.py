"""Devices behind one interface, `DeviceArray`: by io_uring, by threads, slowed down, or memory in their place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....base.door import lazily

if TYPE_CHECKING:
    from .device_file import DeviceFile
    from .devices import Completion, DeviceArray, NewDevice, Operation, Request
    from .thread_array import ThreadArray
    from .throttled import ThrottledArray
    from .uring_array import UringArray
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "Completion",
    "DeviceArray",
    "DeviceFile",
    "NewDevice",
    "Operation",
    "Request",
    "ThreadArray",
    "ThrottledArray",
    "UringArray",
]
