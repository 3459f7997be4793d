"""Lets SGLang's servers that compute prompts, and those that decode, run without a GPU: on the PYTHONPATH of both.

They ask for page-locked memory, and for an event of a GPU that says when the indices of pages have been copied; on a
CPU any memory will do, and indices are there when the copy returns.
"""

import functools

import torch


class _Registers:
    def cudaHostRegister(self, *_: object) -> int:
        return 0

    def cudaHostUnregister(self, *_: object) -> int:
        return 0


class _Event:
    def __init__(self, *_: object, **__: object) -> None: ...

    def record(self, *_: object) -> None: ...

    def synchronize(self) -> None: ...


_empty = torch.empty


@functools.wraps(_empty)
def _unpinned(*args: object, pin_memory: bool = False, **more: object) -> torch.Tensor:
    return _empty(*args, **more)


torch.cuda.cudart = _Registers
torch.cuda.Event = _Event
torch.cuda.current_stream = lambda *_: None
torch.empty = _unpinned
