"""How a Triton kernel is run: on a GPU compiled; over tensors in host memory by Triton's interpreter, statement by
statement in numpy, which is how kernels are tested where there is no GPU.

Only the kernels that are run here are interpreted: TRITON_INTERPRET, which turns every kernel of the process, SGLang's
too, into an interpreted one, is neither needed nor touched.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

#: Programs for each multiprocessor: with 4 warps each, half of the threads that it can hold, every one with several
#: 16-byte accesses under way. Each program takes every n-th tile, so many small pages cost no launch of their own.
PROGRAMS_PER_PROCESSOR = 8
#: Of a launch that is interpreted: few, since each costs the same, but more than one, so that tiles are shared out.
INTERPRETED_PROGRAMS = 3
#: Kernels count tiles, pieces and rows in 32 bits, with room to step past the end; their wrappers split longer lists.
COUNT_LIMIT = 2**30


@functools.cache
def interpreted(kernel: Any) -> Any:
    """`kernel`, and the kernels that it calls, to be run by Triton's interpreter."""
    if not isinstance(kernel, JITFunction):
        return kernel  # TRITON_INTERPRET is set: it is one already
    function = kernel.fn
    used = set(function.__code__.co_names) - {function.__name__}
    scope = {
        name: interpreted(value) if name in used and isinstance(value, JITFunction) else value
        for name, value in function.__globals__.items()
    }
    copy = types.FunctionType(function.__code__, scope, function.__name__, function.__defaults__)
    copy.__annotations__ = dict(function.__annotations__)
    copy.__module__, copy.__qualname__ = function.__module__, function.__qualname__
    return InterpretedFunction(copy)


@functools.cache
def _processors(index: int) -> int:
    return torch.cuda.get_device_properties(index).multi_processor_count


def programs_for(device: torch.device, tiles: int, most: int | None = None) -> int:
    """How many programs share `tiles` on `device`: as many as it holds at once, but no more than `most`."""
    if most is not None:
        tiles = min(tiles, most)
    if device.type == "cpu":
        return min(tiles, INTERPRETED_PROGRAMS)
    index = torch.cuda.current_device() if device.index is None else device.index
    return min(tiles, PROGRAMS_PER_PROCESSOR * _processors(index))


def launch(kernel: Any, device: torch.device, programs: int, *arguments: Any, **constants: Any) -> Any:
    """Run `kernel` as that many programs on the current stream of `device`; on "cpu", interpreted, and done here.

    Gives what Triton has compiled for it, or None where it is interpreted.
    """
    if is_interpreted(device):
        with np.errstate(all="ignore"):  # infinities and NaN are as silent as on a GPU
            interpreted(kernel)[(programs,)](*arguments, **constants)
        return None
    with on_device(device):
        # A product and a sum stay two roundings, as in the plain functions.
        return kernel[(programs,)](*arguments, **constants, num_warps=4, enable_fp_fusion=False)


def is_interpreted(device: torch.device) -> bool:
    """Whether kernels over memory of this device are."""
    return device.type == "cpu"


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Within it `device` is the current one."""
    return torch.cuda.device(device)


class Launcher:
    """Runs one kernel again and again. Triton finds what it has compiled for the arguments once: to look for it takes
    three quarters of what a launch does.

    Arguments are of the same types at each call, and differ only where the kernel is not specialized: what is compiled
    for the first ones is launched with all others. Any thread.
    """

    def __init__(self, kernel: Any, device: torch.device, constants: Mapping[str, Any]) -> None:
        """On `device`, with these `constants`, which are the last of the kernel's parameters."""
        self._kernel = kernel
        self._device = device
        self._constants = constants
        self._in_order: tuple[Any, ...] = ()
        self._compiled: Any = None  # what Triton has compiled

    def __call__(self, programs: int, *arguments: Any) -> None:
        """See `launch`."""
        if self._compiled is None:
            self._in_order = tuple(self._constants[name] for name in self._kernel.arg_names[len(arguments) :])
            self._compiled = launch(self._kernel, self._device, programs, *arguments, **self._constants)
            return
        with on_device(self._device):
            self._compiled[programs, 1, 1](*arguments, *self._in_order)


def cdiv(count: int, size: int) -> int:
    """How many pieces of `size` cover `count`."""
    # Triton's own function of that name is made to be compiled, and takes ten times as long to call.
    return -(-count // size)
