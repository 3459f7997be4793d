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

#: Warps of a program, unless it is told otherwise, and threads of a warp.
WARPS, WARP = 4, 32
#: Programs for each multiprocessor where it is not known what they take: half of the threads that it can hold, every
#: one with several 16-byte accesses under way. Each takes every n-th tile, so many small pages cost no launch of their
#: own.
PROGRAMS_PER_PROCESSOR = 8
#: A warp is given registers by so many for each of its threads.
_REGISTER_STEP = 8
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
def _properties(index: int) -> Any:
    return torch.cuda.get_device_properties(index)


def resident_programs(registers: int, warps: int, processor_registers: int, processor_threads: int) -> int:
    """How many programs of `warps`, whose threads have so many registers, a multiprocessor holds at once.

    One more would begin when the others are done, and its share of the tiles be computed by itself: of a kernel that
    fits 7 times, 8 programs take almost twice as long.
    """
    steps = -(-max(registers, 1) // _REGISTER_STEP) * _REGISTER_STEP
    return max(1, min(processor_registers // steps, processor_threads) // (warps * WARP))


def programs_for(device: torch.device, tiles: int, most: int | None = None, compiled: Any = None) -> int:
    """How many programs share `tiles` on `device`: as many as it holds at once, but no more than `most`. `compiled`:
    what Triton has compiled, where that is known."""
    if most is not None:
        tiles = min(tiles, most)
    if device.type == "cpu":
        return min(tiles, INTERPRETED_PROGRAMS)
    about = _properties(torch.cuda.current_device() if device.index is None else device.index)
    each = PROGRAMS_PER_PROCESSOR
    if compiled is not None:
        each = resident_programs(
            compiled.n_regs,
            compiled.metadata.num_warps,
            about.regs_per_multiprocessor,
            about.max_threads_per_multi_processor,
        )
    return min(tiles, each * about.multi_processor_count)


def launch(
    kernel: Any, device: torch.device, programs: int, *arguments: Any, warps: int = WARPS, **constants: Any
) -> Any:
    """Run `kernel` as that many programs on the current stream of `device`; on "cpu", interpreted, and done here.

    Gives what Triton has compiled for it, or None where it is interpreted.
    """
    if is_interpreted(device):
        with np.errstate(all="ignore"):  # infinities and NaN are as silent as on a GPU
            interpreted(kernel)[(programs,)](*arguments, **constants)
        return None
    with on_device(device):
        # A product and a sum stay two roundings, as in the plain functions.
        return kernel[(programs,)](*arguments, **constants, num_warps=warps, enable_fp_fusion=False)


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

    def __init__(self, kernel: Any, device: torch.device, constants: Mapping[str, Any], warps: int = WARPS) -> None:
        """On `device`, with these `constants`, which are the last of the kernel's parameters."""
        self._kernel = kernel
        self._warps = warps
        self._device = device
        self._constants = constants
        self._in_order: tuple[Any, ...] = ()
        self._compiled: Any = None  # what Triton has compiled

    def share(self, tiles: int, most: int | None = None) -> int:
        """How many programs share so many tiles; see `programs_for`."""
        return programs_for(self._device, tiles, most, self._compiled)

    def __call__(self, programs: int, *arguments: Any) -> None:
        """See `launch`."""
        if self._compiled is None:
            self._in_order = tuple(self._constants[name] for name in self._kernel.arg_names[len(arguments) :])
            self._compiled = launch(
                self._kernel, self._device, programs, *arguments, warps=self._warps, **self._constants
            )
            return
        with on_device(self._device):
            self._compiled[programs, 1, 1](*arguments, *self._in_order)


@functools.lru_cache(maxsize=64)
def _launcher(kernel: Any, device: torch.device, constants: tuple[tuple[str, Any], ...], warps: int) -> Launcher:
    return Launcher(kernel, device, dict(constants), warps)


def launcher_of(kernel: Any, device: torch.device, constants: Mapping[str, Any], warps: int = WARPS) -> Launcher:
    """The one for these, which is made once."""
    return _launcher(kernel, device, tuple(constants.items()), warps)


def cdiv(count: int, size: int) -> int:
    """How many pieces of `size` cover `count`."""
    # Triton's own function of that name is made to be compiled, and takes ten times as long to call.
    return -(-count // size)
